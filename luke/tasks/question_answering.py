"""Extractive question answering: the answer is a part of the context, or there is none (Yamada et al. 2020, section 4.5).

Reads the JSON of SQuAD 1.1 and 2.0, XQuAD and MLQA, and its own lines: ``{"id": "…", "question": "…", "context": "…",
"answers": [{"text": "…", "start": 0}], "entities": [{"start": 0, "end": 5, "title": "Tokyo"}]}``; ``answers`` is empty if
there is none, ``entities`` may be missing.

A LUKE is shown the Wikipedia entities of the context: those of the file, or those that a candidate table finds in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from luke.errors import UserError
from luke.processor import LukeProcessor, RowInfo
from luke.tasks.answers import answer_metrics
from luke.tasks.task import Hyperparameters, Inputs, Task, TaskOptions, checked_span, json_lines, parse_each

FORM = '{"question": …, "context": …, "answers": [{"text": …, "start": …}]}'
_MOST_ENTITIES = 128  # of a row, as in pretraining
_BEST_BORDERS = 20  # starts and ends that are combined into answers
_MAX_QUESTION_TOKENS = 64

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class QuestionAnsweringOptions(TaskOptions):
    """Options of question answering.

    Attributes:
        stride: Tokens that neighbouring windows of a long context share.
        max_answer_tokens: Longest answer.
        candidates: A candidate table, whose most probable entity is shown for each mention that it knows.
        answer_language: Whose articles the score leaves out.
        max_length: As in the base class.
    """

    stride: int = 128
    max_answer_tokens: int = 30
    candidates: str | None = None
    answer_language: str = "en"

    def __post_init__(self) -> None:
        if self.stride < 0 or self.max_answer_tokens < 1:
            raise UserError("--stride must not be negative, and --max-answer-tokens must be positive")


@dataclass(frozen=True)
class Question:
    """A question on a context; ``answers`` are (start, text), empty if there is none, None if they are not known."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] | None
    entities: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True)
class QuestionWindow:
    """A row: part of a question's context.

    Attributes:
        example: The number of its question.
        answer: The answer's first and last token; (0, 0), that is [CLS], if the window holds none.
    """

    example: int
    inputs: dict[str, Ints]
    info: RowInfo
    answer: tuple[int, int]


class QuestionAnswering(Task[Question, QuestionWindow]):
    """The task ``question-answering``."""

    name = "question-answering"
    head = "answer"
    metric = "f1"
    defaults = Hyperparameters(learning_rate=1.5e-5, batch_size=48, epochs=2)
    options_class = QuestionAnsweringOptions
    has_labels = False

    def __init__(self, options: TaskOptions, processor: LukeProcessor, labels: Sequence[str] = ()) -> None:
        super().__init__(options, processor, labels)
        self.annotate = entity_annotator(self.options.candidates) if self.options.candidates else None

    @classmethod
    def read(cls, path: Path, options: QuestionAnsweringOptions) -> list[Question]:
        rows = json_lines(path)
        if len(rows) == 1 and isinstance(rows[0], dict) and "data" in rows[0]:
            nested = parse_each(path, rows[0]["data"], _article, "an article of SQuAD")
            rows = [row for article in nested for row in article]
        return parse_each(path, rows, _question, FORM)

    @classmethod
    def labels_of(cls, examples: Sequence[Question]) -> list[str]:
        return []

    def gold(self, example: Question) -> Any:
        return example.answers

    def units(self, examples: Sequence[Question], training: bool) -> list[QuestionWindow]:
        windows = []
        for number, example in enumerate(examples):
            entities = example.entities or (self.annotate(example.context) if self.annotate else ())
            processed = self.processor(
                self._short_question(example.question),
                example.context,
                spans=[],
                spans_pair=[(start, end) for start, end, _ in entities],
                entities=[],
                entities_pair=[title for *_, title in entities],
                max_length=self.options.max_length,
                max_entity_length=_MOST_ENTITIES,
                windows=True,
                stride=self.options.stride,
                return_token_type_ids=True,
                return_tensors="np",
            )
            for row, info in enumerate(processed.rows):
                inputs = {name: value[row] for name, value in processed.inputs.items()}
                windows.append(QuestionWindow(number, _unpadded(inputs), info, _answer_tokens(example, info)))
        return windows

    def _short_question(self, question: str) -> str:
        offsets = self.processor(question, return_tensors="np").rows[0].offsets[1:-1]
        return question if len(offsets) <= _MAX_QUESTION_TOKENS else question[: int(offsets[_MAX_QUESTION_TOKENS - 1, 1])]

    def collate(self, units: Sequence[QuestionWindow], training: bool) -> Inputs:
        import torch

        fillers = {"input_ids": self.processor.tokenizer.pad_id, "entity_position_ids": -1}
        inputs = {
            name: torch.nn.utils.rnn.pad_sequence(
                [torch.from_numpy(unit.inputs[name]) for unit in units], batch_first=True, padding_value=fillers.get(name, 0)
            )
            for name in units[0].inputs
        }
        if self.processor.has_entities:
            # In pretraining all word tokens were of type 0.
            inputs["token_type_ids"].zero_()
        if training:
            inputs["start_positions"] = torch.tensor([unit.answer[0] for unit in units])
            inputs["end_positions"] = torch.tensor([unit.answer[1] for unit in units])
        return inputs

    def predictions(self, examples: Sequence[Question], units: Sequence[QuestionWindow], logits: Sequence[Any]) -> list[Any]:
        best: list[tuple[float, str]] = [(-np.inf, "") for _ in examples]
        nothing = [np.inf for _ in examples]
        for unit, (starts, ends) in zip(units, logits, strict=True):
            number = unit.example
            nothing[number] = min(nothing[number], float(starts[0] + ends[0]))
            for score, start, end in _best_spans(starts, ends, unit.info, self.options.max_answer_tokens):
                if score > best[number][0]:
                    low, high = unit.info.characters(start, end + 1)
                    best[number] = score, examples[number].context[low:high]
        return [(text, score, none) for (score, text), none in zip(best, nothing, strict=True)]

    def _answer(self, prediction: tuple[str, float, float], allowed_none: bool) -> str:
        text, score, none = prediction
        return "" if allowed_none and none > score else text

    def metrics(self, examples: Sequence[Question], predictions: Sequence[Any]) -> dict[str, float]:
        golds = [[text for _, text in example.answers or ()] for example in examples]
        allowed = not all(golds)
        found = [self._answer(prediction, allowed) for prediction in predictions]
        return answer_metrics(golds, found, self.options.answer_language)

    def line(self, example: Question, prediction: Any) -> dict[str, Any]:
        text, score, none = prediction
        return {"id": example.id, "prediction": text, "score": round(score, 4), "no_answer_score": round(none, 4)}


