"""Fine-tuning, evaluation and prediction of any task, on transformers' Trainer.

What is common to the papers' tasks (Yamada et al. 2020, appendix A): AdamW with betas 0.9 and 0.98, epsilon 1e-6, weight
decay 0.01, warmup over 6 % of the steps, then linear decay, no gradient clipping.
"""

import copy
import dataclasses
import importlib
import itertools
import json
import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LukeConfig, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from luke.artifacts import (
    StagedFolder,
    fingerprint_file,
    fingerprint_folder,
    fingerprint_value,
    read_metadata,
    replace_file,
    write_json,
)
from luke.errors import UserError
from luke.processor import ENTITY_1, ENTITY_2, LukeProcessor
from luke.progress import Progress
from luke.tasks.metrics import mean
from luke.tasks.models import UnpaddedLuke, load_task_model, model_inputs, read_config, save_task_model
from luke.tasks.task import Task, TaskOptions, batches, make_options
from luke.tokenization import LinkedTextTokenizer, load_tokenizer

KIND = "fine-tuned-model"
TASK_FILE = "luke_task.json"

# The classes of fine-tuned LUKEs that transformers alone saved -> our name of the head.
PUBLISHED_HEADS = {
    "LukeForEntityClassification": "entity",
    "LukeForEntityPairClassification": "pair",
    "LukeForEntitySpanClassification": "spans",
    "LukeForQuestionAnswering": "answer",
    "LukeForSequenceClassification": "sequence",
}

# name: (module, class)
TASKS: dict[str, tuple[str, str]] = {
    "entity-typing": ("entity_typing", "EntityTyping"),
    "relation-classification": ("relation_classification", "RelationClassification"),
    "ner": ("ner", "NamedEntityRecognition"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "cloze": ("cloze", "Cloze"),
    "text-classification": ("text_classification", "TextClassification"),
}

_log = logging.getLogger(__name__)


def task_class(name: str) -> type[Task[Any, Any]]:
    """The class of a task.

    Raises:
        UserError: there is no such task.
    """
    if name not in TASKS:
        raise UserError(f"{name}: no such task; there are {', '.join(TASKS)}")
    module, class_name = TASKS[name]
    found: type[Task[Any, Any]] = getattr(importlib.import_module(f"luke.tasks.{module}"), class_name)
    return found


@dataclass(frozen=True)
class FineTuning:
    """How a model is fine-tuned; None is the papers' value for the task.

    Attributes:
        learning_rate, batch_size, epochs: Of an optimizer step over all processes.
        micro_batch_size: Rows of one pass; the batch is made of as many passes as it takes.
        warmup_ratio: Share of the steps over which the rate rises.
        entity_aware_attention: Of a LUKE; None is what its configuration says.
        seed: Of the head, dropout and order.
        precision: fp32, bf16 or fp16.
        gradient_checkpointing: Compute activations again in place of keeping them.
        num_workers: Processes that prepare batches.
        deepspeed: A DeepSpeed JSON; its batch sizes, optimizer and scheduler give way to the values here.
    """

    learning_rate: float | None = None
    batch_size: int | None = None
    epochs: float | None = None
    micro_batch_size: int = 8
    warmup_ratio: float = 0.06
    weight_decay: float = 0.01
    entity_aware_attention: bool | None = None
    seed: int = 42
    precision: str = "fp32"
    gradient_checkpointing: bool = False
    num_workers: int = 0
    deepspeed: Path | None = None

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"--{name.replace('_', '-')} {value}: must be positive")
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise UserError(f"--precision {self.precision}: not one of fp32, bf16, fp16")
        if not 0 <= self.warmup_ratio < 1:
            raise UserError(f"--warmup-ratio {self.warmup_ratio}: must be at least 0 and less than 1")

    def resolve(self, task: type[Task[Any, Any]], processes: int) -> "FineTuning":
        """With the task's values, and a micro batch of which the batch is a multiple."""
        batch = self.batch_size or task.defaults.batch_size
        if batch % processes:
            raise UserError(f"--batch-size {batch}: must be a multiple of the {processes} processes")
        share = batch // processes
        micro = next(size for size in range(min(self.micro_batch_size, share), 0, -1) if share % size == 0)
        return dataclasses.replace(
            self,
            learning_rate=self.learning_rate or task.defaults.learning_rate,
            batch_size=batch,
            epochs=self.epochs or task.defaults.epochs,
            micro_batch_size=micro,
        )


