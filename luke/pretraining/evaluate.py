"""Held-out loss and accuracy of a pretrained model, beside baselines that need no model."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from luke.artifacts import fingerprint_folder, fingerprint_value, read_metadata, write_json
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.model import LukeForPretraining, PackedBatch
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.allocator import keep_freed_memory
from luke.pretraining.batching import cut_step, pack_items
from luke.pretraining.config import PretrainingOptions
from luke.pretraining.dataset import KIND as DATASET_KIND
from luke.pretraining.dataset import Item, PretrainingDataset, Sample
from luke.pretraining.initialization import initial_model
from luke.pretraining.masking import MaskedItem, Masker, MaskingOptions, WordVocab
from luke.progress import Progress
from luke.tokenization import LinkedTextTokenizer, load_tokenizer

logger = logging.getLogger(__name__)

_FIRST_ENTITY = 3  # below are [PAD], [UNK], [MASK]
_SEED = 20_260_000  # of the masks: the same for every model that is compared
_TOKENS = 4096
_TOP = 5
_CONTEXT_WORDS = 25


@dataclass(frozen=True)
class EvaluationOptions:
    """What is evaluated.

    Attributes:
        dataset_dir: A dataset with held-out items.
        checkpoint: A checkpoint, or a run's output folder; None evaluates the model that a run would start from.
        bert_model_name, entity_emb_size, entity_emb_init, seed: As in pretraining, for the model before training.
        masking: As in pretraining; [UNK] is never a target here.
        passes: How often the held-out items are masked anew.
        examples: Mentions whose best entities are listed.
    """

    dataset_dir: Path
    checkpoint: Path | None = None
    bert_model_name: str = ""
    entity_emb_size: int | None = None
    entity_emb_init: str = "random"
    seed: int = 0
    masking: MaskingOptions = field(default_factory=MaskingOptions)
    passes: int = 4
    examples: int = 10

    def __post_init__(self) -> None:
        if self.passes <= 0 or self.examples < 0:
            raise UserError("--passes must be positive and --examples not negative")
        if (self.checkpoint is None) == (not self.bert_model_name):
            raise UserError("give --checkpoint, or --bert-model-name for the model before training")
        for name in ("masked_lm_prob", "masked_entity_prob"):
            if not getattr(self.masking, name):
                raise UserError(f"--{name.replace('_', '-')} 0: both words and entities are evaluated; give a share above 0")


@dataclass
class Ranking:
    """Ranks of the right entities among all real entities of the vocabulary, 1 being best."""

    ranks: list[int]

    def figures(self) -> dict[str, float]:
        """Accuracy@1 and @5 and mean reciprocal rank."""
        ranks = np.array(self.ranks)
        return {
            "accuracy_at_1": float((ranks <= 1).mean()),
            "accuracy_at_5": float((ranks <= _TOP).mean()),
            "mean_reciprocal_rank": float((1 / ranks).mean()),
        }


def anchor_of(item: Item, mention: int) -> tuple[int, ...]:
    """A mention's word ids."""
    return tuple(item.word_ids[item.entity_starts[mention] : item.entity_ends[mention]].tolist())


class LinkBaselines:
    """What counting the training links gives.

    *Most frequent entity* orders all entities by their links, for every mention. *Same anchor* puts the entities that the
    mention's text linked to in training first, by how often, and falls back to that order.
    """

    def __init__(self, training: PretrainingDataset) -> None:
        self._links: Counter[int] = Counter()
        self._by_anchor: dict[tuple[int, ...], Counter[int]] = {}
        for number in range(len(training)):
            item = training[number]
            for mention, entity in enumerate(item.entity_ids.tolist()):
                if entity >= _FIRST_ENTITY:
                    self._links[entity] += 1
                    self._by_anchor.setdefault(anchor_of(item, mention), Counter())[entity] += 1
        order = sorted(self._links, key=lambda entity: (-self._links[entity], entity))
        self._rank = {entity: rank for rank, entity in enumerate(order, start=1)}

    def most_frequent_rank(self, entity: int, entity_vocab_size: int) -> int:
        """The rank of ``entity`` for any mention; one that was never linked comes last."""
        return self._rank.get(entity, entity_vocab_size)

    def same_anchor_rank(self, anchor: tuple[int, ...], entity: int, entity_vocab_size: int) -> int:
        """The rank of ``entity`` for a mention with this text."""
        seen = self._by_anchor.get(anchor, Counter())
        order = sorted(seen, key=lambda candidate: (-seen[candidate], candidate))
        if entity in seen:
            return order.index(entity) + 1
        rank = self.most_frequent_rank(entity, entity_vocab_size)
        return min(entity_vocab_size, rank + sum(self._rank[candidate] > rank for candidate in order))


