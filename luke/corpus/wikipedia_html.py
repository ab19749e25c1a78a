"""Wikimedia Enterprise dumps -> page store: pages as the HTML that readers see, or as structured contents.

HTML is Parsoid's: links within the wiki have ``rel="mw:WikiLink"``, what templates, files and extensions made has a
``typeof``. Inline output of templates stays, as it is part of a sentence; blocks of it (boxes, notices) are cut, as are
tables, references, formulas and files. Structured contents name the links of a paragraph without their places: each is
looked for behind the one before.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lxml import etree

from luke.artifacts import Metadata, fingerprint_inputs
from luke.corpus.languages import language_of_files, language_of_site
from luke.corpus.page_store import Link, Page, Paragraph
from luke.corpus.record_store import BadRecordError, Record, build_from_records, load_json
from luke.corpus.streams import Line, is_parquet, iter_lines
from luke.corpus.wikitext import Site
from luke.errors import UserError

_ARTICLES, _TEMPLATE, _CATEGORY = 0, 10, 14
_HEADINGS = {f"h{level}" for level in range(1, 7)}
_BLOCKS = _HEADINGS | {
    "address", "article", "blockquote", "body", "center", "dd", "div", "dl", "dt", "footer", "header", "hr", "li", "main",
    "ol", "p", "pre", "section", "ul",
}  # fmt: skip
_CUT_TAGS = {
    "audio", "canvas", "caption", "figcaption", "figure", "head", "iframe", "img", "link", "math", "meta", "nav",
    "noscript", "object", "script", "style", "svg", "table", "template", "video",
}  # fmt: skip
_CUT_CLASSES = {
    "ambox", "error", "gallery", "geo-nondefault", "hatnote", "infobox", "metadata", "mw-cite-backlink", "mw-editsection",
    "mw-empty-elt", "mw-ref", "mw-references-wrap", "navbox", "noprint", "reference", "references", "shortdescription",
    "sistersitebox", "thumb", "toc",
}  # fmt: skip
# What of the text extensions make is text; the rest (references, formulas, galleries, maps) is not.
_TEXT_EXTENSIONS = frozenset({"mw:Extension/poem", "mw:Extension/nowiki", "mw:Extension/section"})
_CUT_TYPES = ("mw:File", "mw:Image", "mw:Video", "mw:Audio", "mw:Error")
# Blocks that, made by a template, are no running text.
_BOXES = frozenset({"div", "ul", "ol", "dl", "center", "section"})
_HIDDEN = re.compile(r"display\s*:\s*none")
_WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")
_ABSTRACT = "Abstract"  # the name of the first section of structured contents, in every language
_PARQUET_ROWS = 64


def build_html_db(
    dumps: list[Path], output: Path, structured: bool, workers: int | None = None, language: str | None = None
) -> Metadata:
    """Writes the page store of an Enterprise dump. Lines that cannot be read are left out, counted and listed.

    Args:
        dumps: Its files: JSON lines (also compressed, also in a tar archive), or Parquet.
        output: The page store's folder.
        structured: They hold structured contents, not HTML.
        workers: Processes; default one a CPU.
        language: Only pages of this language; default what the files' names say, else that of the first page, and pages of
            another one are refused.

    Raises:
        UserError: a file is damaged; there is no page; pages are of several languages; ``output`` holds something else.
    """
    plan = {"options": {"language": language}, "inputs": fingerprint_inputs("dump", dumps)}
    chosen = language or language_of_files(dumps)
    return build_from_records(
        output,
        plan,
        _lines(dumps),
        ArticleParser(structured, chosen or _first_language(dumps), only=chosen is not None),
        sum(path.stat().st_size for path in dumps),
        workers,
        skip_bad=True,
        language=chosen or _first_language(dumps),
    )


def _lines(dumps: list[Path]) -> Iterator[Line]:
    for path in dumps:
        yield from _parquet_rows(path) if is_parquet(path) else iter_lines(path)


def _parquet_rows(path: Path) -> Iterator[Line]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield Line(str(path), number, json.dumps(row, ensure_ascii=False, default=str).encode())
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: the Parquet file is damaged or truncated ({error}); download it again") from None


def _first_language(dumps: list[Path]) -> str | None:
    for line in _lines(dumps):
        try:
            language = _language(_record(line))
        except BadRecordError:
            continue
        if language is not None:
            return language
    return None


def _record(line: Line) -> dict[str, Any]:
    record = load_json(line.data)
    if not isinstance(record, dict):
        raise BadRecordError("the line is not an object")
    return record


def _entry(record: dict[str, Any], *keys: str) -> Any:
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _names(record: dict[str, Any], key: str) -> list[str]:
    entries = record.get(key)
    names = [_entry(entry, "name") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [name for name in names if isinstance(name, str)]


def _language(record: dict[str, Any]) -> str | None:
    """The language of the Wikipedia that a record is of; None for other projects."""
    site = _entry(record, "is_part_of", "identifier")
    if isinstance(site, str):
        return language_of_site(site)
    host = urlsplit(str(record.get("url") or "")).hostname or ""
    code, _, rest = host.partition(".")
    if rest == "wikipedia.org":
        return code
    language = _entry(record, "in_language", "identifier")
    return language if isinstance(language, str) and not host else None


@dataclass(frozen=True)
class ArticleParser:
    """A line of an Enterprise dump -> its page and redirects.

    Attributes:
        structured: It holds structured contents, not HTML.
        language: The language that is read.
        only: Others are left out; else they are an error.
    """

    structured: bool
    language: str | None
    only: bool

    def __call__(self, line: Line) -> Record | None:
        """The record of an article; None for pages of other namespaces, projects and languages.

        Raises:
            BadRecordError: the line is no article.
            UserError: it is of another language, and none was chosen.
        """
        record = _record(line)
        language = _language(record)
        namespace = _entry(record, "namespace", "identifier")
        if language is None or namespace not in (None, _ARTICLES):
            return None
        if language != self.language:
            if self.only:
                return None
            raise UserError(
                f"{line.place}: a page in {language}, while the first is in {self.language}; choose one with --language"
            )
        title, number = record.get("name"), record.get("identifier", 0)
        if not isinstance(title, str) or not title.strip():
            raise BadRecordError("has no name")
        if type(number) is not int or not 0 <= number < 2**63:
            raise BadRecordError(f"its identifier is {str(number)[:60]!r}, not a page's number")
        site = _site(language, _prefix(record, "categories"), _prefix(record, "templates"))
        paragraphs = _structured_paragraphs(record, site) if self.structured else _html_paragraphs(record, site)
        redirects = {name: title for name in _names(record, "redirects") if name != title}
        return Record(Page(title, number, paragraphs), redirects)


def _prefix(record: dict[str, Any], key: str) -> str:
    """The wiki's own name of the namespace that the names of ``key`` are in, which no siteinfo tells here."""
    return next((name.partition(":")[0] for name in _names(record, key) if ":" in name), "")


