"""Text with character spans and entities -> model inputs, for any fast tokenizer.

Word ids equal those of transformers' ``LukeTokenizer`` (Yamada et al. 2020, section 3.3: the text is cut at the borders of
mentions, so that a mention's tokens are its own). A text is cut further at its spaces where the tokenizer does so itself;
the ids of each word are then looked up, not computed again, which is what makes this fast.

Shape letters: B rows, W words of a row, E entities of a row, P word positions of a mention.
"""

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from luke.artifacts import write_json
from luke.errors import UserError
from luke.tokenization import BACKEND_FILE, LinkedTextTokenizer, load_tokenizer

ENTITY_VOCAB_FILE = "entity_vocab.json"
PAD, UNK, MASK, MASK2 = "[PAD]", "[UNK]", "[MASK]", "[MASK2]"
ENTITY_1, ENTITY_2 = "<ent>", "<ent2>"

TASKS = ("entity_classification", "entity_pair_classification", "entity_span_classification")
Task = Literal["entity_classification", "entity_pair_classification", "entity_span_classification"]
Truncation = Literal["longest_first", "only_first", "only_second"]

_SPANS_OF_TASK: dict[str | None, int] = {TASKS[0]: 1, TASKS[1]: 2}

Span = tuple[int, int]
Ints = npt.NDArray[np.int64]

_CACHED_WORDS = 1 << 18


@dataclass
class RowInfo:
    """Where a row comes from.

    Attributes:
        sample: The number of its text.
        spans: The numbers of the given spans that are its entities, in order; those of the second text count on.
        offsets: int64 (W, 2), characters of the text that each token stands for; (0, 0) for special tokens.
        second_start: The first token of the second text; W if there is none.
    """

    sample: int
    spans: list[int]
    offsets: Ints
    second_start: int

    def characters(self, start: int, end: int) -> Span:
        """The characters that the tokens [start, end) of one text stand for."""
        return int(self.offsets[start, 0]), int(self.offsets[end - 1, 1])


@dataclass
class Processed:
    """Model inputs and what they stand for.

    Attributes:
        inputs: The keyword arguments of a model: ``input_ids``, ``attention_mask`` (B, W), and with spans ``entity_ids``,
            ``entity_attention_mask`` (B, E), ``entity_position_ids`` (B, E, P), -1 where there is none; for
            ``entity_span_classification`` also ``entity_start_positions`` and ``entity_end_positions`` (B, E), the last
            one included. All int64.
        rows: One for each row.
        dropped_spans: For each text the numbers of the spans that no row holds.
    """

    inputs: dict[str, Any]
    rows: list[RowInfo]
    dropped_spans: list[list[int]]


@dataclass
class _Text:
    """A tokenized text: ids (N,), offsets (N, 2), and its mentions as token spans with entity ids."""

    ids: Ints
    offsets: Ints
    starts: Ints
    ends: Ints
    entity_ids: Ints

    def window(self, start: int, end: int) -> tuple["_Text", Ints]:
        """The tokens [start, end) with the mentions that lie inside, and the numbers of these."""
        kept = np.flatnonzero((self.starts >= start) & (self.ends <= end))
        part = _Text(
            self.ids[start:end],
            self.offsets[start:end],
            self.starts[kept] - start,
            self.ends[kept] - start,
            self.entity_ids[kept],
        )
        return part, kept


_NONE = np.zeros(0, np.int64)
_NO_TEXT = _Text(_NONE, np.zeros((0, 2), np.int64), _NONE, _NONE, _NONE)


@dataclass
class _WordCache:
    """Word -> its number; ids and relative offsets of number n are rows ``borders[n]`` to ``borders[n + 1]``."""

    numbers: dict[str, int] = field(default_factory=dict)
    ids: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    borders: "array[int]" = field(default_factory=lambda: array("q", [0]))


