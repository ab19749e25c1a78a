"""Tokenization of text with links, for every kind of tokenizer."""

import itertools
import json
import pickle
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from luke.errors import UserError
from luke.tokenization import LinkedTextTokenizer, Sentence, load_tokenizer, tokenizer_fingerprint
from tests.tokenizers import KINDS, TEXT, write_tokenizer

TINY_ROBERTA = Path(__file__).parent / "golden" / "convert" / "tiny-roberta"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_tokenizer(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, LinkedTextTokenizer]:
    return {kind: load_tokenizer(folder) for kind, folder in folders.items()}


# Words as real text and as trouble has them: emoji of several code points, combining marks, right to left, no spaces,
# odd spaces, characters that normalizers turn into spaces, special tokens spelt out, the markers themselves.
_PARTS = [
    *{word for line in TEXT for word in line.split(" ")},
    *(
        "👩‍👩‍👧",
        "🇯🇵",
        "e\u0301",
        "n\u0303o",
        "\u0301",
        "´",
        "¨a",
        "ﬁ",
        "Ⅷ",
        "ß",
        "İ",
        "\u200b",
        "\u200f",
        "\u00ad",
        "\ufeff",
        "…",
    ),
    *("<s>", "[MASK]", "</s>", "##a", "▁", "Ġ", "a▁b", "''", "n't", "don't", "1.5%", "x" * 30),
]
_SPACES = [" ", " ", " ", "", "", "  ", "\n", "\u00a0", "\u3000", "\t", "\u2009"]


@st.composite
def linked_texts(draw: st.DrawFn) -> tuple[str, list[tuple[int, int]]]:
    """A text, and links anywhere in it, inside words too."""
    pieces = st.one_of(st.sampled_from(_PARTS), st.text(max_size=4))
    text = "".join(part + draw(st.sampled_from(_SPACES)) for part in draw(st.lists(pieces, min_size=1, max_size=12)))
    borders = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [(borders[i], borders[i + 1]) for i in range(0, len(borders) - 1, 2)]


def pieces_of(text: str, links: list[tuple[int, int]]) -> list[tuple[int, int]]:
    borders = [0, *(border for link in links for border in link), len(text)]
    return list(itertools.pairwise(borders))


def one_space(text: str) -> str:
    return " ".join(text.split())


@given(linked_texts())
@settings(max_examples=300, deadline=None)
def test_byte_level_spans_decode_to_their_anchors(tokenizers: dict[str, LinkedTextTokenizer], linked: tuple) -> None:
    """Byte-level BPE loses nothing: every piece decodes to its text, with a space in front iff the text has one there."""
    tokenizer, (text, links) = tokenizers["byte-bpe"], linked
    ids, spans = tokenizer.tokenize(text, links)
    borders = [0, *(border for span in spans for border in span), len(ids)]
    for number, (start, end) in enumerate(pieces_of(text, links)):
        expected = one_space(text[start:end])
        if expected and (start == 0 or text[start - 1].isspace() or text[start].isspace()):
            expected = " " + expected
        found = tokenizer.decode(ids[borders[number] : borders[number + 1]])
        assert found == expected.encode(errors="replace").decode()


@given(linked_texts())
@settings(max_examples=300, deadline=None)
def test_word_piece_spans_decode_to_their_anchors(tokenizers: dict[str, LinkedTextTokenizer], linked: tuple) -> None:
    """WordPiece: a span spells the normalised anchor without its spaces, but for words that it has no tokens for."""
    tokenizer, (text, links) = tokenizers["word-piece"], linked
    ids, spans = tokenizer.tokenize(text, links)
    normalizer = normalizers.BertNormalizer(lowercase=True)
    names = {id_: token for token, id_ in tokenizer.vocab.items()}
    for (link_start, link_end), (start, end) in zip(links, spans, strict=True):
        spelt = "".join(names[id_].removeprefix("##") for id_ in ids[start:end])
        anchor = "".join(normalizer.normalize_str(text[link_start:link_end]).split())
        if tokenizer.unk_id in ids[start:end]:
            assert anchor
        else:
            assert spelt == anchor


