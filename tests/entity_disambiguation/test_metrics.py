"""Figures of a hand-counted example, and what the intervals must do."""

import numpy as np
import pytest

from luke.entity_disambiguation.documents import Candidate, Document, Mention
from luke.entity_disambiguation.metrics import figures, outcomes


def mention(gold: str | None, candidates: str, type_: str | None = None) -> Mention:
    return Mention(0, 1, gold, [Candidate(title, 1 / (n + 1)) for n, title in enumerate(candidates)], type_)


DOCUMENTS = [
    Document(
        "1", "text", [mention("A", "AB", "PER"), mention("B", "AB", "PER"), mention("C", "", "LOC"), mention(None, "A")]
    ),
    Document("2", "", [mention("D", "AB", "LOC"), mention("E", "E"), mention("F", "XYF")]),
]
ANSWERS = [["A", "B", None, "A"], ["A", "E", "X"]]
LINKS = {"A": 0, "B": 5, "C": 10, "D": 11, "E": 20000}


def test_hand_counted() -> None:
    found = figures(outcomes(DOCUMENTS, ANSWERS, LINKS))
    assert (found["mentions"], found["documents"]) == (6, 2)
    assert found["accuracy"] == pytest.approx(3 / 6)  # A, B, E of all six
    assert found["precision"] == pytest.approx(3 / 5)  # C had no candidate
    assert found["micro_f1"] == pytest.approx(2 * 0.5 * 0.6 / 1.1)
    assert found["macro_accuracy"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found["candidate_recall"] == pytest.approx(4 / 6)  # not C, not D
    assert found["prior_accuracy"] == pytest.approx(2 / 6)  # A, E
    assert found["gain_over_prior"] == pytest.approx(1 / 6)
    assert found["ambiguous"]["mentions"] == 4 and found["ambiguous"]["accuracy"] == pytest.approx(2 / 4)
    assert found["by_type"]["PER"] == {"mentions": 2, "accuracy": 1.0, "candidate_recall": 1.0, "prior_accuracy": 0.5}
    assert {name: group["mentions"] for name, group in found["by_frequency"].items()} == {
        "not in the vocabulary": 1, "0 links": 1, "1 to 10 links": 2, "11 to 50 links": 1, "10,001 or more links": 1,
    }  # fmt: skip


def test_candidate_limit_lowers_the_ceiling() -> None:
    found = figures(outcomes(DOCUMENTS, ANSWERS, max_candidates=2))
    assert found["candidate_recall"] == pytest.approx(3 / 6)


def test_intervals_hold_the_figure_and_shrink_with_documents() -> None:
    rng = np.random.default_rng(0)

    def width(documents: int) -> float:
        texts = [Document(str(n), "x", [mention("A", "AB") for _ in range(5)]) for n in range(documents)]
        answers = [["A" if rng.random() < 0.7 else "B" for _ in range(5)] for _ in range(documents)]
        found = figures(outcomes(texts, answers))
        low, high = found["intervals"]["accuracy"]
        assert low < found["accuracy"] < high
        return float(high - low)

    few, many = width(25), width(400)
    assert 0.15 < few < 0.6 and many < few / 2
    assert figures(outcomes(DOCUMENTS[:1], ANSWERS[:1]))["intervals"] is None  # one document says nothing of others


def test_nothing_to_count() -> None:
    assert figures(outcomes([], []))["micro_f1"] == 0.0