class LukeProcessor:
    """Any fast tokenizer + entity vocabulary -> model inputs.

    Args:
        tokenizer: What `luke.tokenization.load_tokenizer` returns.
        entity_vocab: Title -> id; ``ja:東京`` for models of several languages. None for a model without entities.
        task: What a call does unless told otherwise. ``entity_classification`` takes one span, put between ``<ent>``
            tokens; ``entity_pair_classification`` two, the second between ``<ent2>``; ``entity_span_classification`` any
            number, and also returns where each starts and ends.
        max_mention_length: P. max_entity_length: The most entities of a row.
    """

    def __init__(
        self,
        tokenizer: LinkedTextTokenizer,
        entity_vocab: Mapping[str, int] | None = None,
        *,
        task: Task | None = None,
        max_mention_length: int = 30,
        max_entity_length: int = 32,
    ) -> None:
        self.tokenizer, self.task = tokenizer, task
        self.entity_vocab: Mapping[str, int] = entity_vocab or {PAD: 0, UNK: 1, MASK: 2, MASK2: 3}
        self.has_entities = entity_vocab is not None
        missing = [token for token in (PAD, UNK, MASK) if token not in self.entity_vocab]
        if missing:
            raise UserError(f"{tokenizer.source}: the entity vocabulary lacks {missing[0]}")
        self.max_mention_length, self.max_entity_length = max_mention_length, max_entity_length
        self._description = _without_entity_tokens(tokenizer.description, tokenizer.special_tokens)
        self._backend = Tokenizer.from_str(json.dumps(self._description))
        self._backend.no_truncation()
        self._backend.no_padding()
        self._split = _splitter(self._description)
        self._added = [token["content"] for token in self._description.get("added_tokens") or ()]
        self._separators = [tokenizer.sep_id] * _separators(self._description, tokenizer)
        self._cache = _WordCache()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Reads the tokenizer and, if there is one, the entity vocabulary of a folder in any form that transformers wrote.

        Raises:
            UserError: there is no tokenizer, or the entity vocabulary is damaged.
        """
        path = Path(folder) / ENTITY_VOCAB_FILE
        return cls(load_tokenizer(folder), read_entity_vocab(path) if path.exists() else None, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes the tokenizer's files and ``entity_vocab.json``, for this class and ``AutoTokenizer``."""
        self.tokenizer.save(Path(folder))
        if self.has_entities:
            write_json(Path(folder) / ENTITY_VOCAB_FILE, dict(self.entity_vocab))

    def marker_ids(self) -> tuple[int, int]:
        """The ids of ``<ent>`` and ``<ent2>``."""
        first, second = (self._backend.token_to_id(token) for token in (ENTITY_1, ENTITY_2))
        if first is None or second is None:
            raise UserError(
                f"{self.tokenizer.source}: the tokenizer has no {ENTITY_1} and {ENTITY_2}; "
                "convert the checkpoint with luke convert-luke-to-huggingface-model"
            )
        return first, second

    def entity_id(self, title: str, language: str | None = None) -> int:
        """The id of a title, of [UNK] if the vocabulary lacks it. With a language ``ja:東京`` is looked up too."""
        found = self.entity_vocab.get(title)
        if found is None and language:
            found = self.entity_vocab.get(f"{language}:{title}")
        return self.entity_vocab[UNK] if found is None else found

    # -- the call ------------------------------------------------------------------------------------------------------

    def __call__(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        spans: Sequence[Any] | None = None,
        spans_pair: Sequence[Any] | None = None,
        entities: Sequence[Any] | None = None,
        entities_pair: Sequence[Any] | None = None,
        task: Task | None = None,
        language: str | None = None,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        max_entity_length: int | None = None,
        windows: bool = False,
        stride: int = 0,
        padding: Literal["longest", "max_length"] = "longest",
        pad_to_multiple_of: int | None = None,
        return_token_type_ids: bool = False,
        return_tensors: Literal["pt", "np"] = "pt",
    ) -> Processed:
        """Model inputs of one text or several.

        Args:
            texts: B texts. pairs: B second texts.
            spans: For each text its mentions as (start, end) in code points, in any order, overlapping or not.
            entities: For each text the titles of its mentions; [MASK] where it is None.
            task: Replaces the processor's.
            max_length: The most tokens of a row; longer texts are truncated.
            truncation: Which text of a pair gives way; ``longest_first`` token by token the longer one.
            windows: Return what does not fit as further rows, ``stride`` tokens being shared by neighbours; of a pair only
                the second text is cut. A mention is an entity of each row that holds it whole.

        Raises:
            UserError: a span is empty, lies outside its text or cuts a character in two; counts differ; the task's number
                of spans is another.
        """
        task = task or self.task
        if isinstance(texts, str):
            texts, pairs = [texts], None if pairs is None else [str(pairs)]
            spans, spans_pair, entities, entities_pair = (
                None if value is None else [value] for value in (spans, spans_pair, entities, entities_pair)
            )
        first = self._tokenize(texts, spans, entities, task, language)
        second = None if pairs is None else self._tokenize(pairs, spans_pair, entities_pair, None, language)
        if second is not None and len(second) != len(first):
            raise UserError(f"{len(first)} texts but {len(second)} second texts; give one for each")
        has_entities = spans is not None or spans_pair is not None
        limit = max_entity_length or (
            len(TASKS[:2]) if task == TASKS[1] else 1 if task == TASKS[0] else self.max_entity_length
        )
        extra = 2 + len(self._separators) if second is not None else 2
        rows: list[_Row] = []
        dropped: list[list[int]] = []
        for sample, text in enumerate(first):
            other = second[sample] if second is not None else None
            budget = None if max_length is None else max_length - extra
            made = [
                self._row(sample, *parts, other is not None, limit)
                for parts in _cut(text, other or _NO_TEXT, budget, truncation, windows, stride, other is not None)
            ]
            total = len(text.starts) + (len(other.starts) if other is not None else 0)
            held = {number for row in made for number in row.info.spans}
            dropped.append([number for number in range(total) if number not in held])
            rows += made
        length = max_length if padding == "max_length" else None
        arrays = self._pad(rows, has_entities, task, length, limit if length else None, pad_to_multiple_of)
        if return_token_type_ids:
            column = np.arange(arrays["input_ids"].shape[1])
            seconds = np.array([[row.info.second_start] for row in rows])
            arrays["token_type_ids"] = ((column >= seconds) & (arrays["attention_mask"] == 1)).astype(np.int64)
        return Processed(_tensors(arrays, return_tensors), [row.info for row in rows], dropped)

    # -- tokenizing ----------------------------------------------------------------------------------------------------

    def _tokenize(
        self,
        texts: Sequence[str],
        spans: Sequence[Sequence[Span]] | None,
        entities: Sequence[Sequence[str]] | None,
        task: Task | None,
        language: str | None,
    ) -> list[_Text]:
        if spans is None and (entities is not None or task is not None):
            raise UserError("entities and tasks need the spans of their mentions")
        for name, given in (("lists of spans", spans), ("lists of entities", entities)):
            if given is not None and len(given) != len(texts):
                raise UserError(f"{len(texts)} texts but {len(given)} {name}; give one for each")
        words: list[str] = []
        text_borders = [0]
        starts: list[int] = []  # of mentions, in words
        ends: list[int] = []
        for number, text in enumerate(texts):
            text_spans = spans[number] if spans is not None else ()
            places = self._cut_at_spans(text, text_spans, words)
            starts += [places[start] for start, _ in text_spans]
            ends += [places[end] for _, end in text_spans]
            text_borders.append(len(words))
        ids, token_borders, offsets = self._look_up(words, text_borders)
        flat_starts, flat_ends = token_borders[np.array(starts, np.int64)], token_borders[np.array(ends, np.int64)]
        tokenized, mention = [], 0
        for number in range(len(texts)):
            low, high = int(token_borders[text_borders[number]]), int(token_borders[text_borders[number + 1]])
            count = len(spans[number]) if spans is not None else 0
            chosen = slice(mention, mention + count)
            titles = entities[number] if entities is not None else None
            tokenized.append(
                _Text(
                    ids[low:high],
                    offsets[low:high],
                    flat_starts[chosen] - low,
                    flat_ends[chosen] - low,
                    self._entity_ids(count, titles, task, language),
                )
            )
            if task in TASKS[:2]:
                tokenized[-1] = self._mark(tokenized[-1])
            mention += count
        return tokenized

    def _cut_at_spans(self, text: str, spans: Sequence[Span], words: list[str]) -> dict[int, int]:
        """Appends the words of ``text`` to ``words``. Returns for each border of a span the number of words before it."""
        split = self._split if not any(token in text for token in self._added) else _whole
        places: dict[int, int] = {}
        position = 0
        for border in _borders(text, spans):
            # A space belongs to the token behind it.
            cut = border - 1 if border and text[border - 1] == " " else border
            if cut > position:
                words += split(text[position:cut])
                position = cut
            places[border] = len(words)
        if position < len(text):
            words += split(text[position:])
        return places

    def _look_up(self, words: list[str], text_borders: list[int]) -> tuple[Ints, Ints, Ints]:
        """Ids (N,) of all words, where each word's begin (one entry more than words), and their characters (N, 2)."""
        if len(self._cache.numbers) > _CACHED_WORDS:
            self._cache = _WordCache()
        cache = self._cache
        try:
            numbers = np.fromiter(map(cache.numbers.__getitem__, words), np.int64, len(words))
        except KeyError:
            self._learn([word for word in dict.fromkeys(words) if word not in cache.numbers])
            numbers = np.fromiter(map(cache.numbers.__getitem__, words), np.int64, len(words))
        ids, borders = np.frombuffer(cache.ids, np.int64), np.frombuffer(cache.borders, np.int64)
        relative = np.frombuffer(cache.offsets, np.int64).reshape(-1, 2)
        first = borders[numbers]
        counts = borders[numbers + 1] - first
        token_borders = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        places = np.arange(token_borders[-1]) + np.repeat(first - token_borders[:-1], counts)
        # Characters before each word of its text: the words are the text, cut.
        ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
        begins = np.concatenate([np.zeros(1, np.int64), ends])
        texts = np.array(text_borders)
        begins = begins[:-1] - np.repeat(begins[texts[:-1]], np.diff(texts))
        return ids[places], token_borders, relative[places] + np.repeat(begins, counts)[:, None]

    def _learn(self, words: list[str]) -> None:
        """Adds words to the cache."""
        plain = [word for word in words if word[0] == " " and word[1:2] not in ("", " ")]
        joined = "".join(plain)
        # One long text is encoded many times faster than its words, if it falls apart into them again.
        if len(plain) > 1 and not any(token in joined for token in self._added) and self._split(joined) == plain:
            self._learn_joined(plain, joined)
            words = [word for word in words if word not in self._cache.numbers]
        cache = self._cache
        for word, encoding in zip(words, self._backend.encode_batch(words, add_special_tokens=False), strict=True):
            cache.numbers[word] = len(cache.numbers)
            cache.ids.extend(encoding.ids)
            cache.offsets.extend(chain.from_iterable(_trim(word, *offsets) for offsets in encoding.offsets))
            cache.borders.append(len(cache.ids))

    def _learn_joined(self, words: list[str], text: str) -> None:
        cache = self._cache
        encoding = self._backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
        owners = np.searchsorted(ends, offsets[:, 1])
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        # A word begins with its only space, which no token stands for.
        relative = np.maximum(offsets - begins[owners][:, None], 1)
        known = len(cache.numbers)
        cache.numbers.update(zip(words, range(known, known + len(words)), strict=True))
        cache.borders.extend((len(cache.ids) + np.cumsum(np.bincount(owners, minlength=len(words)))).tolist())
        cache.ids.extend(encoding.ids)
        cache.offsets.extend(relative.ravel().tolist())

    # -- entities ------------------------------------------------------------------------------------------------------

    def _entity_ids(self, count: int, titles: Sequence[str] | None, task: Task | None, language: str | None) -> Ints:
        wanted = _SPANS_OF_TASK.get(task)
        if wanted is not None and count != wanted:
            raise UserError(f"{task} takes {wanted} span{'s' * (wanted > 1)} a text, not {count}")
        if titles is not None and task is None:
            if len(titles) != count:
                raise UserError(f"{count} spans but {len(titles)} entities; give one for each")
            return np.array([self.entity_id(title, language) for title in titles], np.int64)
        if task == TASKS[1]:
            return np.array([self.entity_vocab[MASK], self.entity_vocab.get(MASK2, self.entity_vocab[MASK])])
        return np.full(count, self.entity_vocab[MASK], np.int64)

    def _mark(self, text: _Text) -> _Text:
        """Puts each mention between marker tokens, which then belong to it; spans may touch, nest or cross."""
        events = []
        markers = self.marker_ids()
        for number, (start, end) in enumerate(zip(text.starts.tolist(), text.ends.tolist(), strict=True)):
            # At one place: closing before opening, the shorter span closing first and opening last.
            events += [(start, 1, start - end, number), (end, 0, end - start, number)]
        events.sort()
        starts, ends = text.starts.copy(), text.ends.copy()
        for before, (place, opens, _, number) in enumerate(events):
            if opens:
                starts[number] = place + before
            else:
                ends[number] = place + before + 1
        places = [place for place, *_ in events]
        return _Text(
            np.insert(text.ids, places, [markers[number] for *_, number in events]),
            np.insert(text.offsets, places, [[_marker_character(text, place)] * 2 for place in places], axis=0),
            starts,
            ends,
            text.entity_ids,
        )

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _row(
        self, sample: int, first: _Text, first_numbers: Ints, second: _Text, second_numbers: Ints, pair: bool, limit: int
    ) -> "_Row":
        keep_first, keep_second = _shares(len(first.starts), len(second.starts), limit)
        separators = self._separators if pair else []
        second_start = 1 + len(first.ids) + len(separators)
        ids = [[self.tokenizer.cls_id], first.ids, separators, second.ids, [self.tokenizer.sep_id]]
        zero = np.zeros((1, 2), np.int64)
        offsets = [zero, first.offsets, np.zeros((len(separators), 2), np.int64), second.offsets, zero]
        word_ids = np.concatenate([np.asarray(part, np.int64) for part in ids])
        return _Row(
            word_ids,
            np.concatenate([first.entity_ids[:keep_first], second.entity_ids[:keep_second]]),
            np.concatenate([first.starts[:keep_first] + 1, second.starts[:keep_second] + second_start]),
            np.concatenate([first.ends[:keep_first] + 1, second.ends[:keep_second] + second_start]),
            RowInfo(
                sample,
                [*first_numbers[:keep_first].tolist(), *second_numbers[:keep_second].tolist()],
                np.concatenate(offsets),
                second_start if pair else len(word_ids),
            ),
        )

    def _pad(
        self,
        rows: Sequence["_Row"],
        has_entities: bool,
        task: Task | None,
        length: int | None,
        entity_length: int | None,
        multiple: int | None,
    ) -> dict[str, Ints]:
        word_lengths = np.array([len(row.word_ids) for row in rows], np.int64)
        width = _round_up(length or int(word_lengths.max(initial=0)), multiple)
        present = np.arange(width) < word_lengths[:, None]
        input_ids = np.full((len(rows), width), self.tokenizer.pad_id, np.int64)
        input_ids[present] = _join([row.word_ids for row in rows])
        arrays = {"input_ids": input_ids, "attention_mask": present.astype(np.int64)}
        if not has_entities:
            return arrays
        counts = np.array([len(row.entity_ids) for row in rows], np.int64)
        width = _round_up(entity_length or int(counts.max(initial=0)), multiple)
        present = np.arange(width) < counts[:, None]
        starts, ends = _join([row.starts for row in rows]), _join([row.ends for row in rows])
        positions = starts[:, None] + np.arange(self.max_mention_length)

        def scatter(values: Ints, filler: int) -> Ints:
            full = np.full((len(rows), width, *values.shape[1:]), filler, np.int64)
            full[present] = values
            return full

        arrays["entity_ids"] = scatter(_join([row.entity_ids for row in rows]), self.entity_vocab[PAD])
        arrays["entity_attention_mask"] = present.astype(np.int64)
        arrays["entity_position_ids"] = scatter(np.where(positions < ends[:, None], positions, -1), -1)
        if task == TASKS[2]:
            arrays["entity_start_positions"] = scatter(starts, 0)
            arrays["entity_end_positions"] = scatter(np.maximum(starts, ends - 1), 0)
        return arrays


