"""Wikitext -> paragraphs with links, as a reader of the page sees them.

A fast pass cuts what is not running text (comments, templates, tables, references, formulas, files) from the whole page;
mwparserfromhell then parses the paragraphs that hold markup.
"""

import html
import re
from dataclasses import dataclass, field
from functools import cached_property
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
# Prefixes of other projects; a language code is one too.
_INTERWIKI = frozenset(
    """b c chapter commons d dbr foundation imdbname incubator m media mediazilla meta mw n nost oldwikisource outreach phab
    q rfc s sep species test v voy w wikia wikibooks wikidata wikidataentity wikimedia wikinews wikipedia wikiquote
    wikisource wikispecies wikiversity wikivoyage wikt wiktionary wmf""".split()  # noqa: SIM905
)
_LANGUAGE_CODE = re.compile(
    r"(?:[a-z]{2,3}|simple|nds-nl|bat-smg|be-tarask|be-x-old|cbk-zam|fiu-vro|map-bms|roa-rup|roa-tara|"
    r"zh-(?:classical|min-nan|yue))$"
)
# What may follow a link without a space and still belong to its anchor (`$linkTrail` of MediaWiki's language files).
_TRAILS = {
    "de": "äöüßa-z", "fr": "a-zàâçéèêîôûäëïöüùÇÉÂÊÎÔÛÄËÏÖÜÀÈÙ", "es": "a-záéíóúñ", "it": "a-zàéèíîìóòúù",
    "nl": "a-zäöüïëéèà", "pl": "a-zęóąśłżźćńĘÓĄŚŁŻŹĆŃ", "pt": "áâãàéêẽçíòóôõq̃úüűũa-z",
    "ru": "a-zабвгдеёжзийклмнопрстуфхцчшщъыьэюя",
    "sv": "a-zåäöéÅÄÖÉ", "fi": "a-zäö", "el": "a-zαβγδεζηθικλμνξοπρστυφχψωςΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩάέήίόύώϊϋΐΰΆΈΉΊΌΎΏΪΫ",
    "bg": "a-zабвгдежзийклмнопрстуфхцчшщъыьэюя", "tr": "a-zÇĞçğİıÖöŞşÜüÂâÎîÛû",
    "vi": "a-zàâçéèêîôûäëïöüùÇÉÂÊÎÔÛÄËÏÖÜÀÈÙ",
}  # fmt: skip
_CUT_TAGS = (
    "ref|references|math|chem|ce|gallery|timeline|syntaxhighlight|source|score|hiero|imagemap|graph|mapframe|maplink|"
    "templatestyles|templatedata|inputbox|section|poem-source|style|script|noinclude|categorytree|indicator|ol-table"
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.S)
_NOWIKI = re.compile(r"<nowiki>(.*?)</nowiki>|<nowiki\s*/>", re.S | re.I)
_EMPTY_ELEMENT = re.compile(rf"<(?:{_CUT_TAGS})\b[^<>]*/>", re.I)
_OPENING = re.compile(rf"<({_CUT_TAGS})\b[^<>]*>", re.I)
_BRACES = re.compile(r"\{\{|\}\}|^[ \t:*]*\{\||^[ \t]*\|\}(?!\})", re.M)
_SWITCH = re.compile(r"__[A-Z]{3,}__")
_QUOTES = re.compile(r"'{5}|'{2,3}")
_HEADING = re.compile(r"^(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$", re.M)
_LIST_ITEM = re.compile(r"^[*#:;]+[ \t]*(.*)$", re.M)
_BLANK = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
_RULE = re.compile(r"^-{4,}", re.M)
_MARKUP = re.compile(r"[\[\]<>&{}]|://")
_PIPE_TRICK = re.compile(r"^(?:[^:]*:)?(.*?)(?:\s*\([^()]*\)|,.*)?$")
_ESCAPES = str.maketrans({character: f"&#{ord(character)};" for character in "[]{}<>'|&=*#:;-_~\n"})
_HEADING_MARK = "\x02"
_DEEPEST_LINK = 4


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
        return re.compile(f"[{_TRAILS.get(self.language, 'a-z')}]+")

    def normalize_title(self, title: str) -> str:
        """The title of a page as the dump has it; "" for a link to a section of the same page."""
        title = unquote(html.unescape(title)) if "%" in title or "&" in title else title
        title = " ".join(title.partition("#")[0].replace("_", " ").split())
        title = title.removeprefix(":").strip()
        return title[:1].upper() + title[1:] if self.first_letter else title

    def prefix_of(self, title: str) -> int | None:
        """The namespace that a title's prefix names; -99 for another wiki, None for neither."""
        prefix, colon, _ = title.partition(":")
        prefix = prefix.strip().lower().replace("_", " ")
        if not colon:
            return None
        if prefix in self.namespace_of:
            return self.namespace_of[prefix]
        return -99 if prefix in _INTERWIKI or _LANGUAGE_CODE.match(prefix) else None


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