@dataclass
class FineTuned:
    """A model with its task, ready to say something of new text."""

    task: Task[Any, Any]
    model: nn.Module
    batch_size: int = field(default=16)

    @torch.no_grad()
    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """Predictions of examples, in order; rows are batched by length."""
        units = self.task.units(examples, training=False)
        logits = self.logits(units)
        return self.task.predictions(examples, units, logits)

    @torch.no_grad()
    def logits(self, units: Sequence[Any]) -> list[Any]:
        """The logits of each unit, padding included; a tuple where the model has several."""
        training = self.model.training
        self.model.eval()
        device = next(self.model.parameters()).device
        results: list[Any] = []
        with Progress("predicting", len(units), "rows") as progress:
            for chosen in batches(units, self.batch_size):
                inputs = {name: value.to(device) for name, value in self.task.collate(chosen, training=False).items()}
                output = self.model(**model_inputs(self.model, inputs))
                results += _rows(output)
                progress.advance(len(chosen))
        self.model.train(training)
        return results


def _rows(output: Any) -> list[Any]:
    if getattr(output, "logits", None) is not None:
        return list(output.logits.float().cpu().numpy())
    starts, ends = output.start_logits.float().cpu().numpy(), output.end_logits.float().cpu().numpy()
    return list(zip(starts, ends, strict=True))


# -- loading -----------------------------------------------------------------------------------------------------------


def load_processor(folder: str | Path) -> LukeProcessor:
    """The processor of a model folder. The tokenizer of a plain encoder gains ``<ent>`` and ``<ent2>``.

    Raises:
        UserError: a LUKE without its entity vocabulary.
    """
    config = read_config(folder)
    if isinstance(config, LukeConfig):
        processor = LukeProcessor.from_pretrained(folder)
        if not processor.has_entities:
            raise UserError(f"{folder}: a LUKE without entity_vocab.json; copy it there from where the model was exported")
        if max(processor.entity_vocab.values()) >= config.entity_vocab_size:
            raise UserError(
                f"{folder}: entity_vocab.json has ids up to {max(processor.entity_vocab.values())}, but the entity table "
                f"has {config.entity_vocab_size} rows; they do not belong together"
            )
        return processor
    tokenizer = load_tokenizer(folder)
    if ENTITY_1 in tokenizer.vocab and ENTITY_2 in tokenizer.vocab:
        return LukeProcessor(tokenizer)
    return LukeProcessor(_with_markers(tokenizer))


def _with_markers(tokenizer: LinkedTextTokenizer) -> LinkedTextTokenizer:
    description = json.loads(tokenizer.description)
    for number, token in enumerate((ENTITY_1, ENTITY_2)):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        description["added_tokens"].append({"id": tokenizer.vocab_size + number, "content": token, **flags})
    return LinkedTextTokenizer(json.dumps(description), tokenizer.config, tokenizer.source)


def load_fine_tuned(folder: Path, task_name: str, batch_size: int = 16, **options: Any) -> FineTuned:
    """A model that `fine_tune` wrote, or a published one with a head of transformers that fits the task.

    ``options`` replace those it was trained with.

    Raises:
        UserError: it is none, or of another task.
    """
    chosen = task_class(task_name)
    labels, stored = (
        _saved_task(folder, task_name) if (folder / TASK_FILE).exists() else (_published_labels(folder, chosen), {})
    )
    given = {key: value for key, value in options.items() if value is not None}
    task_options = make_options(chosen.options_class, {**stored, **given}, task_name)
    processor = LukeProcessor.from_pretrained(folder)
    task = chosen(task_options, processor, labels)
    task.load(folder)
    model = load_task_model(folder, task.head, labels or None, task.multi_label, None, processor.tokenizer.vocab_size)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return FineTuned(task, model.to(device).eval(), batch_size)


def _saved_task(folder: Path, task_name: str) -> tuple[list[str], dict[str, Any]]:
    """The labels and options that `fine_tune` kept."""
    path = folder / TASK_FILE
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        name, labels, options = saved["task"], saved["labels"], saved["options"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error!r})") from None
    if name != task_name:
        raise UserError(f"{folder}: fine-tuned for {name}, not for {task_name}")
    return labels, options


def _published_labels(folder: Path, chosen: type[Task[Any, Any]]) -> list[str]:
    """The labels in the configuration of a LUKE that was fine-tuned elsewhere."""
    config = read_config(folder)
    heads = [name for name in config.architectures or [] if name in PUBLISHED_HEADS]
    if not heads:
        raise UserError(f"{folder}: not a fine-tuned model ({TASK_FILE} is missing); luke finetune makes one")
    if PUBLISHED_HEADS[heads[0]] != chosen.head:
        raise UserError(f"{folder}: its head, {heads[0]}, is not one for {chosen.name}")
    labels = [config.id2label[number] for number in range(config.num_labels)] if chosen.has_labels else []
    if chosen.first_label is not None and labels[0] != chosen.first_label:
        raise UserError(f"{folder}: its label 0 is {labels[0]!r}; {chosen.name} needs {chosen.first_label!r} there")
    return labels


