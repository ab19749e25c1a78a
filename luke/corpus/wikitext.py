"""Wikitext -> paragraphs with links, as a reader of the page sees them.

Three steps. `_cut` removes from the whole page what is not running text (comments, templates, tables, references, formulas,
files) and the tags around what is. `_separate_blocks` finds headings and list items. `_parse_block` reads the links of one
block: by one expression where no brackets are nested, as in nearly every block, else with mwparserfromhell, which is let see
only brackets that have a partner: it goes back over the text once for each that has none.
"""

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import mwparserfromhell
from mwparserfromhell import nodes

from luke.corpus.page_store import Link, Paragraph

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
_BRACKETS = re.compile(r"\[\[|\]\]")
_BRACKET = re.compile(r"[\[\]]")
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_QUOTES = re.compile(r"''(?:'(?:'')?)?")  # two, three or five; its literal start makes it fast
_HEADING = re.compile(r"^(={1,6})(.+)\1[ \t]*$", re.M)
_LIST_ITEM = re.compile(r"^[*#:;]+[ \t]*(.*)$", re.M)
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
# The capitals of these Georgian letters begin no word, nor a title.
_GEORGIAN = range(0x10D0, 0x1100)


class _Sites(NamedTuple):
    """Language codes of the Wikipedias, prefixes of other projects, and, for a language, the letters that may follow a link
    without a space and still belong to its anchor (``$linkTrail`` of MediaWiki's language files)."""

    languages: frozenset[str]
    projects: frozenset[str]
    link_trails: dict[str, str]


@cache
def _sites() -> _Sites:
    data = json.loads(Path(__file__).with_name("wikipedia_sites.json").read_text(encoding="utf-8"))
    return _Sites(frozenset(data["languages"]), frozenset(data["projects"]), data["link_trails"])


@dataclass
class Site:
    """What of a wiki decides how its text is read.

    Attributes:
        language: Its language code.
        namespaces: Number -> the wiki's own name; 0 is "".
        first_letter: Titles begin with a capital letter (``case`` of the siteinfo).
    """

    language: str = "en"
    namespaces: dict[int, str] = field(default_factory=dict)
    first_letter: bool = True

    @cached_property
    def namespace_of(self) -> dict[str, int]:
        """Lower-case name -> number, canonical names included."""
        names = {name: number for number, name in _CANONICAL.items()}
        names |= {name: number for number, name in self.namespaces.items() if name}
        names |= {"Image": 6, "WP": 4}
        return {name.lower().replace("_", " "): number for name, number in names.items()}

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
        return re.compile(f"[{_sites().link_trails.get(self.language, 'a-z')}]+")

    def normalize_title(self, title: str) -> str:
        """The title of a page as the dump has it; "" for a link to a section of the same page, and for what can be no
        title."""
        if "&" in title:
            title = _unescape(title)
        if "%" in title:
            title = unquote(title)
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


def parse_wikitext(text: str, site: Site) -> list[Paragraph]:
    """The paragraphs of a page; headings and list items are paragraphs of their own."""
    text = _separate_blocks(_cut(text, site))
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


def _cut(text: str, site: Site) -> str:
    text = text.replace("\r\n", "\n").replace(_HEADING_MARK, "").replace(_TRAIL_STOP, "")
    if "<" in text:
        text = _cut_tags(_cut_elements(text))
    text = _cut_braces(text)
    text = _cut_files(text, site)
    text = site._categories.sub("", text)
    text = _QUOTES.sub(_behind_link, _SWITCH.sub("", _RULE.sub("", text)))
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
            kept.append(text[place : opening.start()])
            place = search = len(text) if end < 0 else end + 3
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


def _cut_tags(text: str) -> str:
    text = _TABLE_END.sub("\n|}\n", _TABLE_START.sub("\n{|\n", text))
    text = _LINE_BREAK.sub(" ", text)
    return _BLOCK_TAG.sub("\n\n", _INLINE_TAG.sub(_behind_link, text))


def _up_to(text: str, start: int, end: int) -> str:
    """``text[start:end]``, marked where what is cut after it stood behind a link."""
    return text[start:end] + _TRAIL_STOP if text.endswith("]]", start, end) else text[start:end]


def _behind_link(match: re.Match[str]) -> str:
    return _TRAIL_STOP if match.string.endswith("]]", 0, match.start()) else ""


def _cut_braces(text: str) -> str:
    """Cuts templates and tables, whatever their nesting. An unclosed template's braces stay; an unclosed table runs to the
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
    kept, place = [], 0
    for begin, end in sorted(spans):
        if begin >= place:  # else inside the one before
            kept.append(_up_to(text, place, begin))
        place = max(place, end)
    return "".join(kept) + text[place:]


def _begins_line(text: str, place: int, but_for: str) -> bool:
    return not text[text.rfind("\n", 0, place) + 1 : place].strip(but_for)


def _cut_files(text: str, site: Site) -> str:
    """Cuts links to files with their captions, which may hold links; of one never closed, the rest of its line."""
    if site._files.search(text) is None:
        return text
    ends = {opening: closing for opening, closing, _ in _pairs(text)}
    kept, place = [], 0
    while (match := site._files.search(text, place)) is not None:
        end = ends.get(match.start())
        if end is None:
            line_end = text.find("\n", match.end())
            end = len(text) if line_end < 0 else line_end
        kept.append(text[place : match.start()])
        place = end
    return "".join(kept) + text[place:]


def _pairs(text: str) -> Iterator[tuple[int, int, int]]:
    """Of each ``[[…]]``: where it starts, where it ends, how many are around it."""
    stack: list[int] = []
    for bracket in _BRACKETS.finditer(text):
        if bracket[0] == "[[":
            stack.append(bracket.start())
        elif stack:
            yield stack.pop(), bracket.end(), len(stack)


# Step 2: blocks


def _separate_blocks(text: str) -> str:
    text = _HEADING.sub(lambda match: f"\n\n{_HEADING_MARK}{match[2].strip()}\n\n", text)
    return _LIST_ITEM.sub(lambda match: f"\n\n{match[1]}\n\n", text)


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


_ANY_BRACKETS = re.compile(r"\[\[|\]\]|\[|\]")
_OPENING = {"]]": "[[", "]": "["}


def _escape_unmatched(block: str) -> str:
    """Brackets without a partner in their line, or nested deeper than any page has them, become text."""
    brackets = list(_ANY_BRACKETS.finditer(block))
    stack: list[int] = []
    matched: set[int] = set()
    for number, bracket in enumerate(brackets):
        if bracket[0] not in _OPENING:
            stack.append(number)
        elif stack and brackets[stack[-1]][0] == _OPENING[bracket[0]]:
            opening = stack.pop()
            if len(stack) < _DEEPEST_LINK:
                matched |= {opening, number}
    kept, place = [], 0
    for number, bracket in enumerate(brackets):
        if number not in matched:
            kept += [block[place : bracket.start()], bracket[0].translate(_ESCAPES)]
            place = bracket.end()
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
