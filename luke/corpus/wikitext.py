"""Wikitext -> paragraphs with links, as a reader of the page sees them.

Three steps. `_cut` removes from the whole page what is not running text (comments, templates, tables, references, formulas,
files) and the tags around what is; of the templates that have a rule (`template_rules`), their words stay.
`_separate_blocks` finds headings and list items. `_parse_block` reads the links of one block: by one expression where no
brackets are nested, as in nearly every block, else with mwparserfromhell, which is let see only brackets that have a
partner: it goes back over the text once for each that has none.
"""

import html
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import mwparserfromhell
from mwparserfromhell import nodes

from luke.corpus.page_store import Link, Paragraph
from luke.corpus.template_rules import Arguments, Rule, Rules, apply_rule, find_rule, format_number, load_rules, normal_name

# Names that every wiki understands beside its own (MediaWiki's canonical namespaces).
_CANONICAL = {
    -2: "Media", -1: "Special", 1: "Talk", 2: "User", 3: "User talk", 4: "Project", 5: "Project talk", 6: "File",
    7: "File talk", 8: "MediaWiki", 9: "MediaWiki talk", 10: "Template", 11: "Template talk", 12: "Help", 13: "Help talk",
    14: "Category", 15: "Category talk", 100: "Portal", 118: "Draft", 828: "Module",
}  # fmt: skip
_FILE_NAMES, _CATEGORY_NAMES = (-2, 6), (14,)
# What a prefix may name beside a namespace.
_ANOTHER_LANGUAGE, _ANOTHER_PROJECT = -99, -98

# Elements that are not running text, with what they hold.
_CUT_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|syntaxhighlight|source|score|hiero|imagemap|graph|mapframe|maplink|"
    "templatestyles|templatedata|inputbox|style|script|includeonly|categorytree|indicator"
)
_VERBATIM_TAGS = "nowiki|pre"
# Tags whose text stays; those of the second list begin and end a block.
_INLINE_TAGS = (
    "abbr|b|bdi|bdo|big|br|cite|code|data|del|dfn|em|font|i|ins|kbd|link|mark|meta|noinclude|onlyinclude|q|rb|rbc|rp|rt|rtc|"
    "ruby|s|samp|section|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_BLOCK_TAGS = "blockquote|center|dd|div|dl|dt|h[1-6]|hr|li|ol|p|poem|ul"
_ELEMENT = re.compile(rf"<!--|<({_CUT_TAGS}|{_VERBATIM_TAGS})(?![\w-])[^<>]*>", re.I)
_LINE_BREAK = re.compile(r"<br(?![\w-])[^<>]*>", re.I)
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE_TAGS})(?![\w-])[^<>]*>", re.I)
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCK_TAGS})(?![\w-])[^<>]*>", re.I)
_TABLE_START = re.compile(r"<table(?![\w-])[^<>]*>", re.I)
_TABLE_END = re.compile(r"</table\s*>", re.I)