@pytest.mark.parametrize("kind", ["unigram", "sentencepiece-bpe"])
@given(linked=linked_texts())
@settings(max_examples=200, deadline=None)
def test_sentencepiece_spans_decode_to_their_anchors(
    tokenizers: dict[str, LinkedTextTokenizer], kind: str, linked: tuple
) -> None:
    """SentencePiece: a span spells the normalised anchor, ▁ for spaces, the first ▁ iff a space is before it."""
    tokenizer, (text, links) = tokenizers[kind], linked
    ids, spans = tokenizer.tokenize(text, links)
    names = {id_: token for token, id_ in tokenizer.vocab.items()}
    for (link_start, link_end), (start, end) in zip(links, spans, strict=True):
        if tokenizer.unk_id in ids[start:end]:
            continue
        anchor = one_space(text[link_start:link_end])
        spaced = link_start == 0 or text[link_start - 1].isspace() or text[link_start : link_start + 1].isspace()
        given_text = f" {anchor}" if anchor and spaced else anchor
        if kind == "unigram":
            given_text = unicodedata.normalize("NFKC", given_text)
            given_text = (" " if given_text[:1].isspace() else "") + one_space(given_text)
        expected = given_text.rstrip().replace(" ", "▁")
        assert "".join(names[id_] for id_ in ids[start:end]) == (expected if expected != "▁" or anchor == "▁" else "")


@pytest.mark.parametrize("kind", KINDS)
@given(linked=linked_texts())
@settings(max_examples=150, deadline=None)
def test_words_one_by_one_are_the_whole_piece(tokenizers: dict[str, LinkedTextTokenizer], kind: str, linked: tuple) -> None:
    """That words are looked up one by one changes nothing: the backend gives the same for whole pieces."""
    tokenizer, (text, links) = tokenizers[kind], linked
    ids, _ = tokenizer.tokenize(text, links)
    expected: list[int] = []
    for start, end in pieces_of(text, links):
        piece = one_space(text[start:end])
        if piece and (start == 0 or text[start - 1].isspace() or text[start].isspace()):
            piece = f" {piece}"
        expected += tokenizer._backend.encode(piece, add_special_tokens=False).ids
    assert ids == expected