def evaluate(options: EvaluationOptions) -> dict[str, Any]:
    """Evaluates a model on the held-out items of its dataset.

    Returns:
        ``masked_words`` (loss, accuracy, count), ``masked_entities`` (loss, accuracy@1 and @5, mean reciprocal rank, count),
        ``baselines`` (the same rank figures), ``examples``, and ``made_from``: the inputs and options that decided them.
    """
    source = made_from(options)
    keep_freed_memory()
    training, held_out = PretrainingDataset(options.dataset_dir), PretrainingDataset(options.dataset_dir, held_out=True)
    tokenizer = load_tokenizer(options.dataset_dir / "tokenizer")
    model = _load_model(options, training)
    words = WordVocab(tokenizer.word_start_mask(), tokenizer.special_token_mask(), tokenizer.mask_id)
    masker = Masker(replace(options.masking, unk_entity_targets=False), words, model.config.entity_vocab_size, _SEED)
    totals = _Totals(LinkBaselines(training), model.config.entity_vocab_size)
    examples: list[dict[str, Any]] = []
    vocabulary = EntityVocab(options.dataset_dir / "entity_vocab.jsonl")
    with Progress("evaluating", options.passes * len(held_out), "items") as progress:
        for masked in _masked_batches(held_out, masker, options.passes):
            batch = pack_items(masked, tokenizer.cls_id, tokenizer.sep_id)
            scores = _score(model, batch)
            totals.add(masked, batch, scores)
            if len(examples) < options.examples:
                examples += _examples(masked, scores, tokenizer, vocabulary)
            progress.advance(len(masked))
    return {
        "made_from": source,
        **totals.figures(),
        "examples": examples[: options.examples],
    }


def made_from(options: EvaluationOptions) -> dict[str, Any]:
    """What decides an evaluation: ``inputs``, the dataset and the model with their fingerprints, and ``options``, of which
    those in ``comparable`` must be the same for two models' figures to be compared."""
    checkpoint = _find_checkpoint(options)
    if checkpoint:
        model = {"path": str(checkpoint), "fingerprint": checkpoints.verify(checkpoint)["fingerprint"]}
        start = None
    else:
        base = Path(options.bert_model_name)
        fingerprint = fingerprint_folder(base) if base.is_dir() else fingerprint_value(options.bert_model_name)
        model = {"path": options.bert_model_name, "fingerprint": fingerprint}
        start = {"entity_emb_size": options.entity_emb_size, "seed": options.seed}
    dataset = read_metadata(options.dataset_dir, DATASET_KIND)
    return {
        "inputs": {
            "dataset": {"path": str(options.dataset_dir), "fingerprint": dataset["fingerprint"]},
            "model": model,
        },
        "options": {
            "comparable": {"masking": asdict(options.masking), "passes": options.passes, "mask_seed": _SEED},
            "examples": options.examples,
            "start": start,
        },
    }


def evaluate_to_file(options: EvaluationOptions, output: Path) -> dict[str, Any]:
    """`evaluate`, its result written as JSON; one already made from the same model, dataset and options is read instead.

    Raises:
        UserError: ``output`` holds something else, or an evaluation of something else.
    """
    if output.exists():
        return _read_same(output, made_from(options))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--output {output}: {output.parent} is not a folder") from None
    result = evaluate(options)
    write_json(output, result)
    return result