_BRACES = re.compile(r"\{\{|\}\}|\{\||\|\}(?!\})")
_LINE_END = re.compile(r" *\n")
# Of three closing brackets the first is a single one's.
_BRACKETS = re.compile(r"\[\[|\]\](?!\](?!\]))")
_BRACKET = re.compile(r"[\[\]]")
_SWITCH = re.compile(r"__(?:[^\W_]+_)*[^\W_]+__")
_QUOTES = re.compile(r"''(?:'(?:'')?)?")  # two, three or five; its literal start makes it fast
_HEADING = re.compile(r"^(={1,6})(.+)\1[ \t]*$", re.M)
_LIST_ITEM = re.compile(r"^([*#:;]+)[ \t]*(.*)$", re.M)
# Behind a term, what its definition starts with; `_separate_blocks` leaves colons inside brackets alone.
_DEFINITION = re.compile(r"\[\[|\]\]|[ \t]+:[ \t]*|:[ \t]+")
_BLANK = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_RULE = re.compile(r"^-{4,}", re.M)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# A link within the wiki: title, text; a link to elsewhere: text.
_PROTOCOL = r"(?:(?:(?:https?|ftps?|ircs?|git|svn)://|mailto:|news:)|//)"
_PLAIN_LINK = re.compile(
    rf"\[\[(?!{_PROTOCOL})([^\[\]|\n]*)(?:\|([^\[\]]*))?\]\]|\[{_PROTOCOL}[^\s\[\]\"]++[ \t]*([^\[\]\n]*)\]"
)
_PIPE_TRICK = re.compile(r"^(?:[^:]*:)?(.*?)(?:\s*\([^()]*\)|,.*)?$")
_NOT_IN_TITLES = re.compile(r"[\[\]{}|<>\n\ufffd]")
_ESCAPES = str.maketrans({character: f"&#{ord(character)};" for character in "[]{}<>'|&=*#:;-_~\n"})
_ANGLE_BRACKETS = str.maketrans({"<": "&lt;", "{": "&#123;", "}": "&#125;"})
# Characters that no XML may hold: the start of a heading; markup cut behind a link, which ends what can be of its anchor.
_HEADING_MARK, _TRAIL_STOP = "\x02", "\x03"
_DEEPEST_LINK = 4
_DEEPEST_TEMPLATE = 8
_TEMPLATE_PARTS = re.compile(r"\[\[|\]\]|\{\{|\}\}|\|")
_ARGUMENT_NAME = re.compile(r"\s*([^=\[\]{}]*?)\s*=")
# A parameter, which a page has only where it is also used as a template: its name, what is shown in its place.
_PARAMETER = re.compile(r"\{\{\{(?<!\{\{\{\{)([^{}|\n]*)(?:\|([^{}]*))?\}\}\}(?!\})")
_PAGE_NAMES = frozenset({"pagename", "fullpagename", "basepagename", "subpagename", "rootpagename"})
_FUNCTIONS: dict[str, Callable[[str], str]] = {
    "formatnum": str,  # by the wiki's language
    "lc": str.lower,
    "uc": str.upper,
    "lcfirst": lambda text: text[:1].lower() + text[1:],
    "ucfirst": lambda text: text[:1].upper() + text[1:],
}
# Text in the forms of several variants of a language: -{zh-hans:…;zh-hant:…}-, -{text}-, -{flags|text}-.
_VARIANTS = re.compile(r"-\{(?!\{)((?:[^{}]|\{\{[^{}]*\}\})*)\}-")
_HIDING_FLAGS = frozenset("HT-")
_DEEPEST_VARIANT = 3
# Marks of the direction of text, which no title has.
_DIRECTION_MARKS = dict.fromkeys([0x200E, 0x200F, *range(0x202A, 0x202F)])
# The capitals of these Georgian letters begin no word, nor a title.
_GEORGIAN = range(0x10D0, 0x1100)


class _Sites(NamedTuple):
    """Language codes of the Wikipedias, prefixes of other projects, and what MediaWiki's language files say: the letters
    that may follow a link without a space and still belong to its anchor (``$linkTrail``; none in "", a to z where nothing
    is said), further names of namespaces (language -> number -> names), what begins a redirect, and the variants that a
    language is written in, the first as its pages are stored."""

    languages: frozenset[str]
    projects: frozenset[str]
    link_trails: dict[str, str]
    namespaces: dict[str, dict[str, list[str]]]
    redirect_words: dict[str, list[str]]
    variants: dict[str, list[str]]


@cache
def _sites() -> _Sites:
    data = json.loads(Path(__file__).with_name("wikipedia_sites.json").read_text(encoding="utf-8"))
    return _Sites(**data | {name: frozenset(data[name]) for name in ("languages", "projects")})