# -- fine-tuning -------------------------------------------------------------------------------------------------------


def fine_tune(
    task_name: str,
    model: str,
    train: Path,
    validation: Path | None,
    output: Path,
    how: FineTuning = FineTuning(),
    **options: Any,
) -> dict[str, float]:
    """Fine-tunes ``model`` (a folder or a hub name) and writes the best epoch, by the task's metric, to ``output``.

    The same command continues a killed run from its last epoch.

    Returns:
        The metrics on the validation data, if there is any.

    Raises:
        UserError: data, model and options do not go together.
    """
    chosen = task_class(task_name)
    task_options = make_options(chosen.options_class, options, task_name)
    how = how.resolve(chosen, int(os.environ.get("WORLD_SIZE", "1")))
    examples = chosen.read(train, task_options)
    labels = chosen.labels_of(examples)
    if chosen.has_labels and not labels:
        raise UserError(f"{train}: no example has a label")
    processor = load_processor(model)
    task = chosen(task_options, processor, labels)
    task.check_labels(train, examples)
    held_out = chosen.read(validation, task_options) if validation else []
    if validation:
        task.check_labels(validation, held_out)
    plan = _plan(chosen, model, train, validation, task_options, how)
    first = os.environ.get("RANK", "0") == "0"
    if not first:  # the first process alone makes the folder
        return _train(task, model, examples, held_out, how, output.with_name(output.name + ".partial") / "trainer")[1]
    with StagedFolder(output, KIND, plan) as folder:
        if folder.done:
            _log.info("%s: already fine-tuned with these options", output)
            return dict(read_metadata(output, KIND)["metrics"])
        tuned, metrics = _train(task, model, examples, held_out, how, folder.work / "trainer")
        save_task_model(tuned.model, folder.work)
        processor.save_pretrained(folder.work)
        task.save(folder.work)
        write_json(
            folder.work / TASK_FILE,
            {"task": task_name, "labels": labels, "options": dataclasses.asdict(task_options), "metrics": metrics},
        )
        shutil.rmtree(folder.work / "trainer")
        folder.finish(metrics=metrics, counts={"train": len(examples), "validation": len(held_out)})
    _log.info("%s: %s", output, format_metrics(metrics) or "fine-tuned")
    return metrics


def _plan(
    task: type[Task[Any, Any]], model: str, train: Path, validation: Path | None, options: TaskOptions, how: FineTuning
) -> dict[str, Any]:
    files = {"train": train} | ({"validation": validation} if validation else {})
    inputs = {name: {"path": str(path), "fingerprint": fingerprint_file(path)} for name, path in files.items()}
    folder = Path(model)
    print_of_model = fingerprint_folder(folder) if folder.is_dir() else fingerprint_value(model)
    inputs["model"] = {"path": model, "fingerprint": print_of_model}
    settings = {**vars(how), "deepspeed": json.loads(how.deepspeed.read_text()) if how.deepspeed else None}
    # What changes neither the data nor the arithmetic may change between a kill and its continuation.
    del settings["num_workers"]
    return {"options": {"task": task.name, **dataclasses.asdict(options), **settings}, "inputs": inputs}


class _TaskTrainer(Trainer):
    """transformers' Trainer, evaluated by the task itself."""

    def __init__(self, task: Task[Any, Any], held_out: Sequence[Any], **arguments: Any) -> None:
        super().__init__(eval_dataset=_Units(held_out), **arguments)
        self.task, self.held_out = task, held_out
        # The models' losses are means over their rows, which an accumulated step has to average; transformers thinks that
        # whatever takes keyword arguments sums them itself.
        self.model_accepts_loss_kwargs = False

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The task's metrics on the held-out examples, the same on every process."""
        tuned = FineTuned(self.task, self.model, 2 * self.args.per_device_train_batch_size)  # type: ignore[arg-type]
        metrics = self.task.metrics(self.held_out, tuned.predict(self.held_out))
        named = {f"eval_{name}": value for name, value in metrics.items()}
        self.log(named)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, named)
        return named


