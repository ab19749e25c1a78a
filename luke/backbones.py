"""Base encoders in: what differs between BERT, RoBERTa and XLM-R, told apart by ``model_type`` alone.

A family says where a base keeps its masked-word head and from which row its position table is counted. Everything else has
the same names in all of them. Entity-side parameters have no counterpart in a base and keep the model's own initialisation,
as in the paper (section 3.3) and in the public code, whose entity position table is random too and no copy of the base's.
"""

import json
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import LukeConfig

from luke.errors import UserError

_log = logging.getLogger(__name__)

_CONFIG_FILE = "config.json"
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_WORD_TABLE = "embeddings.word_embeddings.weight"
_POSITION_TABLE = "embeddings.position_embeddings.weight"
_ENTITY_SIDE = ("luke.entity_embeddings.", "entity_predictions.")

# What a LukeConfig takes over from a BERT-type configuration.
_SHARED_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "classifier_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)


@dataclass(frozen=True)
class Family:
    """How a kind of encoder differs from LUKE.

    Attributes:
        positions_from_zero: Row 0 of the position table is position 0; otherwise row ``pad_token_id + 1`` is.
        head_dense, head_norm, head_bias, decoder: Where the parts of the masked-word head are.
    """

    positions_from_zero: bool
    head_dense: str
    head_norm: str
    head_bias: str
    decoder: str

    def head_names(self) -> dict[str, tuple[str, ...]]:
        """LUKE's name of each parameter of the masked-word head -> the names that it may have in a base."""
        names = {
            f"lm_head.{ours}.{kind}": (f"{theirs}.{kind}",)
            for ours, theirs in (("dense", self.head_dense), ("layer_norm", self.head_norm))
            for kind in ("weight", "bias")
        }
        # The bias is one parameter under two names, of which a file may hold either.
        return {**names, "lm_head.bias": (self.head_bias, f"{self.decoder}.bias")}


BERT = Family(
    positions_from_zero=True,
    head_dense="cls.predictions.transform.dense",
    head_norm="cls.predictions.transform.LayerNorm",
    head_bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
)
ROBERTA = Family(
    positions_from_zero=False,
    head_dense="lm_head.dense",
    head_norm="lm_head.layer_norm",
    head_bias="lm_head.bias",
    decoder="lm_head.decoder",
)
FAMILIES: dict[str, Family] = {"bert": BERT, "roberta": ROBERTA, "xlm-roberta": ROBERTA}


def luke_config(
    settings: Mapping[str, Any],
    family: Family,
    entity_vocab_size: int,
    entity_emb_size: int,
    use_entity_aware_attention: bool = False,
) -> LukeConfig:
    """The configuration of a LUKE on top of a base.

    Args:
        settings: The base's configuration, such as its ``config.json``; with a ``pad_token_id``, from which LUKE counts
            positions.
        entity_vocab_size: U. entity_emb_size: D.
    """
    shared = {name: settings[name] for name in _SHARED_SETTINGS if name in settings}
    if family.positions_from_zero:
        shared["max_position_embeddings"] += shared["pad_token_id"] + 1
    return LukeConfig(
        **shared,
        entity_vocab_size=entity_vocab_size,
        entity_emb_size=entity_emb_size,
        use_entity_aware_attention=use_entity_aware_attention,
        tie_word_embeddings=True,
    )


def shift_positions(table: Tensor, pad_token_id: int) -> Tensor:
    """A position table (P, H) counted from 0 -> (P + pad_token_id + 1, H) counted from ``pad_token_id + 1``.

    transformers' LUKE counts so. The rows in front are those of padding: zeros that no real token sees.
    """
    return torch.cat([table.new_zeros(pad_token_id + 1, table.size(1)), table])


def luke_shapes(config: LukeConfig) -> dict[str, torch.Size]:
    """Name -> shape of each parameter of ``transformers.LukeForMaskedLM``, without memory for them."""
    from transformers import LukeForMaskedLM

    with torch.device("meta"):
        return {name: value.shape for name, value in LukeForMaskedLM(config).state_dict().items()}