@dataclass
class Site:
    """What of a wiki decides how its text is read.

    Attributes:
        language: Its language code.
        namespaces: Number -> the wiki's own name; 0 is "".
        first_letter: Titles begin with a capital letter (``case`` of the siteinfo).
        template_rules: Which templates leave what words; None: as `load_rules` has them for the language.
    """

    language: str = "en"
    namespaces: dict[int, str] = field(default_factory=dict)
    first_letter: bool = True
    template_rules: Rules | None = None

    @cached_property
    def namespace_of(self) -> dict[str, int]:
        """Lower-case name -> number: MediaWiki's canonical names, those of its language and those of the siteinfo."""
        names = {name: number for number, name in _CANONICAL.items()} | {"Image": 6, "WP": 4}
        names |= {name: int(key) for key, own in _sites().namespaces.get(self.language, {}).items() for name in own}
        names |= {name: number for number, name in self.namespaces.items() if name}
        return {name.lower().replace("_", " "): number for name, number in names.items()}

    @cached_property
    def rules(self) -> Rules:
        """The rules for its templates."""
        return load_rules(self.language) if self.template_rules is None else self.template_rules

    @cached_property
    def rule_for(self) -> Callable[[str], tuple[str, Rule | None]]:
        """A template's name as it is written -> its normal name and its rule."""

        @lru_cache(1 << 16)
        def look_up(written: str) -> tuple[str, Rule | None]:
            name = normal_name(written)
            return name, find_rule(self.rules, name)

        return look_up

    @cached_property
    def variants(self) -> list[str]:
        """The variants that its language is written in, the one to be read first; mostly none."""
        return _sites().variants.get(self.language, [])

    @cached_property
    def _redirect(self) -> re.Pattern[str]:
        words = ["#REDIRECT", *_sites().redirect_words.get(self.language, [])]
        return re.compile(rf"\s*(?:{'|'.join(map(re.escape, words))})\s*:?\s*\[\[([^\[\]|]+)", re.I)

    def redirect_target(self, text: str) -> str | None:
        """The title that a page with this wikitext redirects to, as it is written there; None for an article."""
        match = self._redirect.match(text)
        return match[1] if match else None

    @cached_property
    def _files(self) -> re.Pattern[str]:
        return self._opening(_FILE_NAMES)

    @cached_property
    def _categories(self) -> re.Pattern[str]:
        return re.compile(self._opening(_CATEGORY_NAMES).pattern + r"[^\[\]]*\]\][ \t]*\n?", re.I)

    def _opening(self, numbers: tuple[int, ...]) -> re.Pattern[str]:
        names = [re.escape(name).replace(r"\ ", "[ _]") for name, number in self.namespace_of.items() if number in numbers]
        return re.compile(rf"\[\[\s*(?:{'|'.join(names)})\s*:", re.I)

    @cached_property
    def trail(self) -> re.Pattern[str]:
        """What of the text behind a link belongs to its anchor."""
        letters = _sites().link_trails.get(self.language, "a-z")
        return re.compile(f"[{letters}]+" if letters else "(?!)")

    def normalize_title(self, title: str) -> str:
        """The title of a page as the dump has it; "" for a link to a section of the same page, and for what can be no
        title."""
        if "&" in title:
            title = _unescape(title)
        if "%" in title:
            title = unquote(title)
        if not title.isascii():
            title = title.translate(_DIRECTION_MARKS)
        title = " ".join(title.partition("#")[0].replace("_", " ").split())
        title = title.removeprefix(":").strip()
        if _NOT_IN_TITLES.search(title):
            return ""
        return self._capitalize(title) if self.first_letter else title

    def _capitalize(self, title: str) -> str:
        first = title[:1].upper()
        # MediaWiki leaves letters whose capital is more than one ("ß").
        return title if len(first) != 1 or ord(title[0]) in _GEORGIAN else first + title[1:]

    def prefix_of(self, title: str) -> int | None:
        """The namespace that a title's prefix names, `_ANOTHER_LANGUAGE`, `_ANOTHER_PROJECT`, or None."""
        prefix, colon, _ = title.partition(":")
        if not colon:
            return None
        prefix = prefix.strip().lower().replace("_", " ")
        if prefix in self.namespace_of:
            return self.namespace_of[prefix]
        if prefix in _sites().languages:
            return _ANOTHER_LANGUAGE
        return _ANOTHER_PROJECT if prefix in _sites().projects else None

    def without_own_prefix(self, title: str) -> str:
        """``en:Cat`` is ``Cat`` in the English Wikipedia."""
        prefix, colon, rest = title.partition(":")
        return rest.strip() if colon and prefix.strip().lower() == self.language else title


