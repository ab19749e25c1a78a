"""Metrics, from their definitions; each is checked against known values and the libraries that define it."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet

Metrics = dict[str, float]


def f1(precision: float, recall: float) -> float:
    """The harmonic mean; 0 if both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def precision_recall_f1(correct: int, predicted: int, gold: int) -> Metrics:
    """From counts; a ratio over nothing is 0."""
    precision = correct / predicted if predicted else 0.0
    recall = correct / gold if gold else 0.0
    return {"precision": precision, "recall": recall, "f1": f1(precision, recall)}


def typing_metrics(gold: Sequence[AbstractSet[str]], predicted: Sequence[AbstractSet[str]]) -> Metrics:
    """Sets of types: ``strict_accuracy``; macro and micro precision, recall, F1 as in Ling and Weld (2012).

    *Micro* (their "loose micro", the figure of Open Entity) counts types over all mentions. *Macro* ("loose macro", that of
    UFET) averages each mention's precision over mentions with a prediction, and its recall over mentions with a type.
    """
    pairs = list(zip(gold, predicted, strict=True))
    correct = [len(types & found) for types, found in pairs]
    precisions = [hits / len(found) for hits, (_, found) in zip(correct, pairs, strict=True) if found]
    recalls = [hits / len(types) for hits, (types, _) in zip(correct, pairs, strict=True) if types]
    macro_precision, macro_recall = mean(precisions), mean(recalls)
    return {
        **precision_recall_f1(sum(correct), sum(map(len, predicted)), sum(map(len, gold))),
        "macro_precision": macro_precision,
        "macro_recall": macro_recall,
        "macro_f1": f1(macro_precision, macro_recall),
        "strict_accuracy": mean([float(types == found) for types, found in pairs]),
    }


def relation_metrics(gold: Sequence[str], predicted: Sequence[str], negative: str | None) -> Metrics:
    """Micro F1 that does not count the negative label, as TACRED's scorer; F1 averaged over the other labels; accuracy."""
    pairs = list(zip(gold, predicted, strict=True))
    correct = Counter(label for label, found in pairs if label == found)
    gold_counts, found_counts = Counter(gold), Counter(predicted)
    labels = sorted((set(gold) | set(predicted)) - {negative})
    each = [precision_recall_f1(correct[label], found_counts[label], gold_counts[label])["f1"] for label in labels]
    return {
        **precision_recall_f1(*(sum(counts[label] for label in labels) for counts in (correct, found_counts, gold_counts))),
        "macro_f1": mean(each),
        "accuracy": mean([float(label == found) for label, found in pairs]),
    }


def span_metrics(
    gold: Sequence[Iterable[tuple[int, int, str]]], predicted: Sequence[Iterable[tuple[int, int, str]]]
) -> Metrics:
    """Labelled spans of sentences, right if both borders and the label are: the F1 of conlleval and seqeval.

    ``f1_LABEL`` is that of one label.
    """

    def flat(sentences: Sequence[Iterable[tuple[int, int, str]]]) -> Counter[tuple[int, int, int, str]]:
        return Counter((number, *span) for number, spans in enumerate(sentences) for span in spans)

    gold_spans, found_spans = flat(gold), flat(predicted)
    right = gold_spans & found_spans
    result = precision_recall_f1(right.total(), found_spans.total(), gold_spans.total())
    for label in sorted({span[3] for span in gold_spans | found_spans}):
        counts = [
            sum(count for span, count in spans.items() if span[3] == label) for spans in (right, found_spans, gold_spans)
        ]
        result[f"f1_{label}"] = precision_recall_f1(*counts)["f1"]
    return result


def classification_metrics(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> Metrics:
    """Accuracy, F1 averaged over the labels, and Matthews' correlation (Gorodkin 2004 for more than two labels)."""
    pairs = list(zip(gold, predicted, strict=True))
    correct = Counter(label for label, found in pairs if label == found)
    gold_counts, found_counts = Counter(gold), Counter(predicted)
    labels = sorted(set(gold) | set(predicted), key=str)
    total, right = len(pairs), correct.total()
    product = sum(gold_counts[label] * found_counts[label] for label in labels)
    spread = (total**2 - sum(count**2 for count in found_counts.values())) * (
        total**2 - sum(count**2 for count in gold_counts.values())
    )
    each = [precision_recall_f1(correct[label], found_counts[label], gold_counts[label])["f1"] for label in labels]
    return {
        "accuracy": right / total if total else 0.0,
        "macro_f1": mean(each),
        "matthews_correlation": (right * total - product) / spread**0.5 if spread else 0.0,
    }


def mean(values: Sequence[float]) -> float:
    """0 for no values."""
    return sum(values) / len(values) if values else 0.0