@pytest.mark.parametrize("kind", ["byte-bpe", "word-piece", "unigram"])
def test_plain_text_is_tokenized_as_the_tokenizer_itself_does(
    folders: dict[str, Path], tokenizers: dict[str, LinkedTextTokenizer], kind: str
) -> None:
    backend = Tokenizer.from_file(str(folders[kind] / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    for line in TEXT[:6]:
        start = " " if kind == "byte-bpe" else ""  # a paragraph starts with a space marker
        assert tokenizers[kind].tokenize(line)[0] == backend.encode(start + line, add_special_tokens=False).ids


def test_batches_equal_single_sentences(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    text = "Aristotle was born in Stagira. Tokyo is the capital."
    sentences = [
        Sentence(text, 0, 31, [(0, 9), (22, 29)]),
        Sentence(text, 31, 31, []),
        Sentence(text, 31, len(text), [(31, 36)]),
    ]
    for tokenizer in tokenizers.values():
        batch = tokenizer.tokenize_sentences(sentences)
        single = [tokenizer.tokenize_sentences([sentence]) for sentence in sentences]
        assert batch.word_ids.tolist() == [id_ for result in single for id_ in result.word_ids.tolist()]
        assert np.diff(batch.offsets).tolist() == [len(result.word_ids) for result in single]
        shifts = np.repeat(batch.offsets[:-1], [2, 0, 1])
        assert (batch.span_starts - shifts).tolist() == [start for result in single for start in result.span_starts]
        assert (batch.span_ends - shifts).tolist() == [end for result in single for end in result.span_ends]


def test_a_mention_inside_a_word_gets_no_space_marker(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    text = "a preTokyo Tokyo"
    for kind, marker in (("byte-bpe", "Ġ"), ("unigram", "▁"), ("sentencepiece-bpe", "▁")):
        tokenizer = tokenizers[kind]
        names = {id_: token for token, id_ in tokenizer.vocab.items()}
        ids, [(inside, _), (after_space, _)] = tokenizer.tokenize(text, [(5, 10), (11, 16)])
        assert not names[ids[inside]].startswith(marker)
        assert names[ids[after_space]].startswith(marker)


def test_special_tokens_in_a_text_are_text(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    for tokenizer in tokenizers.values():
        special = tokenizer.special_token_mask()
        special[tokenizer.unk_id] = False
        ids, _ = tokenizer.tokenize("The tag <s> and the tokens [MASK] [SEP] <mask> </s>")
        assert not special[ids].any()


def test_word_start_masks(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    for kind, text, starts in (
        ("byte-bpe", "Tokyo isn't – far.", ["Tokyo", "isn", "'", "–", "far", "."]),
        ("word-piece", "Tokyo isn't – far.", ["tokyo", "isn", "'", "t", "–", "far", "."]),
        ("unigram", "Tokyo lies far.", ["Tokyo", "lies", "far."]),
        ("sentencepiece-bpe", "Tokyo lies far.", ["Tokyo", "lies", "far."]),
    ):
        tokenizer = tokenizers[kind]
        ids, _ = tokenizer.tokenize(text)
        mask = tokenizer.word_start_mask()[ids]
        firsts = np.flatnonzero(mask).tolist()
        words = [tokenizer.decode(ids[a:b]) for a, b in zip(firsts, [*firsts[1:], len(ids)], strict=True)]
        assert [word.replace(" ", "").removeprefix("##") for word in words] == [
            word + "t" if kind == "byte-bpe" and word == "'" else word for word in starts
        ]


def test_continued_characters_start_no_word(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    """A byte inside a character may look like punctuation in byte-level BPE's spelling (« for 0xAB); it is none."""
    tokenizer = tokenizers["byte-bpe"]
    assert not tokenizer.word_start_mask()[tokenizer.vocab["«"]]
    assert tokenizer.word_start_mask()[tokenizer.vocab["."]]


def test_special_token_mask(tokenizers: dict[str, LinkedTextTokenizer]) -> None:
    for tokenizer in tokenizers.values():
        special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id, tokenizer.unk_id}
        assert set(np.flatnonzero(tokenizer.special_token_mask()).tolist()) == special
        assert tokenizer.word_start_mask()[list(special)].all()


def test_saving_and_loading(tokenizers: dict[str, LinkedTextTokenizer], tmp_path: Path) -> None:
    for kind, tokenizer in tokenizers.items():
        tokenizer.save(tmp_path / kind)
        for copy in (load_tokenizer(tmp_path / kind), pickle.loads(pickle.dumps(tokenizer))):
            assert tokenizer_fingerprint(copy) == tokenizer_fingerprint(tokenizer)
            assert copy.tokenize(TEXT[1], [(0, 5)]) == tokenizer.tokenize(TEXT[1], [(0, 5)])
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers.values()}) == len(KINDS)


def test_transformers_reads_what_is_saved(tokenizers: dict[str, LinkedTextTokenizer], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for kind, tokenizer in tokenizers.items():
        tokenizer.save(tmp_path / kind)
        loaded = AutoTokenizer.from_pretrained(tmp_path / kind)
        assert loaded.mask_token_id == tokenizer.mask_id
        assert loaded.cls_token_id == tokenizer.cls_id


def test_a_folder_without_tokenizer_json_is_converted() -> None:
    tokenizer = load_tokenizer(TINY_ROBERTA)
    text = "Aristotle was born in Stagira."
    ids, [(start, end)] = tokenizer.tokenize(text, [(22, 29)])
    assert tokenizer.decode(ids) == f" {text}"
    assert tokenizer.decode(ids[start:end]) == " Stagira"
    assert tokenizer.mask_id == tokenizer.vocab["<mask>"]


def test_special_tokens_are_found_without_a_config(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(folders["word-piece"] / "tokenizer.json", tmp_path)
    assert load_tokenizer(tmp_path).cls_id == load_tokenizer(folders["word-piece"]).cls_id


def test_loading_imports_neither_torch_nor_transformers(folders: dict[str, Path]) -> None:
    program = (
        "import sys; from luke.tokenization import load_tokenizer; load_tokenizer(sys.argv[1]).tokenize('a b');"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(folders["byte-bpe"])]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def _without(folder: Path, tmp_path: Path, *names: str) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for name in names:
        (copy / name).unlink()
    return copy


def test_missing_files_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"merges\.txt of the tokenizer is missing"):
        load_tokenizer(_without(TINY_ROBERTA, tmp_path, "merges.txt"))
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        load_tokenizer(_without(folders["unigram"], tmp_path / "other", "tokenizer.json"))
    with pytest.raises(UserError, match="no such tokenizer folder"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is not a folder"):
        load_tokenizer(folders["unigram"] / "tokenizer.json")


def test_broken_tokenizers_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = _without(folders["byte-bpe"], tmp_path)
    description = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**description, "pre_tokenizer": None}))
    with pytest.raises(UserError, match="of no known kind"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(folder)
    without_mask = json.loads(json.dumps(description).replace("<mask>", "<other>"))
    (folder / "tokenizer.json").write_text(json.dumps(without_mask))
    with pytest.raises(UserError, match="no MASK token"):
        load_tokenizer(folder)
