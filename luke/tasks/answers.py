"""Exact match and F1 of answers, as the official scorers of SQuAD, MLQA and ReCoRD define them."""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

# Words that MLQA's scorer leaves out (Lewis et al. 2020); SQuAD's and ReCoRD's are the English ones.
_ARTICLES = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "ar": r"\sال^|ال",
}
# Written without spaces: each character is a word.
_IDEOGRAPHS = re.compile(r"[\u4e00-\u9fa5]")


def normalize_answer(text: str, language: str = "en") -> str:
    """Lower case without punctuation, articles and more than one space. SQuAD's punctuation is ASCII's, MLQA's Unicode's."""

    def is_punctuation(character: str) -> bool:
        return character in string.punctuation or (language != "en" and unicodedata.category(character).startswith("P"))

    text = "".join(character for character in text.lower() if not is_punctuation(character))
    if language in _ARTICLES:
        text = re.sub(_ARTICLES[language], " ", text)
    return " ".join(_tokens(text, language))


def _tokens(text: str, language: str) -> list[str]:
    if language in ("zh", "ja"):
        text = _IDEOGRAPHS.sub(lambda match: f" {match[0]} ", text)
    return text.split()


def exact_match(prediction: str, gold: str, language: str = "en") -> float:
    """1 if the normalised answers agree."""
    return float(normalize_answer(prediction, language) == normalize_answer(gold, language))


def token_f1(prediction: str, gold: str, language: str = "en") -> float:
    """F1 of the bags of words; of an empty answer 1 if the other is empty too."""
    found, right = normalize_answer(prediction, language).split(), normalize_answer(gold, language).split()
    if not found or not right:
        return float(found == right)
    common = (Counter(found) & Counter(right)).total()
    return 2 * common / (len(found) + len(right))


def answer_metrics(golds: Sequence[Sequence[str]], predictions: Sequence[str], language: str = "en") -> dict[str, float]:
    """Exact match and F1, of each question the best over its answers; no answers mean that "" is right (SQuAD 2.0).

    With such questions also ``has_answer_*`` and ``no_answer_*``.
    """

    def score(compare: Callable[[str, str, str], float]) -> list[float]:
        return [
            max(compare(found, gold, language) for gold in (_answers(answers, language) or [""]))
            for answers, found in zip(golds, predictions, strict=True)
        ]

    scores = {"exact_match": score(exact_match), "f1": score(token_f1)}
    result = {name: sum(values) / max(1, len(values)) for name, values in scores.items()}
    if not all(golds):
        for prefix, wanted in (("has_answer", True), ("no_answer", False)):
            chosen = [number for number, answers in enumerate(golds) if bool(answers) == wanted]
            for name, values in scores.items():
                result[f"{prefix}_{name}"] = sum(values[number] for number in chosen) / max(1, len(chosen))
    return result


def _answers(answers: Sequence[str], language: str) -> list[str]:
    """Answers of which something is left when they are normalised, as SQuAD 2.0's scorer takes them."""
    return [answer for answer in answers if normalize_answer(answer, language)]