def _unescape(text: str) -> str:
    """HTML entities as characters; unlike `html.unescape`, only with their semicolon, as in MediaWiki."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), text)


def parse_wikitext(text: str, site: Site, title: str = "") -> list[Paragraph]:
    """The paragraphs of a page; headings and list items are paragraphs of their own. ``title`` is what ``{{PAGENAME}}``
    shows."""
    text = _separate_blocks(_cut(text, site, title))
    paragraphs: list[Paragraph] = []
    abstract = True
    for block in _BLANK.split(text):
        block = block.strip("\n")
        if block.startswith(_HEADING_MARK):
            abstract, block = False, block[len(_HEADING_MARK) :]
        paragraph = _parse_block(block, abstract, site)
        if paragraph.text:
            paragraphs.append(paragraph)
    return paragraphs


# Step 1: the whole page


def _cut(text: str, site: Site, title: str) -> str:
    text = text.replace("\r\n", "\n").replace(_HEADING_MARK, "").replace(_TRAIL_STOP, "")
    if "<" in text:
        text = _cut_tags(_cut_elements(text))
    text = _PARAMETER.sub(_fill_parameter, text)
    if site.variants:
        text = _choose_variants(text, site)
    text = _TemplateReader(site, title).read(text)
    text = _cut_files(text, site)
    text = site._categories.sub("", text)
    text = _QUOTES.sub(_behind_link, _SWITCH.sub(_cut_switch, _RULE.sub("", text)))
    return text.translate(_ANGLE_BRACKETS) if any(character in text for character in "<{}") else text


def _cut_elements(text: str) -> str:
    """Cuts comments and elements that are not running text, with what they hold, and makes text of what is verbatim. A tag
    that is never closed is text."""
    kept, place, search = [], 0, 0
    endings: dict[str, re.Pattern[str]] = {}
    while (opening := _ELEMENT.search(text, search)) is not None:
        search = opening.end()
        name = (opening[1] or "").lower()
        if not name:
            end = text.find("-->", search)
            start, end = _with_its_line(text, opening.start(), len(text) if end < 0 else end + 3)
            kept.append(text[place:start])
            place = search = end
            continue
        inner = ""
        if not opening[0].endswith("/>"):
            if name in endings and endings[name] is _NEVER:
                continue
            closing = endings.setdefault(name, re.compile(rf"</{name}\s*>", re.I)).search(text, search)
            if closing is None:
                endings[name] = _NEVER  # nor will it be for the next of its name: this keeps the pass linear
                continue
            inner, search = text[search : closing.start()], closing.end()
        kept.append(_up_to(text, place, opening.start()))
        place = search
        if name in ("nowiki", "pre"):
            kept.append(_unescape(inner).translate(_ESCAPES))
    return "".join(kept) + text[place:]


_NEVER = re.compile(r"(?!)")


def _with_its_line(text: str, start: int, end: int) -> tuple[int, int]:
    """A comment's place; if it is all that its line holds, that line's, which would else be a blank one."""
    line = text.rfind("\n", 0, start) + 1
    following = _LINE_END.match(text, end)
    alone = line and following is not None and not text[line:start].strip(" ")
    return (line, following.end()) if alone and following is not None else (start, end)


def _cut_tags(text: str) -> str:
    text = _TABLE_END.sub("\n|}\n", _TABLE_START.sub("\n{|\n", text))
    text = _LINE_BREAK.sub(" ", text)
    return _BLOCK_TAG.sub("\n\n", _INLINE_TAG.sub(_behind_link, text))


def _up_to(text: str, start: int, end: int) -> str:
    """``text[start:end]``, marked where what is cut after it stood behind a link."""
    return text[start:end] + _TRAIL_STOP if text.endswith("]]", start, end) else text[start:end]


def _behind_link(match: re.Match[str]) -> str:
    return _TRAIL_STOP if match.string.endswith("]]", 0, match.start()) else ""


def _cut_switch(match: re.Match[str]) -> str:
    """Of what stands between underscores, ``__TOC__`` and ``__目次__`` are switches; ``__init__`` is text."""
    return "" if match[0] == match[0].upper() else match[0]


def _fill_parameter(match: re.Match[str]) -> str:
    return match[2] if match[2] is not None else match[0].translate(_ESCAPES)


def _choose_variants(text: str, site: Site) -> str:
    for _ in range(_DEEPEST_VARIANT):
        if "-{" not in text:
            break
        text = _VARIANTS.sub(lambda match: _chosen_variant(match[1], site.variants), text)
    return text


def _chosen_variant(inside: str, variants: list[str]) -> str:
    flags, bar, rest = inside.partition("|")
    if bar and "[[" not in flags and "{{" not in flags:
        names = {flag.strip() for flag in flags.split(";")}
        if names & _HIDING_FLAGS:
            return ""
        inside = rest
        if "R" in names:
            return inside
    forms = {}
    for form in inside.split(";"):
        name, colon, words = form.partition(":")
        if colon and name.strip().lower() in variants:
            forms[name.strip().lower()] = words.strip()
    return next((forms[name] for name in variants if name in forms), inside)


class _TemplateReader:
    """Cuts templates and tables, whatever their nesting, but for the words of those templates that have a rule."""

    def __init__(self, site: Site, title: str) -> None:
        self.site, self.title = site, title

    def read(self, text: str, depth: int = 0) -> str:
        """``text`` without them."""
        kept, place = [], 0
        for begin, end in _spans_of_braces(text):
            kept.append(_up_to(text, place, begin))
            if text.startswith("{{", begin):
                kept.append(self._expand(text[begin:end], depth))
            place = end
        return "".join(kept) + text[place:]

    def _expand(self, template: str, depth: int) -> str:
        written, bar, arguments = template[2:-2].partition("|")
        name, rule = self.site.rule_for(written)
        if rule is None:
            words = self._magic(name, written, arguments, depth) if ":" in name or name in _PAGE_NAMES else ""
        elif depth < _DEEPEST_TEMPLATE:
            values = self._arguments(arguments, depth) if bar else {}
            words = apply_rule(rule, Arguments(name, values, self.site.language))
        else:
            words = ""
        return words + _TRAIL_STOP if words.endswith("]]") else words

    def _magic(self, name: str, written: str, arguments: str, depth: int) -> str:
        """The page's name, and what functions like ``{{formatnum:1234}}`` make of their text."""
        if name in _PAGE_NAMES:
            return self.title
        function = name.partition(":")[0]
        if depth >= _DEEPEST_TEMPLATE or function not in _FUNCTIONS:
            return ""
        text = self.read(written.partition(":")[2].strip(), depth + 1)
        if function != "formatnum":
            return _FUNCTIONS[function](text)
        plain = arguments.strip().lower() in ("r", "nosep")
        return text.replace(",", "") if plain else format_number(text, self.site.language)

    def _arguments(self, text: str, depth: int) -> dict[str, str]:
        """``a|b=c`` -> ``{"1": "a", "b": "c"}``."""
        values: dict[str, str] = {}
        number = 0
        for part in _split_arguments(text):
            name = _ARGUMENT_NAME.match(part) if "=" in part else None
            if name is None:
                number += 1
                key, value = str(number), part
            else:
                key, value = name[1], part[name.end() :]
            value = value.strip()
            values[key] = self.read(value, depth + 1) if "{" in value else value
        return values


