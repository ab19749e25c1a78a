"""Named entity recognition as classification of spans (Yamada et al. 2020, section 4.3).

Reads columns (`luke.tasks.conll`) and lines: ``{"text": "…", "entities": [{"start": 0, "end": 5, "label": "LOC"}]}``.

A window is one pass of the encoder: a sentence, or, for files of documents, as many sentences as fit, all their spans being
classified at once and each sentence the others' context.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from luke.errors import UserError
from luke.processor import LukeProcessor, Span, cuts_character
from luke.tasks import metrics
from luke.tasks.conll import WordSpan, read_columns, spans_of_tags
from luke.tasks.span_decoding import DECODERS, ScoredSpan
from luke.tasks.span_pruning import FILE, SpanPruner
from luke.tasks.task import (
    Hyperparameters,
    Inputs,
    Task,
    TaskOptions,
    checked_span,
    join_words,
    json_lines,
    pad_labels,
    parse_each,
    read_text,
)

NO_ENTITY = "NIL"  # as in the published models
FORM = '{"text": …, "entities": [{"start": …, "end": …, "label": …}]}'
_MOST_SPANS = 512  # of a row
_LEAST_PRUNED = 8  # pruned spans of a sentence that training sees all the same
# A run of letters and digits, but each ideograph or kana alone; or any other character.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[^\w\s]")


@dataclass(frozen=True)
class NerOptions(TaskOptions):
    """Options of named entity recognition.

    Attributes:
        max_span_words: Longest mention.
        decoding: ``greedy`` or ``exact``.
        context: Whether a window holds several sentences of a document; None: if the file has documents.
        pruning: Share of true mentions that pruning may lose; 0 keeps all spans.
        max_length: As in the base class.
    """

    max_span_words: int = 16
    decoding: str = "greedy"
    context: bool | None = None
    pruning: float = 0.005

    def __post_init__(self) -> None:
        if self.decoding not in DECODERS:
            raise UserError(f"--decoding {self.decoding}: not one of {', '.join(DECODERS)}")
        if self.max_span_words < 1:
            raise UserError(f"--max-span-words {self.max_span_words}: must be positive")
        if not 0 <= self.pruning < 1:
            raise UserError(f"--pruning {self.pruning}: a share, at least 0 and less than 1")


@dataclass(frozen=True)
class Sentence:
    """A text cut into words, with its mentions as word spans, None if they are not known.

    Attributes:
        words: Where each word lies in the text.
        document: Sentences with the same positive number are parts of one document; 0 stands alone.
    """

    text: str
    words: tuple[Span, ...]
    entities: frozenset[WordSpan] | None
    document: int = 0

    def forms(self) -> list[str]:
        """The words."""
        return [self.text[start:end] for start, end in self.words]


@dataclass(frozen=True)
class Target:
    """Spans of one sentence in a window: ``characters`` in the window's text of the word spans ``spans``."""

    sentence: int
    spans: tuple[Span, ...]
    characters: tuple[Span, ...]


@dataclass(frozen=True)
class Window:
    """One row: a text and the spans to be classified, sentence by sentence; ``labels`` are those of the spans."""

    text: str
    targets: tuple[Target, ...]
    labels: tuple[str, ...]


