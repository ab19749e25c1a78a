"""Hugging Face folders out: a checkpoint -> config, weights, tokenizer and entity vocabulary that transformers loads alone.

The folder gains what fine-tuning expects of a LUKE: the word tokens ``<ent>`` and ``<ent2>``, the entity ``[MASK2]``, and
the queries of entity-aware attention (copies of the plain ones where the checkpoint has none), so that it can be loaded
with or without that attention. Checkpoints of this project and of the public code are read.

Traps of transformers 5, none of which a file can mend: ``LukeForMaskedLM`` does not tie ``lm_head.decoder`` to the word
embedding, so both are written. Its LUKE tokenizers register ``[MASK]``, ``[PAD]``… of the *entity* vocabulary as words with
ids behind the table, so a text must not hold these literally (true of every published LUKE). Its ``MLukeTokenizer`` drops
the normalizer and the unknown token of SentencePiece; ``XLMRobertaTokenizer`` reads the same folder exactly.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from tokenizers import AddedToken
from tokenizers.models import BPE, Unigram
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import LukeConfig, PreTrainedTokenizerBase

from luke.artifacts import StagedFolder, fingerprint_file, fingerprint_value, write_json
from luke.backbones import BERT, ROBERTA, luke_config, luke_shapes, read_tensors, shift_positions
from luke.errors import UserError
from luke.pretraining.checkpoint import MODEL_FILE, list_checkpoints, load_weights, newest_valid, read_config
from luke.tensors import save_tensors

KIND = "huggingface-model"
LUKE_TOKENIZER, MLUKE_TOKENIZER = "LukeTokenizer", "MLukeTokenizer"

_log = logging.getLogger(__name__)

# Added word token -> the token whose row it starts from.
_WORD_TOKENS = {"<ent>": "@", "<ent2>": "#"}
_PAD, _UNK, _MASK, _MASK2 = "[PAD]", "[UNK]", "[MASK]", "[MASK2]"

_WORD_TABLE = "luke.embeddings.word_embeddings.weight"
_WORD_POSITIONS = "luke.embeddings.position_embeddings.weight"
_ENTITY_TABLE = "luke.entity_embeddings.entity_embeddings.weight"
_ENTITY_POSITIONS = "luke.entity_embeddings.position_embeddings.weight"
_WORD_BIAS, _ENTITY_BIAS = "lm_head.bias", "entity_predictions.bias"
_TIED = ("lm_head.decoder.", "entity_predictions.decoder.")
# Heads of pretraining that no class of transformers has.
_LEFT_BEHIND = ("cls_entity_predictions.", "cls.seq_relationship.")

_PUBLIC_WEIGHTS = "mp_rank_*_model_states.pt"
_VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class Checkpoint:
    """A pretrained model with all that belongs to it.

    Attributes:
        path: Where the weights lie, for messages.
        state_dict: By the names of ``LukeForMaskedLM``; decoders may be missing, since they are the embedding tables.
        tokenizer: A folder, or a name on the Hugging Face hub.
        entity_vocab: The vocabulary as JSON lines.
    """

    path: Path
    state_dict: Mapping[str, Tensor]
    config: LukeConfig
    tokenizer: str
    entity_vocab: Path


def convert_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    tokenizer: str | None = None,
    metadata: Path | None = None,
    entity_vocab: Path | None = None,
    tokenizer_class: str | None = None,
    entity_aware_attention_default: bool | None = None,
    remove_entity_embeddings: bool = False,
) -> None:
    """Writes a checkpoint as a folder that transformers loads.

    Args:
        checkpoint: A checkpoint folder of this project, or a run's output folder (its newest checkpoint); or of the public
            code the file ``mp_rank_00_model_states.pt`` or its folder.
        tokenizer: Replaces the checkpoint's tokenizer (a folder or a name on the hub).
        metadata, entity_vocab: Of a checkpoint of the public code; by default looked for beside it and up to two folders
            above.

    The rest is as in `export_huggingface_model`; ``entity_aware_attention_default`` None is what the model was trained with.

    Raises:
        UserError: a file is missing or damaged, or they do not belong together.
    """
    source = read_checkpoint(checkpoint, tokenizer, metadata, entity_vocab)
    if entity_aware_attention_default is None:
        entity_aware_attention_default = bool(source.config.use_entity_aware_attention)
    export_huggingface_model(
        source,
        output,
        tokenizer_class=tokenizer_class,
        entity_aware_attention_default=entity_aware_attention_default,
        remove_entity_embeddings=remove_entity_embeddings,
    )


def export_huggingface_model(
    source: Checkpoint,
    output: Path,
    *,
    tokenizer_class: str | None = None,
    entity_aware_attention_default: bool = False,
    remove_entity_embeddings: bool = False,
) -> None:
    """Writes ``output``, whole or not at all, so that ``AutoModel`` and ``AutoTokenizer`` of transformers load it.

    Args:
        tokenizer_class: The class that the tokenizer must turn out to be: ``LukeTokenizer`` for byte-level BPE (RoBERTa),
            ``MLukeTokenizer`` for SentencePiece (XLM-R); None takes what fits.
        entity_aware_attention_default: Whether the folder is loaded with entity-aware attention unless told otherwise.
        remove_entity_embeddings: Keep only the rows of the special tokens in the entity table (the "lite" model).

    Raises:
        UserError: the parts do not belong together, or ``output`` holds something else.
    """
    words = _load_tokenizer(source.tokenizer)
    entities = _read_entities(source.entity_vocab)
    fitting_class = _fitting_class(words)
    if tokenizer_class is not None and tokenizer_class != fitting_class:
        raise UserError(
            f"{source.tokenizer}: not a tokenizer for {tokenizer_class}; "
            + (f"{fitting_class} fits" if fitting_class else "leave the class out")
        )
    weights = _whole_state(source)
    _check_sizes(source, words, entities)
    options = {
        "entity_aware_attention_default": entity_aware_attention_default,
        "remove_entity_embeddings": remove_entity_embeddings,
    }
    inputs = {
        "weights": {"path": str(source.path), "fingerprint": _fingerprint_tensors(weights)},
        "config": {"path": str(source.path), "fingerprint": fingerprint_value(_settings(source.config))},
        "tokenizer": {"path": source.tokenizer, "fingerprint": fingerprint_value(words.backend_tokenizer.to_str())},
        "entity_vocab": {"path": str(source.entity_vocab), "fingerprint": fingerprint_file(source.entity_vocab)},
    }
    with StagedFolder(output, KIND, {"options": options, "inputs": inputs}) as folder:
        if folder.done:
            _log.info("%s: already converted with these options", output)
            return
        kept = [_PAD, _UNK, _MASK] if remove_entity_embeddings else None
        vocabulary, entity_rows = _entity_vocabulary(entities, fitting_class, kept)
        word_rows = _add_word_tokens(words, len(weights[_WORD_TABLE]))
        tensors = _resize(weights, word_rows, entity_rows)
        config = _exported_config(source.config, tensors, entity_aware_attention_default)
        config.save_pretrained(folder.work)
        _save_tokenizer(words, fitting_class, folder.work)
        write_json(folder.work / "entity_vocab.json", vocabulary)
        save_tensors(tensors, folder.work / "model.safetensors")
        folder.finish(counts={"words": config.vocab_size, "entities": config.entity_vocab_size})
    _log.info("%s: %s words, %s entities", output, f"{config.vocab_size:,}", f"{config.entity_vocab_size:,}")


# -- weights -----------------------------------------------------------------------------------------------------------


def _whole_state(source: Checkpoint) -> dict[str, Tensor]:
    """All parameters of an entity-aware ``LukeForMaskedLM`` but the decoders, fp32, checked against the configuration."""
    config = copy.deepcopy(source.config)
    config.use_entity_aware_attention = True
    state = {name: value for name, value in source.state_dict.items() if not name.startswith((*_TIED, *_LEFT_BEHIND))}
    if _ENTITY_BIAS not in state:  # trained without one: no bias is a bias of zeros
        state[_ENTITY_BIAS] = torch.zeros(config.entity_vocab_size)
    whole: dict[str, Tensor] = {}
    for name, shape in luke_shapes(config).items():
        if name.startswith(_TIED):
            continue
        value = state.get(name)
        if value is None and _plain_query(name) in state:
            value = state[_plain_query(name)].clone()
        if value is None:
            raise UserError(f"{source.path}: the weights lack {name}; this is not a pretrained LUKE")
        if value.shape != shape:
            raise UserError(
                f"{source.path}: {name} has the shape {tuple(value.shape)}, but the configuration says {tuple(shape)}"
            )
        whole[name] = value.detach().to("cpu", torch.float32).contiguous()
    unknown = sorted(set(state) - set(whole))
    if unknown:
        raise UserError(f"{source.path}: {unknown[0]} is not a parameter of LUKE; this is not a pretrained LUKE")
    return whole


def _plain_query(name: str) -> str:
    for query in ("w2e_query", "e2w_query", "e2e_query"):
        name = name.replace(f".{query}.", ".query.")
    return name


def _check_sizes(source: Checkpoint, words: PreTrainedTokenizerBase, entities: Sequence[Any]) -> None:
    if len(words) > source.config.vocab_size:
        raise UserError(
            f"{source.tokenizer}: has {len(words)} tokens, but the model of {source.path} has {source.config.vocab_size}; "
            "give the tokenizer that it was trained with"
        )
    if len(entities) != source.config.entity_vocab_size:
        raise UserError(
            f"{source.entity_vocab}: has {len(entities)} entities, but the model of {source.path} has "
            f"{source.config.entity_vocab_size}; give the vocabulary that it was trained with"
        )


def _resize(weights: Mapping[str, Tensor], word_rows: Sequence[int], entity_rows: Sequence[int]) -> dict[str, Tensor]:
    """The parameters with their tables and biases made of the given rows, and the masked-word decoder written out."""
    tensors = dict(weights)
    for names, rows in (((_WORD_TABLE, _WORD_BIAS), word_rows), ((_ENTITY_TABLE, _ENTITY_BIAS), entity_rows)):
        index = torch.tensor(rows)
        for name in names:
            tensors[name] = tensors[name].index_select(0, index)
    # Copies, since safetensors refuses tensors that share memory.
    tensors["lm_head.decoder.weight"] = tensors[_WORD_TABLE].clone()
    tensors["lm_head.decoder.bias"] = tensors[_WORD_BIAS].clone()
    return tensors


def _exported_config(config: LukeConfig, tensors: Mapping[str, Tensor], entity_aware: bool) -> LukeConfig:
    exported = copy.deepcopy(config)
    exported.vocab_size = len(tensors[_WORD_TABLE])
    exported.entity_vocab_size = len(tensors[_ENTITY_TABLE])
    exported.use_entity_aware_attention = entity_aware
    exported.architectures = ["LukeForMaskedLM"]
    exported.dtype = "float32"
    return exported


def _fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name}{tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy().data)
    return digest.hexdigest()


def _settings(config: LukeConfig) -> dict[str, Any]:
    """The configuration without what depends on the installed transformers."""
    return {name: value for name, value in config.to_dict().items() if name != "transformers_version"}


# -- tokenizer ---------------------------------------------------------------------------------------------------------


def _load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    folder = Path(name)
    if folder.is_dir():
        if not any((folder / file).exists() for file in _VOCABULARY_FILES):
            raise UserError(f"{name}: not the folder of a tokenizer; one of {', '.join(_VOCABULARY_FILES)} is needed")
        needs_merges = (folder / "vocab.json").exists() and not (folder / "tokenizer.json").exists()
        if needs_merges and not (folder / "merges.txt").exists():
            raise UserError(f"{name}: merges.txt is missing from the tokenizer")
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # transformers raises whatever its parts raise
        reason = str(error).split("\n")[0] or type(error).__name__
        raise UserError(
            f"{name}: not a tokenizer that transformers loads ({reason}); "
            "give the folder of the one that the model was trained with"
        ) from None
    if not tokenizer.is_fast:
        raise UserError(f"{name}: no fast tokenizer (tokenizer.json); save it with transformers 5 first")
    return tokenizer


def _fitting_class(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The LUKE tokenizer of transformers that reads a base's files, if there is one."""
    backend = tokenizer.backend_tokenizer
    if isinstance(backend.model, Unigram):
        return MLUKE_TOKENIZER
    if isinstance(backend.model, BPE) and isinstance(backend.pre_tokenizer, ByteLevel):
        return LUKE_TOKENIZER
    return None