def _split_arguments(text: str) -> list[str]:
    """Splits at the bars that are in no link and no template inside."""
    if "[[" not in text and "{{" not in text:
        return text.split("|")
    parts, place, depth = list[str](), 0, 0
    for match in _TEMPLATE_PARTS.finditer(text):
        if match[0] != "|":
            depth = max(depth + (1 if match[0] in ("[[", "{{") else -1), 0)
        elif depth == 0:
            parts.append(text[place : match.start()])
            place = match.end()
    return [*parts, text[place:]]


def _spans_of_braces(text: str) -> list[tuple[int, int]]:
    """Where the outermost templates and tables are. An unclosed template's braces are text; an unclosed table runs to the
    end of the page."""
    open_: list[tuple[str, int]] = []
    number_open = {"{{": 0, "{|": 0}
    spans: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        token = match[0]
        if "|" in token and not _begins_line(text, match.start(), " \t:*" if token == "{|" else " \t"):
            continue  # no table's: an empty argument, a parameter
        if token in number_open:
            open_.append((token, match.start()))
            number_open[token] += 1
            continue
        wanted = "{{" if token == "}}" else "{|"
        if not number_open[wanted] or (wanted == "{|" and open_[-1][0] != wanted):
            continue  # nothing to close, or a table's end inside a template
        while True:  # what was opened inside and not closed ends here too
            kind, begin = open_.pop()
            number_open[kind] -= 1
            if kind == wanted:
                break
        spans.append((begin, match.end()))
    spans += [(begin, len(text)) for kind, begin in open_ if kind == "{|"]
    outermost: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if not outermost or begin >= outermost[-1][1]:
            outermost.append((begin, end))
    return outermost