def _train(
    task: Task[Any, Any], model_name: str, examples: Sequence[Any], held_out: Sequence[Any], how: FineTuning, work: Path
) -> tuple[FineTuned, dict[str, float]]:
    set_seed(how.seed)
    model = load_task_model(
        model_name,
        task.head,
        task.labels or None,
        task.multi_label,
        how.entity_aware_attention,
        task.processor.tokenizer.vocab_size,
    )
    if how.gradient_checkpointing:
        enable_gradient_checkpointing(model)
    task.prepare(examples)
    units = task.units(examples, training=True)
    arguments = _arguments(task, how, len(units), bool(held_out), work)
    trainer = _TaskTrainer(
        task,
        held_out,
        model=model,
        args=arguments,
        train_dataset=_Units(units),
        data_collator=_Collator(task, model),
        callbacks=[_ShownProgress()],
    )
    trainer.remove_callback(PrinterCallback)
    last = get_last_checkpoint(str(work)) if work.is_dir() else None
    if last:
        _log.info("continuing from %s", Path(last).name)
    trainer.train(resume_from_checkpoint=last)
    tuned = FineTuned(task, model, 2 * how.micro_batch_size)
    metrics = task.metrics(held_out, tuned.predict(held_out)) if held_out else {}
    return tuned, metrics


def _arguments(task: Task[Any, Any], how: FineTuning, units: int, evaluated: bool, work: Path) -> TrainingArguments:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    batch, epochs = how.batch_size or 1, how.epochs or 1.0
    steps = max(1, math.ceil(math.ceil(units / batch) * epochs))
    each_epoch = "epoch" if epochs >= 1 else "no"
    return TrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=how.micro_batch_size,
        gradient_accumulation_steps=max(1, batch // (how.micro_batch_size * processes)),
        num_train_epochs=epochs,
        learning_rate=how.learning_rate or 0.0,
        warmup_steps=int(steps * how.warmup_ratio),
        lr_scheduler_type="linear",
        weight_decay=how.weight_decay,
        adam_beta1=0.9,
        adam_beta2=0.98,
        adam_epsilon=1e-6,
        max_grad_norm=0.0,
        eval_strategy=each_epoch if evaluated else "no",
        save_strategy=each_epoch,
        save_total_limit=2,
        load_best_model_at_end=evaluated and each_epoch == "epoch",
        metric_for_best_model=task.metric if evaluated else None,
        greater_is_better=True if evaluated else None,
        logging_steps=max(1, steps // 20),
        seed=how.seed,
        data_seed=how.seed,
        bf16=how.precision == "bf16",
        fp16=how.precision == "fp16",
        dataloader_num_workers=how.num_workers,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        deepspeed=_deepspeed(how.deepspeed) if how.deepspeed else None,
    )


def _deepspeed(path: Path) -> dict[str, Any]:
    """A DeepSpeed JSON with the values that fine-tuning sets itself left to transformers."""
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a DeepSpeed configuration ({error})") from None
    ours = ("optimizer", "scheduler", "gradient_checkpointing", "num_workers", "gradient_clipping")
    for name in ours:
        if settings.pop(name, None) is not None:
            _log.info("%s: %s is left out; fine-tuning has its own", path, name)
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {**settings, **dict.fromkeys(batch, "auto"), "zero_allow_untested_optimizer": True}


def enable_gradient_checkpointing(model: Any) -> None:
    """Of a LUKE's unpadded encoder, or of a plain one."""
    encoder = getattr(model, "luke", getattr(model, "encoder", model))
    if isinstance(encoder, UnpaddedLuke):
        encoder.encoder.gradient_checkpointing = True
    else:
        encoder.gradient_checkpointing_enable()


class _ShownProgress(TrainerCallback):
    """Steps as a `Progress`, losses beside them, metrics of epochs as lines."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.note = ""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts the bar at the step that an earlier run reached."""
        if state.is_world_process_zero:
            self.progress = Progress("fine-tuning", state.max_steps, "steps", state.global_step)
            self.progress.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """One step more."""
        if self.progress is not None:
            self.progress.advance(1, self.note)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The loss, or the metrics of an epoch."""
        if "loss" in logs:
            self.note = f"loss {float(logs['loss']):.4f}"
        elif self.progress is not None and any(name.startswith("eval_") for name in logs):
            metrics = {name.removeprefix("eval_"): value for name, value in logs.items() if name.startswith("eval_")}
            _log.info("epoch %g: %s", state.epoch or 0, format_metrics(metrics))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ends the bar."""
        if self.progress is not None:
            self.progress.__exit__(None, None, None)


class _Units(torch.utils.data.Dataset[Any]):
    def __init__(self, units: Sequence[Any]) -> None:
        self.units = units

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, index: int) -> Any:
        return self.units[index]


