"""Text with links -> word ids and mention spans, for any fast tokenizer.

The text between links and the links' anchors are tokenized apart, so that a mention's tokens are its own. How a tokenizer
marks the beginning of a word is found from its parts, never from a model's name. Nothing here imports torch.
"""

import json
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from luke.artifacts import fingerprint_value
from luke.errors import UserError

Kind = Literal["byte-level", "metaspace", "wordpiece", "plain"]

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "sentencepiece.bpe.model",
    "spiece.model",
)
_SPECIAL = ("cls_token", "sep_token", "pad_token", "mask_token", "unk_token")
_SUBSTITUTES = {"cls_token": "bos_token", "sep_token": "eos_token"}
# Special tokens of tokenizers saved before they named them.
_BERT_SPECIAL = dict(zip(_SPECIAL, ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]"), strict=True))
_ROBERTA_SPECIAL = dict(zip(_SPECIAL, ("<s>", "</s>", "<pad>", "<mask>", "<unk>"), strict=True))
_METASPACE = "▁"


class LinkedTextTokenizer:
    """A fast tokenizer that tokenizes pieces of a text as parts of it.

    Args:
        backend: The tokenizer of the ``tokenizers`` library.
        special: The texts of ``cls_token``, ``sep_token``, ``pad_token``, ``mask_token`` and ``unk_token``.
        source: Where it comes from, for messages.
        files: Its files, which `save` copies.

    Raises:
        UserError: a special token is missing.
    """

    def __init__(self, backend: Tokenizer, special: dict[str, str], source: str, files: Sequence[Path] = ()) -> None:
        self.backend, self.special, self.source, self.files = backend, special, source, list(files)
        self.kind = _kind(json.loads(backend.to_str()))
        self._pieces = _piece_backend(backend, self.kind)
        self.cls_id, self.sep_id, self.pad_id, self.mask_id = (self._special_id(name) for name in _SPECIAL[:4])

    def _special_id(self, name: str) -> int:
        token = self.special.get(name)
        token_id = None if token is None else self.backend.token_to_id(token)
        if token_id is None:
            raise UserError(f"{self.source}: the tokenizer has no {name}")
        return int(token_id)

    @property
    def vocab_size(self) -> int:
        """V: ids are below it."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode_pieces(self, pieces: Sequence[str], after_space: Sequence[bool]) -> list[list[int]]:
        """Word ids of pieces without outer white space; ``after_space`` says which ones begin a word."""
        if self.kind in ("byte-level", "metaspace"):
            pieces = [f" {piece}" if spaced else piece for piece, spaced in zip(pieces, after_space, strict=True)]
        return [encoding.ids for encoding in self._pieces.encode_batch_fast(pieces, add_special_tokens=False)]

    def decode(self, word_ids: Sequence[int]) -> str:
        """The text of word ids."""
        return str(self.backend.decode(list(word_ids), skip_special_tokens=False))

    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        """bool (V,): which tokens begin a word (spec of whole-word masking)."""
        mask = np.zeros(self.vocab_size, bool)
        for token, token_id in self.backend.get_vocab(with_added_tokens=True).items():
            mask[token_id] = self._starts_word(token)
        return mask

    def _starts_word(self, token: str) -> bool:
        if self.kind == "wordpiece":
            return not token.startswith("##")
        if self.kind == "metaspace":
            return token.startswith(_METASPACE)
        if self.kind == "byte-level":
            return token.startswith("Ġ") or _is_punctuation(token[0])
        return True

    def special_token_mask(self) -> npt.NDArray[np.bool_]:
        """bool (V,): tokens that text does not hold, and ids without a token."""
        mask = np.ones(self.vocab_size, bool)
        mask[list(self.backend.get_vocab(with_added_tokens=True).values())] = False
        for token_id, token in self.backend.get_added_tokens_decoder().items():
            mask[token_id] |= token.special
        for text in self.special.values():
            special_id = self.backend.token_to_id(text)
            if special_id is not None:
                mask[special_id] = True
        return mask

    def save(self, folder: Path) -> None:
        """Writes the tokenizer to ``folder``, so that transformers and `load_tokenizer` read it."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            shutil.copyfile(file, folder / file.name)
        if not (folder / "tokenizer.json").exists():
            self.backend.save(str(folder / "tokenizer.json"))
        if not (folder / "tokenizer_config.json").exists():
            config = {**self.special, "tokenizer_class": "PreTrainedTokenizerFast"}
            (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8")


def _is_punctuation(character: str) -> bool:
    """ASCII symbols and Unicode punctuation, as BERT has it."""
    return (character.isascii() and not character.isalnum() and character.isprintable()) or unicodedata.category(
        character
    ).startswith("P")


def _parts(component: Any) -> list[dict[str, Any]]:
    """A pre-tokenizer or normalizer, a sequence taken apart."""
    if not component:
        return []
    if component["type"] == "Sequence":
        inner = component.get("pretokenizers") or component.get("normalizers") or []
        return [part for entry in inner for part in _parts(entry)]
    return [component]


def _kind(spec: dict[str, Any]) -> Kind:
    types = {part["type"] for part in _parts(spec.get("pre_tokenizer"))}
    if spec["model"]["type"] == "WordPiece":
        return "wordpiece"
    if "ByteLevel" in types:
        return "byte-level"
    return "metaspace" if "Metaspace" in types else "plain"


def _piece_backend(backend: Tokenizer, kind: Kind) -> Tokenizer:
    """A copy that adds no space of its own, truncates and pads nothing, and takes ``[MASK]`` in a text as text."""
    spec = json.loads(backend.to_str())
    spec["truncation"] = spec["padding"] = None
    if kind == "metaspace":
        # Pieces hold single spaces only, so that splitting at white space first would only lose the leading one.
        spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": _METASPACE, "prepend_scheme": "never", "split": True}
        spec["normalizer"] = _without_trimming(spec["normalizer"])
    for part in _parts(spec.get("pre_tokenizer")):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
    copy = Tokenizer.from_str(json.dumps(spec))
    copy.encode_special_tokens = True
    return copy


def _without_trimming(normalizer: Any) -> Any:
    kept = [part for part in _parts(normalizer) if part["type"] not in ("Strip", "Prepend")]
    return {"type": "Sequence", "normalizers": kept} if kept else None


def load_tokenizer(source: str | Path) -> LinkedTextTokenizer:
    """The tokenizer in a folder (or of a hub name, from the local cache).

    Raises:
        UserError: there is no tokenizer there, or its files are incomplete (named).
    """
    folder = Path(source)
    if not folder.exists():
        return _from_transformers(str(source))
    files = [folder / name for name in _FILES if (folder / name).exists()]
    names = {file.name for file in files}
    try:
        if "tokenizer.json" in names:
            backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        elif {"vocab.json", "merges.txt"} <= names:
            backend = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))._tokenizer
        elif "vocab.txt" in names:
            lowercase = bool(_read(folder / "tokenizer_config.json").get("do_lower_case", True))
            backend = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=lowercase)._tokenizer
        elif names & {"sentencepiece.bpe.model", "spiece.model"}:
            return _from_transformers(str(source), files)
        else:
            missing = {"vocab.json": "merges.txt", "merges.txt": "vocab.json"}
            lacking = next((other for name, other in missing.items() if name in names), "tokenizer.json")
            raise UserError(f"{folder}: not a complete tokenizer folder: {lacking} is missing")
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception for a broken file
        raise UserError(f"{folder}: the tokenizer cannot be read: {error}") from None
    return LinkedTextTokenizer(backend, _special_tokens(folder, backend), str(folder), files)