@dataclass
class _Row:
    word_ids: Ints
    entity_ids: Ints
    starts: Ints
    ends: Ints
    info: RowInfo


def read_entity_vocab(path: Path) -> dict[str, int]:
    """Title -> id of an ``entity_vocab.json``.

    Raises:
        UserError: the file is not one.
    """
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
        return {str(title): int(entity_id) for title, entity_id in vocabulary.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path}: not an entity vocabulary ({error})") from None


# -- cutting -----------------------------------------------------------------------------------------------------------


def _cut(
    first: _Text, second: _Text, budget: int | None, truncation: str, windows: bool, stride: int, pair: bool
) -> Iterable[tuple[_Text, Ints, _Text, Ints]]:
    """The parts of a text, or of a pair, that become rows, each with the numbers of its mentions."""
    offset = len(first.starts)
    sizes = len(first.ids), len(second.ids)
    if budget is None or sum(sizes) <= budget:
        yield first, np.arange(offset), second, np.arange(len(second.starts)) + offset
        return
    if windows:
        longer, kept = (second, sizes[0]) if pair else (first, 0)
        room = budget - kept
        if room <= stride:
            raise UserError(
                f"a maximum of {budget} tokens leaves {max(room, 0)} for a window; it must exceed the stride {stride}"
            )
        for start in range(0, max(1, len(longer.ids) - stride), room - stride):
            part, numbers = longer.window(start, min(start + room, len(longer.ids)))
            yield (first, np.arange(offset), part, numbers + offset) if pair else (part, numbers, second, _NONE)
        return
    left, right = _truncated_sizes(*sizes, budget, truncation)
    head, head_numbers = first.window(0, left)
    tail, tail_numbers = second.window(0, right)
    yield head, head_numbers, tail, tail_numbers + offset


