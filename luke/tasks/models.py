"""Models for tasks: transformers' own LUKE classes where they exist, a plain encoder with a span head otherwise.

A LUKE runs through this project's unpadded encoder, which takes the place of ``model.luke`` under the same parameter names:
what is saved loads in transformers alone.

Shape letters: B rows, W words, E entities, P word positions of a mention, H hidden size, L labels.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForQuestionAnswering, AutoModelForSequenceClassification, LukeConfig
from transformers import LukeModel as TransformersLukeModel
from transformers.modeling_outputs import ModelOutput
from transformers.models.luke.modeling_luke import BaseLukeModelOutputWithPooling
from transformers.utils import logging

from luke.errors import UserError
from luke.model import LukeModel, pack_padded, unpack_hidden
from luke.tensors import save_tensors

HEAD_FILE = "span_head.safetensors"

Head = Literal["entity", "pair", "spans", "cloze", "answer", "sequence"]

# What a plain encoder cannot be given.
_ENTITY_INPUTS = ("entity_ids", "entity_position_ids")
_SPAN_INPUTS = ("entity_start_positions", "entity_end_positions", "entity_attention_mask")


class UnpaddedLuke(LukeModel):
    """The unpadded encoder with the arguments and results of ``transformers.LukeModel``."""

    @classmethod
    def adopt(cls, model: TransformersLukeModel) -> Self:
        """An encoder that holds the parameters of ``model`` themselves, not copies."""
        with torch.device("meta"):
            encoder = cls(model.config)
        if model.pooler is None:
            del encoder.pooler
        encoder.load_state_dict(model.state_dict(), assign=True)
        for name, parameter in model.named_parameters():
            owner, _, leaf = name.rpartition(".")
            setattr(encoder.get_submodule(owner), leaf, parameter)
        return encoder.train(model.training)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_attention_mask: Tensor | None = None,
        entity_position_ids: Tensor | None = None,
        **_: Any,
    ) -> BaseLukeModelOutputWithPooling:
        """Padded inputs -> words (B, W, H) and entities (B, E, H), zeros where there is padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if entity_ids is not None and entity_attention_mask is None:
            entity_attention_mask = torch.ones_like(entity_ids)
        batch = pack_padded(input_ids, mask, entity_ids, entity_attention_mask, entity_position_ids)
        words, entities = unpack_hidden(super().forward(batch), batch)
        words = F.pad(words, (0, 0, 0, input_ids.size(1) - words.size(1)))
        if entity_ids is not None:
            entities = F.pad(entities, (0, 0, 0, entity_ids.size(1) - entities.size(1)))
        return BaseLukeModelOutputWithPooling(
            last_hidden_state=words,
            pooler_output=self.pooler(words[:, 0]) if hasattr(self, "pooler") else None,
            entity_last_hidden_state=entities if entity_ids is not None else None,
        )


