"""Text with links -> word ids and the token span of each mention, for any fast tokenizer.

The text between links and the links' anchors are tokenized apart, so that a mention's tokens are its own. Whitespace runs
count as one space. A piece gets a leading-space marker iff it starts its paragraph, or whitespace is before it or at its
start.

What tokenizers differ in lies in `_Kind`, found from the tokenizer's own description (its JSON), never from a model's name.
Nothing here imports torch; transformers is run, in a process of its own, only for a folder without ``tokenizer.json``.
"""

import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from luke.artifacts import fingerprint_value, write_json
from luke.errors import UserError

BACKEND_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"

# Files that transformers makes a tokenizer.json from; one row is enough.
_VOCABULARY_FILES = (
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("sentencepiece.bpe.model",),
    ("spiece.model",),
    ("tokenizer.model",),
)

# Roles of special tokens: the key in tokenizer_config.json, the key that may stand in, and the usual names, for the folders
# of old models, which leave them to a class of transformers.
_ROLES = {
    "cls": ("cls_token", "bos_token", ("[CLS]", "<s>")),
    "sep": ("sep_token", "eos_token", ("[SEP]", "</s>")),
    "pad": ("pad_token", "pad_token", ("[PAD]", "<pad>")),
    "mask": ("mask_token", "mask_token", ("[MASK]", "<mask>")),
    "unk": ("unk_token", "unk_token", ("[UNK]", "<unk>")),
}

# Words whose ids are kept: nearly all words of running text are among them (Zipf), and 2^19 take about 100 MB.
_CACHED_WORDS = 1 << 19

# Stands before a word that gets no leading-space marker; no word holds a space itself.
_BARE = " "

_SPACE_MARKER = "▁"  # of SentencePiece
_BYTE_SPACE_MARKER = "Ġ"  # of byte-level BPE


class Sentence(NamedTuple):
    """``text[start:end]`` of a paragraph, and the links inside it as (start, end) in code points of ``text``: ascending,
    not overlapping."""

    text: str
    start: int
    end: int
    links: Sequence[tuple[int, int]]


class TokenizedSentences(NamedTuple):
    """S sentences with T tokens and L links in all, on flat axes.

    Attributes:
        word_ids: uint32 (T,), without [CLS] and [SEP].
        offsets: int64 (S + 1,): sentence s is ``word_ids[offsets[s] : offsets[s + 1]]``.
        span_starts, span_ends: int64 (L,): each link's tokens in ``word_ids``; an empty span if its anchor has no token.
    """

    word_ids: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    span_starts: npt.NDArray[np.int64]
    span_ends: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Kind:
    """What a family of tokenizers does about spaces.

    Attributes:
        marks_spaces: Whether a word after a space has other tokens than one without.
        splits_at_spaces: Whether a text's tokens are those of its space-separated words, one after the other.
        marker: What a token that starts a word begins with, in the vocabulary's spelling; empty if nothing.
        continuation: What a token that continues a word begins with; empty if nothing.
        byte_level: Whether tokens are spelt in byte-level BPE's alphabet.
    """

    marks_spaces: bool
    splits_at_spaces: bool
    marker: str = ""
    continuation: str = ""
    byte_level: bool = False


