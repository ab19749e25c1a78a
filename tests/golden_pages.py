"""The excerpt of the English Wikipedia as the public code extracts it, written as a page store.

Its paragraphs are whole sections, and its links lead to sections (cut off here, as in any page store) and categories too.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from luke.artifacts import StagedFolder
from luke.corpus.page_store import KIND, REDIRECTS_FILE, Link, Page, Paragraph, page_file_name, write_pages, write_redirects

GOLDEN = Path(__file__).parent / "golden" / "dataset"

Spans = list[tuple[int, int]]


def read_lines(name: str) -> list[Any]:
    """The JSON lines of a golden file."""
    opener: Callable[..., Any] = gzip.open if name.endswith(".gz") else open
    with opener(GOLDEN / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def golden_pages() -> list[Page]:
    """The 106 articles."""
    return [
        Page(row["title"], number, [_paragraph(entry) for entry in row["paragraphs"]])
        for number, row in enumerate(read_lines("pages_excerpt.jsonl.gz"))
    ]


def _paragraph(entry: dict[str, Any]) -> Paragraph:
    links = [Link(title.split("#")[0], start, end) for title, _, start, end in entry["links"]]
    return Paragraph(entry["text"], entry["abstract"], links)


def golden_redirects() -> dict[str, str]:
    """The 99 redirects."""
    return dict(read_lines("redirects_excerpt.jsonl"))


def stub_pages(pages: Iterable[Page], redirects: dict[str, str]) -> list[Page]:
    """An empty page for each link target that has none."""
    targets = {link.title for page in pages for paragraph in page.paragraphs for link in paragraph.links}
    missing = {redirects.get(title, title) for title in targets}.difference(page.title for page in pages)
    return [Page(title, -1) for title in sorted(missing) if not title.startswith("Category:")]


def write_page_store(folder: Path, pages: Sequence[Page], redirects: dict[str, str], shards: int = 1, **facts: Any) -> Path:
    """A finished page store of ``shards`` files."""
    with StagedFolder(folder, KIND, {"options": {}, "inputs": {}}) as stage:
        for shard in range(shards):
            write_pages(stage.work / page_file_name(shard), pages[shard::shards])
        write_redirects(stage.work / REDIRECTS_FILE, redirects)
        stage.finish(**facts)
    return folder


class GoldenSplitter:
    """Paragraph text -> the sentence spans that ``name`` (``icu`` or ``opennlp``) gave for it."""

    def __init__(self, name: str) -> None:
        texts = {page.title: [paragraph.text for paragraph in page.paragraphs] for page in golden_pages()}
        self.spans: dict[str, Spans] = {
            texts[row["title"]][row["paragraph"]]: [(start, end) for start, end in row[name]]
            for row in read_lines("sentence_spans_excerpt.jsonl.gz")
        }

    def __call__(self, text: str) -> Spans:
        return self.spans[text]