def _read_same(output: Path, source: dict[str, Any]) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        found = result["made_from"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--output {output}: exists and holds something else; choose another file") from None
    if essence_of(found) != essence_of(source):
        raise UserError(
            f"--output {output}: already holds an evaluation of another model or dataset, or with other options; "
            "choose another file or delete it"
        )
    logger.info("%s: already made from this model and dataset", output)
    return result


def essence_of(source: dict[str, Any]) -> Any:
    """``made_from`` without where things lie."""
    inputs = {name: entry["fingerprint"] for name, entry in source["inputs"].items()}
    return [inputs, source["options"]]


def _find_checkpoint(options: EvaluationOptions) -> Path | None:
    folder = options.checkpoint
    if folder is None or (folder / checkpoints.MODEL_FILE).exists():
        return folder
    newest = checkpoints.newest_valid(folder)
    if newest is None:
        raise UserError(f"--checkpoint {folder}: neither a checkpoint nor a run's output folder with one")
    return newest


def _load_model(options: EvaluationOptions, dataset: PretrainingDataset) -> LukeForPretraining:
    torch.manual_seed(options.seed)
    start = PretrainingOptions(
        str(options.dataset_dir),
        Path(),
        Path(),
        bert_model_name=options.bert_model_name,
        entity_emb_size=options.entity_emb_size,
        entity_emb_init=options.entity_emb_init,
        masking=options.masking,
    )
    return initial_model(start, dataset, _find_checkpoint(options)).model.eval()


def _masked_batches(dataset: PretrainingDataset, masker: Masker, passes: int) -> Iterator[list[MaskedItem]]:
    lengths = [dataset.num_tokens(row) for row in range(len(dataset))]
    for number in range(passes):
        for rows in cut_step(lengths, _TOKENS, 1):
            yield [masker(dataset[row], Sample(0, number, row)) for row in rows]


@dataclass
class _Scores:
    """Masked-word losses (M,) and hits (M,); masked-entity losses (K,), ranks (K,) and best entities (K, 5)."""

    word_losses: torch.Tensor
    word_hits: torch.Tensor
    entity_losses: torch.Tensor
    entity_ranks: torch.Tensor
    best_entities: torch.Tensor


@torch.inference_mode()
def _score(model: LukeForPretraining, batch: PackedBatch) -> _Scores:
    hidden = model.luke(batch)
    logits = model.lm_head(hidden[batch.masked_word_index])
    losses = torch.nn.functional.cross_entropy(logits, batch.masked_word_labels, reduction="none")
    hits = logits.argmax(-1) == batch.masked_word_labels
    entity_logits = model.entity_predictions(hidden[batch.masked_entity_index])
    labels = batch.masked_entity_labels
    entity_losses = torch.nn.functional.cross_entropy(entity_logits, labels, reduction="none")
    entity_logits[:, :_FIRST_ENTITY] = float("-inf")
    right = entity_logits.gather(1, labels[:, None])
    ranks = (entity_logits > right).sum(1) + 1
    return _Scores(losses, hits, entity_losses, ranks, entity_logits.topk(_TOP).indices)


class _Totals:
    def __init__(self, baselines: LinkBaselines, entity_vocab_size: int) -> None:
        self.baselines, self.entity_vocab_size = baselines, entity_vocab_size
        self.word_losses: list[float] = []
        self.word_hits: list[bool] = []
        self.entity_losses: list[float] = []
        self.ranks: dict[str, list[int]] = {"model": [], "most_frequent": [], "same_anchor": []}

    def add(self, masked: list[MaskedItem], batch: PackedBatch, scores: _Scores) -> None:
        self.word_losses += scores.word_losses.tolist()
        self.word_hits += scores.word_hits.tolist()
        self.entity_losses += scores.entity_losses.tolist()
        self.ranks["model"] += scores.entity_ranks.tolist()
        for item in masked:
            for mention, entity in zip(
                item.masked_entity_positions.tolist(), item.masked_entity_labels.tolist(), strict=True
            ):
                anchor = anchor_of(item.item, mention)
                self.ranks["most_frequent"].append(self.baselines.most_frequent_rank(entity, self.entity_vocab_size))
                self.ranks["same_anchor"].append(self.baselines.same_anchor_rank(anchor, entity, self.entity_vocab_size))

    def figures(self) -> dict[str, Any]:
        if not self.word_losses or not self.entity_losses:
            raise UserError("the held-out items have no word or no entity of the vocabulary to predict; hold out more")
        rankings = {name: Ranking(ranks).figures() for name, ranks in self.ranks.items()}
        return {
            "masked_words": {
                "loss": _mean(self.word_losses),
                "accuracy": _mean(self.word_hits),
                "count": len(self.word_losses),
            },
            "masked_entities": {
                "loss": _mean(self.entity_losses),
                **rankings["model"],
                "count": len(self.entity_losses),
            },
            "baselines": {name: rankings[name] for name in ("most_frequent", "same_anchor")},
        }


def _mean(values: list[Any]) -> float:
    return float(np.mean(np.array(values, np.float64)))


def _examples(
    masked: list[MaskedItem], scores: _Scores, tokenizer: LinkedTextTokenizer, vocabulary: EntityVocab
) -> list[dict[str, Any]]:
    """One masked mention an item: the text around it, the right entity, the model's five best."""
    examples, row = [], 0
    for item in masked:
        if len(item.masked_entity_positions):
            mention = int(item.masked_entity_positions[0])
            start, end = int(item.item.entity_starts[mention]), int(item.item.entity_ends[mention])
            ids: npt.NDArray[Any] = item.item.word_ids
            examples.append(
                {
                    "before": tokenizer.decode(ids[max(0, start - _CONTEXT_WORDS) : start].tolist()),
                    "mention": tokenizer.decode(ids[start:end].tolist()),
                    "after": tokenizer.decode(ids[end : end + _CONTEXT_WORDS].tolist()),
                    "entity": vocabulary.get_title(int(item.masked_entity_labels[0])),
                    "rank": int(scores.entity_ranks[row]),
                    "best": [vocabulary.get_title(int(entity)) for entity in scores.best_entities[row]],
                }
            )
        row += len(item.masked_entity_positions)
    return examples
