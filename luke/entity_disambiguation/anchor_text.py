"""The one way in which texts and anchors become tokens and hash values: what a candidate table is looked up by.

A text is cut into words, spaces and single other characters; in scripts without spaces each character is a word. The hash of
tokens t_0 … t_(n-1) is Σ h(t_i) · B^i modulo 2^64, with h(t) 64 bits of BLAKE2 and B odd. So the hashes of all spans of a
text come from one cumulative sum: (S_j - S_i) · B^(-i).
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

EXACT, LOWER, FOLDED = range(3)
LEVELS = ("exact", "lower-cased", "accent-folded")

# Scripts written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer; kana and Chinese characters.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Marks that \w leaves out although they stand inside words: accents, and vowel signs of Hebrew, Arabic, Indic scripts.
_MARKS = "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0dff\u200c\u200d"
_TOKEN = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])[\w{_MARKS}])+|\s+|.", re.DOTALL)
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_LEVEL_FACTORS = np.array([1, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_CACHED = 1 << 20


class Tokens(NamedTuple):
    """A text's tokens: their texts with runs of whitespace as one space, and where each begins; `ends` likewise."""

    texts: list[str]
    starts: list[int]
    ends: list[int]


def tokenize(text: str) -> Tokens:
    """Words, spaces and other characters of a text, covering all of it."""
    texts, starts, ends = [], [], []
    for match in _TOKEN.finditer(text):
        token = match[0]
        texts.append(" " if token[0].isspace() else token)
        starts.append(match.start())
        ends.append(match.end())
    return Tokens(texts, starts, ends)


def normalize(anchor: str) -> str:
    """Runs of whitespace as one space, none at the ends."""
    return " ".join(anchor.split())


def fold(text: str, level: int) -> str:
    """A text in the form of a level: as it is, lower-cased, or lower-cased without accents."""
    if level == EXACT:
        return text
    text = text.casefold()
    if level == FOLDED and not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = unicodedata.normalize("NFC", "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f"))
    return text


class Hasher:
    """Hashes tokens and spans of tokens; remembers those of frequent tokens."""

    def __init__(self) -> None:
        self._cache: dict[str, int] = {}
        self._powers = _powers(_BASE, 64)
        self._inverses = _powers(pow(_BASE, -1, 1 << 64), 64)

    def _token_hashes(self, tokens: Sequence[str]) -> Hashes:
        cache = self._cache
        if len(cache) > _CACHED:
            cache.clear()
        values = []
        for token in tokens:
            value = cache.get(token)
            if value is None:
                value = int.from_bytes(
                    hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
                )
                cache[token] = value
            values.append(value)
        return np.array(values, np.uint64)

    def sums(self, tokens: Sequence[str]) -> Hashes:
        """S (n + 1,), from which `of_spans` takes the hash of any span."""
        if len(tokens) > len(self._powers):
            size = 2 * len(tokens)
            self._powers, self._inverses = _powers(_BASE, size), _powers(pow(_BASE, -1, 1 << 64), size)
        sums = np.zeros(len(tokens) + 1, np.uint64)
        np.cumsum(self._token_hashes(tokens) * self._powers[: len(tokens)], out=sums[1:])
        return sums

    def of_spans(self, sums: Hashes, starts: npt.NDArray[Any], ends: npt.NDArray[Any], level: int) -> Hashes:
        """The hashes of tokens [start, end) of a text, for the keys of a level."""
        hashes: Hashes = (sums[ends] - sums[starts]) * self._inverses[starts] * _LEVEL_FACTORS[level]
        return hashes

    def of_key(self, key: str, level: int) -> int:
        """The hash of a whole, normalized text."""
        tokens = tokenize(key).texts
        sums = self.sums(tokens)
        return int(self.of_spans(sums, np.array([0]), np.array([len(tokens)]), level)[0])


def _powers(base: int, size: int) -> Hashes:
    powers, power = [], 1
    for _ in range(size):
        powers.append(power)
        power = power * base & _MASK
    return np.array(powers, np.uint64)