@lru_cache(256)
def _site(language: str, category: str, template: str) -> Site:
    return Site(language, {_CATEGORY: category, _TEMPLATE: template})


def _target(site: Site, quoted: str) -> str:
    """The title of a link's path; "" if it leads to no article."""
    title = site.normalize_title(quoted.partition("?")[0])
    return title if title and site.prefix_of(title) is None else ""


# HTML


def _html_paragraphs(record: dict[str, Any], site: Site) -> list[Paragraph]:
    html = _entry(record, "article_body", "html")
    if not isinstance(html, str):
        raise BadRecordError("has no article_body.html")
    return parse_html(html, site)


def parse_html(html: str, site: Site) -> list[Paragraph]:
    """The paragraphs of a page; headings and list items are paragraphs of their own.

    Nothing outside the text is read, and elements nested deeper than libxml2 allows (256) are left out.

    Raises:
        BadRecordError: there is nothing that could be parsed.
    """
    parser = etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(html.encode(), parser)
    except (etree.XMLSyntaxError, UnicodeEncodeError) as error:
        raise BadRecordError(f"its HTML cannot be parsed: {error}") from None
    body = root.find("body") if root is not None else None
    return [] if body is None else _HtmlReader(site).read(body)


class _HtmlReader:
    """Walks over a page's elements and collects paragraphs."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.paragraphs: list[Paragraph] = []
        self.abstract = True
        self._made_by_templates: set[str] = set()  # values of "about" of the templates seen
        self._parts: list[str] = []
        self._length = 0
        self._links: list[Link] = []
        self._open: tuple[str, int] | None = None

    def read(self, body: Any) -> list[Paragraph]:
        events = etree.iterwalk(body, events=("start", "end"))
        for event, element in events:
            tag = element.tag
            if event == "start":
                if self._is_cut(element):
                    events.skip_subtree()
                    continue
                if tag in _BLOCKS:
                    self._flush()
                    self.abstract = self.abstract and tag not in _HEADINGS
                elif tag == "br":
                    self._text(" ")
                elif tag == "a":
                    self._open_link(element)
                self._text(element.text)
            else:
                if tag == "a":
                    self._close_link()
                elif tag in _BLOCKS:
                    self._flush()
                if element is not body:
                    self._text(element.tail)
        self._flush()
        return self.paragraphs

    def _is_cut(self, element: Any) -> bool:
        types = (element.get("typeof") or "").split()
        about = element.get("about")
        if "mw:Transclusion" in types and about:
            self._made_by_templates.add(about)
        if element.tag in _CUT_TAGS or not _CUT_CLASSES.isdisjoint((element.get("class") or "").split()):
            return True
        if about in self._made_by_templates and element.tag in _BOXES:
            return True
        if any(kind.startswith(_CUT_TYPES) for kind in types):
            return True
        if any(kind.startswith("mw:Extension/") and kind not in _TEXT_EXTENSIONS for kind in types):
            return True
        return _HIDDEN.search(element.get("style") or "") is not None

    def _open_link(self, element: Any) -> None:
        self._close_link()
        href = element.get("href") or ""
        if "mw:WikiLink" in (element.get("rel") or "").split() and href.startswith("./"):
            target = _target(self.site, href[2:])
            if target:
                self._open = target, self._length

    def _close_link(self) -> None:
        if self._open is not None:
            title, start = self._open
            self._open = None
            self._links.append(Link(title, start, self._length))

    def _text(self, text: str | None) -> None:
        if text:
            text = _WHITE_SPACE.sub(" ", text)
            if text.startswith(" ") and (not self._length or self._parts[-1].endswith(" ")):
                text = text[1:]
            if text:
                self._parts.append(text)
                self._length += len(text)

    def _flush(self) -> None:
        self._close_link()
        text = "".join(self._parts).rstrip(" ")
        links = (_trimmed(link, text) for link in self._links)
        if text:
            self.paragraphs.append(Paragraph(text, self.abstract, [link for link in links if link.start < link.end]))
        self._parts, self._length, self._links = [], 0, []


def _trimmed(link: Link, text: str) -> Link:
    """Without white space around the anchor."""
    anchor = text[link.start : link.end]
    start = link.start + len(anchor) - len(anchor.lstrip())
    return Link(link.title, start, start + len(anchor.strip()))


# Structured contents


def _structured_paragraphs(record: dict[str, Any], site: Site) -> list[Paragraph]:
    sections = record.get("sections")
    if isinstance(sections, str):  # as Parquet files may have them, since parts hold parts
        sections = load_json(sections.encode())
    if not isinstance(sections, list):
        raise BadRecordError("has no sections")
    paragraphs: list[Paragraph] = []
    abstract = True
    stack: list[Any] = sections[::-1]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or part.get("type") == "table":
            continue
        name, value = part.get("name"), part.get("value")
        if part.get("type") == "section" and isinstance(name, str):
            abstract = abstract and not paragraphs and name == _ABSTRACT
            if name != _ABSTRACT or not abstract:
                paragraphs.append(Paragraph(name.strip(), False))
        if isinstance(value, str) and value.strip():
            paragraphs.append(_structured_paragraph(value, part.get("links"), abstract, site))
        if isinstance(part.get("has_parts"), list):
            stack += part["has_parts"][::-1]
    return [paragraph for paragraph in paragraphs if paragraph.text]


def _structured_paragraph(value: str, entries: Any, abstract: bool, site: Site) -> Paragraph:
    text = _WHITE_SPACE.sub(" ", value).strip(" ")
    links, place = list[Link](), 0
    for entry in entries if isinstance(entries, list) else []:
        anchor, url = _entry(entry, "text"), urlsplit(str(_entry(entry, "url") or ""))
        _, wiki, path = url.path.partition("/wiki/")
        if not isinstance(anchor, str) or not wiki or url.hostname not in (None, f"{site.language}.wikipedia.org"):
            continue
        anchor = _WHITE_SPACE.sub(" ", anchor).strip(" ")
        target, start = _target(site, path), _find(text, anchor, place)
        if anchor and start >= 0:
            place = start + len(anchor)
            if target:
                links.append(Link(target, start, place))
    return Paragraph(text, abstract, links)


def _find(text: str, anchor: str, place: int) -> int:
    """Where ``anchor`` stands from ``place`` on: as words of their own, or else anywhere; -1 for nowhere."""
    first = start = text.find(anchor, place)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(anchor) : start + len(anchor) + 1]
        if not (before.isalnum() and anchor[:1].isalnum()) and not (after.isalnum() and anchor[-1:].isalnum()):
            return start
        start = text.find(anchor, start + 1)
    return first