def _add_word_tokens(tokenizer: PreTrainedTokenizerBase, table_size: int) -> list[int]:
    """Adds the word tokens to ``tokenizer``. Returns for each row of the new word table the old row that it comes from."""
    known = len(tokenizer)
    sources = _token_ids(tokenizer, _WORD_TOKENS.values())
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in _WORD_TOKENS], special_tokens=True)
    ids = _token_ids(tokenizer, _WORD_TOKENS)
    # A table may have more rows than the tokenizer has tokens; the new tokens then take the first spare ones.
    rows = list(range(max(table_size, max(ids) + 1)))
    for token_id, source in zip(ids, sources, strict=True):
        if token_id >= known:
            rows[token_id] = source
    return rows


def _token_ids(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[str]) -> list[int]:
    """The id of each token, of the unknown token where there is none."""
    return cast(list[int], tokenizer.convert_tokens_to_ids(list(tokens)))


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, tokenizer_class: str | None, folder: Path) -> None:
    """Writes the base's own ``tokenizer.json`` with the word tokens, and the configuration of the LUKE tokenizer."""
    backend = tokenizer.backend_tokenizer
    # Some bases carry a truncation of their own first use (sentence encoders: 128).
    backend.no_truncation()
    backend.no_padding()
    if tokenizer_class == MLUKE_TOKENIZER:
        # With entities MLukeTokenizer looks tokens up by their text, and a mask that takes the space before it is not found.
        tokenizer.add_special_tokens({"mask_token": AddedToken(str(tokenizer.mask_token), lstrip=False, normalized=False)})
    tokenizer.save_pretrained(folder)
    if tokenizer_class == LUKE_TOKENIZER:
        backend.model.save(str(folder))  # vocab.json and merges.txt, which transformers 4 reads
    if tokenizer_class is None:
        return
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = tokenizer_class
    for number, token in enumerate(_WORD_TOKENS, start=1):
        # As a bare string MLukeTokenizer would put a space marker before it and so make another token of it.
        config[f"entity_{number}_token"] = {
            "__type": "AddedToken",
            "content": token,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            "special": True,
        }
    write_json(path, config)