class LinkedTextTokenizer:
    """A fast tokenizer that keeps mentions apart.

    Args:
        description: The content of a ``tokenizer.json``.
        config: The content of its ``tokenizer_config.json``: names of special tokens; what else it holds is kept.
        source: Where they come from, for messages.

    Attributes:
        vocab: Token -> id, added tokens too.
        vocab_size: V, one more than the highest id.
        cls_id, sep_id, pad_id, mask_id, unk_id: Ids of the special tokens; ``unk_id`` is None for a tokenizer that needs
            none.

    Raises:
        UserError: the description cannot be read, is of no known kind, or lacks a special token.
    """

    def __init__(self, description: str, config: dict[str, Any], source: str = "tokenizer") -> None:
        self._description, self._config, self.source = description, config, source
        try:
            adapted = json.loads(description)
            self._kind = _adapt(adapted)
            self._original = _backend(description)
            self._backend = _backend(json.dumps(adapted))
        except UserError as error:
            raise UserError(f"{source}: {error}") from None
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{source}: {BACKEND_FILE} cannot be read: {error}") from None
        self.vocab: dict[str, int] = self._original.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(self.vocab.values())
        self._roles = self._special_tokens()
        self.cls_id, self.sep_id, self.pad_id, self.mask_id = (
            self.vocab[self._roles[role]] for role in ("cls", "sep", "pad", "mask")
        )
        self.unk_id = self.vocab[self._roles["unk"]] if "unk" in self._roles else None
        self._cache = _WordCache()

    @property
    def description(self) -> str:
        """The content of its ``tokenizer.json``."""
        return self._description

    @property
    def config(self) -> dict[str, Any]:
        """The content of its ``tokenizer_config.json``."""
        return self._config

    @property
    def special_tokens(self) -> list[str]:
        """The tokens that play a role: [CLS], [SEP], [PAD], [MASK] and, if there is one, [UNK]."""
        return list(self._roles.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._description, self._config, self.source)

    def _special_tokens(self) -> dict[str, str]:
        """Role -> token."""
        tokens = {}
        for role, (key, other_key, usual_names) in _ROLES.items():
            named = [_token_text(self._config.get(name)) for name in (key, other_key)]
            found = next((name for name in (*named, *usual_names) if name in self.vocab), None)
            if found is not None:
                tokens[role] = found
            elif role != "unk":
                raise UserError(
                    f"{self.source}: the tokenizer has no {role.upper()} token; name it as {key} in {CONFIG_FILE}"
                )
        return tokens

    # -- tokenizing ----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, links: Sequence[tuple[int, int]] = ()) -> tuple[list[int], list[tuple[int, int]]]:
        """Word ids of one text, a paragraph of its own, and the token span [start, end) of each link."""
        result = self.tokenize_sentences([Sentence(text, 0, len(text), links)])
        return result.word_ids.tolist(), list(zip(result.span_starts.tolist(), result.span_ends.tolist(), strict=True))

    def tokenize_sentences(self, sentences: Iterable[Sentence]) -> TokenizedSentences:
        """Word ids and mention spans of many sentences; thousands at once are fastest."""
        words: list[str] = []
        link_borders: list[int] = []  # where each anchor starts and ends, in words
        sentence_borders = [0]
        for text, position, end, links in sentences:
            for link_start, link_end in links:
                words += self._words(text, position, link_start)
                link_borders.append(len(words))
                words += self._words(text, link_start, link_end)
                link_borders.append(len(words))
                position = link_end
            words += self._words(text, position, end)
            sentence_borders.append(len(words))
        word_ids, offsets = self._ids_of_words(words)
        spans = offsets[np.array(link_borders, np.int64)]
        return TokenizedSentences(word_ids, offsets[sentence_borders], spans[::2], spans[1::2])

    def _words(self, text: str, start: int, end: int) -> list[str]:
        """The words of a piece; the whole piece is one if the tokenizer does not split at spaces."""
        words = text[start:end].split()
        if not words:
            return words
        if not self._kind.splits_at_spaces:
            words = [" ".join(words)]
        if self._kind.marks_spaces and start > 0 and not text[start].isspace() and not text[start - 1].isspace():
            words[0] = _BARE + words[0]
        return words

    def _ids_of_words(self, words: list[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Token ids of all words, one after the other, and where each word's begin (one entry more than words)."""
        if len(self._cache) > _CACHED_WORDS:
            self._cache = _WordCache()
        cache = self._cache
        numbers = np.fromiter(map(cache.__getitem__, words), np.int64, len(words))
        if cache.new:
            encodings = self._backend.encode_batch_fast(self._texts(cache.new), add_special_tokens=False)
            cache.add([encoding.ids for encoding in encodings])
        cached_ids, cached_offsets = np.frombuffer(cache.ids, np.uint32), np.frombuffer(cache.offsets, np.int64)
        starts = cached_offsets[numbers]
        lengths = cached_offsets[numbers + 1] - starts
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return cached_ids[places], offsets

    def _texts(self, words: Sequence[str]) -> list[str]:
        """Words as the backend is to see them."""
        if not self._kind.marks_spaces:
            return list(words)
        return [word[1:] if word[0] == _BARE else f" {word}" for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some word ids."""
        text: str = self._original.decode(list(ids), skip_special_tokens=False)
        return text

    # -- what masking and models need to know --------------------------------------------------------------------------

    def special_token_mask(self) -> npt.NDArray[np.bool_]:
        """bool (V,): special tokens, and ids that no token has; never drawn as random words."""
        mask = np.ones(self.vocab_size, np.bool_)
        mask[list(self.vocab.values())] = False
        mask[[id_ for id_, token in self._original.get_added_tokens_decoder().items() if token.special]] = True
        mask[[self.vocab[token] for token in self._roles.values()]] = True
        return mask

    def word_start_mask(self) -> npt.NDArray[np.bool_]:
        """bool (V,): tokens that start a word, for masking whole words.

        Byte-level BPE and SentencePiece: tokens with the space marker, in byte-level BPE also those that start with
        punctuation. WordPiece: tokens without ``##``. Special tokens start a word.
        """
        mask = self.special_token_mask()
        for token, id_ in self.vocab.items():
            mask[id_] |= self._starts_word(token)
        return mask

    def _starts_word(self, token: str) -> bool:
        kind = self._kind
        if kind.continuation:
            return not token.startswith(kind.continuation)
        if kind.byte_level and not token.startswith(kind.marker):
            return _is_punctuation(_byte_level_text(token)[:1])
        return token.startswith(kind.marker)

    # -- keeping -------------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Writes ``tokenizer.json`` and ``tokenizer_config.json``, which `load_tokenizer` and transformers read."""
        folder.mkdir(parents=True, exist_ok=True)
        special = {f"{role}_token": token for role, token in self._roles.items()}
        write_json(folder / CONFIG_FILE, {"tokenizer_class": "PreTrainedTokenizerFast", **special, **self._config})
        (folder / BACKEND_FILE).write_text(self._description, encoding="utf-8")


def tokenizer_fingerprint(tokenizer: LinkedTextTokenizer) -> str:
    """SHA-256 of what a model's word table depends on: the token of every id, the special tokens, the kind of model.

    It stays the same when another version of transformers saves the tokenizer again.
    """
    special = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id]
    return fingerprint_value([type(tokenizer._original.model).__name__, tokenizer.vocab, special])


def _backend(description: str) -> Tokenizer:
    backend = Tokenizer.from_str(description)
    backend.no_truncation()
    backend.no_padding()
    # Text that happens to spell a special token, as articles on HTML or BERT do, is text.
    backend.encode_special_tokens = True
    return backend


class _WordCache(dict[str, int]):
    """Word -> its number. A word that is looked up for the first time gets the next number and waits in ``new`` for its ids:
    ``ids[offsets[n] : offsets[n + 1]]`` are those of number n."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []
        self.ids, self.offsets = array("I"), array("q", [0])

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number

    def add(self, ids_of_new: Iterable[Sequence[int]]) -> None:
        """Takes the ids of the words in ``new``."""
        for ids in ids_of_new:
            self.ids.extend(ids)
            self.offsets.append(len(self.ids))
        self.new.clear()


# -- kinds of tokenizers -----------------------------------------------------------------------------------------------


def _adapt(description: dict[str, Any]) -> _Kind:
    """Finds the kind of a tokenizer, and changes its description so that a space marker appears iff the text begins with a
    space."""
    model, steps = description["model"], _steps(description.get("pre_tokenizer"), "pretokenizers")
    types = [step["type"] for step in steps]
    added = [token["content"] for token in description.get("added_tokens") or () if not token["special"]]
    joins_words = any(" " in content for content in added)
    if "ByteLevel" in types:
        byte_level = steps[types.index("ByteLevel")]
        byte_level["add_prefix_space"] = False
        _set_steps(description, "normalizer", "normalizers", _without_left_strip(description))
        _set_steps(description, "pre_tokenizer", "pretokenizers", steps)
        # GPT-2's own pattern never crosses a space; of other patterns nothing is known.
        splits = types == ["ByteLevel"] and byte_level.get("use_regex", True)
        return _Kind(True, splits and not joins_words, marker=_BYTE_SPACE_MARKER, byte_level=True)
    if "Metaspace" in types or any(map(_spells_spaces, _steps(description.get("normalizer"), "normalizers"))):
        splits = _adapt_metaspace(description, steps)
        return _Kind(True, splits and not joins_words, marker=_SPACE_MARKER)
    if {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}.intersection(types):
        continuation = model.get("continuing_subword_prefix") or ""
        if continuation or model["type"] == "WordLevel":
            return _Kind(False, not joins_words, continuation=continuation)
    raise UserError(
        f"a {model['type']} tokenizer with the pre-tokenizer {' + '.join(types) or 'none'} is of no known kind "
        "(known: byte-level BPE, SentencePiece, WordPiece)"
    )


def _adapt_metaspace(description: dict[str, Any], steps: list[dict[str, Any]]) -> bool:
    """Lets only spaces of the text become markers. Returns whether words are split apart.

    A pre-tokenizer that splits at whitespace would lose the space that asks for a marker. What else it does, runs of
    whitespace to one space and none at the end, the normalizer does in its place.
    """
    splits = False
    for step in steps:
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
            step.pop("add_prefix_space", None)
            splits = step.get("split", True)
    one_space = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    strip_end = {"type": "Strip", "strip_left": False, "strip_right": True}
    normalizers = [step for step in _without_left_strip(description) if step["type"] != "Prepend"]
    last = [step for step in normalizers if _spells_spaces(step)]
    first = [step for step in normalizers if not _spells_spaces(step)]
    _set_steps(description, "normalizer", "normalizers", [*first, one_space, strip_end, *last])
    kept = [step for step in steps if step["type"] not in ("WhitespaceSplit", "Whitespace")]
    _set_steps(description, "pre_tokenizer", "pretokenizers", kept)
    _hide_special_pieces(description)
    return splits


def _hide_special_pieces(description: dict[str, Any]) -> None:
    """A Unigram model has special tokens among its pieces, and would find them in a text. With a space in it, a piece is
    never found."""
    if description["model"]["type"] == "Unigram":
        special = {token["content"] for token in description["added_tokens"] if token["special"]}
        pieces = description["model"]["vocab"]
        description["model"]["vocab"] = [[f" {piece}" if piece in special else piece, score] for piece, score in pieces]
        description["added_tokens"] = [token for token in description["added_tokens"] if not token["special"]]


def _without_left_strip(description: dict[str, Any]) -> list[dict[str, Any]]:
    """The normalizers, none of which removes the space that asks for a marker."""
    steps = _steps(description.get("normalizer"), "normalizers")
    return [{**step, "strip_left": False} if step["type"] == "Strip" else step for step in steps]


def _spells_spaces(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer writes spaces, or runs of them, as SentencePiece's marker."""
    return bool(normalizer["type"] == "Replace" and normalizer["content"] == _SPACE_MARKER)


def _steps(component: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    """A component of the description as a flat list of steps."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [step for child in component[children] for step in _steps(child, children)]


def _set_steps(description: dict[str, Any], name: str, children: str, steps: list[dict[str, Any]]) -> None:
    description[name] = {"type": "Sequence", children: steps} if steps else None


# -- characters --------------------------------------------------------------------------------------------------------


def _is_punctuation(character: str) -> bool:
    """Unicode punctuation, and the ASCII symbols that BERT counts as such."""
    return bool(character) and (
        unicodedata.category(character).startswith("P")
        or (character.isascii() and character > " " and not character.isalnum())
    )


def _byte_level_alphabet() -> dict[str, int]:
    """How byte-level BPE spells the 256 bytes: printable Latin-1 as it is, the rest from U+0100 on (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + number): byte for number, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()


def _byte_level_text(token: str) -> str:
    """The text of a token spelt in byte-level BPE's alphabet; bytes that are no characters become U+FFFD, no punctuation."""
    return bytes(_BYTES.get(character, 0) for character in token).decode("utf-8", errors="replace")


def _token_text(entry: Any) -> str | None:
    """The text of a token in tokenizer_config.json: a string, or an object with its content."""
    text: str | None = entry.get("content") if isinstance(entry, dict) else entry
    return text


# -- loading -----------------------------------------------------------------------------------------------------------


def load_tokenizer(source: str | Path) -> LinkedTextTokenizer:
    """Reads the tokenizer of a folder, or of a model on the Hugging Face hub.

    Without a ``tokenizer.json`` (old models, hub names) transformers makes one.

    Raises:
        UserError: there is no such tokenizer, files of it are missing, or it cannot be read.
    """
    folder = Path(source)
    if (folder / BACKEND_FILE).is_file():
        return _read_folder(folder, str(source))
    if folder.exists() or folder.is_absolute():
        _check_vocabulary_files(folder)
    with tempfile.TemporaryDirectory() as temporary:
        _convert(str(source), Path(temporary))
        return _read_folder(Path(temporary), str(source))


def _check_vocabulary_files(folder: Path) -> None:
    if not folder.exists():
        raise UserError(f"{folder}: there is no such tokenizer folder")
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder; give the folder that holds {BACKEND_FILE}")
    missing = [[name for name in names if not (folder / name).is_file()] for names in _VOCABULARY_FILES]
    if not all(missing):
        return
    for names, lacking in zip(_VOCABULARY_FILES, missing, strict=True):
        if len(lacking) < len(names):
            raise UserError(f"{folder}: {', '.join(lacking)} of the tokenizer is missing")
    alternatives = ", ".join(" and ".join(names) for names in _VOCABULARY_FILES)
    raise UserError(f"{folder}: holds no tokenizer: {BACKEND_FILE} is missing (or one of: {alternatives})")


def _convert(source: str, folder: Path) -> None:
    """Lets transformers load a tokenizer and save it with its ``tokenizer.json``; apart, because it imports torch."""
    program = "import sys, transformers as t; t.AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])"
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", program, source, str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode or not (folder / BACKEND_FILE).is_file():
        lines = result.stderr.strip().splitlines() or ["it has no fast tokenizer"]
        raise UserError(f"{source}: not a tokenizer that transformers can load as a fast one: {lines[-1]}")


def _read_folder(folder: Path, source: str) -> LinkedTextTokenizer:
    config = {**_read_json(folder / _SPECIAL_TOKENS_FILE), **_read_json(folder / CONFIG_FILE)}
    return LinkedTextTokenizer((folder / BACKEND_FILE).read_text(encoding="utf-8"), config, source)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: is not a JSON object")
    return value
