"""The model that a run starts from, and which of its parameters are trained."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from transformers import LukeConfig

from luke.backbones import load_backbone, read_tensors
from luke.entity_vocab import EntityVocab
from luke.errors import UserError
from luke.model import LukeForPretraining
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.config import PretrainingOptions
from luke.pretraining.dataset import PretrainingDataset
from luke.pretraining.entity_initialization import start_entities_from_words
from luke.tokenization import load_tokenizer, tokenizer_fingerprint

DEFAULT_ENTITY_EMB_SIZE = 256
_PAGE_HEAD = "cls_entity_predictions."
_ENTITY_PARTS = ("luke.entity_embeddings.", "entity_predictions.", _PAGE_HEAD)
_FRESH_HEAD_PARTS = ("lm_head.dense.", "lm_head.layer_norm.", "lm_head.bias")


@dataclass
class InitialModel:
    """A model with its weights; ``fresh_mlm_head`` says that its base brought no masked-word head."""

    model: LukeForPretraining
    fresh_mlm_head: bool


def initial_model(options: PretrainingOptions, dataset: PretrainingDataset, checkpoint: Path | None) -> InitialModel:
    """The model of a checkpoint, or a new one around a base encoder.

    Raises:
        UserError: model and dataset do not fit together (both named).
    """
    if options.bert_model_name:
        _check_tokenizer(options.bert_model_name, dataset)
    if checkpoint is not None:
        return _from_checkpoint(options, dataset, checkpoint)
    if not options.bert_model_name:
        raise UserError("--bert-model-name is missing: which encoder should the model start from?")
    backbone = load_backbone(options.bert_model_name)
    config = backbone.luke_config(
        int(dataset.metadata["entity_vocab_size"]), options.entity_emb_size or DEFAULT_ENTITY_EMB_SIZE
    )
    positions = config.max_position_embeddings - (config.pad_token_id or 0) - 1
    if dataset.metadata["max_seq_length"] > positions:
        raise UserError(
            f"{dataset.folder}: its items have up to {dataset.metadata['max_seq_length']} words, but the base model "
            f"{options.bert_model_name} reads {positions}; build the dataset with --max-seq-length {positions} or less"
        )
    model = LukeForPretraining(config, options.cls_entity_prediction)
    _load(model, backbone.luke_state_dict(), options.bert_model_name, may_lack=(*_ENTITY_PARTS, "lm_head.", "luke.pooler."))
    if options.entity_emb_init == "titles":
        vocabulary = EntityVocab(dataset.folder / "entity_vocab.jsonl")
        titles = [vocabulary.get_title(entity_id) for entity_id in range(len(vocabulary))]
        start_entities_from_words(model, titles, load_tokenizer(dataset.folder / "tokenizer"))
    if options.resume_hf_checkpoint_file:
        weights = read_tensors(options.resume_hf_checkpoint_file)
        _load(model, weights, str(options.resume_hf_checkpoint_file), may_lack=(_PAGE_HEAD, "luke.pooler."))
    return InitialModel(model, not backbone.has_mlm_head and not options.resume_hf_checkpoint_file)


def _from_checkpoint(options: PretrainingOptions, dataset: PretrainingDataset, checkpoint: Path) -> InitialModel:
    config = LukeConfig(**checkpoints.read_config(checkpoint))
    for name, size in (
        ("entity_vocab_size", int(dataset.metadata["entity_vocab_size"])),
        ("entity_emb_size", options.entity_emb_size),
    ):
        if size is not None and getattr(config, name) != size:
            raise UserError(f"{checkpoint}: its {name} is {getattr(config, name)}, but this run's is {size}")
    model = LukeForPretraining(config, options.cls_entity_prediction)
    _load(model, checkpoints.load_weights(checkpoint), str(checkpoint), may_lack=(_PAGE_HEAD,))
    return InitialModel(model, bool(checkpoints.read_metadata(checkpoint, checkpoints.KIND)["fresh_mlm_head"]))


def _check_tokenizer(base: str, dataset: PretrainingDataset) -> None:
    if tokenizer_fingerprint(load_tokenizer(base)) != dataset.metadata["tokenizer_fingerprint"]:
        raise UserError(f"{dataset.folder} was tokenized with another tokenizer than that of the base model {base}")


def _load(model: LukeForPretraining, weights: dict[str, Tensor], source: str, may_lack: tuple[str, ...]) -> None:
    """Loads weights by name; the tied decoders may be there or not, and other tasks' heads are left aside."""
    own = dict(model.named_parameters())
    for name, value in weights.items():
        if name in own and own[name].shape != value.shape:
            raise UserError(f"{source}: {name} is {tuple(value.shape)}, but the model's is {tuple(own[name].shape)}")
    missing, _ = model.load_state_dict(weights, strict=False)
    lacking = [name for name in missing if not name.startswith(may_lack) and ".decoder.weight" not in name]
    if lacking:
        raise UserError(f"{source}: lacks {len(lacking)} parameters of the model, such as {lacking[0]}")
    model.tie_weights()


def set_trainable(initial: InitialModel, options: PretrainingOptions) -> None:
    """Says which parameters get gradients (spec 4): in stage 1 the entity side alone, and a head that is fresh."""
    model = initial.model
    model.predict_words = options.masking.masked_lm_prob > 0
    model.predict_entities = options.masking.masked_entity_prob > 0 and not options.word_only_training
    for name, parameter in model.named_parameters():
        parameter.requires_grad = _is_trained(name, initial, options)
    if options.disable_entity_prediction_bias:
        model.entity_predictions.bias.data.zero_()


def _is_trained(name: str, initial: InitialModel, options: PretrainingOptions) -> bool:
    model = initial.model
    is_entity_part = name.startswith(_ENTITY_PARTS)
    is_fresh = initial.fresh_mlm_head and name.startswith(_FRESH_HEAD_PARTS)
    untrained = (
        name.startswith("luke.pooler.")  # pretraining does not run it
        or (name.startswith("lm_head.") and not model.predict_words)
        or (name.startswith("entity_predictions.") and not model.predict_entities)
        or (is_entity_part and options.word_only_training)
        or (name == "entity_predictions.bias" and options.disable_entity_prediction_bias)
        or (name == "luke.entity_embeddings.entity_embeddings.weight" and options.freeze_entity_emb)
    )
    return not untrained and (is_entity_part or is_fresh or not options.fix_bert_weights)
