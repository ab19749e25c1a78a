"""The sorted keys of a candidate table, memory-mapped: rows of texts, and of all spans of a text.

Rows are sorted by the hash of their key, so a look-up is a binary search; the key itself is then compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luke.entity_disambiguation.anchor_text import EXACT, FOLDED, LOWER, Hasher, Hashes, Tokens, fold, normalize, tokenize
from luke.errors import UserError

_FILTER_SLOTS_A_KEY = 16
_FILTER_SLOTS = (1 << 16, 1 << 28)

Ints = npt.NDArray[np.int64]


class Span(NamedTuple):
    """A part of a text that is an anchor: its code points [start, end), and the anchor's row."""

    start: int
    end: int
    row: int


class AnchorIndex:
    """Finds rows.

    Args:
        path: ``anchors.arrow``.
        max_tokens: The longest spans that are looked for in a text, in tokens of `anchor_text.tokenize`.
    """

    def __init__(self, path: Path, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.batches = read_batches(path)
        self._first_rows = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        self._keys = [batch["key"] for batch in self.batches]
        self._hashes: list[Hashes] = [batch["hash"].to_numpy() for batch in self.batches]
        self._first_hashes = np.array([hashes[0] for hashes in self._hashes], np.uint64)
        self._hasher = Hasher()
        self._filter: npt.NDArray[np.bool_] | None = None
        self._filter_shift = np.uint64(0)

    def __len__(self) -> int:
        """Keys of all levels."""
        return int(self._first_rows[-1])

    def locate(self, row: int) -> tuple[int, int]:
        """The record batch of a row, and its place there."""
        batch = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return batch, row - int(self._first_rows[batch])

    def key(self, row: int) -> str:
        """The key of a row."""
        batch, place = self.locate(row)
        key: str = self._keys[batch][place].as_py()
        return key

    def find(self, text: str) -> int | None:
        """The row of a text: as it is, else lower-cased, else without accents."""
        text = normalize(text)
        for level in (EXACT, LOWER, FOLDED) if text else ():
            key = fold(text, level)
            # A form with but one spelling is kept once, at the level of that spelling.
            for kept_at in range(level, -1, -1):
                hash_ = self._hasher.of_key(key, kept_at)
                row = self._confirm(key, int(self._search(np.array([hash_], np.uint64))[0]), hash_)
                if row >= 0:
                    return row
        return None

    def find_spans(self, text: str) -> list[Span]:
        """Every part of a text, from word to word, that is an anchor, looked for as in `find`."""
        tokens = tokenize(text)
        starts, ends = _all_spans(tokens, self.max_tokens)
        rows = np.full(len(starts), -1, np.int64)
        for level in (EXACT, LOWER, FOLDED):
            forms = [fold(token, level) for token in tokens.texts]
            sums = self._hasher.sums(forms)
            for kept_at in range(level, -1, -1):
                unknown = np.flatnonzero(rows < 0)
                hashes = self._hasher.of_spans(sums, starts[unknown], ends[unknown], kept_at)
                maybe = np.flatnonzero(self._passes_filter(hashes))
                found = self._search(hashes[maybe])
                maybe, found = maybe[found >= 0], found[found >= 0]
                for span, row, hash_ in zip(unknown[maybe].tolist(), found.tolist(), hashes[maybe].tolist(), strict=True):
                    rows[span] = self._confirm("".join(forms[starts[span] : ends[span]]), row, hash_)
        return [
            Span(tokens.starts[starts[span]], tokens.ends[ends[span] - 1], int(rows[span]))
            for span in np.flatnonzero(rows >= 0).tolist()
        ]

    def rows_in(self, text: str) -> Ints:
        """The rows of all keys, of every level, that a text holds; each once, ascending."""
        tokens = tokenize(text)
        starts, ends = _all_spans(tokens, self.max_tokens)
        rows = []
        for level in (EXACT, LOWER, FOLDED):
            forms = [fold(token, level) for token in tokens.texts]
            hashes = self._hasher.of_spans(self._hasher.sums(forms), starts, ends, level)
            hashes = np.unique(hashes[self._passes_filter(hashes)])
            found = self._search(hashes)
            # That a hash is there by chance has the probability keys / 2^64: for a count no key need be compared.
            rows.append(found[found >= 0])
        return np.sort(np.concatenate(rows))

    def _hash(self, row: int) -> int:
        batch, place = self.locate(row)
        return int(self._hashes[batch][place])

    def _confirm(self, key: str, row: int, hash_: int) -> int:
        """The row of ``key`` among those from ``row`` on that have its hash; -1 if it is not there."""
        while 0 <= row < len(self) and self._hash(row) == hash_:
            if self.key(row) == key:
                return row
            row += 1
        return -1

    def _search(self, hashes: Hashes) -> Ints:
        """The first row with each hash; -1 where there is none."""
        # A run of equal hashes may begin at the end of the batch before.
        batches = np.maximum(np.searchsorted(self._first_hashes, hashes, side="left") - 1, 0)
        rows = np.empty(len(hashes), np.int64)
        for batch in np.unique(batches).tolist():
            chosen = np.flatnonzero(batches == batch)
            places = np.searchsorted(self._hashes[batch], hashes[chosen])
            # Behind the batch's end comes the next one's first row.
            behind = places == len(self._hashes[batch])
            there = self._hashes[batch][places - behind]
            if batch + 1 < len(self._hashes):
                there = np.where(behind, self._first_hashes[batch + 1], there)
            equal = there == hashes[chosen]
            rows[chosen] = np.where(equal, self._first_rows[batch] + places, -1)
        return rows

    def _passes_filter(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """False for most hashes that no key has, at a fraction of a search's cost."""
        if self._filter is None:
            bits = int(np.clip(_FILTER_SLOTS_A_KEY * len(self), *_FILTER_SLOTS)).bit_length() - 1
            self._filter_shift = np.uint64(64 - bits)
            self._filter = np.zeros(1 << bits, np.bool_)
            for known in self._hashes:
                self._filter[known >> self._filter_shift] = True
        return self._filter[hashes >> self._filter_shift]


def _all_spans(tokens: Tokens, max_tokens: int) -> tuple[Ints, Ints]:
    """Tokens [start, end) of every span of at most ``max_tokens`` that neither begins nor ends with a space."""
    length = len(tokens.texts)
    solid = np.array([token != " " for token in tokens.texts], np.bool_)
    first = np.flatnonzero(solid)
    sizes = np.minimum(max_tokens, length - first)
    starts = np.repeat(first, sizes)
    ends = starts + 1 + np.arange(len(starts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = solid[ends - 1]
    return starts[kept], ends[kept]


def read_batches(path: Path) -> Sequence[pa.RecordBatch]:
    """The record batches of an Arrow file, memory-mapped.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: cannot be read as Arrow: {error}; build the candidates again") from None
