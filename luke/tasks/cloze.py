"""Cloze questions on a passage (ReCoRD): which of its entities fills the gap (Yamada et al. 2020, section 4.4).

Reads ReCoRD's JSON and its own lines: ``{"id": "…", "text": "…", "entities": [{"start": 0, "end": 5}], "query":
"… @placeholder …", "answers": ["Tokyo"]}``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from luke.errors import UserError
from luke.processor import Span
from luke.tasks.answers import answer_metrics
from luke.tasks.task import Hyperparameters, Inputs, Task, TaskOptions, checked_span, json_lines, pad_labels, parse_each

PLACEHOLDER = "@placeholder"
FORM = '{"text": …, "entities": [{"start": …, "end": …}], "query": "… @placeholder …", "answers": […]}'
_MOST_ENTITIES = 128
_SPARE = 8  # tokens by which a part of a passage may be longer alone


@dataclass(frozen=True)
class ClozeExample:
    """A query with a gap, the passage, its entities as the candidates, and the right ones; None if they are not known."""

    id: str
    query: str
    text: str
    candidates: tuple[Span, ...]
    answers: tuple[str, ...] | None


@dataclass(frozen=True)
class ClozeWindow:
    """A row: the query and a part of the passage. ``candidates`` are the numbers of its candidates, in order."""

    example: int
    query: str
    gap: Span
    text: str
    spans: tuple[Span, ...]
    candidates: tuple[int, ...]
    right: tuple[int, ...]


class Cloze(Task[ClozeExample, ClozeWindow]):
    """The task ``cloze``."""

    name = "cloze"
    head = "cloze"
    metric = "f1"
    defaults = Hyperparameters(learning_rate=1e-5, batch_size=32, epochs=2)
    has_labels = False

    @classmethod
    def read(cls, path: Path, options: TaskOptions) -> list[ClozeExample]:
        rows = json_lines(path)
        if len(rows) == 1 and isinstance(rows[0], dict) and "data" in rows[0]:
            nested = parse_each(path, rows[0]["data"], _passage, "a passage of ReCoRD")
            rows = [row for passage in nested for row in passage]
        return parse_each(path, rows, _parse, FORM)

    @classmethod
    def labels_of(cls, examples: Sequence[ClozeExample]) -> list[str]:
        return []

    def gold(self, example: ClozeExample) -> Any:
        return example.answers

    def units(self, examples: Sequence[ClozeExample], training: bool) -> list[ClozeWindow]:
        windows: list[ClozeWindow] = []
        for number, example in enumerate(examples):
            start = example.query.index(PLACEHOLDER)
            gap = (start, start + len(PLACEHOLDER))
            processed = self.processor(
                example.query,
                example.text,
                spans=[gap],
                spans_pair=list(example.candidates),
                max_length=self.options.max_length - _SPARE,
                max_entity_length=_MOST_ENTITIES,
                windows=True,
                stride=self.options.max_length // 4,
                return_tensors="np",
            )
            for info in processed.rows:
                chosen = [candidate - 1 for candidate in info.spans if candidate]
                if not chosen:
                    continue
                low, high = info.characters(info.second_start, len(info.offsets) - 1)
                spans = [example.candidates[candidate] for candidate in chosen]
                low, high = min(low, spans[0][0]), max(high, *(end for _, end in spans))
                right = [int(example.text[start:end] in (example.answers or ())) for start, end in spans]
                inside = tuple((start - low, end - low) for start, end in spans)
                windows.append(
                    ClozeWindow(number, example.query, gap, example.text[low:high], inside, tuple(chosen), tuple(right))
                )
        return windows

    def collate(self, units: Sequence[ClozeWindow], training: bool) -> Inputs:
        processed = self.processor(
            [unit.query for unit in units],
            [unit.text for unit in units],
            spans=[[unit.gap] for unit in units],
            spans_pair=[unit.spans for unit in units],
            max_entity_length=_MOST_ENTITIES,
        )
        inputs = processed.inputs
        positions = inputs["entity_position_ids"]
        inputs["entity_start_positions"] = positions[..., 0].clamp(min=0)
        inputs["entity_end_positions"] = positions.amax(-1).clamp(min=0)
        if training:
            inputs["labels"] = pad_labels([unit.right for unit in units], inputs["entity_ids"].shape[1] - 1)
        return inputs

    def predictions(
        self, examples: Sequence[ClozeExample], units: Sequence[ClozeWindow], logits: Sequence[Any]
    ) -> list[Any]:
        best: list[tuple[str, float]] = [("", -np.inf) for _ in examples]
        for unit, row in zip(units, logits, strict=True):
            for candidate, score in zip(unit.candidates, row[: len(unit.candidates)].tolist(), strict=True):
                if score > best[unit.example][1]:
                    start, end = examples[unit.example].candidates[candidate]
                    best[unit.example] = examples[unit.example].text[start:end], score
        return best

    def metrics(self, examples: Sequence[ClozeExample], predictions: Sequence[Any]) -> dict[str, float]:
        return answer_metrics([example.answers or () for example in examples], [text for text, _ in predictions])

    def line(self, example: ClozeExample, prediction: Any) -> dict[str, Any]:
        return {"id": example.id, "query": example.query, "prediction": prediction[0], "score": round(prediction[1], 4)}


def _passage(entry: dict[str, Any]) -> list[dict[str, Any]]:
    passage = entry["passage"]
    # ReCoRD's ends are inclusive.
    entities = [{"start": entity["start"], "end": entity["end"] + 1} for entity in passage["entities"]]
    rows = []
    for query in entry["qas"]:
        answers = None if query.get("answers") is None else [answer["text"] for answer in query["answers"]]
        rows.append(
            {"id": query["id"], "query": query["query"], "text": passage["text"], "entities": entities, "answers": answers}
        )
    return rows


def _parse(row: dict[str, Any]) -> ClozeExample:
    text, query, answers = row["text"], row["query"], row.get("answers")
    if query.count(PLACEHOLDER) != 1:
        raise UserError(f"the query must hold {PLACEHOLDER} once")
    candidates = tuple(sorted({checked_span(text, entity["start"], entity["end"]) for entity in row["entities"]}))
    if not candidates:
        raise UserError("the passage has no entities, which are the candidates")
    known = None if answers is None else tuple(str(answer) for answer in answers)
    return ClozeExample(str(row.get("id", "")), query, text, candidates, known)
