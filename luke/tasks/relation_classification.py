"""Relation classification: a text with two mentions -> their relation (Yamada et al. 2020, section 4.2).

Reads TACRED's JSON, the lines of KBP37 and RELX (SemEval's form, ``<e1>…</e1>`` and ``<e2>…</e2>``), FewRel's JSON, and its
own lines: ``{"text": "…", "head": [0, 5], "tail": [17, 22], "label": "per:origin"}``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from luke.errors import UserError
from luke.processor import Span
from luke.tasks import metrics
from luke.tasks.entity_typing import mention_inputs
from luke.tasks.task import (
    Hyperparameters,
    Inputs,
    Task,
    TaskOptions,
    checked_span,
    crop_around,
    join_words,
    json_lines,
    parse_each,
    read_text,
)

FORM = '{"text": …, "head": [start, end], "tail": [start, end], "label": …}'
NEGATIVE_NAMES = ("no_relation", "NA")
_MARKERS = re.compile(r"</?e[12]>")
_SEMEVAL_LINE = re.compile(r"^\s*(\d+)\s+\"?(.*?)\"?\s*$")


@dataclass(frozen=True)
class RelationOptions(TaskOptions):
    """Options of relation classification.

    Attributes:
        negative_label: The label that micro F1 does not count; by default ``no_relation`` or ``NA`` if the data has one.
    """

    negative_label: str | None = None


@dataclass(frozen=True)
class RelationExample:
    """Two mentions and their relation, None if it is not known. ``id`` is that of the file, if it has any."""

    text: str
    head: Span
    tail: Span
    label: str | None
    id: str | None = None

    @classmethod
    def parse(cls, row: dict[str, Any]) -> Self:
        """From a row of TACRED, FewRel or our form."""
        label = row.get("relation", row.get("label"))
        label = None if label is None else str(label)
        if "text" in row:
            head, tail = (checked_span(row["text"], *row[name]) for name in ("head", "tail"))
            return cls(row["text"], head, tail, label, row.get("id"))
        if "token" in row:  # TACRED; its ends are inclusive
            text, words = join_words(row["token"])
            places = [(row[f"{name}_start"], row[f"{name}_end"]) for name in ("subj", "obj")]
        else:
            text, words = join_words(row["tokens"])
            places = [(row[name][2][0][0], row[name][2][0][-1]) for name in ("h", "t")]
        for first, last in places:
            if not 0 <= first <= last < len(words):
                raise UserError(f"the mention of the words {first} to {last} lies outside a text of {len(words)} words")
        head, tail = ((words[first][0], words[last][1]) for first, last in places)
        return cls(text, head, tail, label, row.get("id"))


class RelationClassification(Task[RelationExample, RelationExample]):
    """The task ``relation-classification``."""

    name = "relation-classification"
    head = "pair"
    metric = "f1"
    defaults = Hyperparameters(learning_rate=1e-5, batch_size=32, epochs=5)
    options_class = RelationOptions

    @classmethod
    def read(cls, path: Path, options: RelationOptions) -> list[RelationExample]:
        text = read_text(path, options.encoding)
        if text.lstrip()[:1] not in ("{", "["):
            return _read_semeval(path, text)
        rows = json_lines(path)
        if len(rows) == 1 and "text" not in rows[0] and all(isinstance(value, list) for value in rows[0].values()):
            rows = [{**row, "relation": relation} for relation, group in rows[0].items() for row in group]
        return parse_each(path, rows, RelationExample.parse, FORM)

    @classmethod
    def labels_of(cls, examples: Sequence[RelationExample]) -> list[str]:
        return sorted({example.label for example in examples if example.label is not None})

    def gold(self, example: RelationExample) -> str | None:
        return example.label

    def negative(self) -> str | None:
        """The label that micro F1 does not count."""
        chosen: str | None = self.options.negative_label
        if chosen is not None:
            if chosen not in self.labels:
                raise UserError(f"--negative-label {chosen}: not a label of the training data")
            return chosen
        return next((name for name in NEGATIVE_NAMES if name in self.labels), None)

    def units(self, examples: Sequence[RelationExample], training: bool) -> list[RelationExample]:
        cropped = []
        for example in examples:
            spans = [example.head, example.tail]
            text, inside = crop_around(self.processor, example.text, spans, self.options.max_length - 6)
            if len(inside) < 2 or any(start >= end for start, end in inside):
                limit = self.options.max_length
                raise UserError(f"{example.id or example.text[:40]!r}: the mentions do not fit in --max-length {limit}")
            cropped.append(RelationExample(text, inside[0], inside[1], example.label))
        return cropped

    def collate(self, units: Sequence[RelationExample], training: bool) -> Inputs:
        import torch

        inputs = mention_inputs(self, [unit.text for unit in units], [[unit.head, unit.tail] for unit in units])
        if training:
            inputs["labels"] = torch.tensor([self.label_ids[unit.label or ""] for unit in units])
        return inputs

    def predictions(
        self, examples: Sequence[RelationExample], units: Sequence[RelationExample], logits: Sequence[Any]
    ) -> list[Any]:
        return label_probabilities(self.labels, logits)

    def metrics(self, examples: Sequence[RelationExample], predictions: Sequence[Any]) -> dict[str, float]:
        gold = [example.label or "" for example in examples]
        return metrics.relation_metrics(gold, [label for label, _ in predictions], self.negative())

    def line(self, example: RelationExample, prediction: Any) -> dict[str, Any]:
        named = {} if example.id is None else {"id": example.id}
        label, score = prediction
        spans = {"head": list(example.head), "tail": list(example.tail)}
        return {**named, "text": example.text, **spans, "label": label, "score": round(score, 6)}


def label_probabilities(labels: Sequence[str], logits: Sequence[Any]) -> list[Any]:
    """The most probable label of each row of logits, and its probability."""
    import torch

    probabilities = [torch.from_numpy(row).softmax(-1) for row in logits]
    return [(labels[int(row.argmax())], float(row.max())) for row in probabilities]


def _read_semeval(path: Path, text: str) -> list[RelationExample]:
    """``ID TAB "text"`` with the relation behind a further tab (RELX) or on the next line (KBP37, SemEval 2010)."""
    examples: list[RelationExample] = []
    pending: tuple[int, str, str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("Comment"):
            continue
        if "<e1>" not in line:
            if pending is None:
                raise UserError(f"{path}, line {number}: neither a text with <e1>…</e1> and <e2>…</e2> nor its relation")
            examples.append(_semeval_example(path, *pending, line.strip()))
            pending = None
            continue
        if pending is not None:
            raise UserError(f"{path}, line {pending[0]}: no relation behind or below the text")
        columns = line.split("\t")
        if len(columns) > 2:
            examples.append(_semeval_example(path, number, columns[0], columns[1], columns[2].strip()))
            continue
        match = _SEMEVAL_LINE.match(line)
        if match is None:
            raise UserError(f'{path}, line {number}: not of the form ID TAB "text"')
        pending = number, match[1], match[2]
    if pending is not None:
        raise UserError(f"{path}, line {pending[0]}: no relation behind or below the text")
    if not examples:
        raise UserError(f"{path}: holds no examples")
    return examples


def _semeval_example(path: Path, line: int, example_id: str, marked: str, label: str) -> RelationExample:
    marked = marked.strip().strip('"')
    plain, places, position = "", {}, 0
    for marker in _MARKERS.finditer(marked):
        plain += marked[position : marker.start()]
        places[marker[0]] = len(plain)
        position = marker.end()
    plain += marked[position:]
    spans = []
    for name in ("e1", "e2"):
        start, end = places.get(f"<{name}>"), places.get(f"</{name}>")
        if start is None or end is None or not plain[start:end].strip():
            raise UserError(f"{path}, line {line}: <{name}>…</{name}> is missing or empty")
        inner = plain[start:end]
        spans.append((start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())))
    return RelationExample(plain, spans[0], spans[1], label, example_id)
