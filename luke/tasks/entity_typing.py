"""Entity typing: a mention in its text -> its types, several at once (Yamada et al. 2020, section 4.1).

Reads the JSON of Open Entity and UFET (Choi et al. 2018), the form of the public LUKE and ERNIE code, and its own lines:
``{"text": "…", "start": 0, "end": 5, "labels": ["person", "artist"]}``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from luke.errors import UserError
from luke.processor import Span
from luke.tasks import metrics
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
)

GENERAL_TYPES = ("entity", "event", "group", "location", "object", "organization", "person", "place", "time")
FORM = '{"text": …, "start": …, "end": …, "labels": […]}'


@dataclass(frozen=True)
class EntityTypingOptions(TaskOptions):
    """Options of entity typing.

    Attributes:
        types: ``general``: only the nine general types of Open Entity count; ``all``: all in the data.
        threshold: The probability from which a type is predicted.
        max_length: As in the base class.
    """

    types: str = "all"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.types not in ("general", "all"):
            raise UserError(f"--types {self.types}: not one of general, all")
        if not 0 < self.threshold < 1:
            raise UserError(f"--threshold {self.threshold}: must lie between 0 and 1")


@dataclass(frozen=True)
class Mention:
    """A mention with its types; None if they are not known."""

    text: str
    span: Span
    types: frozenset[str] | None

    @classmethod
    def parse(cls, row: dict[str, Any]) -> Self:
        """From a row of any of the forms."""
        if "mention_span" in row:
            words = [row.get("left_context_token", []), row["mention_span"].split(), row.get("right_context_token", [])]
            text, spans = join_words([word for part in words for word in part])
            first = len(words[0])
            span = (spans[first][0], spans[first + len(words[1]) - 1][1])
            types = row.get("y_str")
        else:
            text = row["sent"] if "sent" in row else row["text"]
            span = checked_span(text, row["start"], row["end"])
            types = row.get("labels")
        return cls(text, span, None if types is None else frozenset(map(str, types)))


class EntityTyping(Task[Mention, Mention]):
    """The task ``entity-typing``."""

    name = "entity-typing"
    head = "entity"
    metric = "f1"
    defaults = Hyperparameters(learning_rate=1e-5, batch_size=4, epochs=3)
    options_class = EntityTypingOptions
    multi_label = True

    @classmethod
    def read(cls, path: Path, options: EntityTypingOptions) -> list[Mention]:
        mentions = parse_each(path, json_lines(path), Mention.parse, FORM)
        if options.types == "all":
            return mentions
        general = frozenset(GENERAL_TYPES)
        return [Mention(m.text, m.span, None if m.types is None else m.types & general) for m in mentions]

    @classmethod
    def labels_of(cls, examples: Sequence[Mention]) -> list[str]:
        return sorted({label for mention in examples for label in mention.types or ()})

    def gold(self, example: Mention) -> frozenset[str] | None:
        return example.types

    def units(self, examples: Sequence[Mention], training: bool) -> list[Mention]:
        cropped = []
        for mention in examples:
            text, spans = crop_around(self.processor, mention.text, [mention.span], self.options.max_length - 4)
            cropped.append(Mention(text, spans[0], mention.types))
        return cropped

    def collate(self, units: Sequence[Mention], training: bool) -> Inputs:
        import torch

        inputs = mention_inputs(self, [unit.text for unit in units], [[unit.span] for unit in units])
        if training:
            labels = torch.zeros(len(units), len(self.labels))
            for row, unit in enumerate(units):
                labels[row, [self.label_ids[label] for label in unit.types or ()]] = 1
            inputs["labels"] = labels
        return inputs

    def predictions(self, examples: Sequence[Mention], units: Sequence[Mention], logits: Sequence[Any]) -> list[Any]:
        import torch

        return [dict(zip(self.labels, torch.from_numpy(row).sigmoid().tolist(), strict=True)) for row in logits]

    def _types(self, scores: dict[str, float]) -> set[str]:
        return {label for label, score in scores.items() if score >= self.options.threshold}

    def metrics(self, examples: Sequence[Mention], predictions: Sequence[Any]) -> dict[str, float]:
        gold = [example.types or frozenset() for example in examples]
        return metrics.typing_metrics(gold, [self._types(scores) for scores in predictions])

    def line(self, example: Mention, prediction: Any) -> dict[str, Any]:
        chosen = sorted(self._types(prediction), key=lambda label: -prediction[label])
        scores = {label: round(prediction[label], 6) for label in chosen}
        return {"text": example.text, "start": example.span[0], "end": example.span[1], "labels": chosen, "scores": scores}


def mention_inputs(task: Task[Any, Any], texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> Inputs:
    """Inputs of one or two marked mentions a text, with the places of their markers for encoders without entities."""
    import torch

    kind: Any = "entity_classification" if task.head == "entity" else "entity_pair_classification"
    inputs = task.processor(texts, spans=spans, task=kind, max_length=task.options.max_length).inputs
    positions = inputs["entity_position_ids"]
    # The opening marker of each mention stands for it, as in entity-marker baselines (Baldini Soares et al. 2019).
    inputs["entity_start_positions"] = torch.where(positions[..., 0] < 0, 0, positions[..., 0])
    inputs["entity_end_positions"] = positions.amax(-1).clamp(min=0)
    return inputs