class NamedEntityRecognition(Task[Sentence, Window]):
    """The task ``ner``."""

    name = "ner"
    head = "spans"
    metric = "f1"
    defaults = Hyperparameters(learning_rate=1e-5, batch_size=8, epochs=5)
    options_class = NerOptions
    first_label = NO_ENTITY

    def __init__(self, options: TaskOptions, processor: LukeProcessor, labels: Sequence[str] = ()) -> None:
        super().__init__(options, processor, labels)
        self.pruner: SpanPruner | None = None

    @classmethod
    def read(cls, path: Path, options: NerOptions) -> list[Sentence]:
        if read_text(path, options.encoding).lstrip()[:1] == "{":
            return parse_each(path, json_lines(path), _parse_line, FORM)
        sentences = []
        for document, words, tags in read_columns(path, options.encoding):
            text, spans = join_words(words)
            entities = None if tags is None else frozenset(spans_of_tags(tags))
            sentences.append(Sentence(text, tuple(spans), entities, document))
        if not sentences:
            raise UserError(f"{path}: holds no sentences")
        return sentences

    @classmethod
    def labels_of(cls, examples: Sequence[Sentence]) -> list[str]:
        found = {label for sentence in examples for *_, label in sentence.entities or ()}
        return [NO_ENTITY, *sorted(found - {NO_ENTITY})]

    def gold(self, example: Sentence) -> frozenset[WordSpan] | None:
        return example.entities

    def prepare(self, examples: Sequence[Sentence]) -> None:
        if self.options.pruning:
            self.pruner = SpanPruner()
            self.pruner.fit(
                [(example.forms(), sorted(example.entities or ())) for example in examples], self.options.pruning
            )

    def save(self, folder: Path) -> None:
        if self.pruner:
            self.pruner.save(folder)

    def load(self, folder: Path) -> None:
        self.pruner = SpanPruner.load(folder) if self.options.pruning and (folder / FILE).exists() else None

    # -- windows -------------------------------------------------------------------------------------------------------

    def candidates(self, sentence: Sentence, training: bool) -> list[Span]:
        """The word spans to be classified: short enough and not pruned.

        In training also all true ones, and as many of the pruned as of the others: a model that never saw an ordinary span
        would take any for a mention, and could not be used without pruning.
        """
        count, longest = len(sentence.words), self.options.max_span_words
        starts, lasts = np.triu_indices(count)
        short = lasts - starts < longest
        starts, lasts = starts[short], lasts[short]
        if self.pruner is not None and count:
            kept = self.pruner.keep(sentence.forms())[starts, lasts]
            if training:
                pruned = np.flatnonzero(~kept)
                generator = np.random.default_rng(zlib.crc32(sentence.text.encode()))
                kept[generator.permutation(pruned)[: max(_LEAST_PRUNED, int(kept.sum()))]] = True
            starts, lasts = starts[kept], lasts[kept]
        spans = set(zip(starts.tolist(), (lasts + 1).tolist(), strict=True))
        if training:
            spans |= {(start, end) for start, end, _ in sentence.entities or () if end - start <= longest}
        return sorted(spans)

    def units(self, examples: Sequence[Sentence], training: bool) -> list[Window]:
        room = self.options.max_length - 2
        pieces = [piece for number in range(len(examples)) for piece in self._pieces(number, examples[number], room)]
        shared = self.options.context
        windows: list[Window] = []
        group: list[_Piece] = []
        for piece in pieces:
            document = examples[piece.sentence].document
            joins = (document > 0 if shared is None else shared) and group
            same = joins and examples[group[-1].sentence].document == document
            if group and not (same and sum(member.tokens for member in group) + piece.tokens <= room):
                windows += self._windows(examples, group, training)
                group = []
            group.append(piece)
        if group:
            windows += self._windows(examples, group, training)
        return windows

    def _pieces(self, number: int, sentence: Sentence, room: int) -> list["_Piece"]:
        """A sentence, or the overlapping parts of one that is too long."""
        if not sentence.words:
            return []
        lengths = self._token_counts(sentence)
        ends = np.cumsum(lengths)
        pieces, first = [], 0
        while True:
            base = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, base + room, side="right")))
            pieces.append(_Piece(number, first, last, int(ends[last - 1]) - base))
            if last >= len(lengths):
                return pieces
            first = max(first + 1, last - self.options.max_span_words + 1)

    def _token_counts(self, sentence: Sentence) -> Any:
        """int64 (n,): the tokens of each word and of what stands before it."""
        result = self.processor(
            sentence.text, spans=list(sentence.words), max_entity_length=len(sentence.words), return_tensors="np"
        )
        borders = np.searchsorted(result.rows[0].offsets[1:-1, 0], [start for start, _ in sentence.words[1:]])
        counts = np.diff([0, *borders.tolist(), len(result.rows[0].offsets) - 2])
        return np.maximum(counts, 1)

    def _windows(self, examples: Sequence[Sentence], group: Sequence["_Piece"], training: bool) -> list[Window]:
        text = ""
        rows: list[tuple[int, Span, Span, str]] = []  # sentence, word span, characters, label
        for piece in group:
            sentence = examples[piece.sentence]
            low, high = sentence.words[piece.first][0], sentence.words[piece.last - 1][1]
            text += (" " if text else "") + sentence.text[low:high]
            shift = len(text) - high
            labels = {(start, end): label for start, end, label in sentence.entities or ()}
            for start, end in self.candidates(sentence, training):
                if piece.first <= start and end <= piece.last:
                    characters = (sentence.words[start][0] + shift, sentence.words[end - 1][1] + shift)
                    rows.append((piece.sentence, (start, end), characters, labels.get((start, end), NO_ENTITY)))
        windows = []
        for begin in range(0, len(rows), _MOST_SPANS):
            chosen = rows[begin : begin + _MOST_SPANS]
            targets = []
            for number in dict.fromkeys(row[0] for row in chosen):
                own = [row for row in chosen if row[0] == number]
                targets.append(Target(number, tuple(row[1] for row in own), tuple(row[2] for row in own)))
            windows.append(Window(text, tuple(targets), tuple(row[3] for row in chosen)))
        return windows

    def collate(self, units: Sequence[Window], training: bool) -> Inputs:
        spans = [[span for target in unit.targets for span in target.characters] for unit in units]
        processed = self.processor(
            [unit.text for unit in units],
            spans=spans,
            task="entity_span_classification",
            max_entity_length=_MOST_SPANS,
        )
        inputs = processed.inputs
        if training:
            rows = [[self.label_ids[label] for label in unit.labels] for unit in units]
            inputs["labels"] = pad_labels(rows, inputs["entity_ids"].shape[1])
        return inputs

    # -- results -------------------------------------------------------------------------------------------------------

    def predictions(self, examples: Sequence[Sentence], units: Sequence[Window], logits: Sequence[Any]) -> list[Any]:
        import torch

        found: list[dict[Span, ScoredSpan]] = [{} for _ in examples]
        for unit, rows in zip(units, logits, strict=True):
            log_probabilities = torch.from_numpy(rows).log_softmax(-1).numpy()
            best = log_probabilities[:, 1:].argmax(-1) + 1
            number = 0
            for target in unit.targets:
                for span in target.spans:
                    row, label = log_probabilities[number], int(best[number])
                    scored = ScoredSpan(*span, self.labels[label], float(row[label]), float(row[label] - row[0]))
                    found[target.sentence].setdefault(span, scored)  # the first of overlapping windows
                    number += 1
        decode = DECODERS[self.options.decoding]
        return [decode(list(spans.values())) for spans in found]

    def metrics(self, examples: Sequence[Sentence], predictions: Sequence[Any]) -> dict[str, float]:
        found = [[(span.start, span.end, span.label) for span in spans] for spans in predictions]
        return metrics.span_metrics([example.entities or () for example in examples], found)

    def line(self, example: Sentence, prediction: Any) -> dict[str, Any]:
        entities = [
            {
                "start": example.words[span.start][0],
                "end": example.words[span.end - 1][1],
                "label": span.label,
                "score": round(float(np.exp(span.log_probability)), 6),
            }
            for span in prediction
        ]
        return {"text": example.text, "entities": entities}


