"""What a disambiguation is worth: F1, accuracy, the ceiling that candidates set, the prior baseline, tables, intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from luke.entity_disambiguation.documents import Document

# Borders of the groups of entities by their links in the vocabulary; the paper's table of rare entities has such groups.
_FREQUENCY_BORDERS = (0, 1, 11, 51, 101, 1001, 10001)
_RESAMPLINGS = 1000
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Outcomes:
    """N mentions with a known answer, in columns.

    Attributes:
        document: int (N,), the number of the document.
        correct: The answer is right. by_prior: that of the highest prior is.
        has_candidates: There was a choice at all. gold_is_candidate: the right entity was among them.
        is_ambiguous: There was more than one candidate.
        type: Of the mention, such as ``PER``; "" if unknown.
        links: Of the right entity in the vocabulary; -1 if the vocabulary lacks it.
    """

    document: npt.NDArray[np.int64]
    correct: Bools
    by_prior: Bools
    has_candidates: Bools
    gold_is_candidate: Bools
    is_ambiguous: Bools
    type: npt.NDArray[np.str_]
    links: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.document)

    def select(self, chosen: Bools | npt.NDArray[np.int64]) -> "Outcomes":
        """Some of the mentions."""
        return Outcomes(**{name: column[chosen] for name, column in vars(self).items()})


def outcomes(
    documents: Sequence[Document],
    answers: Sequence[Sequence[str | None]],
    links: Mapping[str, int] | None = None,
    max_candidates: int = 30,
) -> Outcomes:
    """Compares answers with the right entities; mentions whose right entity is unknown do not count.

    Args:
        answers: For each mention of each document the title, None for no answer.
        links: Title -> links, of the vocabulary.
        max_candidates: Candidates of a mention that were looked at.
    """
    rows: list[tuple[Any, ...]] = []
    for number, (document, row) in enumerate(zip(documents, answers, strict=True)):
        for mention, answer in zip(document.mentions, row, strict=True):
            if mention.title is None:
                continue
            titles = [candidate.title for candidate in mention.candidates[:max_candidates]]
            rows.append(
                (
                    number,
                    answer == mention.title,
                    bool(titles) and titles[0] == mention.title,
                    bool(titles),
                    mention.title in titles,
                    len(set(titles)) > 1,
                    mention.type or "",
                    -1 if links is None else links.get(mention.title, -1),
                )
            )
    kinds = (np.int64, np.bool_, np.bool_, np.bool_, np.bool_, np.bool_, np.str_, np.int64)
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    return Outcomes(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def precision(found: Outcomes) -> float:
    """Right answers among mentions with candidates."""
    return _ratio(int(found.correct.sum()), int(found.has_candidates.sum()))


def accuracy(found: Outcomes) -> float:
    """Right answers among all mentions: in-KB accuracy, and micro F1's recall."""
    return _ratio(int(found.correct.sum()), len(found))


def micro_f1(found: Outcomes) -> float:
    """Harmonic mean of precision and recall: a mention without candidates counts against recall alone (paper, section 4)."""
    p, r = precision(found), accuracy(found)
    return 2 * p * r / (p + r) if p + r else 0.0


def macro_accuracy(found: Outcomes) -> float:
    """Mean over documents of their accuracies."""
    counts = np.bincount(found.document)
    right = np.bincount(found.document, weights=found.correct)
    return float((right[counts > 0] / counts[counts > 0]).mean()) if len(found) else 0.0


def candidate_recall(found: Outcomes) -> float:
    """Mentions whose right entity is a candidate: the ceiling of accuracy."""
    return _ratio(int(found.gold_is_candidate.sum()), len(found))


def prior_accuracy(found: Outcomes) -> float:
    """Accuracy of always taking the highest prior."""
    return _ratio(int(found.by_prior.sum()), len(found))


def gain_over_prior(found: Outcomes) -> float:
    """Accuracy less that of the highest prior, on the same mentions."""
    return accuracy(found) - prior_accuracy(found)


_FIGURES: dict[str, Callable[[Outcomes], float]] = {
    "micro_f1": micro_f1,
    "precision": precision,
    "accuracy": accuracy,
    "macro_accuracy": macro_accuracy,
    "candidate_recall": candidate_recall,
    "prior_accuracy": prior_accuracy,
    "gain_over_prior": gain_over_prior,
}


def figures(found: Outcomes, seed: int = 0) -> dict[str, Any]:
    """All figures with 95 % intervals, for all mentions and for the ambiguous ones, and tables by type and frequency."""
    ambiguous = found.select(found.is_ambiguous)
    return {
        "mentions": len(found),
        "documents": len(np.unique(found.document)),
        **_with_intervals(found, seed),
        "ambiguous": {"mentions": len(ambiguous), **_with_intervals(ambiguous, seed)},
        "by_type": {str(name): _short(found.select(found.type == name)) for name in np.unique(found.type) if name},
        "by_frequency": _by_frequency(found),
    }


def _with_intervals(found: Outcomes, seed: int) -> dict[str, Any]:
    """Each figure and the 2.5 % and 97.5 % quantiles of it over resampled documents (percentile bootstrap)."""
    values = {name: function(found) for name, function in _FIGURES.items()}
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(found.document == number) for number in np.unique(found.document)]
    if len(members) < 2:
        return {**values, "intervals": None}
    samples: dict[str, list[float]] = {name: [] for name in _FIGURES}
    for _ in range(_RESAMPLINGS):
        drawn = rng.integers(0, len(members), len(members))
        sample = found.select(np.concatenate([members[number] for number in drawn]))
        # A document that is drawn twice is two documents.
        copies = np.repeat(np.arange(len(drawn)), [len(members[number]) for number in drawn])
        sample = Outcomes(**vars(sample) | {"document": copies})
        for name, function in _FIGURES.items():
            samples[name].append(function(sample))
    intervals = {name: [float(q) for q in np.quantile(drawn, (0.025, 0.975))] for name, drawn in samples.items()}
    return {**values, "intervals": intervals}


def _short(found: Outcomes) -> dict[str, Any]:
    names = ("accuracy", "candidate_recall", "prior_accuracy")
    return {"mentions": len(found), **{name: _FIGURES[name](found) for name in names}}


def _by_frequency(found: Outcomes) -> dict[str, Any]:
    table = {"not in the vocabulary": found.links < 0}
    for low, high in zip(_FREQUENCY_BORDERS, (*_FREQUENCY_BORDERS[1:], 1 << 62), strict=True):
        upper = "" if high == low + 1 else " or more" if high == 1 << 62 else f" to {high - 1:,}"
        table[f"{low:,}{upper} links"] = (found.links >= low) & (found.links < high)
    return {name: _short(found.select(chosen)) for name, chosen in table.items() if chosen.any()}


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
