"""Pretraining checkpoints, and the public code's disambiguation models -> a model folder of ours.

The public code's model is a folder with ``pytorch_model.bin``, ``entity_vocab.jsonl`` and ``config.json`` (or, older,
``metadata.json`` with a ``model_config``). Its encoder is BERT's, which counts positions from 0, and the embedding of [MASK]
lies apart from the entity table, as ``mask_embedding``.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import LukeConfig

from luke.artifacts import METADATA_FILE, StagedFolder, fingerprint_file, fingerprint_folder
from luke.backbones import BERT, luke_config, read_tensors, shift_positions
from luke.entity_disambiguation.decoding import MASK_ID
from luke.entity_disambiguation.model import KIND, TOKENIZER_FOLDER, VOCAB_FILE, LukeForEntityDisambiguation
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.export import Checkpoint, read_checkpoint
from luke.tokenization import LinkedTextTokenizer, load_tokenizer, tokenizer_fingerprint

_PUBLIC_WEIGHTS = "pytorch_model.bin"
_ENTITY_PARTS = "luke.entity_embeddings."
_ENTITY_TABLE, _MASK_EMBEDDING = _ENTITY_PARTS + "entity_embeddings.weight", _ENTITY_PARTS + "mask_embedding"
_WORD_POSITIONS, _ENTITY_POSITIONS = (
    "luke.embeddings.position_embeddings.weight",
    _ENTITY_PARTS + "position_embeddings.weight",
)
_ENTITY_BIAS = "entity_predictions.bias"
_LEFT_BEHIND = ("lm_head.", "cls.", "cls_entity_predictions.", "entity_predictions.decoder.")


@dataclass(frozen=True)
class DisambiguationParts:
    """Everything that a model folder is made of."""

    model: LukeForEntityDisambiguation
    tokenizer: LinkedTextTokenizer
    vocab: EntityVocab


def convert_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    tokenizer: str | None = None,
    metadata: Path | None = None,
    entity_vocab: Path | None = None,
) -> None:
    """Writes ``output``, which `LukeForEntityDisambiguation.from_pretrained` and `Disambiguator.from_pretrained` load.

    Args:
        checkpoint: A checkpoint of pretraining or the folder of a run (its newest checkpoint); of the public code a
            checkpoint (``mp_rank_00_model_states.pt`` or its folder), or a model for disambiguation (``pytorch_model.bin``
            or its folder).
        tokenizer: Replaces the checkpoint's tokenizer: a folder, or a name on the hub.
        metadata, entity_vocab: Of a model of the public code, if they do not lie beside it.

    Raises:
        UserError: a file is missing or damaged, or they do not belong together.
    """
    weights_file = checkpoint / _PUBLIC_WEIGHTS if checkpoint.is_dir() else checkpoint
    if weights_file.name == _PUBLIC_WEIGHTS and weights_file.exists():
        source = _read_public_model(weights_file, tokenizer, metadata, entity_vocab)
    else:
        source = read_checkpoint(checkpoint, tokenizer, metadata, entity_vocab)
    inputs = {
        "checkpoint": {"path": str(source.path), "fingerprint": _fingerprint(source.path)},
        "entity_vocab": {"path": str(source.entity_vocab), "fingerprint": fingerprint_file(source.entity_vocab)},
    }
    words = load_tokenizer(source.tokenizer)
    inputs["tokenizer"] = {"path": source.tokenizer, "fingerprint": tokenizer_fingerprint(words)}
    with StagedFolder(output, KIND, {"options": {}, "inputs": inputs}) as folder:
        if folder.done:
            return
        parts = DisambiguationParts(_model(source), words, EntityVocab(source.entity_vocab))
        save_parts(parts, folder.work)
        folder.finish(counts={"entities": len(parts.vocab), "words": parts.model.config.vocab_size})


def load_parts(source: Path) -> DisambiguationParts:
    """A model folder, a checkpoint, or a run's folder, ready to use or to train further.

    Raises:
        UserError: it is none of these.
    """
    if (source / VOCAB_FILE).exists() and (source / METADATA_FILE).exists() and read_kind(source) == KIND:
        model = LukeForEntityDisambiguation.from_pretrained(source)
        return DisambiguationParts(model, load_tokenizer(source / TOKENIZER_FOLDER), EntityVocab(source / VOCAB_FILE))
    checkpoint = read_checkpoint(source)
    return DisambiguationParts(
        _model(checkpoint), load_tokenizer(checkpoint.tokenizer), EntityVocab(checkpoint.entity_vocab)
    )


def read_kind(folder: Path) -> str:
    """What kind of artifact a folder says that it is; empty if it says nothing."""
    try:
        return str(json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _fingerprint(path: Path) -> str:
    return fingerprint_folder(path) if path.is_dir() else fingerprint_file(path)


def save_parts(parts: DisambiguationParts, folder: Path) -> None:
    """Writes model, tokenizer and vocabulary into a folder.

    Raises:
        UserError: they do not belong together.
    """
    config = parts.model.config
    if len(parts.vocab) != config.entity_vocab_size:
        raise UserError(
            f"{parts.vocab.path}: has {len(parts.vocab)} entities, but the model has {config.entity_vocab_size}; "
            "give the vocabulary that it was trained with"
        )
    if parts.tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{parts.tokenizer.source}: has {parts.tokenizer.vocab_size} tokens, but the model has {config.vocab_size}; "
            "give the tokenizer that it was trained with"
        )
    parts.model.save_pretrained(folder)
    parts.tokenizer.save(folder / TOKENIZER_FOLDER)
    parts.vocab.save(folder / VOCAB_FILE)


def _model(source: Checkpoint) -> LukeForEntityDisambiguation:
    model = LukeForEntityDisambiguation(source.config)
    weights = {name: value.float() for name, value in source.state_dict.items() if not name.startswith(_LEFT_BEHIND)}
    if _ENTITY_BIAS not in weights:  # trained without one
        weights[_ENTITY_BIAS] = model.entity_predictions.bias.detach().clone().zero_()
    model.load_weights(weights, str(source.path))
    return model


def _read_public_model(
    weights_file: Path, tokenizer: str | None, metadata: Path | None, entity_vocab: Path | None
) -> Checkpoint:
    folder = weights_file.parent
    settings, where = _public_settings(folder, metadata)
    entity_vocab = entity_vocab or folder / VOCAB_FILE
    if not entity_vocab.exists():
        raise UserError(f"{weights_file}: {VOCAB_FILE} is not beside it; give --entity-vocab-file")
    if tokenizer is None:
        tokenizer = str(folder) if any(folder.glob("*.txt")) or (folder / "tokenizer.json").exists() else None
    tokenizer = tokenizer or settings.get("bert_model_name")
    if not tokenizer:
        raise UserError(f"{weights_file}: no tokenizer is beside it, and {where} names none; give --tokenizer")
    state: dict[str, Tensor] = {
        name if name.startswith(("luke.", "entity_predictions.", "lm_head.", "cls.")) else f"luke.{name}": value
        for name, value in read_tensors(weights_file).items()
        if not name.endswith(".position_ids")
    }
    try:
        entity_size = settings.get("entity_emb_size") or settings["hidden_size"]
        config = luke_config({"pad_token_id": 0, **settings}, BERT, settings["entity_vocab_size"], entity_size)
        _adapt(state, config)
    except (KeyError, TypeError, IndexError) as error:
        raise UserError(f"{where}: not the settings of the model in {weights_file} ({error!r})") from None
    return Checkpoint(weights_file, state, config, tokenizer, entity_vocab)


def _public_settings(folder: Path, metadata: Path | None) -> tuple[dict[str, Any], Path]:
    for path, key in ((metadata or folder / "metadata.json", "model_config"), (folder / "config.json", None)):
        if path.exists():
            try:
                settings = json.loads(path.read_text(encoding="utf-8"))
                return dict(settings[key] if key else settings), path
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}: not the settings of a model ({error!r})") from None
    raise UserError(f"{folder}: neither metadata.json nor config.json beside {_PUBLIC_WEIGHTS}; give --metadata-file")


def _adapt(state: dict[str, Tensor], config: LukeConfig) -> None:
    """BERT's positions to LUKE's, and the embedding of [MASK] into the table."""
    pad_token_id = int(config.pad_token_id or 0)
    state[_WORD_POSITIONS] = shift_positions(state[_WORD_POSITIONS], pad_token_id)
    # Counted from 0 in both; it only has to be as long as the other.
    table = state[_ENTITY_POSITIONS]
    state[_ENTITY_POSITIONS] = shift_positions(table, pad_token_id).roll(-(pad_token_id + 1), 0)
    mask = state.pop(_MASK_EMBEDDING, None)
    if mask is not None:
        state[_ENTITY_TABLE] = state[_ENTITY_TABLE].clone()
        state[_ENTITY_TABLE][MASK_ID] = mask.reshape(-1)