class _Collator:
    def __init__(self, task: Task[Any, Any], model: nn.Module) -> None:
        self.task, self.model = task, model

    def __call__(self, units: Sequence[Any]) -> dict[str, Any]:
        inputs = self.task.collate(units, training=True)
        extra: dict[str, Any] = {
            name: inputs.pop(name) for name in ("labels", "start_positions", "end_positions") if name in inputs
        }
        return {**model_inputs(self.model, inputs), **extra}


# -- evaluation, prediction, sweeps ------------------------------------------------------------------------------------


def evaluate(tuned: FineTuned, path: Path) -> dict[str, float]:
    """Metrics of a fine-tuned model on a file.

    Raises:
        UserError: the file is not of the task's form, or has labels that the model does not know.
    """
    examples = tuned.task.read(path, tuned.task.options)
    tuned.task.check_labels(path, examples)
    return tuned.task.metrics(examples, tuned.predict(examples))


def predict(tuned: FineTuned, path: Path, output: Path) -> int:
    """Writes one line of JSON an example of ``path``. Returns their number."""
    examples = tuned.task.read(path, tuned.task.options)
    predictions = tuned.predict(examples)
    with replace_file(output, "w") as stream:
        for example, prediction in zip(examples, predictions, strict=True):
            stream.write(json.dumps(tuned.task.line(example, prediction), ensure_ascii=False) + "\n")
    return len(examples)


def parse_sweep(text: str) -> dict[str, list[Any]]:
    """``learning_rate=1e-5,2e-5;seed=1,2,3`` -> the values of each name.

    Raises:
        UserError: a name is not one of `FineTuning`, or a value is not of its kind.
    """
    kinds = {
        "learning_rate": float,
        "batch_size": int,
        "epochs": float,
        "warmup_ratio": float,
        "weight_decay": float,
        "seed": int,
    }
    grid: dict[str, list[Any]] = {}
    for part in text.split(";"):
        name, _, values = part.partition("=")
        name = name.strip().replace("-", "_")
        if name not in kinds:
            raise UserError(f"--sweep: {name or part!r} cannot be swept; these can: {', '.join(kinds)}")
        try:
            grid[name] = [kinds[name](value) for value in values.split(",")]
        except ValueError:
            raise UserError(f"--sweep: {values!r} are not values of {name}") from None
    return grid


def sweep(
    task_name: str,
    model: str,
    train: Path,
    validation: Path,
    output: Path,
    grid: Mapping[str, Sequence[Any]],
    how: FineTuning = FineTuning(),
    **options: Any,
) -> list[dict[str, Any]]:
    """Fine-tunes once for each point of a grid, into folders of ``output``; a finished point is not done again.

    Returns:
        One row for each point but for its seed, best first: ``settings``, ``runs``, ``mean`` and ``deviation`` (of the
        sample) over the seeds of each metric. It is also ``output/sweep.json``.
    """
    output.mkdir(parents=True, exist_ok=True)
    points: dict[str, dict[str, Any]] = {}
    names = [name for name in grid if name != "seed"]
    for values in itertools.product(*(grid[name] for name in grid)):
        point = dict(zip(grid, values, strict=True))
        label = ",".join(f"{name}={value}" for name, value in point.items())
        metrics = fine_tune(
            task_name, model, train, validation, output / label, dataclasses.replace(copy.copy(how), **point), **options
        )
        settings = {name: point[name] for name in names}
        points.setdefault(json.dumps(settings), {"settings": settings, "metrics": []})["metrics"].append(metrics)
    metric = task_class(task_name).metric
    rows = [
        {"settings": point["settings"], "runs": len(point["metrics"]), **_summary(point["metrics"])}
        for point in points.values()
    ]
    rows.sort(key=lambda row: -row["mean"][metric])
    write_json(output / "sweep.json", {"task": task_name, "metric": metric, "rows": rows})
    return rows


def _summary(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    means = {name: mean([run.get(name, 0.0) for run in runs]) for name in runs[0]}
    spread = {
        name: math.sqrt(sum((run.get(name, 0.0) - center) ** 2 for run in runs) / (len(runs) - 1)) if len(runs) > 1 else 0.0
        for name, center in means.items()
    }
    return {"mean": means, "deviation": spread}


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Metrics as people read them: ratios in per cent."""
    return ", ".join(
        f"{name} {value * 100:.2f}" if abs(value) <= 1 else f"{name} {value:g}" for name, value in metrics.items()
    )