def _begins_line(text: str, place: int, but_for: str) -> bool:
    return not text[text.rfind("\n", 0, place) + 1 : place].strip(but_for)


def _cut_files(text: str, site: Site) -> str:
    """Cuts links to files with their captions, which may hold links; of one never closed, the rest of its line."""
    kept, place = [], 0
    ends: dict[int, int] | None = None
    while (match := site._files.search(text, place)) is not None:
        end = _partner(text, match.start()) if ends is None else ends.get(match.start())
        if end is None:
            ends = ends or dict(_pairs(text))  # there may be many: this keeps the pass linear
            line_end = text.find("\n", match.end())
            end = len(text) if line_end < 0 else line_end
        kept.append(text[place : match.start()])
        place = end
    return "".join(kept) + text[place:] if kept else text


def _partner(text: str, start: int) -> int | None:
    """Where the link that starts at ``start`` ends, if it does."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start):
        depth += 1 if bracket[0] == "[[" else -1
        if not depth:
            return bracket.end()
    return None


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Where each ``[[…]]`` starts and ends."""
    stack: list[int] = []
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] == "[[":
            stack.append(bracket.start())
        elif stack:
            yield stack.pop(), bracket.end()


# Step 2: blocks


def _separate_blocks(text: str) -> str:
    text = _HEADING.sub(lambda match: f"\n\n{_HEADING_MARK}{match[2].strip()}\n\n", text)
    return _LIST_ITEM.sub(lambda match: f"\n\n{_part_definition(*match.groups())}\n\n", text)


def _part_definition(marks: str, item: str) -> str:
    """``; term : definition`` is two items."""
    if not marks.endswith(";") or ":" not in item:
        return item
    depth = 0
    for match in _DEFINITION.finditer(item):
        if ":" not in match[0]:
            depth = max(depth + (1 if match[0] == "[[" else -1), 0)
        elif depth == 0:
            return f"{item[: match.start()]}\n\n{item[match.end() :]}"
    return item


# Step 3: the links of a block


def _parse_block(block: str, abstract: bool, site: Site) -> Paragraph:
    builder = _ParagraphBuilder(site)
    if "[" not in block:
        builder.text(block)
    elif not _BRACKET.search(_PLAIN_LINK.sub("", block)):
        builder.add_plain(block)
    else:
        builder.add(mwparserfromhell.parse(_escape_unmatched(block), skip_style_tags=True))
    return builder.paragraph(abstract)


_BRACKET_RUN = re.compile(r"\[\[|\[|\]+")
# What can be a link, and mwparserfromhell is let see.
_LINK_START = re.compile(rf"\[\[(?!\[)|\[{_PROTOCOL}")


class _Bracket(NamedTuple):
    start: int
    text: str


def _escape_unmatched(block: str) -> str:
    """Brackets without a partner in their line, of no link, or nested deeper than any page has them, become text."""
    brackets, stack, matched = list[_Bracket](), list[int](), set[int]()
    for run in _BRACKET_RUN.finditer(block):
        if run[0].startswith("["):
            stack.append(len(brackets))
            brackets.append(_Bracket(run.start(), run[0]))
            continue
        place = run.start()
        while place < run.end():
            # Of three closing brackets the first one, or the first two, close what was opened last.
            innermost = brackets[stack[-1]].text if stack else ""
            text = "]" if innermost == "[" or place + 1 == run.end() else "]]"
            if len(text) == len(innermost):
                opening = stack.pop()
                if len(stack) < _DEEPEST_LINK and _LINK_START.match(block, brackets[opening].start):
                    matched |= {opening, len(brackets)}
            brackets.append(_Bracket(place, text))
            place += len(text)
    kept, place = [], 0
    for number, bracket in enumerate(brackets):
        if number not in matched:
            kept += [block[place : bracket.start], bracket.text.translate(_ESCAPES)]
            place = bracket.start + len(bracket.text)
    return "".join(kept) + block[place:]


