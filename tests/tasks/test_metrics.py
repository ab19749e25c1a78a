"""Metrics against values worked out by hand and the libraries that define them."""

import random

import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from luke.tasks.answers import answer_metrics, exact_match, normalize_answer, token_f1
from luke.tasks.metrics import classification_metrics, relation_metrics, typing_metrics


def test_typing_by_hand() -> None:
    gold = [{"a", "b"}, {"c"}, {"a"}, set[str]()]
    found = [{"a"}, {"c", "d"}, set[str](), {"d"}]
    metrics = typing_metrics(gold, found)
    # 2 of 4 predicted and of 4 true types are right.
    assert (metrics["precision"], metrics["recall"], metrics["f1"]) == (0.5, 0.5, 0.5)
    assert metrics["macro_precision"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert metrics["macro_recall"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert metrics["strict_accuracy"] == 0.0
    assert typing_metrics([{"a"}], [{"a"}])["strict_accuracy"] == 1.0


def test_relations_as_tacred_counts_them() -> None:
    gold = ["no_relation", "x", "x", "y", "no_relation"]
    found = ["no_relation", "x", "no_relation", "x", "y"]
    metrics = relation_metrics(gold, found, "no_relation")
    # Of 3 predicted relations and 3 true ones, one is right.
    assert (metrics["precision"], metrics["recall"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert metrics["macro_f1"] == pytest.approx((0.5 + 0.0) / 2)
    assert metrics["accuracy"] == pytest.approx(2 / 5)
    assert relation_metrics(gold, found, None)["f1"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("seed", range(4))
def test_relations_and_classes_equal_scikit_learn(seed: int) -> None:
    generator = random.Random(seed)
    gold, found = ([generator.choice("abcn") for _ in range(40)] for _ in range(2))
    metrics = relation_metrics(gold, found, "n")
    assert metrics["f1"] == pytest.approx(f1_score(gold, found, labels=list("abc"), average="micro"))
    assert metrics["macro_f1"] == pytest.approx(f1_score(gold, found, labels=list("abc"), average="macro"))
    classes = classification_metrics(gold, found)
    assert classes["matthews_correlation"] == pytest.approx(matthews_corrcoef(gold, found))
    assert classes["macro_f1"] == pytest.approx(f1_score(gold, found, average="macro"))


def test_nothing_predicted_is_zero() -> None:
    assert relation_metrics(["n"], ["n"], "n")["f1"] == 0.0
    assert classification_metrics(["a", "a"], ["a", "a"])["matthews_correlation"] == 0.0


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The  Panthers' defense, a-team!", "en", "panthers defense ateam"),
        ("An apple “pie”", "en", "apple “pie”"),  # SQuAD drops ASCII's punctuation only
        ("Die „Stadt“ der Welt", "de", "stadt welt"),
        ("El perro, una casa", "es", "perro casa"),
        ("北京 is 大", "zh", "北 京 is 大"),
        ("theatre", "en", "theatre"),
    ],
)
def test_answers_are_normalised(text: str, language: str, expected: str) -> None:
    assert normalize_answer(text, language) == expected


def test_answers_by_hand() -> None:
    assert exact_match("the Denver Broncos.", "Denver Broncos") == 1.0
    assert token_f1("Denver Broncos team", "Denver Broncos") == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
    assert token_f1("the", "a") == 1.0 and token_f1("x", "") == 0.0
    metrics = answer_metrics([["Denver Broncos", "Denver"], ["308"]], ["Denver", "24"])
    assert (metrics["exact_match"], metrics["f1"]) == (0.5, 0.5) and "no_answer_f1" not in metrics
    metrics = answer_metrics([["308"], [], []], ["308", "", "x"])
    assert metrics["exact_match"] == pytest.approx(2 / 3)
    assert (metrics["has_answer_f1"], metrics["no_answer_f1"]) == (1.0, 0.5)
