"""Titles that exist and where redirects lead: gold answers and candidates are compared under one name an entity."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention, ReadReport
from luke.errors import UserError


@dataclass(frozen=True)
class Titles:
    """What is known of a Wikipedia's titles.

    Attributes:
        valid: Titles of articles; None if not known: then every title counts as one.
        redirects: Source title -> final title.
    """

    valid: frozenset[str] | None = None
    redirects: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, title: str) -> str:
        """The title that ``title`` leads to."""
        return self.redirects.get(title, title)


def read_titles(titles_file: Path | None = None, redirects_file: Path | None = None, db: Path | None = None) -> Titles:
    """Titles and redirects of a page store, or of the public code's files: one title a line; source TAB target a line.

    Raises:
        UserError: a file cannot be read, or a line is not of that form (named).
    """
    valid: frozenset[str] | None = None
    redirects: dict[str, str] = {}
    if db is not None:
        from luke.corpus.page_store import PageStore

        store = PageStore(db)
        valid, redirects = frozenset(store.titles()), store.redirects()
    if titles_file is not None:
        valid = frozenset(line for _, line in lines_of(titles_file))
    if redirects_file is not None:
        for number, line in lines_of(redirects_file):
            source, tab, target = line.partition("\t")
            if not tab:
                raise UserError(f"{redirects_file}, line {number}: not of the form source TAB target")
            redirects[source] = target
    return Titles(valid, redirects)


def lines_of(path: Path) -> list[tuple[int, str]]:
    """(line number, line) of a text file's lines that are not empty.

    Raises:
        UserError: it cannot be read, or is not UTF-8.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            return [(number, line.rstrip("\r\n")) for number, line in enumerate(stream, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def apply_titles(collection: Collection, titles: Titles) -> Collection:
    """Resolves gold titles and candidates, and drops mentions whose gold title is no article.

    Candidates that lead to the same article become one, at the place of the first, with the sum of their priors.
    """
    report = ReadReport(**vars(collection.report) | {"dropped": collection.report.dropped.copy()})
    documents = []
    for document in collection.documents:
        mentions = []
        for mention in document.mentions:
            title = None if mention.title is None else titles.resolve(mention.title)
            if title is not None and titles.valid is not None and title not in titles.valid:
                report.dropped["the right entity is not among the titles"] += 1
                continue
            candidates = _resolve_candidates(mention.candidates, titles)
            mentions.append(Mention(mention.start, mention.end, title, candidates, mention.type))
        documents.append(Document(document.id, document.text, mentions))
    return Collection(documents, report)


def _resolve_candidates(candidates: list[Candidate], titles: Titles) -> list[Candidate]:
    priors: dict[str, float] = {}
    for candidate in candidates:
        title = titles.resolve(candidate.title)
        priors[title] = priors.get(title, 0.0) + candidate.prior
    return [Candidate(title, prior) for title, prior in priors.items()]