def _cut(text: str, site: Site) -> str:
    text = text.replace("\r\n", "\n").replace(_HEADING_MARK, "")
    if "<" in text:
        text = _COMMENT.sub("", text)
        text = _NOWIKI.sub(lambda match: (match[1] or "").translate(_ESCAPES), text)
        text = _cut_elements(_EMPTY_ELEMENT.sub("", text))
    text = _cut_braces(text)
    text = _cut_files(text, site)
    text = site._categories.sub("", text)
    return _QUOTES.sub("", _SWITCH.sub("", _RULE.sub("", text)))


def _cut_elements(text: str) -> str:
    """Cuts elements that are not running text, with what they hold; a tag that is never closed is left to the parser."""
    kept, place, search = [], 0, 0
    closings: dict[str, re.Pattern[str]] = {}
    while (opening := _OPENING.search(text, search)) is not None:
        name = opening[1].lower()
        search = opening.end()
        if name in closings and closings[name] is _NEVER:
            continue
        pattern = closings.setdefault(name, re.compile(rf"</{name}\s*>", re.I))
        closing = pattern.search(text, opening.end())
        if closing is None:
            closings[name] = _NEVER  # nor will it be for the next of its name: this keeps the pass linear
            continue
        kept.append(text[place : opening.start()])
        place = search = closing.end()
    return "".join(kept) + text[place:]


_NEVER = re.compile(r"(?!)")


def _cut_braces(text: str) -> str:
    """Cuts templates and tables, whatever their nesting. An unclosed template's braces stay; an unclosed table runs to the
    end of the page."""
    open_: list[tuple[str, int]] = []
    number_open = {"{{": 0, "{|": 0}
    spans: list[tuple[int, int]] = []
    for match in _BRACES.finditer(text):
        token = match[0].strip(" \t:*")
        if token in number_open:
            open_.append((token, match.start()))
            number_open[token] += 1
            continue
        wanted = "{{" if token == "}}" else "{|"
        if not number_open[wanted] or (wanted == "{|" and open_[-1][0] != wanted):
            continue  # nothing to close; |} inside a template is an empty argument
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
            kept.append(text[place:begin])
        place = max(place, end)
    return "".join(kept) + text[place:]


_BRACKETS = re.compile(r"\[\[|\]\]")


def _cut_files(text: str, site: Site) -> str:
    """Cuts links to files with their captions, which may hold links."""
    kept, place = [], 0
    while (match := site._files.search(text, place)) is not None:
        depth, end = 1, None
        for bracket in _BRACKETS.finditer(text, match.end()):
            depth += 1 if bracket[0] == "[[" else -1
            if depth == 0:
                end = bracket.end()
                break
        if end is None:  # never closed: only the rest of its line
            line_end = text.find("\n", match.end())
            end = len(text) if line_end < 0 else line_end
        kept.append(text[place : match.start()])
        place = end
    return "".join(kept) + text[place:]