# -- entities ----------------------------------------------------------------------------------------------------------

Names = list[tuple[str, str | None]]


def _read_entities(path: Path) -> list[Names]:
    """The titles with their languages of each entity, by id.

    Raises:
        UserError: the file is missing, not a vocabulary, has gaps in its ids, or lacks a special token.
    """
    entities: dict[int, Names] = {}
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                number += 1
                entry = json.loads(line)
                entities[int(entry["id"])] = [(str(title), language) for title, language in entry["entities"]]
    except FileNotFoundError:
        raise UserError(f"{path}: not found (the entity vocabulary of the checkpoint is needed)") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: line {number} is not an entry of an entity vocabulary") from None
    if set(entities) != set(range(len(entities))):
        raise UserError(f"{path}: the entity ids have gaps; build the vocabulary again")
    titles = {title for names in entities.values() for title, _ in names}
    missing = [token for token in (_PAD, _UNK, _MASK) if token not in titles]
    if missing:
        raise UserError(f"{path}: no special token {missing[0]} in it; build the vocabulary again")
    return [entities[entity_id] for entity_id in range(len(entities))]


def _entity_vocabulary(
    entities: Sequence[Names], tokenizer_class: str | None, kept: Iterable[str] | None
) -> tuple[dict[str, int], list[int]]:
    """What ``entity_vocab.json`` holds, and for each row of the new entity table the old row that it comes from.

    ``MLukeTokenizer`` names an entity ``ja:東京``. Elsewhere a title stands alone, unless several languages could claim it.
    """
    special = {_PAD, _UNK, _MASK}
    languages = {language for names in entities for title, language in names if title not in special}
    with_language = tokenizer_class == MLUKE_TOKENIZER or len(languages) > 1

    def key(title: str, language: str | None) -> str:
        return f"{language}:{title}" if with_language and language and title not in special else title

    ids = {key(title, language): i for i, names in enumerate(entities) for title, language in names}
    mask_row = ids[_MASK]
    if kept is not None:
        rows = [ids[token] for token in kept]
        ids = {token: i for i, token in enumerate(kept)}
    else:
        rows = list(range(len(entities)))
    return {**ids, _MASK2: len(rows)}, [*rows, mask_row]


