"""In which order the mentions of a window are resolved: rules that ask for scores and answer with candidates.

A rule is a generator. It yields the states that it wants scored, each a window's entity ids, and is sent for each the log
probabilities of all candidates (E, C), -inf where there is none. It returns, for each mention, the column of its candidate
(-1 without candidates) and its probability when it was chosen. So many windows advance together, each by its own rule.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from luke.entity_disambiguation.windows import Ints, Window
from luke.entity_vocab import MASK, SPECIAL

MASK_ID = SPECIAL.index(MASK)
Floats = npt.NDArray[np.float64]


class Answers(NamedTuple):
    """Per mention: the chosen candidate's column (-1: none), and its probability among the candidates."""

    columns: Ints
    probabilities: Floats


Rule = Generator[list[Ints], list[Floats], Answers]


class _State(NamedTuple):
    """A partly resolved window; ``entity_ids`` (E,) are what the model sees."""

    entity_ids: Ints
    columns: Ints
    probabilities: Floats
    score: float

    def with_answer(self, window: Window, mention: int, column: int, log_probability: float) -> "_State":
        copy = _State(self.entity_ids.copy(), self.columns.copy(), self.probabilities.copy(), self.score + log_probability)
        copy.entity_ids[mention] = window.candidate_ids[mention, column]
        copy.columns[mention] = column
        copy.probabilities[mention] = np.exp(log_probability)
        return copy

    def open_mentions(self, window: Window) -> Ints:
        """Mentions with candidates that are not resolved."""
        return np.flatnonzero((self.columns < 0) & (window.candidate_ids > 0).any(1))


def _start(window: Window) -> _State:
    """All masked but the mentions with one candidate: its probability is 1, so it comes first in any order."""
    size = len(window.mentions)
    state = _State(np.full(size, MASK_ID, np.int64), np.full(size, -1, np.int64), np.zeros(size), 0.0)
    for mention in np.flatnonzero((window.candidate_ids > 0).sum(1) == 1).tolist():
        state = state.with_answer(window, mention, int(np.argmax(window.candidate_ids[mention] > 0)), 0.0)
    return state


def local(window: Window) -> Rule:
    """Every mention from the words and the other masked mentions alone, in one pass."""
    size = len(window.mentions)
    columns, probabilities = np.full(size, -1, np.int64), np.zeros(size)
    choices = (window.candidate_ids > 0).sum(1)
    single = choices == 1
    columns[single] = np.argmax(window.candidate_ids[single] > 0, axis=1)
    probabilities[single] = 1.0
    ambiguous = choices > 1
    if ambiguous[window.is_target].any():
        (log_probabilities,) = yield [np.full(size, MASK_ID, np.int64)]
        columns[ambiguous] = log_probabilities[ambiguous].argmax(1)
        probabilities[ambiguous] = np.exp(log_probabilities[ambiguous].max(1))
    return Answers(columns, probabilities)


def confidence_order(window: Window) -> Rule:
    """Again and again: score all unresolved mentions, fix the most confident one as its entity (paper, section 3.3).

    It ends when the targets are resolved: what follows does not change them.
    """
    state = _start(window)
    while len(unresolved := state.open_mentions(window)) and window.is_target[unresolved].any():
        (log_probabilities,) = yield [state.entity_ids]
        state = _fix_most_confident(window, state, unresolved, log_probabilities, 1)[0]
    return Answers(state.columns, state.probabilities)


def beam(size: int) -> Callable[[Window], Rule]:
    """As `confidence_order`, but the ``size`` best answers for the most confident mention are followed, and of all sets of
    answers those ``size`` with the highest product of probabilities are kept. A beam of 1 is `confidence_order`."""

    def search(window: Window) -> Rule:
        states = [_start(window)]
        while len(states[0].open_mentions(window)):
            scored = yield [state.entity_ids for state in states]
            grown = [
                new
                for state, log_probabilities in zip(states, scored, strict=True)
                for new in _fix_most_confident(window, state, state.open_mentions(window), log_probabilities, size)
            ]
            # The same answers may be reached in several orders.
            best = {new.entity_ids.tobytes(): new for new in sorted(grown, key=lambda new: new.score)}
            states = sorted(best.values(), key=lambda new: -new.score)[:size]
        return Answers(states[0].columns, states[0].probabilities)

    return search


def _fix_most_confident(
    window: Window, state: _State, unresolved: Ints, log_probabilities: Floats, branches: int
) -> list[_State]:
    """The states in which the most confident unresolved mention has one of its ``branches`` best candidates."""
    mention = int(unresolved[log_probabilities[unresolved].max(1).argmax()])
    row = log_probabilities[mention]
    columns = np.argsort(-row, kind="stable")[:branches]
    return [state.with_answer(window, mention, int(c), float(row[c])) for c in columns if np.isfinite(row[c])]
