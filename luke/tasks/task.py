"""What a task is: files -> examples -> units -> model inputs, and logits -> predictions -> metrics."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from luke.errors import UserError
from luke.processor import LukeProcessor, Span, cuts_character

Example = TypeVar("Example")
Unit = TypeVar("Unit")
Logits = npt.NDArray[np.float32]
Inputs = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Hyperparameters:
    """The papers' values for a task (Yamada et al. 2020, appendix; the rest is common to all, see `luke.tasks.training`)."""

    learning_rate: float
    batch_size: int
    epochs: float


@dataclass(frozen=True)
class TaskOptions:
    """What decides how a task reads its data; kept with the fine-tuned model.

    Attributes:
        max_length: The most tokens of a row.
        encoding: Of files of columns.
    """

    max_length: int = 512
    encoding: str = "utf-8"


class Task(ABC, Generic[Example, Unit]):
    """One task. An example is what a person annotated; a unit is what becomes a row of the model.

    Attributes:
        name: In ``luke finetune NAME``.
        head: Which head the model gets.
        metric: The metric by which the best epoch is chosen.
        options_class: The options that the task knows.
        first_label: The label that means "none of these" and always has the id 0; None if there is no such label.
    """

    name: ClassVar[str]
    head: ClassVar[Any]
    metric: ClassVar[str]
    defaults: ClassVar[Hyperparameters]
    options_class: ClassVar[type[TaskOptions]] = TaskOptions
    multi_label: ClassVar[bool] = False
    has_labels: ClassVar[bool] = True
    first_label: ClassVar[str | None] = None

    def __init__(self, options: TaskOptions, processor: LukeProcessor, labels: Sequence[str] = ()) -> None:
        self.options: Any = options
        self.processor = processor
        self.labels = list(labels)
        self.label_ids = {label: number for number, label in enumerate(self.labels)}

    @classmethod
    @abstractmethod
    def read(cls, path: Path, options: Any) -> list[Example]:
        """The examples of a file; their labels may be missing, for prediction.

        Raises:
            UserError: a line, named, is not of a form that the task reads.
        """

    @classmethod
    @abstractmethod
    def labels_of(cls, examples: Sequence[Example]) -> list[str]:
        """The labels of training data in the order of their ids."""

    @abstractmethod
    def gold(self, example: Example) -> Any:
        """What the annotators said; None if they said nothing."""

    def check_labels(self, path: Path, examples: Sequence[Example]) -> None:
        """Refuses data with labels that the model does not know.

        Raises:
            UserError: such a label, or an example without any.
        """
        for number, example in enumerate(examples):
            if self.gold(example) is None:
                raise UserError(f"{path}: example {number + 1} has no label; luke predict takes such data")
        unknown = sorted(set(self.labels_of(examples)) - set(self.labels)) if self.has_labels else []
        if unknown:
            raise UserError(
                f"{path}: the label {unknown[0]!r} is not among the model's ({', '.join(self.labels[:8])}"
                f"{', …' if len(self.labels) > 8 else ''}); evaluate with the label set that it was trained with"
            )

    def prepare(self, examples: Sequence[Example]) -> None:
        """Learns from training data what is not the model's (NER: which spans are worth a look)."""
        return

    def save(self, folder: Path) -> None:
        """Writes what `prepare` learnt."""
        return

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        return

    @abstractmethod
    def units(self, examples: Sequence[Example], training: bool) -> list[Unit]:
        """The rows of the examples, in order."""

    @abstractmethod
    def collate(self, units: Sequence[Unit], training: bool) -> Inputs:
        """Model inputs of some units, with ``labels`` in training."""

    @abstractmethod
    def predictions(self, examples: Sequence[Example], units: Sequence[Unit], logits: Sequence[Any]) -> list[Any]:
        """What the model says of each example, from the logits of each unit."""

    @abstractmethod
    def metrics(self, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
        """Metrics in [0, 1] and counts."""

    @abstractmethod
    def line(self, example: Example, prediction: Any) -> dict[str, Any]:
        """A prediction as a line of JSON."""


def make_options(options_class: type[TaskOptions], given: Mapping[str, Any], task: str) -> TaskOptions:
    """The options of a task from those given, None meaning the default.

    Raises:
        UserError: the task does not know an option.
    """
    known = {item.name for item in fields(options_class)}
    chosen = {name: value for name, value in given.items() if value is not None}
    unknown = sorted(set(chosen) - known)
    if unknown:
        raise UserError(f"--{unknown[0].replace('_', '-')}: {task} has no such option")
    return options_class(**chosen)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text.

    Raises:
        UserError: it cannot be read, or is of another encoding (the line is named).
    """
    try:
        data = path.read_bytes()
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not {encoding}; name the encoding (--encoding latin-1?)") from None
    except LookupError:
        raise UserError(f"--encoding {encoding}: Python knows no such encoding") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """A file's JSON: one value, or with one value a line a list of them.

    Raises:
        UserError: it is not JSON; the line is named.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        whole_error = error
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                lines.append(json.loads(line))
            except ValueError as error:
                reason = whole_error if number == 1 else error
                raise UserError(f"{path}, line {number}: not JSON ({reason})") from None
    return lines


def json_lines(path: Path) -> list[Any]:
    """As `read_json`, a single object being a file of one line."""
    value = read_json(path)
    return value if isinstance(value, list) else [value]


def parse_each(path: Path, rows: Sequence[Any], parse: Callable[[Any], Result], form: str) -> list[Result]:
    """``parse`` of each row; KeyError, TypeError and ValueError become one line that names the example.

    Args:
        form: What a row should look like.
    """
    results = []
    for number, row in enumerate(rows, start=1):
        try:
            results.append(parse(row))
        except KeyError as error:
            raise UserError(f"{path}, example {number}: no {error.args[0]!r} in it; due is {form}") from None
        except UserError as error:
            raise UserError(f"{path}, example {number}: {error}") from None
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(f"{path}, example {number}: {error}; due is {form}") from None
    if not results:
        raise UserError(f"{path}: holds no examples")
    return results


def checked_span(text: str, start: Any, end: Any) -> Span:
    """A span of ``text`` as the processor takes it.

    Raises:
        UserError: it is empty, lies outside, or cuts a character in two.
    """
    start, end = int(start), int(end)
    if start >= end:
        raise UserError(f"the span ({start}, {end}) is empty; the end is exclusive")
    if start < 0 or end > len(text):
        raise UserError(f"the span ({start}, {end}) lies outside a text of {len(text)} characters")
    for border in (start, end):
        if cuts_character(text, border):
            raise UserError(f"the span ({start}, {end}) cuts a character in two at {border}")
    return start, end


def join_words(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Words joined by spaces, and where each lies. Spaces inside a word are dropped: they would be borders of words."""
    spans, position = [], 0
    clean = ["".join(word.split()) or "_" for word in words]
    for word in clean:
        spans.append((position, position + len(word)))
        position += len(word) + 1
    return " ".join(clean), spans


def crop_around(processor: LukeProcessor, text: str, spans: Sequence[Span], room: int) -> tuple[str, list[Span]]:
    """The part of a text that holds the spans and fits in ``room`` tokens, as much to the left of them as to the right.

    If the spans are too far apart, the text between them is what is left out last, so the first span is kept.
    """
    if len(text) <= room:  # a token is at least a byte, and the usual text is short
        return text, list(spans)
    offsets = processor(text, return_tensors="np").rows[0].offsets[1:-1]
    if len(offsets) <= room:
        return text, list(spans)
    first = int(np.searchsorted(offsets[:, 1], min(start for start, _ in spans), side="right"))
    last = int(np.searchsorted(offsets[:, 0], max(end for _, end in spans), side="left"))
    spare = max(0, room - (last - first))
    begin = max(0, first - spare // 2)
    end = min(len(offsets), begin + max(room, 1))
    begin = max(0, min(begin, end - room))
    low, high = int(offsets[begin, 0]), int(offsets[end - 1, 1])
    inside = [(start - low, min(stop, high) - low) for start, stop in spans if start < high]
    return text[low:high], inside


def pad_labels(rows: Sequence[Sequence[Any]], width: int, filler: int = -100) -> Any:
    """Rows of numbers as one int64 tensor (B, width)."""
    import torch

    padded = torch.full((len(rows), width), filler, dtype=torch.long)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.as_tensor(list(row), dtype=torch.long)
    return padded


def batches(items: Sequence[Result], size: int) -> Iterator[Sequence[Result]]:
    """Slices of ``size`` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