def _from_transformers(source: str, files: Sequence[Path] = ()) -> LinkedTextTokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(source)
    except Exception as error:  # its kinds of error vary with what is missing
        raise UserError(f"{source}: no tokenizer there: {str(error).splitlines()[0]}") from None
    if not getattr(loaded, "is_fast", False):
        raise UserError(f"{source}: its tokenizer has no fast form (tokenizer.json)")
    special = {name: token for name in _SPECIAL if (token := getattr(loaded, name, None))}
    return LinkedTextTokenizer(loaded.backend_tokenizer, special, source, files)


def _special_tokens(folder: Path, backend: Tokenizer) -> dict[str, str]:
    named = {**_read(folder / "tokenizer_config.json"), **_read(folder / "special_tokens_map.json")}
    texts = {}
    for name in (*_SPECIAL, *_SUBSTITUTES.values()):
        value = named.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if text is not None:
            texts[name] = str(text)
    for name, substitute in _SUBSTITUTES.items():
        if name not in texts and substitute in texts:
            texts[name] = texts[substitute]
    for usual in (_BERT_SPECIAL, _ROBERTA_SPECIAL):
        if all(backend.token_to_id(token) is not None for token in usual.values()):
            texts = {**usual, **texts}
    return {name: texts[name] for name in _SPECIAL if name in texts}


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    return content


def tokenizer_fingerprint(tokenizer: LinkedTextTokenizer) -> str:
    """SHA-256 of what decides the ids: the same for a tokenizer and a saved copy of it."""
    spec = json.loads(tokenizer.backend.to_str())
    spec["truncation"] = spec["padding"] = None
    return fingerprint_value([spec, tokenizer.special])