# -- checkpoints -------------------------------------------------------------------------------------------------------


def read_checkpoint(
    checkpoint: Path, tokenizer: str | None = None, metadata: Path | None = None, entity_vocab: Path | None = None
) -> Checkpoint:
    """A pretrained model of this project or of the public code; arguments as in `convert_checkpoint`.

    Raises:
        UserError: a file is missing or damaged, or they do not belong together.
    """
    if (checkpoint / MODEL_FILE).exists() or list_checkpoints(checkpoint):
        return _read_checkpoint(checkpoint, tokenizer, entity_vocab)
    return _read_public_checkpoint(checkpoint, tokenizer, metadata, entity_vocab)


def _read_checkpoint(checkpoint: Path, tokenizer: str | None, entity_vocab: Path | None) -> Checkpoint:
    folder = checkpoint if (checkpoint / MODEL_FILE).exists() else newest_valid(checkpoint)
    if folder is None:
        raise UserError(f"{checkpoint}: none of the checkpoints of this run is whole")
    state = load_weights(folder)
    try:
        config = LukeConfig(**read_config(folder))
    except FileNotFoundError:
        raise UserError(f"{folder}: config.json is missing; the checkpoint is incomplete") from None
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'}: not a configuration of LUKE ({error})") from None
    return Checkpoint(
        folder, state, config, tokenizer or str(folder / "tokenizer"), entity_vocab or folder / "entity_vocab.jsonl"
    )


