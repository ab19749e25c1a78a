"""Anchor text -> the entities that it links to: a read-only, memory-mapped table, opened at once at any size.

A folder of Arrow files, written by `luke.entity_disambiguation.build_candidates`; the format is described in
``docs/architecture.md``.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from luke.artifacts import Metadata, read_metadata
from luke.entity_disambiguation.anchor_index import AnchorIndex, Span, read_batches
from luke.entity_disambiguation.documents import Candidate, Collection, Document, Mention

KIND = "candidate-table"
ANCHORS_FILE, ENTITIES_FILE, FREQUENCIES_FILE = "anchors.arrow", "entities.arrow", "frequencies.arrow"


class AnchorEntry(NamedTuple):
    """A row of the table.

    Attributes:
        key: The anchor text in the form of its level.
        links: Links with this anchor.
        pages_linked: Pages with such a link.
        pages_with: Pages with the text, linked or not: the document frequency.
        candidates: By descending prior.
    """

    key: str
    links: int
    pages_linked: int
    pages_with: int
    candidates: list[Candidate]

    @property
    def link_probability(self) -> float:
        """Of a page with the text, the probability that it is linked there (Mihalcea and Csomai 2007, "keyphraseness")."""
        return min(1.0, self.pages_linked / max(1, self.pages_with))


class CandidateTable:
    """A candidate table, memory-mapped.

    Args:
        folder: What ``luke build-candidates`` wrote.

    Raises:
        UserError: it is not a candidate table, or a file of it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metadata: Metadata = read_metadata(folder, KIND)
        self.index = AnchorIndex(folder / ANCHORS_FILE, int(self.metadata["options"]["max_anchor_tokens"]))
        self._rows = [
            {name: batch[name].to_numpy() for name in ("links", "pages_linked", "total_weight")}
            | {name: batch[name].values.to_numpy() for name in ("entities", "weights")}
            | {"offsets": batch["entities"].offsets.to_numpy()}
            for batch in self.index.batches
        ]
        self._pages_with = [batch["pages_with"].to_numpy() for batch in read_batches(folder / FREQUENCIES_FILE)]
        self._titles = [batch["title"] for batch in read_batches(folder / ENTITIES_FILE)]
        self._first_entities = np.cumsum([0, *map(len, self._titles)])

    def __len__(self) -> int:
        """Keys of all levels."""
        return len(self.index)

    def lookup(self, text: str) -> AnchorEntry | None:
        """What is known of a mention's text: as it is, else lower-cased, else without accents."""
        row = self.index.find(text)
        return None if row is None else self.entry(row)

    def candidates(self, text: str, limit: int | None = None) -> list[Candidate]:
        """The candidates of a mention's text by descending prior; none if the table does not know it."""
        entry = self.lookup(text)
        return entry.candidates[:limit] if entry else []

    def entry(self, row: int) -> AnchorEntry:
        """A row by its number."""
        batch, place = self.index.locate(row)
        columns = self._rows[batch]
        chosen = slice(columns["offsets"][place], columns["offsets"][place + 1])
        total = float(columns["total_weight"][place])
        entities, weights = columns["entities"][chosen].tolist(), columns["weights"][chosen].tolist()
        linked = int(columns["pages_linked"][place])
        return AnchorEntry(
            self.index.key(row),
            int(columns["links"][place]),
            linked,
            max(linked, int(self._pages_with[batch][place])),
            [Candidate(self.title(entity), weight / total) for entity, weight in zip(entities, weights, strict=True)],
        )

    def link_probability(self, row: int) -> float:
        """As `AnchorEntry.link_probability`, without reading candidates."""
        batch, place = self.index.locate(row)
        return min(1.0, float(self._rows[batch]["pages_linked"][place]) / max(1.0, float(self._pages_with[batch][place])))

    def title(self, entity: int) -> str:
        """The title of an entity's number."""
        batch = int(np.searchsorted(self._first_entities, entity, side="right")) - 1
        title: str = self._titles[batch][entity - int(self._first_entities[batch])].as_py()
        return title

    def find_spans(self, text: str) -> list[Span]:
        """Every part of a text, from word to word, that is an anchor."""
        return self.index.find_spans(text)


def with_table_candidates(collection: Collection, table: CandidateTable, limit: int = 30) -> Collection:
    """The documents with the table's candidates in place of their own."""
    known: dict[str, list[Candidate]] = {}
    documents = []
    for document in collection.documents:
        mentions = []
        for mention in document.mentions:
            text = document.mention_text(mention)
            if text not in known:
                known[text] = table.candidates(text, limit)
            mentions.append(Mention(mention.start, mention.end, mention.title, known[text], mention.type))
        documents.append(Document(document.id, document.text, mentions))
    return Collection(documents, collection.report)