def _separate_blocks(text: str) -> str:
    text = _HEADING.sub(lambda match: f"\n\n{_HEADING_MARK}{match[2]}\n\n", text)
    return _LIST_ITEM.sub(lambda match: f"\n\n{match[1]}\n\n", text)


def _parse_block(block: str, abstract: bool, site: Site) -> Paragraph:
    if not _MARKUP.search(block):
        return Paragraph(block.replace("\n", " ").strip(), abstract)
    builder = _ParagraphBuilder(site)
    builder.add(mwparserfromhell.parse(_escape_unmatched(block), skip_style_tags=True))
    return builder.paragraph(abstract)


def _escape_unmatched(block: str) -> str:
    """Link brackets without a partner, or nested deeper than any page has them, become text: the parser would try each of
    them against the rest of the block."""
    if "[[" not in block:
        return block
    brackets = list(_BRACKETS.finditer(block))
    stack: list[int] = []
    matched: set[int] = set()
    for number, bracket in enumerate(brackets):
        if bracket[0] == "[[":
            stack.append(number)
        elif stack:
            opening = stack.pop()
            if len(stack) < _DEEPEST_LINK:
                matched |= {opening, number}
    if len(matched) == len(brackets):
        return block
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

    def add(self, code: mwparserfromhell.wikicode.Wikicode) -> None:
        """Adds the visible text of parsed wikitext."""
        for node in code.nodes:
            self._add_node(node)

    def _add_node(self, node: nodes.Node) -> None:
        if isinstance(node, nodes.Text):
            self._text(str(node.value))
        elif isinstance(node, nodes.Wikilink):
            self._wikilink(node)
        elif isinstance(node, nodes.HTMLEntity):
            self._text(_character(node))
        elif isinstance(node, nodes.Tag):
            self._tag(node)
        elif isinstance(node, nodes.ExternalLink):
            if node.title is not None:
                self.add(node.title)
            elif not node.brackets:
                self._text(str(node.url))
        elif isinstance(node, nodes.Heading):
            self.add(node.title)

    def _text(self, text: str) -> None:
        if self._open is not None:
            trail = self.site.trail.match(text)
            if trail:
                self._append(trail[0])
                text = text[trail.end() :]
            self._close_link()
        self._append(text)

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

    def _tag(self, node: nodes.Tag) -> None:
        self._close_link()
        name = str(node.tag).strip().lower()
        if name == "br":
            self._append(" ")
        elif node.contents is not None and name not in ("table", "ref"):
            self.add(node.contents)

    def _wikilink(self, node: nodes.Wikilink) -> None:
        self._close_link()
        raw = str(node.title).strip()
        visible = self._visible(node, raw)
        prefix = self.site.prefix_of(raw.removeprefix(":"))
        unseen = prefix in (*_FILE_NAMES, *_CATEGORY_NAMES) or (prefix == -99 and node.text is None)
        if unseen and not raw.startswith(":"):
            return  # a file, a category, an interlanguage link: not in the text
        title = self.site.normalize_title(raw)
        is_article = prefix in (None, 0) and bool(title)
        start = self.length
        self._append(visible)
        if is_article and visible.strip():
            start += len(visible) - len(visible.lstrip())
            self._open = title, start

    def _visible(self, node: nodes.Wikilink, raw: str) -> str:
        if node.text is None:
            return html.unescape(raw.removeprefix(":").replace("_", " "))
        inner = _ParagraphBuilder(self.site)
        inner.add(node.text)
        visible = "".join(inner.parts)
        if not visible.strip():  # [[a (b)|]]: MediaWiki fills it in when the page is saved
            match = _PIPE_TRICK.match(raw.removeprefix(":"))
            return match[1] if match else raw
        return visible


def _character(node: nodes.HTMLEntity) -> str:
    return html.unescape(str(node))
