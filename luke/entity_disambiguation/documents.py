"""What all readers give and everything else takes: documents with mentions and their candidates, and what was dropped."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Candidate(NamedTuple):
    """An entity that a mention may mean, and P(entity | mention text); the prior is 0 where the source gives none."""

    title: str
    prior: float


@dataclass(slots=True)
class Mention:
    """A mention.

    Attributes:
        start, end: Code points of the document's text; ``text[start:end]`` is the mention.
        title: The right entity; None if unknown, as in raw text.
        candidates: By descending prior.
        type: Such as ``PER``, where the source has it.
    """

    start: int
    end: int
    title: str | None = None
    candidates: list[Candidate] = field(default_factory=list)
    type: str | None = None


@dataclass(slots=True)
class Document:
    """A text with its mentions, by their starts; mentions may overlap."""

    id: str
    text: str
    mentions: list[Mention]

    def mention_text(self, mention: Mention) -> str:
        """The words of a mention."""
        return self.text[mention.start : mention.end]


@dataclass
class ReadReport:
    """What a reader found, and what it left out.

    Attributes:
        documents: Documents read, those without mentions too.
        mentions: Mentions that the file has.
        dropped: Reason -> mentions left out for it.
        notes: What else was changed -> how often; nothing is left out for it.
    """

    documents: int = 0
    mentions: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> int:
        """Mentions that are left."""
        return self.mentions - self.dropped.total()

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [f"{self.documents:,} documents, {self.mentions:,} mentions, {self.kept:,} kept"]
        lines += [f"  dropped {number:,}: {reason}" for reason, number in self.dropped.most_common()]
        return lines + [f"  {number:,} {note}" for note, number in self.notes.most_common()]

    def as_dict(self) -> dict[str, object]:
        """The report as JSON."""
        return {
            "documents": self.documents,
            "mentions": self.mentions,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "notes": dict(self.notes),
        }


class Collection(NamedTuple):
    """The documents of a benchmark, and the report of its reader."""

    documents: list[Document]
    report: ReadReport


def by_prior(candidates: list[Candidate]) -> list[Candidate]:
    """By descending prior; equal ones stay in their order."""
    return sorted(candidates, key=lambda candidate: -candidate.prior)
