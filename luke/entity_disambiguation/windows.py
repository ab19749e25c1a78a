"""Documents -> the windows that the model reads: words, mentions, candidate ids."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from luke.entity_disambiguation.documents import Document, Mention
from luke.entity_vocab import UNK_ID, EntityVocab
from luke.errors import UserError
from luke.tokenization import LinkedTextTokenizer

Ints = npt.NDArray[np.int64]
SPLITS = ("simple", "per_mention")


@dataclass(frozen=True)
class WindowOptions:
    """How documents become windows.

    Attributes:
        split: What is done with a document that is too long: ``simple`` cuts it into even parts, never inside a mention;
            ``per_mention`` gives each mention a window with it in the middle.
        max_seq_length: Words of a window, with [CLS] and [SEP].
        max_entity_length: Mentions of a window.
        max_mention_length: Words of a mention that its position is the mean of.
        max_candidates: Candidates of a mention, those with the highest priors.
        language: Of the vocabulary's titles.
    """

    split: str = "simple"
    max_seq_length: int = 512
    max_entity_length: int = 128
    max_mention_length: int = 30
    max_candidates: int = 30
    language: str | None = None

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UserError(f"--split {self.split}: must be {' or '.join(SPLITS)}")
        if self.max_seq_length < 3:
            raise UserError(f"--max-seq-length {self.max_seq_length}: must be at least 3")
        for name in ("max_entity_length", "max_mention_length", "max_candidates"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")


class Window(NamedTuple):
    """A part of a document as the model reads it.

    Attributes:
        word_ids: int64 (W,), with [CLS] and [SEP].
        mentions: The number of each of its E mentions in the document.
        is_target: bool (E,): whether the answer for the mention is taken from this window.
        position_ids: int64 (sum of P,): the word positions of all mentions, one after another.
        offsets: int64 (E + 1,): where each mention begins in ``position_ids``.
        candidate_ids: int64 (E, C): column c is candidate c; 0 where there is none, or it is the same entity as an earlier
            one. Candidates that the vocabulary lacks are [UNK].
    """

    word_ids: Ints
    mentions: Ints
    is_target: npt.NDArray[np.bool_]
    position_ids: Ints
    offsets: Ints
    candidate_ids: Ints

    @property
    def num_tokens(self) -> int:
        """W + E."""
        return len(self.word_ids) + len(self.mentions)


class _Tokenized(NamedTuple):
    word_ids: Ints
    starts: Ints
    ends: Ints
    candidate_ids: Ints


class WindowMaker:
    """Makes windows of documents."""

    def __init__(self, tokenizer: LinkedTextTokenizer, vocab: EntityVocab, options: WindowOptions) -> None:
        self.tokenizer, self.vocab, self.options = tokenizer, vocab, options

    def windows(self, document: Document) -> list[Window]:
        """The windows of a document; each of its mentions is a target in exactly one of them."""
        tokenized = self._tokenize(document)
        if not document.mentions:
            return []
        room = self.options.max_seq_length - 2
        if len(tokenized.word_ids) <= room and len(document.mentions) <= self.options.max_entity_length:
            everything = np.arange(len(document.mentions))
            return [self._window(tokenized, 0, len(tokenized.word_ids), everything, np.ones(len(everything), np.bool_))]
        return self._even_parts(tokenized, room) if self.options.split == "simple" else self._around(tokenized, room)

    def _tokenize(self, document: Document) -> _Tokenized:
        """The text is cut at every border of a mention, so that overlapping mentions have tokens of their own too."""
        mentions = document.mentions
        borders = sorted({border for mention in mentions for border in (mention.start, mention.end)})
        pieces = list(itertools.pairwise(borders))
        word_ids, spans = self.tokenizer.tokenize(document.text, pieces)
        first = {piece[0]: span[0] for piece, span in zip(pieces, spans, strict=True)}
        last = {piece[1]: span[1] for piece, span in zip(pieces, spans, strict=True)}
        return _Tokenized(
            np.array(word_ids, np.int64),
            np.array([first[mention.start] for mention in mentions], np.int64),
            np.array([last[mention.end] for mention in mentions], np.int64),
            self._candidate_ids(mentions),
        )

    def _candidate_ids(self, mentions: Sequence[Mention]) -> Ints:
        limit = self.options.max_candidates
        width = max((len(mention.candidates[:limit]) for mention in mentions), default=0)
        table = np.zeros((len(mentions), max(width, 1)), np.int64)
        for row, mention in enumerate(mentions):
            seen: set[int] = set()
            for column, candidate in enumerate(mention.candidates[:limit]):
                entity_id = self.vocab.get_id(candidate.title, self.options.language, UNK_ID)
                assert entity_id is not None
                if entity_id not in seen:
                    seen.add(entity_id)
                    table[row, column] = entity_id
        return table

    def _window(self, text: _Tokenized, start: int, end: int, mentions: Ints, is_target: npt.NDArray[np.bool_]) -> Window:
        words = np.concatenate([[self.tokenizer.cls_id], text.word_ids[start:end], [self.tokenizer.sep_id]])
        # One more for [CLS].
        starts = np.clip(text.starts[mentions], start, end) - start + 1
        ends = np.clip(text.ends[mentions], start, end) - start + 1
        sizes = np.minimum(ends - starts, self.options.max_mention_length)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        position_ids = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], sizes)
        return Window(words, mentions, is_target, position_ids, offsets, text.candidate_ids[mentions])

    def _even_parts(self, text: _Tokenized, room: int) -> list[Window]:
        """ceil(length / room) parts of equal size, whose ends move left out of mentions."""
        length = len(text.word_ids)
        size = -(-length // max(1, -(-length // room)))
        inside = _inside_a_mention(text, length)
        borders = [0]
        while borders[-1] < length or len(borders) == 1:
            start = borders[-1]
            end = min(start + size, length)
            while end > start and inside[end]:
                end -= 1
            if end == start:  # a mention longer than a part: it has to be cut
                end = min(start + size, length)
            borders.append(end)
        last_part = len(borders) - 2
        owner = np.minimum(np.searchsorted(borders, text.starts, side="right") - 1, last_part)
        windows = []
        for part in range(len(borders) - 1):
            mentions = np.flatnonzero(owner == part)
            # More mentions than a window may hold are asked about in turns, over the same words.
            for first in range(0, len(mentions), self.options.max_entity_length):
                turn = mentions[first : first + self.options.max_entity_length]
                windows.append(self._window(text, borders[part], borders[part + 1], turn, np.ones(len(turn), np.bool_)))
        return windows

    def _around(self, text: _Tokenized, room: int) -> list[Window]:
        """A window for each mention, as much text on its left as on its right where there is enough."""
        length = len(text.word_ids)
        windows = []
        for mention in range(len(text.starts)):
            start, end = int(text.starts[mention]), min(int(text.ends[mention]), int(text.starts[mention]) + room)
            half = (room - (end - start)) // 2
            if start < length - end:
                left = min(start, half)
                right = min(length - end, room - left - (end - start))
            else:
                right = min(length - end, half)
                left = min(start, room - right - (end - start))
            first, last = start - left, end + right
            within = np.flatnonzero((text.starts >= first) & (text.ends <= last))
            # The nearest ones, if a window cannot hold all.
            nearest = within[np.argsort(np.abs(within - mention), kind="stable")][: self.options.max_entity_length]
            chosen = np.union1d(nearest, [mention])
            windows.append(self._window(text, first, last, chosen, chosen == mention))
        return windows


def _inside_a_mention(text: _Tokenized, length: int) -> Any:
    """bool (length + 1,): whether a cut before word w would cut a mention."""
    change = np.zeros(length + 2, np.int64)
    longer = text.ends - text.starts > 1
    np.add.at(change, text.starts[longer] + 1, 1)
    np.add.at(change, text.ends[longer], -1)
    return np.cumsum(change)[: length + 1] > 0
