"""Tiny random base encoders of the three families, with tokenizers of their kind trained on a few sentences."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaTokenizer,
)

FAMILIES = ("bert", "roberta", "xlm-roberta")
TEXT = [
    "Aristotle was born in Stagira, north of Athens, and wrote to Alexander @ Pella.",
    "Tokyo is the capital of Japan; its harbour lies on the bay # Tokyo.",
    "東京は日本の首都である。京都は古い都である。",
    "The temples of Delphi and Athens are built in the Doric order of Greece.",
] * 20
MAX_POSITIONS = 40


def make_base(family: str, folder: Path, with_head: bool = True, **config: Any) -> PreTrainedModel:
    """Writes a random base with its tokenizer to ``folder`` and returns it, in evaluation mode."""
    tokenizer = _TOKENIZERS[family]()
    tokenizer.save_pretrained(folder)
    model = make_model(family, len(tokenizer), **config)
    saved = model if with_head else model.base_model
    saved.save_pretrained(folder)
    return saved


def make_model(family: str, vocab_size: int, **config: Any) -> PreTrainedModel:
    """A random encoder with a masked-word head, its biases and norms random too so that none can be forgotten unseen."""
    config_class, model_class = _MODELS[family]
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.2,
        **config,
    }
    if family != "bert":
        sizes |= {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(7)
    model: PreTrainedModel = model_class(config_class(**sizes)).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += torch.randn_like(parameter) * 0.1
    return model


def _word_piece() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    return BertTokenizer(vocab=tokenizer.get_vocab(with_added_tokens=False), do_lower_case=True)


def _byte_bpe() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _unigram() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXT, trainer)
    pieces = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]]
    return XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])


_TOKENIZERS = {"bert": _word_piece, "roberta": _byte_bpe, "xlm-roberta": _unigram}
_MODELS = {
    "bert": (BertConfig, BertForMaskedLM),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaForMaskedLM),
}


def padded_words(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Random words (3, 12) of lengths 12, 7, 3 and their mask, padded as the model is."""
    generator = torch.Generator().manual_seed(3)
    word_ids = torch.randint(5, model.config.vocab_size, (3, 12), generator=generator)
    mask = (torch.arange(12) < torch.tensor([12, 7, 3])[:, None]).long()
    return word_ids.masked_fill(mask == 0, model.config.pad_token_id), mask
