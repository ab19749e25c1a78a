"""The one reader and writer of pages and redirects: a folder of Parquet files that anything can open.

``pages-*.parquet`` holds pages with their paragraphs and links, ``redirects.parquet`` the redirects, ``metadata.json`` where
they come from. The format is described in ``docs/architecture.md``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from luke.artifacts import read_metadata, replace_file
from luke.errors import UserError

KIND = "page-store"
REDIRECTS_FILE = "redirects.parquet"

_LINK_TYPE = pa.struct([("title", pa.string()), ("start", pa.int32()), ("end", pa.int32())])
_PARAGRAPH_TYPE = pa.struct([("text", pa.string()), ("abstract", pa.bool_()), ("links", pa.list_(_LINK_TYPE))])
PAGE_SCHEMA = pa.schema([("title", pa.string()), ("page_id", pa.int64()), ("paragraphs", pa.list_(_PARAGRAPH_TYPE))])
REDIRECT_SCHEMA = pa.schema([("source", pa.string()), ("target", pa.string())])


@dataclass(frozen=True, slots=True)
class Link:
    """A link to the page ``title``; its anchor is ``text[start:end]`` of its paragraph, in code points."""

    title: str
    start: int
    end: int


@dataclass(slots=True)
class Paragraph:
    """A paragraph as a reader sees it; ``abstract`` says that it comes before the first heading."""

    text: str
    abstract: bool
    links: list[Link] = field(default_factory=list)


@dataclass(slots=True)
class Page:
    """A page; ``page_id`` is its number in the dump."""

    title: str
    page_id: int
    paragraphs: list[Paragraph] = field(default_factory=list)


def page_file_name(shard: int) -> str:
    """The name of a shard of pages."""
    return f"pages-{shard:05d}.parquet"


def write_pages(path: Path, pages: Sequence[Page]) -> None:
    """Writes one shard of pages, whole or not at all."""
    columns = {
        "title": [page.title for page in pages],
        "page_id": [page.page_id for page in pages],
        "paragraphs": [
            [
                {
                    "text": paragraph.text,
                    "abstract": paragraph.abstract,
                    "links": [{"title": link.title, "start": link.start, "end": link.end} for link in paragraph.links],
                }
                for paragraph in page.paragraphs
            ]
            for page in pages
        ],
    }
    with replace_file(path) as stream:
        pq.write_table(pa.table(columns, schema=PAGE_SCHEMA), stream, compression="zstd")


def write_redirects(path: Path, redirects: Mapping[str, str]) -> None:
    """Writes redirects sorted by source, whole or not at all."""
    table = pa.table({"source": sorted(redirects), "target": [redirects[s] for s in sorted(redirects)]}, REDIRECT_SCHEMA)
    with replace_file(path) as stream:
        pq.write_table(table, stream, compression="zstd")


def count_pages(path: Path) -> dict[str, int]:
    """The numbers of pages, paragraphs and links of one shard."""
    with pq.ParquetFile(path) as file:
        paragraphs = file.read(columns=["paragraphs.list.element.links.list.element.start"])["paragraphs"]
    links = pc.struct_field(pc.list_flatten(paragraphs), "links")
    return {
        "pages": len(paragraphs),
        "paragraphs": _total(pc.list_value_length(paragraphs)),
        "links": _total(pc.list_value_length(links)),
    }


def _total(lengths: pa.ChunkedArray) -> int:
    return pc.sum(lengths, min_count=0).as_py() or 0


def count_redirects(path: Path) -> int:
    """The number of redirects of a file."""
    return int(pq.read_metadata(path).num_rows)


class PageStore:
    """A finished page store.

    Raises:
        UserError: ``folder`` is not a page store, or a file of it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata = read_metadata(folder, KIND)
        self.page_files = sorted(folder.glob("pages-*.parquet"))
        self.redirects_file = folder / REDIRECTS_FILE
        if not self.page_files or not self.redirects_file.exists():
            raise UserError(f"{folder}: the page store is incomplete; build it again")

    @property
    def language(self) -> str | None:
        """The language code of the dump, such as ``en``."""
        language: str | None = self.metadata.get("language")
        return language

    def titles(self) -> list[str]:
        """The titles of all pages."""
        return [title for file in self.page_files for title in pq.read_table(file, columns=["title"])["title"].to_pylist()]

    def redirects(self) -> dict[str, str]:
        """Source title -> the title that it finally leads to."""
        table = pq.read_table(self.redirects_file)
        return dict(zip(table["source"].to_pylist(), table["target"].to_pylist(), strict=True))


def read_pages(path: Path) -> Iterator[Page]:
    """The pages of one shard, in order."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            for row in batch.to_pylist():
                yield Page(row["title"], row["page_id"], [_paragraph(entry) for entry in row["paragraphs"]])


def _paragraph(entry: dict[str, object]) -> Paragraph:
    links = [Link(**link) for link in entry["links"]]  # type: ignore[attr-defined]
    return Paragraph(str(entry["text"]), bool(entry["abstract"]), links)
