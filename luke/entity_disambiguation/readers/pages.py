"""A page store's own links as a benchmark: each page a document, each link a mention."""

from pathlib import Path

from luke.corpus.page_store import Page, PageStore, read_pages
from luke.entity_disambiguation.documents import Collection, Document, Mention, ReadReport
from luke.pretraining.build_dataset import is_held_out


def read_linked_pages(db: Path, held_out_fraction: float = 0.0) -> Collection:
    """Reads the pages that a dataset with the same ``held_out_fraction`` holds out; all pages with 0."""
    store = PageStore(db)
    redirects = store.redirects()
    report = ReadReport()
    documents = [
        _document(page, redirects, report)
        for file in store.page_files
        for page in read_pages(file)
        if not held_out_fraction or is_held_out(page.title, held_out_fraction)
    ]
    documents = [document for document in documents if document.mentions]
    report.documents = len(documents)
    return Collection(documents, report)


def _document(page: Page, redirects: dict[str, str], report: ReadReport) -> Document:
    """Paragraphs one after another, a line end between two."""
    mentions = []
    offset = 0
    for paragraph in page.paragraphs:
        end = 0
        for link in sorted(paragraph.links, key=lambda link: (link.start, -link.end)):
            report.mentions += 1
            if link.start < end or link.start == link.end:
                report.dropped["the link is empty, or inside another"] += 1
            elif not link.title or link.title.startswith("Category:"):
                report.dropped["the link leads to no article"] += 1
            else:
                end = link.end
                mentions.append(Mention(offset + link.start, offset + link.end, redirects.get(link.title, link.title)))
        offset += len(paragraph.text) + 1
    return Document(page.title, "\n".join(paragraph.text for paragraph in page.paragraphs), mentions)