class SpanModel(nn.Module):
    """An encoder with one linear layer over the states of spans.

    The state of a span is its entity's in a LUKE, else its first and last word's, one after the other.

    Args:
        mode: ``join``: the first ``spans`` spans together -> labels; ``each``: each span -> labels; ``cloze``: the first
            span with each of the others -> one score (Yamada et al. 2020, section 4.4).
    """

    def __init__(self, encoder: Any, mode: str, spans: int, labels: int) -> None:
        super().__init__()
        self.encoder, self.mode, self.spans = encoder, mode, spans
        self.config: Any = encoder.config
        self.is_luke = isinstance(encoder, LukeModel)
        size = self.config.hidden_size * (1 if self.is_luke else 2)
        self.dropout = nn.Dropout(self.config.hidden_dropout_prob)
        self.classifier = nn.Linear(size * {"join": spans, "each": 1, "cloze": 2}[mode], labels)
        nn.init.normal_(self.classifier.weight, std=self.config.initializer_range)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, labels: Tensor | None = None, **inputs: Tensor) -> ModelOutput:
        """Logits (B, L), (B, E, L), for cloze (B, E - 1); with labels (classes or 0/1; -100 is ignored) a loss."""
        spans = self._span_states(inputs)
        if self.mode == "join":
            features = spans[:, : self.spans].flatten(1)
        elif self.mode == "each":
            features = spans
        else:
            features = torch.cat([spans[:, :1].expand(-1, spans.size(1) - 1, -1), spans[:, 1:]], dim=-1)
        logits = self.classifier(self.dropout(features))
        if self.mode == "cloze":
            logits = logits.squeeze(-1)
        return ModelOutput(loss=None if labels is None else _loss(logits, labels), logits=logits)

    def _span_states(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """(B, E, H) of a LUKE, else (B, E, 2 H)."""
        if self.is_luke:
            states: Tensor = self.encoder(**inputs).entity_last_hidden_state
            return states
        hidden = self.encoder(**{key: value for key, value in inputs.items() if key not in _ENTITY_INPUTS + _SPAN_INPUTS})
        rows = torch.arange(hidden.last_hidden_state.size(0), device=hidden.last_hidden_state.device)[:, None]
        places = (inputs["entity_start_positions"], inputs["entity_end_positions"])
        return torch.cat([hidden.last_hidden_state[rows, place] for place in places], dim=-1)


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.shape == logits.shape:  # yes or no for each, some ignored
        chosen = labels != -100
        return F.binary_cross_entropy_with_logits(logits[chosen], labels[chosen].to(logits.dtype))
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


# head -> mode and number of spans of a `SpanModel`
_SPAN_MODES: dict[str, tuple[str, int]] = {
    "entity": ("join", 1),
    "pair": ("join", 2),
    "spans": ("each", 1),
    "cloze": ("cloze", 2),
}


def read_config(folder: str | Path) -> Any:
    """The configuration of a model folder or a model on the hub.

    Raises:
        UserError: there is none.
    """
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a model that transformers loads ({str(error).splitlines()[0]})") from None


def load_task_model(
    folder: str | Path, head: Head, labels: Sequence[str] | None, multi_label: bool, entity_aware: bool | None, words: int
) -> nn.Module:
    """A model with a fresh head, or, from a fine-tuned folder, with its own.

    Args:
        labels: The names of the classes.
        entity_aware: Whether a LUKE attends with one query a pair of types; None is what its configuration says.
        words: Tokens of the tokenizer; a smaller word table grows.

    Raises:
        UserError: the folder holds no model, or one that the task cannot use.
    """
    config = read_config(folder)
    if labels is not None:
        config.num_labels = len(labels)
        config.id2label, config.label2id = dict(enumerate(labels)), {label: i for i, label in enumerate(labels)}
        if head == "sequence":
            config.problem_type = "multi_label_classification" if multi_label else "single_label_classification"
    is_luke = isinstance(config, LukeConfig)
    if is_luke and entity_aware is not None:
        config.use_entity_aware_attention = entity_aware
    span_head = Path(folder) / HEAD_FILE
    if head in _SPAN_MODES and (not is_luke or head == "cloze"):
        encoder = _load(AutoModel, folder, config, **({} if is_luke else {"add_pooling_layer": False}))
        _grow(encoder, words)
        model = SpanModel(
            UnpaddedLuke.adopt(encoder) if is_luke else encoder, *_SPAN_MODES[head], config.num_labels if labels else 1
        )
        if span_head.exists():
            model.classifier.load_state_dict(load_file(span_head))
        return model
    loaded = _load(_head_class(head, is_luke), folder, config)
    _grow(loaded, words)
    if is_luke:
        loaded.luke = UnpaddedLuke.adopt(loaded.luke)
    return loaded


def _head_class(head: Head, is_luke: bool) -> Any:
    import transformers

    if head == "answer":
        return AutoModelForQuestionAnswering
    if head == "sequence":
        return AutoModelForSequenceClassification
    names = {"entity": "EntityClassification", "pair": "EntityPairClassification", "spans": "EntitySpanClassification"}
    return getattr(transformers, f"LukeFor{names[head]}")


def _load(model_class: Any, folder: str | Path, config: Any, **options: Any) -> Any:
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # a fresh head is no news
    logging.disable_progress_bar()
    try:
        model, info = model_class.from_pretrained(
            folder, config=copy.deepcopy(config), output_loading_info=True, dtype=torch.float32, **options
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder}: the model cannot be loaded ({str(error).strip().splitlines()[0]})") from None
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    fill_entity_queries(model, {str(name) for name in info["missing_keys"]})
    return model


def fill_entity_queries(model: nn.Module, missing: set[str]) -> None:
    """Starts the queries of entity-aware attention that a file lacks as copies of the plain one (paper, section 3.2)."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in missing & set(parameters):
            for kind in ("w2e_query", "e2w_query", "e2e_query"):
                if f".{kind}." in name:
                    parameters[name].copy_(parameters[name.replace(kind, "query")])


def _grow(model: Any, words: int) -> None:
    if model.get_input_embeddings().num_embeddings < words:
        model.resize_token_embeddings(words, mean_resizing=False)


def save_task_model(model: Any, folder: Path) -> None:
    """Writes a model as `load_task_model` reads it; all but cloze heads of a LUKE load in transformers alone."""
    if not isinstance(model, SpanModel):
        model.save_pretrained(folder)
        return
    if model.is_luke:
        config = copy.deepcopy(model.config)
        config.architectures = ["LukeModel"]
        config.save_pretrained(folder)
        state = {name: value.detach().cpu().contiguous() for name, value in model.encoder.state_dict().items()}
        save_tensors(state, folder / "model.safetensors")
    else:
        model.encoder.config = model.config
        model.encoder.save_pretrained(folder)
    save_tensors({name: value.detach().cpu() for name, value in model.classifier.state_dict().items()}, folder / HEAD_FILE)


def model_inputs(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs that a model takes; a plain encoder is given no entities."""
    if getattr(model.config, "type_vocab_size", 0) < 2:  # as RoBERTa
        inputs = {name: value for name, value in inputs.items() if name != "token_type_ids"}
    if isinstance(model, SpanModel):
        return dict(inputs)
    if isinstance(model.config, LukeConfig):
        unknown = ("entity_start_positions", "entity_end_positions") if "EntitySpan" not in type(model).__name__ else ()
        return {name: value for name, value in inputs.items() if name not in unknown}
    return {name: value for name, value in inputs.items() if name not in _ENTITY_INPUTS + _SPAN_INPUTS}