class _ParagraphBuilder:
    """Collects visible text and the links in it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.parts: list[str] = []
        self.length = 0
        self.links: list[Link] = []
        self._open: tuple[str, int] | None = None  # a link whose trail may follow

    def paragraph(self, abstract: bool) -> Paragraph:
        """Without outer white space; line breaks are spaces."""
        self._close_link()
        text = "".join(self.parts).replace("\n", " ")
        stripped = text.strip()
        shift = len(text) - len(text.lstrip())
        links = []
        for link in self.links:
            start, end = max(link.start - shift, 0), min(link.end - shift, len(stripped))
            if start < end:
                links.append(Link(link.title, start, end))
        return Paragraph(stripped, abstract, links)

    def add_plain(self, block: str) -> None:
        """Adds a block whose brackets are all `_PLAIN_LINK`."""
        place = 0
        for match in _PLAIN_LINK.finditer(block):
            if place < match.start():
                self.text(block[place : match.start()])
            place = match.end()
            title, label, outside = match.groups()
            if title is not None:
                self._link(title, None if label is None else _unescape(label))
            else:
                self._close_link()
                self._append(_unescape(outside or ""))
        self.text(block[place:])

    def add(self, code: mwparserfromhell.wikicode.Wikicode) -> None:
        """Adds the visible text of parsed wikitext."""
        for node in code.nodes:
            if isinstance(node, nodes.Wikilink):
                self._link(str(node.title), None if node.text is None else self._visible(node.text))
            elif isinstance(node, nodes.ExternalLink):
                self._external_link(node)
            else:  # text, entities; `_cut` has left no other markup
                self.text(str(node))

    def _external_link(self, node: nodes.ExternalLink) -> None:
        if not node.brackets:
            self.text(str(node.url))
        else:
            self._close_link()
            if node.title is not None:
                self.add(node.title)

    def _visible(self, code: mwparserfromhell.wikicode.Wikicode) -> str:
        inner = _ParagraphBuilder(self.site)
        inner.add(code)
        return "".join(inner.parts)

    def text(self, text: str) -> None:
        """Adds text with HTML entities; its start may belong to the anchor of the link before."""
        if self._open is not None:
            trail = self.site.trail.match(text)
            if trail:
                self._append(trail[0])
                text = text[trail.end() :]
            self._close_link()
        if _TRAIL_STOP in text:
            text = text.replace(_TRAIL_STOP, "")
        self._append(_unescape(text) if "&" in text else text)

    def _append(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self.length += len(text)

    def _close_link(self) -> None:
        if self._open is not None:
            title, start = self._open
            self._open = None
            if start < self.length:
                self.links.append(Link(title, start, self.length))

    def _link(self, title: str, visible: str | None) -> None:
        """Adds ``[[title|visible]]``; ``visible`` is None for ``[[title]]``."""
        self._close_link()
        title = title.strip()
        shown = title.startswith(":")  # of a file, category or other language, its text rather than itself
        title = self.site.without_own_prefix(title.removeprefix(":"))
        prefix = self.site.prefix_of(title)
        if not shown and prefix in (*_FILE_NAMES, *_CATEGORY_NAMES, _ANOTHER_LANGUAGE):
            return
        if visible is None:
            visible = _unescape(title.replace("_", " "))
        elif not visible.strip():  # [[a (b)|]]: MediaWiki fills it in when the page is saved
            match = _PIPE_TRICK.match(title)
            visible = match[1] if match else title
        target = self.site.normalize_title(title) if prefix is None else ""
        start = self.length
        self._append(visible)
        if target and visible.strip():
            self._open = target, start + len(visible) - len(visible.lstrip())
