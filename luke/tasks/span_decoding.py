"""Scored spans -> spans that do not overlap."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class ScoredSpan(NamedTuple):
    """A span with its best label.

    Attributes:
        start, end: Words, the end exclusive.
        log_probability: Of the label.
        gain: That minus the log probability of no label; negative if the model rather says that there is no mention.
    """

    start: int
    end: int
    label: str
    log_probability: float
    gain: float


def greedy(spans: Sequence[ScoredSpan]) -> list[ScoredSpan]:
    """The most probable span first, then the next that overlaps none taken (Yamada et al. 2020, section 4.3)."""
    taken: list[ScoredSpan] = []
    for span in sorted((s for s in spans if s.gain > 0), key=lambda s: (-s.log_probability, s.start, s.end)):
        if all(span.end <= other.start or span.start >= other.end for other in taken):
            taken.append(span)
    return sorted(taken)


def exact(spans: Sequence[ScoredSpan]) -> list[ScoredSpan]:
    """The set without overlaps that the model finds most probable: the largest sum of gains, by dynamic programming over
    ends (weighted interval scheduling)."""
    ordered = sorted((s for s in spans if s.gain > 0), key=lambda s: (s.end, s.start))
    ends = [span.end for span in ordered]
    best = [0.0]  # best[n]: of the first n spans
    before: list[int] = []  # spans that end where span n starts or earlier
    for span in ordered:
        before.append(bisect_right(ends, span.start, hi=len(before)))
        best.append(max(best[-1], best[before[-1]] + span.gain))
    taken, number = [], len(ordered)
    while number:
        if best[number] == best[number - 1]:
            number -= 1
        else:
            taken.append(ordered[number - 1])
            number = before[number - 1]
    return taken[::-1]


DECODERS = {"greedy": greedy, "exact": exact}