def _truncated_sizes(first: int, second: int, budget: int, truncation: str) -> tuple[int, int]:
    """The sizes of two texts when they are cut to ``budget`` tokens in all."""
    excess = first + second - budget
    if truncation == "only_first" or (truncation == "longest_first" and not second):
        sizes = first - excess, second
    elif truncation == "only_second":
        sizes = first, second - excess
    elif truncation == "longest_first":
        if abs(first - second) >= excess:
            sizes = (first - excess, second) if first > second else (first, second - excess)
        else:  # equal, then token by token, the second text first
            sizes = (budget + 1) // 2, budget // 2
    else:
        raise UserError(f"truncation {truncation!r}: not one of longest_first, only_first, only_second")
    if min(sizes) < 0:
        raise UserError(f"a maximum of {budget} tokens has no room for a text of {first} and one of {second} ({truncation})")
    return sizes


def _shares(first: int, second: int, limit: int) -> tuple[int, int]:
    """How many mentions of each text stay when a row has room for ``limit``."""
    return (first, second) if first + second <= limit else _truncated_sizes(first, second, limit, "longest_first")


def _borders(text: str, spans: Sequence[Span]) -> list[int]:
    for start, end in spans:
        if start >= end:
            raise UserError(f"the span ({start}, {end}) is empty; the end is exclusive")
        if start < 0 or end > len(text):
            raise UserError(f"the span ({start}, {end}) lies outside a text of {len(text)} characters")
    borders = sorted(set(chain.from_iterable(spans)))
    if not text.isascii():
        for border in borders:
            if cuts_character(text, border):
                around = text[max(border - 1, 0) : border + 1]
                raise UserError(f"a span border at {border} cuts {around!r}, one character to its reader, in two")
    return borders


