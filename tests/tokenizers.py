"""Tiny tokenizers of the four kinds, trained on a few sentences, as folders that transformers could have saved."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

TEXT = [
    "Aristotle was born in Stagira, north of Athens, and wrote to Alexander at Pella.",
    "Tokyo is the capital of Japan; its harbour lies on the bay. Ōta-ku isn't far.",
    "東京は日本の首都である。京都は古い都である。",
    "عاصمة اليابان هي طوكيو، وهي مدينة كبيرة.",
    "Déjà vu: the café's naïve waiter sang “là-bas” – 12,345 times!",
    "भारत की राजधानी नई दिल्ली है। 👩‍👩‍👧 🇯🇵 🙂",
] * 10

BERT_SPECIAL = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
ROBERTA_SPECIAL = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def train_byte_bpe() -> tuple[Tokenizer, dict[str, str]]:
    """Byte-level BPE as RoBERTa has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=420, special_tokens=list(ROBERTA_SPECIAL.values()), initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer, ROBERTA_SPECIAL


def train_word_piece() -> tuple[Tokenizer, dict[str, str]]:
    """WordPiece as BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, WordPieceTrainer(vocab_size=320, special_tokens=list(BERT_SPECIAL.values())))
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", list(ids.items()))
    tokenizer.enable_truncation(8)  # as sentence encoders save it; it must not cut our texts
    tokenizer.enable_padding(length=8)
    return tokenizer, BERT_SPECIAL


def train_unigram() -> tuple[Tokenizer, dict[str, str]]:
    """Unigram with Metaspace as XLM-R has it, whitespace split first."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    special = list(ROBERTA_SPECIAL.values())
    tokenizer.train_from_iterator(TEXT, UnigramTrainer(vocab_size=300, special_tokens=special, unk_token="<unk>"))
    return tokenizer, ROBERTA_SPECIAL


def train_sentencepiece_bpe() -> tuple[Tokenizer, dict[str, str]]:
    """SentencePiece BPE whose normalizer spells spaces, as converted Llama-like models have it: no pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = BpeTrainer(vocab_size=400, special_tokens=list(ROBERTA_SPECIAL.values()))
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.pre_tokenizer = None  # type: ignore[assignment]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1, right=0)]
    )
    return tokenizer, ROBERTA_SPECIAL


KINDS = {
    "byte-bpe": train_byte_bpe,
    "word-piece": train_word_piece,
    "unigram": train_unigram,
    "sentencepiece-bpe": train_sentencepiece_bpe,
}


def write_tokenizer(kind: str, folder: Path) -> Path:
    """Writes a tokenizer of ``kind``, one of `KINDS`."""
    tokenizer, special = KINDS[kind]()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {f"{role}_token": token for role, token in special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    return folder
