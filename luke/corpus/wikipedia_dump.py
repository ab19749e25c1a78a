"""A MediaWiki XML dump (``pages-articles``) -> page store.

One process reads the XML and hands out shards of pages, cut by amount of wikitext so that they do not depend on the number
of workers; the workers parse the wikitext and write the shards. A finished shard is not parsed again after a kill.
"""

import bz2
import errno
import gzip
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from lxml import etree

from luke.artifacts import Metadata, StagedFolder, fingerprint_file, read_metadata
from luke.corpus.page_store import (
    KIND,
    REDIRECTS_FILE,
    Page,
    count_pages,
    count_redirects,
    page_file_name,
    write_pages,
    write_redirects,
)
from luke.corpus.wikitext import Site, parse_wikitext
from luke.errors import UserError
from luke.progress import Progress
from luke.workers import default_workers, map_ordered

logger = logging.getLogger(__name__)

_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gzip"}
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


def build_dump_db(dump: Path, output: Path, workers: int | None = None) -> Metadata:
    """Writes the page store of a dump.

    Args:
        dump: ``.xml``, ``.xml.bz2`` or ``.xml.gz``.
        output: The page store's folder.
        workers: Processes; default one a CPU.

    Raises:
        UserError: ``dump`` is no dump, is truncated, or holds no page; ``output`` holds something else.
    """
    if not dump.is_file():
        raise UserError(f"{dump}: no such dump file")
    plan = {"options": {}, "inputs": {"dump": {"path": str(dump), "fingerprint": fingerprint_file(dump)}}}
    with StagedFolder(output, KIND, plan) as stage:
        if stage.done:
            logger.info("%s: already built", output)
            return read_metadata(output, KIND)
        with open_dump(dump) as stream:
            check_root(stream, dump)
            pages = iter_pages(stream, dump)
            site = read_site(pages)
            counts = _build_shards(pages, site, stage.work, dump, workers or default_workers())
        counts["redirects"] = _resolve_redirects(stage.work)
        names = {str(number): name for number, name in site.namespaces.items()}
        return stage.finish(
            language=site.language,
            site={"namespaces": names, "first_letter": site.first_letter},
            counts=counts,
        )


@contextmanager
def open_dump(path: Path) -> Iterator[IO[bytes]]:
    """The XML of a dump, decompressed by what the file holds, not by its name.

    Raises:
        UserError: while it is read: the file is empty, torn, or damaged.
    """
    with path.open("rb") as stream:
        start = stream.read(3)
    if not start:
        raise UserError(f"{path}: the file is empty; download the dump again")
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "xml")
    if kind == "xml" and not start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise UserError(f"{path}: neither XML nor compressed with bzip2 or gzip; is it a Wikipedia dump?")
    opener: Any = {"bz2": bz2.open, "gzip": gzip.open, "xml": open}[kind]
    try:
        with opener(path, "rb") as stream:
            yield stream
    except EOFError:
        raise UserError(f"{path}: the {kind} file is truncated; download the dump again") from None
    except (gzip.BadGzipFile, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: the {kind} data is damaged ({error}); download the dump again") from None


def check_root(stream: IO[bytes], path: Path) -> None:
    """Looks at the start of the XML, before a parser sees it, and goes back to it.

    Raises:
        UserError: it is not that of a MediaWiki dump.
    """
    head = stream.read(_PROLOG_BYTES)
    stream.seek(0)
    if not head.strip():
        raise UserError(f"{path}: holds nothing; download the dump again")
    prolog = _PROLOG.match(head)
    root = _ROOT.match(head, prolog.end() if prolog else 0)
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


def _shard_size(dump: Path) -> int:
    return max(_LEAST_SHARD, min(_LARGEST_SHARD, dump.stat().st_size * _EXPANSION // _SHARDS))


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


def _redirect_part(number: int) -> str:
    return f"redirects-{number:05d}.part"


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
        redirects = {page.title: site.normalize_title(page.redirect) for page in shard.pages if page.redirect}
        write_redirects(work / _redirect_part(shard.number), redirects)
        articles = (page for page in shard.pages if not page.redirect)
        write_pages(path, [Page(page.title, page.page_id, parse_wikitext(page.text, site)) for page in articles])
    return {"dump_pages": len(shard.pages), **count_pages(path)}


def _build_shards(pages: Iterator[RawPage], site: Site, work: Path, dump: Path, workers: int) -> dict[str, int]:
    counts = {"pages": 0, "redirects": 0, "paragraphs": 0, "links": 0}
    with Progress("pages", unit="pages") as progress:
        shards = _cut_shards(pages, _shard_size(dump))
        for shard in map_ordered(_parse_shard, shards, workers, _start_worker, (site, work)):
            progress.advance(shard.pop("dump_pages"))
            for name, number in shard.items():
                counts[name] += number
        if not counts["pages"]:
            raise UserError(f"{dump}: holds no article")
    return counts


def _resolve_redirects(work: Path) -> int:
    """Joins the shards' redirects to one file: chains followed to their end, cycles dropped. Returns their number."""
    path = work / REDIRECTS_FILE
    parts = sorted(work.glob(_redirect_part(0).replace("00000", "*")))
    if not path.exists():  # else a run was killed between here and the end, when some parts may be gone already
        temporary = path.with_name(f".{path.name}.tmp")
        _write_resolved(parts, temporary)
        temporary.replace(path)
    for part in parts:
        part.unlink()
    return count_redirects(path)


def _write_resolved(parts: list[Path], output: Path) -> None:
    import duckdb

    try:
        with duckdb.connect() as database:
            database.execute("SET memory_limit = '2GB'")
            database.execute("SET temp_directory = ?", [str(output.with_name(".duckdb.tmp"))])
            database.execute(
                "CREATE TABLE resolved AS SELECT source, min(target) AS target FROM read_parquet(?) GROUP BY source",
                [[str(part) for part in parts]],
            )
            unfinished = None
            while True:  # each round doubles how far a redirect reaches; what goes round in a circle never ends
                count = database.execute(
                    "SELECT count(*) FROM resolved WHERE target IN (SELECT source FROM resolved)"
                ).fetchone()
                if count is None or count[0] in (0, unfinished):
                    break
                unfinished = count[0]
                database.execute(
                    "CREATE OR REPLACE TABLE resolved AS SELECT hop.source, coalesce(next.target, hop.target) AS target "
                    "FROM resolved AS hop LEFT JOIN resolved AS next ON hop.target = next.source"
                )
            database.execute("DELETE FROM resolved WHERE target IN (SELECT source FROM resolved) OR target = ''")
            database.execute("SET threads = 1")  # the file's row groups do not depend on the machine
            database.execute(f"COPY (FROM resolved ORDER BY source) TO '{_sql(output)}' (FORMAT parquet, COMPRESSION zstd)")
    except duckdb.IOException as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", str(output)) from None
        raise


def _sql(path: Path) -> str:
    return str(path).replace("'", "''")