def cuts_character(text: str, position: int) -> bool:
    """Whether a cut at ``position`` parts a mark from its base, or an emoji sequence (Unicode's grapheme clusters)."""
    if not 0 < position < len(text):
        return False
    before, after = text[position - 1], text[position]
    if before.isspace() or after < "\u0300":
        return False
    return (
        unicodedata.category(after) in ("Mn", "Me", "Mc")
        or "\u200d" in (before, after)
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )


# -- splitting at spaces -----------------------------------------------------------------------------------------------

_Splitter = Callable[[str], list[str]]


def _whole(piece: str) -> list[str]:
    return [piece]


def _splitter(description: Mapping[str, Any]) -> _Splitter:
    """A function that cuts a piece into words whose ids, one after the other, are the piece's; nothing is left out."""
    steps = _steps(description.get("pre_tokenizer"), "pretokenizers")
    types = [step["type"] for step in steps]
    normalizers = {step["type"] for step in _steps(description.get("normalizer"), "normalizers")}
    if any(token.get("normalized") and not token.get("special") for token in description.get("added_tokens") or ()):
        return _whole
    if (
        types == ["ByteLevel"]
        and steps[0].get("use_regex", True)
        and not steps[0].get("add_prefix_space")
        and not normalizers
    ):
        # Unicode's white space, which Python's \s exceeds by the four separators of ASCII.
        return re.compile(r"(?:[^\S\x1c-\x1f]*[\S\x1c-\x1f]+)|[^\S\x1c-\x1f]+").findall
    if types == ["BertPreTokenizer"] and normalizers <= {"BertNormalizer"}:
        return re.compile(r"(?:[ \t\n\r]*[^ \t\n\r]+)|[ \t\n\r]+").findall
    if types[-1:] == ["Metaspace"] and set(types[:-1]) <= {"WhitespaceSplit"}:
        last = steps[-1]
        safe = normalizers <= {"NFKC", "NFC", "Precompiled", "Replace", "Strip"}
        if safe and last.get("prepend_scheme", "always") == "always" and last.get("split", True):
            return _split_at_single_spaces
    return _whole