@dataclass(frozen=True)
class _Piece:
    """The words [first, last) of a sentence, and how many tokens they are."""

    sentence: int
    first: int
    last: int
    tokens: int


def _parse_line(row: dict[str, Any]) -> Sentence:
    text = row["text"]
    given = row.get("entities")
    spans = [(*checked_span(text, entity["start"], entity["end"]), str(entity["label"])) for entity in given or ()]
    words = split_words(text, {border for start, end, _ in spans for border in (start, end)})
    starts, ends = {start: i for i, (start, _) in enumerate(words)}, {end: i + 1 for i, (_, end) in enumerate(words)}
    entities = set()
    for start, end, label in spans:
        inner = text[start:end]
        left, right = start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())
        if left not in starts or right not in ends:
            raise UserError(f"the span ({start}, {end}) holds no word")
        entities.add((starts[left], ends[right], label))
    if len({(start, end) for start, end, _ in entities}) < len(entities):
        raise UserError("a span has two labels")
    return Sentence(text, tuple(words), None if given is None else frozenset(entities))


def split_words(text: str, borders: set[int]) -> list[Span]:
    """Words of a text: runs of letters and digits, ideographs and other characters alone; marks stay with their base.

    Args:
        borders: Places where a word ends in any case, those of annotated mentions.
    """
    words: list[Span] = []
    for match in _WORDS.finditer(text):
        inner = sorted(border for border in borders if match.start() < border < match.end())
        for start, end in zip([match.start(), *inner], [*inner, match.end()], strict=True):
            if words and words[-1][1] == start and start not in borders and cuts_character(text, start):
                words[-1] = (words[-1][0], end)
            else:
                words.append((start, end))
    return words
