"""Classification of texts and pairs of texts.

Reads its own lines, ``{"text": "…", "text_pair": "…", "label": "…"}`` (``text_pair`` may be missing), and files of columns
separated by tabs whose first line names them in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from luke.errors import UserError
from luke.tasks import metrics
from luke.tasks.relation_classification import label_probabilities
from luke.tasks.task import Hyperparameters, Inputs, Task, TaskOptions, json_lines, parse_each, read_text

FORM = '{"text": …, "text_pair": …, "label": …}'


@dataclass(frozen=True)
class TextExample:
    """A text, or two, with a label, None if it is not known."""

    text: str
    pair: str | None
    label: str | None

    @classmethod
    def parse(cls, row: dict[str, Any]) -> Self:
        """From a row."""
        text, pair, label = row["text"], row.get("text_pair"), row.get("label")
        if not isinstance(text, str) or not (pair is None or isinstance(pair, str)):
            raise ValueError("text and text_pair must be strings")
        return cls(text, pair, None if label is None else str(label))


class TextClassification(Task[TextExample, TextExample]):
    """The task ``text-classification``."""

    name = "text-classification"
    head = "sequence"
    metric = "accuracy"
    defaults = Hyperparameters(learning_rate=2e-5, batch_size=16, epochs=3)

    @classmethod
    def read(cls, path: Path, options: TaskOptions) -> list[TextExample]:
        text = read_text(path, options.encoding)
        rows = json_lines(path) if text.lstrip()[:1] in ("{", "[") else _columns(path, text)
        examples = parse_each(path, rows, TextExample.parse, FORM)
        if len({example.pair is None for example in examples}) > 1:
            raise UserError(f"{path}: some examples have a text_pair and some have none")
        return examples

    @classmethod
    def labels_of(cls, examples: Sequence[TextExample]) -> list[str]:
        return sorted({example.label for example in examples if example.label is not None})

    def gold(self, example: TextExample) -> str | None:
        return example.label

    def units(self, examples: Sequence[TextExample], training: bool) -> list[TextExample]:
        return list(examples)

    def collate(self, units: Sequence[TextExample], training: bool) -> Inputs:
        import torch

        pairs = None if units[0].pair is None else [unit.pair or "" for unit in units]
        inputs = self.processor(
            [unit.text for unit in units],
            pairs,
            max_length=self.options.max_length,
            # In a LUKE's pretraining all words were of type 0.
            return_token_type_ids=not self.processor.has_entities,
        ).inputs
        if training:
            inputs["labels"] = torch.tensor([self.label_ids[unit.label or ""] for unit in units])
        return inputs

    def predictions(self, examples: Sequence[TextExample], units: Sequence[TextExample], logits: Sequence[Any]) -> list[Any]:
        return label_probabilities(self.labels, logits)

    def metrics(self, examples: Sequence[TextExample], predictions: Sequence[Any]) -> dict[str, float]:
        return metrics.classification_metrics([example.label for example in examples], [label for label, _ in predictions])

    def line(self, example: TextExample, prediction: Any) -> dict[str, Any]:
        pair = {} if example.pair is None else {"text_pair": example.pair}
        return {"text": example.text, **pair, "label": prediction[0], "score": round(prediction[1], 6)}


def _columns(path: Path, text: str) -> list[dict[str, str]]:
    lines = text.splitlines()
    names = lines[0].split("\t") if lines else []
    if "text" not in names:
        raise UserError(f"{path}, line 1: neither JSON nor names of columns (text, text_pair, label, separated by tabs)")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        columns = line.split("\t")
        if len(columns) != len(names):
            raise UserError(f"{path}, line {number}: {len(columns)} columns where line 1 names {len(names)}")
        rows.append(dict(zip(names, columns, strict=True)))
    return rows