def _read_public_checkpoint(
    checkpoint: Path, tokenizer: str | None, metadata_path: Path | None, entity_vocab: Path | None
) -> Checkpoint:
    weights_path = _public_weights(checkpoint)
    metadata_path = metadata_path or _beside(weights_path, "metadata.json", "--metadata-path")
    entity_vocab = entity_vocab or _beside(weights_path, "entity_vocab.jsonl", "--entity-vocab-path")
    module = read_tensors(weights_path).get("module")
    if not isinstance(module, dict) or not module:
        raise UserError(
            f"{weights_path}: holds no model (no key 'module'); a checkpoint of ZeRO stage 3 must be gathered first"
        )
    try:
        metadata = json.loads(metadata_path.read_text(encoding="utf-8"))
        settings, arguments = metadata["model_config"], metadata["arguments"]
        if settings["pad_token_id"] is None:
            raise ValueError("no pad_token_id")
        family = BERT if f"{BERT.head_dense}.weight" in module else ROBERTA
        config = luke_config(
            settings, family, settings["entity_vocab_size"], settings["entity_emb_size"] or settings["hidden_size"]
        )
        tokenizer = tokenizer or str(arguments["bert_model_name"])
    except FileNotFoundError:
        raise UserError(f"{metadata_path}: not found") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{metadata_path}: not the metadata of a checkpoint of the public code ({error!r})") from None
    config.use_entity_aware_attention = any(".w2e_query." in name for name in module)
    # Older versions of transformers also saved the constant table of position ids.
    state = {
        _public_to_luke(name, family.head_names()): value
        for name, value in module.items()
        if not name.endswith(".position_ids")
    }
    if family.positions_from_zero and _WORD_POSITIONS in state and _ENTITY_POSITIONS in state:
        pad_token_id = int(config.pad_token_id or 0)
        state[_WORD_POSITIONS] = shift_positions(state[_WORD_POSITIONS], pad_token_id)
        # The entity table is counted from 0 in both; it only has to be as long as the other.
        table = state[_ENTITY_POSITIONS]
        state[_ENTITY_POSITIONS] = torch.cat([table, table.new_zeros(pad_token_id + 1, table.size(1))])
    return Checkpoint(weights_path, state, config, tokenizer, entity_vocab)


def _public_weights(checkpoint: Path) -> Path:
    if checkpoint.is_file():
        return checkpoint
    if not checkpoint.is_dir():
        raise UserError(f"{checkpoint}: no such checkpoint")
    files = sorted(checkpoint.glob(_PUBLIC_WEIGHTS))
    if len(files) != 1:
        raise UserError(
            f"{checkpoint}: not a checkpoint: neither model.safetensors with its metadata.json nor one file "
            f"{_PUBLIC_WEIGHTS} ({len(files)} found)"
        )
    return files[0]


def _beside(weights: Path, name: str, option: str) -> Path:
    """A file that the public code writes once a run: beside the weights, or up to two folders above."""
    folders = [weights.absolute().parent, *list(weights.absolute().parents)[1:3]]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{weights}: no {name} beside it or in the two folders above; give {option}")


def _public_to_luke(name: str, head_names: Mapping[str, tuple[str, ...]]) -> str:
    """The public code's name of a parameter -> transformers' name."""
    for ours, theirs in head_names.items():
        if name in theirs[:1]:
            return ours
    if name.startswith((BERT.decoder + ".", ROBERTA.decoder + ".")):
        return "lm_head.decoder." + name.rsplit(".", 1)[1]
    return name if name.startswith(("entity_predictions.", *_LEFT_BEHIND)) else f"luke.{name}"
