"""Sentence splitters: text -> code-point offsets of its sentences."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from luke.errors import UserError

SentenceSplitter = Callable[[str], Sequence[tuple[int, int]]]
NAMES = ("sentencex", "icu", "none")


def make_sentence_splitter(name: str, language: str | None) -> SentenceSplitter:
    """A splitter that gives non-empty, increasing, non-overlapping [start, end) offsets into its text.

    Args:
        name: ``sentencex`` (Wikimedia's splitter), ``icu`` (PyICU), or ``none`` (the whole text).
        language: A language code such as ``en``; sentencex falls back to a relative of a language it does not know.

    Raises:
        UserError: unknown name, or PyICU is not installed.
    """
    if name == "sentencex":
        return _Sentencex(language or "en")
    if name == "icu":
        return _Icu(language or "en")
    if name == "none":
        return whole_text
    raise UserError(f"--sentence-splitter {name}: must be one of {', '.join(NAMES)}")


def whole_text(text: str) -> list[tuple[int, int]]:
    """One sentence."""
    return [(0, len(text))] if text else []


class _Sentencex:
    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, text: str) -> list[tuple[int, int]]:
        from sentencex import get_sentence_boundaries

        spans = ((entry["start_index"], entry["end_index"]) for entry in get_sentence_boundaries(self.language, text))
        return [(start, end) for start, end in spans if start < end]


class _Icu:
    """ICU counts UTF-16 code units; offsets are mapped to code points where the text has characters beyond the BMP.

    Its lists of abbreviations ("Jr.", "A.D.") are used: ``ss=standard``.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._iterator: Any = None
        try:
            import icu  # noqa: F401
        except ImportError:
            raise UserError("--sentence-splitter icu needs PyICU: pip install 'luke[icu]'") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.language,)

    def __call__(self, text: str) -> list[tuple[int, int]]:
        import icu

        if self._iterator is None:
            self._iterator = icu.BreakIterator.createSentenceInstance(icu.Locale(f"{self.language}@ss=standard"))
        self._iterator.setText(text)
        borders = [0, *self._iterator]
        if any(ord(character) > 0xFFFF for character in text):
            borders = _code_points(text, borders)
        return [(start, end) for start, end in itertools.pairwise(borders) if start < end]


def _code_points(text: str, utf16_borders: list[int]) -> list[int]:
    mapped, border, unit = [], 0, 0
    for number, character in enumerate(text):
        while border < len(utf16_borders) and utf16_borders[border] <= unit:
            mapped.append(number)
            border += 1
        unit += 2 if ord(character) > 0xFFFF else 1
    return mapped + [len(text)] * (len(utf16_borders) - len(mapped))