def _article(article: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for paragraph in article["paragraphs"]:
        for entry in paragraph["qas"]:
            answers = entry.get("answers")
            if entry.get("is_impossible"):
                answers = []
            named = None if answers is None else [{"text": a["text"], "start": a["answer_start"]} for a in answers]
            rows.append(
                {"id": entry["id"], "question": entry["question"], "context": paragraph["context"], "answers": named}
            )
    return rows


def _question(row: dict[str, Any]) -> Question:
    context, answers = row["context"], row.get("answers")
    parsed = None
    if answers is not None:
        parsed = tuple((int(answer["start"]), str(answer["text"])) for answer in answers)
        for start, text in parsed:
            if context[start : start + len(text)] != text:
                found = context[start : start + len(text)]
                raise UserError(f"the answer {text!r} does not stand at {start} of the context, but {found!r}")
    entities = tuple((*checked_span(context, e["start"], e["end"]), str(e["title"])) for e in row.get("entities") or ())
    return Question(str(row.get("id", "")), row["question"], context, parsed, entities)


def _unpadded(inputs: dict[str, Ints]) -> dict[str, Ints]:
    words, entities = int(inputs["attention_mask"].sum()), int(inputs["entity_attention_mask"].sum())
    # One entity at least, [PAD] and masked, so that every batch has the inputs of entities.
    return {name: value[: max(1, entities) if name.startswith("entity") else words] for name, value in inputs.items()}


def _answer_tokens(example: Question, info: RowInfo) -> tuple[int, int]:
    if not example.answers:
        return 0, 0
    start, text = example.answers[0]
    offsets = info.offsets[info.second_start : -1]
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    whole = len(inside) and offsets[inside[0], 0] <= start and offsets[inside[-1], 1] >= start + len(text)
    return (int(inside[0]) + info.second_start, int(inside[-1]) + info.second_start) if whole else (0, 0)


def _best_spans(starts: Any, ends: Any, info: RowInfo, longest: int) -> list[tuple[float, int, int]]:
    """(score, first, last token) of the best answer of a window, none if it has no context."""
    low, high = info.second_start, len(info.offsets) - 1
    if high <= low:
        return []
    first = low + np.argsort(-starts[low:high], kind="stable")[:_BEST_BORDERS]
    last = low + np.argsort(-ends[low:high], kind="stable")[:_BEST_BORDERS]
    scores = starts[first][:, None] + ends[last]
    lengths = last - first[:, None]
    scores = np.where((lengths >= 0) & (lengths < longest), scores, -np.inf)
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    best = float(scores[row, column])
    return [] if best == -np.inf else [(best, int(first[row]), int(last[column]))]


# -- entities of a context ---------------------------------------------------------------------------------------------


def entity_annotator(table: str, least_probability: float = 0.3) -> Callable[[str], list[tuple[int, int, str]]]:
    """A function that finds the Wikipedia entities of a text with a candidate table.

    Mentions are taken from left to right, the longest first, if the anchor is linked often enough where it occurs
    (``least_probability``) and its most frequent entity takes at least that share of its links.

    Raises:
        UserError: there is no such table.
    """
    from luke.entity_disambiguation.candidate_table import CandidateTable

    candidates = CandidateTable(Path(table))

    def annotate(text: str) -> list[tuple[int, int, str]]:
        found: list[tuple[int, int, str]] = []
        spans: list[Any] = sorted(candidates.find_spans(text), key=lambda span: (span.start, -span.end))
        for span in spans:
            if found and span.start < found[-1][1]:
                continue
            entry = candidates.entry(span.row)
            if entry.link_probability < least_probability or not entry.candidates:
                continue
            title, prior = entry.candidates[0][:2]
            if prior >= least_probability:
                found.append((span.start, span.end, title))
        return found

    return annotate
