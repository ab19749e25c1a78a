"""Raw text -> linked text: mentions, candidates, disambiguation, and no link where the model is not sure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from luke.entity_disambiguation.candidate_table import CandidateTable
from luke.entity_disambiguation.documents import Document, Mention
from luke.entity_disambiguation.inference import Disambiguator, InferenceOptions, Prediction
from luke.entity_disambiguation.mention_detection import detect_mentions
from luke.errors import UserError

CANDIDATES_FOLDER = "candidates"
Span = tuple[int, int]


@dataclass(frozen=True)
class LinkOptions:
    """How texts are linked.

    Attributes:
        min_link_probability: Of an anchor, to be a mention. Higher: fewer, more certain mentions.
        nil_threshold: Probability among the candidates below which a mention gets no link.
        inference: How mentions are disambiguated.
    """

    min_link_probability: float = 0.1
    nil_threshold: float = 0.0
    inference: InferenceOptions = field(default_factory=InferenceOptions)

    def __post_init__(self) -> None:
        for name in ("min_link_probability", "nil_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must lie between 0 and 1")


class EntityLink(NamedTuple):
    """A mention, code points [start, end) of the text, and its entity; ``title`` is None where there is none (NIL)."""

    start: int
    end: int
    text: str
    title: str | None
    probability: float


@dataclass(frozen=True)
class LinkedText:
    """A text with its links, by their starts."""

    text: str
    links: list[EntityLink]

    def as_dict(self) -> dict[str, Any]:
        """The text and its links as JSON."""
        return {"text": self.text, "links": [link._asdict() for link in self.links]}


class EntityLinker:
    """Links texts.

    Args:
        disambiguator: The model.
        table: Candidates and link probabilities of anchors.
        options: How texts are linked.
    """

    def __init__(self, disambiguator: Disambiguator, table: CandidateTable, options: LinkOptions | None = None) -> None:
        self.disambiguator, self.table = disambiguator, table
        self.options = options or LinkOptions()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        candidates: str | Path | None = None,
        options: LinkOptions | None = None,
        device: torch.device | str = "cpu",
    ) -> "EntityLinker":
        """A linker of a model folder and a candidate table; by default the table in the model's folder ``candidates``.

        Raises:
            UserError: one of them is not there, or is something else.
        """
        folder = Path(candidates) if candidates is not None else Path(model) / CANDIDATES_FOLDER
        if not folder.exists():
            raise UserError(f"{folder}: no candidate table there; make one with luke build-candidates and give --candidates")
        return cls(Disambiguator.from_pretrained(model, device), CandidateTable(folder), options)

    def link(self, texts: Sequence[str], spans: Sequence[Iterable[Span] | None] | None = None) -> list[LinkedText]:
        """Links many texts at a time.

        Args:
            spans: For each text the mentions, code points [start, end), where they are known; None: they are found.

        Raises:
            UserError: a span is empty, or outside of its text.
        """
        given = [None] * len(texts) if spans is None else spans
        documents = [
            Document(str(number), text, self._mentions(text, known))
            for number, (text, known) in enumerate(zip(texts, given, strict=True))
        ]
        predictions = self.disambiguator.predict(documents, self.options.inference)
        return [self._linked(document, row) for document, row in zip(documents, predictions, strict=True)]

    def _mentions(self, text: str, spans: Iterable[Span] | None) -> list[Mention]:
        limit = self.options.inference.windows.max_candidates
        if spans is None:
            return detect_mentions(text, self.table, self.options.min_link_probability, limit)
        mentions = []
        for start, end in sorted(spans):
            if not 0 <= start < end <= len(text):
                raise UserError(f"span {start}:{end} is empty or outside of a text of {len(text)} characters")
            mentions.append(Mention(start, end, candidates=self.table.candidates(text[start:end], limit)))
        return mentions

    def _linked(self, document: Document, predictions: Sequence[Prediction]) -> LinkedText:
        links = []
        for mention, prediction in zip(document.mentions, predictions, strict=True):
            sure = prediction.title is not None and prediction.probability >= self.options.nil_threshold
            title = prediction.title if sure else None
            text = document.mention_text(mention)
            links.append(EntityLink(mention.start, mention.end, text, title, prediction.probability))
        return LinkedText(document.text, links)