def read_tensors(path: Path) -> dict[str, Any]:
    """What a ``.safetensors`` file or a file of ``torch.save`` holds, on the CPU.

    Raises:
        UserError: the file is damaged, or holds more than tensors and plain values (it is then not unpickled).
    """
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: not a whole safetensors file ({error}); fetch or save it again") from None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path}: damaged, or holds more than tensors and plain values, which is not unpickled because that can run "
            "any code; save its weights as model.safetensors"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: not a whole file of torch.save ({reason}); fetch or save it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, not named tensors; save the model's state_dict")
    return content


@dataclass(frozen=True)
class Backbone:
    """A base encoder.

    Attributes:
        source: Where it comes from, for messages.
        family: How it differs from LUKE.
        config: Its ``config.json`` with the defaults of its class filled in.
        weights: Its tensors by their own names.
        prefix: What comes before ``embeddings.`` and ``encoder.`` in them, such as ``roberta.``.
        has_mlm_head: It brings a masked-word head that LUKE can use, one whose decoder is the word embedding.
    """

    source: str
    family: Family
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    prefix: str
    has_mlm_head: bool

    @property
    def has_pooler(self) -> bool:
        """It brings the dense layer over [CLS]."""
        return f"{self.prefix}pooler.dense.weight" in self.weights

    def luke_config(
        self, entity_vocab_size: int, entity_emb_size: int, use_entity_aware_attention: bool = False
    ) -> LukeConfig:
        """The configuration of a LUKE on this base, see `luke_config`."""
        return luke_config(self.config, self.family, entity_vocab_size, entity_emb_size, use_entity_aware_attention)

    def luke_state_dict(self, use_entity_aware_attention: bool = False) -> dict[str, Tensor]:
        """The base's parameters, fp32, by the names of ``LukeForMaskedLM``: words, encoder, the pooler and the masked-word
        head if the base brings them, and copies of the queries with entity-aware attention (paper, section 3.3).

        What is missing keeps the model's own initialisation. The decoder is not repeated: it is the word embedding.

        Raises:
            UserError: a parameter is missing, or has another shape than ``config.json`` says.
        """
        config = self.luke_config(1, int(self.config["hidden_size"]), use_entity_aware_attention)
        state: dict[str, Tensor] = {}
        missing: list[str] = []
        for name, shape in luke_shapes(config).items():
            if not self._brings(name):
                continue
            candidates = self._names_in_base(name)
            found = next((candidate for candidate in candidates if candidate in self.weights), None)
            if found is None:
                missing.append(candidates[0])
            else:
                state[name] = self._take(name, found, shape)
        if missing:
            raise UserError(f"{self.source}: the weights lack {_some(missing)}; this is not a whole encoder")
        return state

    def _brings(self, name: str) -> bool:
        if name.startswith("lm_head."):
            return self.has_mlm_head and not name.startswith("lm_head.decoder.")
        if name.startswith("luke.pooler."):
            return self.has_pooler
        return not name.startswith(_ENTITY_SIDE)

    def _names_in_base(self, name: str) -> tuple[str, ...]:
        if name.startswith("lm_head."):
            return self.family.head_names()[name]
        for query in ("w2e_query", "e2w_query", "e2e_query"):
            name = name.replace(f".{query}.", ".query.")
        return (self.prefix + name.removeprefix("luke."),)

    def _take(self, name: str, found: str, shape: torch.Size) -> Tensor:
        value = self.weights[found].detach().to(torch.float32)
        dummy_rows = 0
        if name == f"luke.{_POSITION_TABLE}" and self.family.positions_from_zero:
            dummy_rows = int(self.config["pad_token_id"]) + 1
        expected = (shape[0] - dummy_rows, *shape[1:])
        if value.shape != expected:
            raise UserError(
                f"{self.source}: {found} has the shape {tuple(value.shape)}, but config.json says {tuple(expected)}"
            )
        return shift_positions(value, dummy_rows - 1) if dummy_rows else value