_SPACE_WORDS = re.compile(r" ?[^ ]+").findall


def _split_at_single_spaces(piece: str) -> list[str]:
    """Normalizers may join or strip runs of spaces, so a piece with any is left whole."""
    return [piece] if "  " in piece or piece[-1] == " " else _SPACE_WORDS(piece)


def _steps(component: Mapping[str, Any] | None, children: str) -> list[Mapping[str, Any]]:
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [step for child in component[children] for step in _steps(child, children)]


def _without_entity_tokens(description: str, roles: Iterable[str]) -> dict[str, Any]:
    """The tokenizer without the *entity* tokens that transformers 5 registers as words, with ids that no word table has."""
    parsed: dict[str, Any] = json.loads(description)
    own = set(roles)
    parsed["added_tokens"] = [
        token
        for token in parsed.get("added_tokens") or ()
        if token["content"] in own or token["content"] not in (PAD, UNK, MASK, MASK2)
    ]
    return parsed


def _separators(description: Mapping[str, Any], tokenizer: LinkedTextTokenizer) -> int:
    """How many separators stand between two texts: 2 as in RoBERTa, 1 as in BERT."""
    processor = description.get("post_processor")
    if processor is None:
        return 1 if tokenizer.vocab.get("[SEP]") == tokenizer.sep_id else 2
    if processor["type"] != "TemplateProcessing":
        return 2 if processor["type"] == "RobertaProcessing" else 1
    ids = [next(iter(part.values()))["id"] for part in processor["pair"]]
    return ids.index("B") - ids.index("A") - 1


# -- small things ------------------------------------------------------------------------------------------------------


def _trim(word: str, start: int, end: int) -> Span:
    """The characters of a token without the spaces around them."""
    while start < end and word[start].isspace():
        start += 1
    while start < end and word[end - 1].isspace():
        end -= 1
    return start, end


def _marker_character(text: _Text, place: int) -> int:
    """The character that a marker before token ``place`` stands at."""
    if place < len(text.offsets):
        return int(text.offsets[place, 0])
    return int(text.offsets[-1, 1]) if len(text.offsets) else 0


def _join(parts: Sequence[Ints]) -> Ints:
    return np.concatenate(parts) if parts else _NONE


def _round_up(value: int, multiple: int | None) -> int:
    return value if not multiple else -(-value // multiple) * multiple


def _tensors(arrays: Mapping[str, Ints], kind: str) -> dict[str, Any]:
    if kind == "np":
        return dict(arrays)
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}


__all__ = ["BACKEND_FILE", "LukeProcessor", "Processed", "RowInfo", "cuts_character", "read_entity_vocab"]
