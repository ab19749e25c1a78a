"""A MediaWiki XML dump (``pages-articles``) -> page store.

One process reads the XML and hands out shards of pages, cut by amount of wikitext so that they do not depend on the number
of workers; the workers parse the wikitext and write the shards. A finished shard is not parsed again after a kill.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from lxml import etree

from luke.artifacts import Metadata, StagedFolder, fingerprint_inputs, read_metadata
from luke.corpus.dump_stream import LostRegion, check_bounds, open_dump
from luke.corpus.languages import language_of_files
from luke.corpus.page_store import (
    KIND,
    Page,
    count_pages,
    page_file_name,
    write_pages,
    write_redirects,
)
from luke.corpus.redirects import redirect_part, resolve_redirects
from luke.corpus.streams import head
from luke.corpus.template_rules import load_rules
from luke.corpus.wikitext import Site, parse_wikitext
from luke.errors import UserError
from luke.progress import Progress
from luke.workers import default_workers, map_ordered

logger = logging.getLogger(__name__)

_ARTICLES = 0
_NEVER_PAGES = ("image:", "file:", "category:")
# What may stand before the root element: no DOCTYPE, as no dump has one and entities could only do harm.
_PROLOG = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*", re.S)
_ROOT = re.compile(rb"<([^\s<>/]{1,40})")
_PROLOG_BYTES = 1 << 16
# A shard's wikitext: small dumps still make several shards, large ones at most some thousands.
_LEAST_SHARD, _LARGEST_SHARD, _SHARDS, _EXPANSION = 1 << 20, 64 << 20, 256, 4


class RawPage(NamedTuple):
    """A page of the dump; ``redirect`` is the title it redirects to, or None."""

    title: str
    page_id: int
    text: str
    redirect: str | None


def build_dump_db(
    dumps: Path | Sequence[Path],
    output: Path,
    workers: int | None = None,
    language: str | None = None,
    strict: bool = False,
    template_rules: Path | None = None,
) -> Metadata:
    """Writes the page store of a dump. Pages in damaged blocks of a bzip2 file are left out, reported, and named under
    ``damaged`` in the metadata.

    Args:
        dumps: The dump, or its part files in order: ``.xml``, also compressed with bzip2, gzip or zstd.
        output: The page store's folder.
        workers: Processes; default one a CPU.
        language: The wiki's language code; default what the files' names say (``jawiki-…``), else what the dump says.
        strict: Refuse a file with damaged blocks.
        template_rules: A file of further rules for the words of templates, see `luke.corpus.template_rules`.

    Raises:
        UserError: a file is no dump, is truncated, or of another wiki than the first; there is no page; ``output`` holds
            something else; damage, as ``strict`` says; a rule is none.
    """
    dumps = [dumps] if isinstance(dumps, Path) else list(dumps)
    inputs = fingerprint_inputs("dump", dumps)
    if template_rules is not None:
        load_rules("", template_rules)  # what is wrong with them is said at once
        inputs |= fingerprint_inputs("template_rules", [template_rules])
    plan = {"options": {"language": language}, "inputs": inputs}
    with StagedFolder(output, KIND, plan) as stage:
        if stage.done:
            return _built(output, strict)
        language = language or language_of_files(dumps)
        for dump in dumps:
            check_bounds(dump)
            check_root(dump)
        workers = workers or default_workers()
        lost: list[LostRegion] = []
        pages = _iter_parts(dumps, workers, lost, strict)
        site = read_site(pages)
        site.language = language or site.language
        site.template_rules = load_rules(site.language, template_rules)
        counts = _build_shards(pages, site, stage.work, dumps, workers)
        counts["redirects"] = resolve_redirects(stage.work)
        names = {str(number): name for number, name in site.namespaces.items()}
        return stage.finish(
            language=site.language,
            site={"namespaces": names, "first_letter": site.first_letter},
            counts=counts,
            **({"damaged": [region.as_metadata() for region in lost]} if lost else {}),
        )


def _built(output: Path, strict: bool) -> Metadata:
    metadata = read_metadata(output, KIND)
    if strict and metadata.get("damaged"):
        raise UserError(f"{output}: already built, without the pages in damaged parts of the dump; delete it for --strict")
    logger.info("%s: already built", output)
    return metadata


def _iter_parts(dumps: list[Path], workers: int, lost: list[LostRegion], strict: bool) -> Iterator[Any]:
    """The `Site` of the first file, then the pages of all."""
    first: Site | None = None
    for dump in dumps:
        with open_dump(dump, workers, lost, strict) as stream:
            pages = iter_pages(stream, dump)
            site = read_site(pages)
            if first is None:
                first = site
                yield site
            elif site.namespaces != first.namespaces:
                raise UserError(f"{dump}: of another wiki than {dumps[0]}, or of another time; build one store a wiki")
            yield from pages


def check_root(path: Path) -> None:
    """Looks at the start of the XML, before a parser sees it.

    Raises:
        UserError: it is not that of a MediaWiki dump.
    """
    start = head(path, _PROLOG_BYTES)
    if not start.strip():
        raise UserError(f"{path}: holds nothing; download the dump again")
    prolog = _PROLOG.match(start)
    root = _ROOT.match(start, prolog.end() if prolog else 0)
    if root is None:
        raise UserError(f"{path}: not a MediaWiki dump: no XML element at its start")
    name = root[1].decode(errors="replace")
    if name.upper() == "!DOCTYPE":
        raise UserError(f"{path}: not a MediaWiki dump: it begins with a DOCTYPE (a web page, perhaps an error message?)")
    if name.rpartition(":")[2] != "mediawiki":
        raise UserError(f"{path}: not a MediaWiki dump: its root element is <{name}>, not <mediawiki>")


def _local_name(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def iter_pages(stream: IO[bytes], path: Path) -> Iterator[Any]:
    """First the `Site`, then each `RawPage` of the main namespace.

    Entities are not expanded and nothing outside the file is read, so that a hostile file cannot blow up (`check_root`
    refuses any that declares entities).
    """
    context = etree.iterparse(
        stream, events=("start", "end"), resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True
    )
    try:
        _, root = next(context)
        site = Site(language=root.get("{http://www.w3.org/XML/1998/namespace}lang") or "en")
        given = False
        for event, element in context:
            if event == "start":
                continue
            name = _local_name(element)
            if name == "siteinfo":
                _read_siteinfo(element, site)
            elif name == "page":
                if not given:
                    yield site
                    given = True
                page = _read_page(element)
                if page is not None:
                    yield page
            if name in ("siteinfo", "page"):
                element.clear()
                while element.getprevious() is not None:
                    del root[0]
        if not given:
            yield site
    except etree.XMLSyntaxError as error:
        raise UserError(f"{path}: not well-formed XML, perhaps truncated: {error}") from None


def read_site(pages: Iterator[Any]) -> Site:
    """The site that `iter_pages` gives first."""
    site = next(pages)
    assert isinstance(site, Site)
    return site


def _read_siteinfo(element: Any, site: Site) -> None:
    for child in element.iter():
        name = _local_name(child) if isinstance(child.tag, str) else ""
        if name == "namespace":
            site.namespaces[int(child.get("key"))] = child.text or ""
        elif name == "case":
            site.first_letter = child.text != "case-sensitive"


def _read_page(element: Any) -> RawPage | None:
    title = text = redirect = None
    namespace, page_id = _ARTICLES, 0
    for child in element:
        name = _local_name(child)
        if name == "title":
            title = child.text
        elif name == "ns":
            namespace = int(child.text or 0)
        elif name == "id":
            page_id = int(child.text or 0)
        elif name == "redirect":
            redirect = child.get("title")
        elif name == "revision":
            text = next((part.text for part in child if _local_name(part) == "text"), None)
    if not title or namespace != _ARTICLES or title.lower().startswith(_NEVER_PAGES):
        return None
    return RawPage(title, page_id, text or "", redirect)


def _shard_size(dumps: list[Path]) -> int:
    size = sum(dump.stat().st_size for dump in dumps)
    return max(_LEAST_SHARD, min(_LARGEST_SHARD, size * _EXPANSION // _SHARDS))


class _Shard(NamedTuple):
    number: int
    pages: list[RawPage]


def _cut_shards(pages: Iterator[RawPage], size: int) -> Iterator[_Shard]:
    number, shard, characters = 0, list[RawPage](), 0
    for page in pages:
        shard.append(page)
        characters += len(page.text)
        if characters >= size:
            yield _Shard(number, shard)
            number, shard, characters = number + 1, [], 0
    if shard:
        yield _Shard(number, shard)


_parser: "tuple[Site, Path] | None" = None


def _start_worker(site: Site, work: Path) -> None:
    global _parser
    _parser = site, work


def _parse_shard(shard: _Shard) -> dict[str, int]:
    """Writes a shard's redirects and pages, unless they are there; returns its counts."""
    assert _parser is not None
    site, work = _parser
    path = work / page_file_name(shard.number)
    if not path.exists():
        # Dumps of old or small wikis have no <redirect>.
        targets = [page.redirect or site.redirect_target(page.text) for page in shard.pages]
        redirects = {
            page.title: site.normalize_title(target) for page, target in zip(shard.pages, targets, strict=True) if target
        }
        write_redirects(work / redirect_part(shard.number), redirects)
        articles = (page for page, target in zip(shard.pages, targets, strict=True) if not target)
        write_pages(path, [Page(page.title, page.page_id, parse_wikitext(page.text, site, page.title)) for page in articles])
    return {"dump_pages": len(shard.pages), **count_pages(path)}


def _build_shards(pages: Iterator[RawPage], site: Site, work: Path, dumps: list[Path], workers: int) -> dict[str, int]:
    counts = {"pages": 0, "redirects": 0, "paragraphs": 0, "links": 0}
    with Progress("pages", unit="pages") as progress:
        shards = _cut_shards(pages, _shard_size(dumps))
        for shard in map_ordered(_parse_shard, shards, workers, _start_worker, (site, work)):
            progress.advance(shard.pop("dump_pages"))
            for name, number in shard.items():
                counts[name] += number
        if not counts["pages"]:
            raise UserError(f"{dumps[0]}: holds no article")
    return counts