def load_backbone(folder_or_name: str | Path) -> Backbone:
    """Reads a base encoder from a folder, or by its name from the Hugging Face hub or its cache on this machine.

    Raises:
        UserError: there is no such folder or name, it has no (readable) configuration or weights, or is of a kind that
            LUKE cannot be put on.
    """
    source = str(folder_or_name)
    config, family = _read_config(source)
    weights = _read_weights(source)
    prefixes = [name.removesuffix(_WORD_TABLE) for name in weights if name.endswith(_WORD_TABLE)]
    if len(prefixes) != 1:
        raise UserError(
            f"{source}: the weights have {len(prefixes)} parameters named …{_WORD_TABLE}, one is needed; "
            "this is not an encoder"
        )
    has_head = f"{family.head_dense}.weight" in weights
    decoder = weights.get(f"{family.decoder}.weight")
    if has_head and decoder is not None and not torch.equal(decoder, weights[prefixes[0] + _WORD_TABLE]):
        _log.warning("%s: its masked-word head is not tied to the word embedding; LUKE starts with a fresh one", source)
        has_head = False
    return Backbone(source, family, config, weights, prefixes[0], has_head)


def base_luke_config(folder_or_name: str | Path, entity_vocab_size: int, entity_emb_size: int) -> LukeConfig:
    """The configuration of a LUKE on a base, whose weights are not read; errors as in `load_backbone`."""
    config, family = _read_config(str(folder_or_name))
    return luke_config(config, family, entity_vocab_size, entity_emb_size)


def _read_config(source: str) -> tuple[Mapping[str, Any], Family]:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    path = _find(source, _CONFIG_FILE)
    if path is None:
        if Path(source).is_dir():
            raise UserError(f"{source}: has no config.json; give the folder of an encoder that transformers saved")
        raise UserError(f"{source}: no such folder here, and no such model on the Hugging Face hub (or it is out of reach)")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        model_type = values.get("model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: not a configuration of transformers ({error})") from None
    if model_type not in FAMILIES:
        raise UserError(f"{path}: model_type is {model_type!r}, but LUKE can be put on {', '.join(FAMILIES)} only")
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{path}: LUKE needs absolute positions, not {values['position_embedding_type']!r}")
    try:
        config = AutoConfig.for_model(**values).to_dict()
    except (StrictDataclassError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not a configuration of transformers ({error})") from None
    if config.get("pad_token_id") is None:
        raise UserError(f"{path}: has no pad_token_id, from which LUKE counts positions; set it there")
    return config, FAMILIES[model_type]


def _read_weights(source: str) -> dict[str, Tensor]:
    for name in _WEIGHT_FILES:
        path = _find(source, name)
        if path is not None:
            break
    else:
        raise UserError(f"{source}: has no weights; one of {', '.join(_WEIGHT_FILES)} is needed")
    files = [path] if path.suffix != ".json" else _shards(source, path)
    return {_modern(name): value for file in files for name, value in read_tensors(file).items()}


def _shards(source: str, index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{index}: not an index of weight files (no weight_map)") from None
    files = []
    for name in names:
        path = _find(source, name)
        if path is None:
            raise UserError(f"{source}: {name}, which {index.name} names, is missing")
        files.append(path)
    return files


def _modern(name: str) -> str:
    """Files converted from TensorFlow call the parameters of LayerNorm gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _find(source: str, name: str) -> Path | None:
    """A file of a base: in the folder, or else from the hub. None where it has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    if folder.exists():
        raise UserError(f"{source}: a file, not the folder of an encoder")
    try:
        return Path(hf_hub_download(source, name))
    except EntryNotFoundError:
        return None
    except (OSError, ValueError):
        raise UserError(
            f"{source}: no such folder here, and no such model on the Hugging Face hub (or it is out of reach)"
        ) from None


def _some(names: list[str]) -> str:
    """The first few names and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
