import importlib.util
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luke.corpus.sentences import NAMES, _code_points, make_sentence_splitter
from luke.errors import UserError

from ..golden_pages import GoldenSplitter

TEXTS = {
    "en": "He met Dr. Smith in the U.S. in 1990. They talked! Did they?",
    "de": "Das ist z. B. gut. Am 3. Mai kam er. Wirklich?",
    "fr": "Il est arrivé. « Bonjour ! » dit-il.",
    "es": "¿Qué pasa? Nada. ¡Vamos!",
    "ru": "Он родился в 1990 г. в Москве. Потом уехал.",
    "ar": "ذهب إلى المدرسة. ثم عاد؟ نعم.",
    "hi": "वह आया। फिर चला गया।",
    "ja": "東京は首都である。人口は多い。😀そうか？",
    "zh": "北京是首都。人口很多！",
    "th": "กรุงเทพเป็นเมืองหลวง ประชากรมาก",
    "el": "Ήρθε χθες. Τι θέλεις; Τίποτα.",
    "ko": "서울은 수도이다. 인구가 많다.",
}


@pytest.mark.parametrize("language", TEXTS)
def test_sentencex_finds_sentences_in_their_language(language: str) -> None:
    spans = make_sentence_splitter("sentencex", language)(TEXTS[language])
    assert len(spans) >= (1 if language == "th" else 2)
    assert "".join(TEXTS[language][start:end] for start, end in spans).split() == TEXTS[language].split()


def test_abbreviations_do_not_end_a_sentence() -> None:
    spans = make_sentence_splitter("sentencex", "en")(TEXTS["en"])
    assert TEXTS["en"][slice(*spans[0])].strip() == "He met Dr. Smith in the U.S. in 1990."


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(TEXTS)),
    st.lists(
        st.sampled_from([*TEXTS.values(), "😀 ", "e\u0301", "\u200f", "\n", "\n\n", " ", "A.B. ", "\u00a0"]), max_size=8
    ),
    st.sampled_from(["sentencex", "none"]),
)
def test_offsets_are_increasing_code_points_of_the_text(language: str, pieces: list[str], name: str) -> None:
    text = "".join(pieces)
    place = 0
    for start, end in make_sentence_splitter(name, language)(text):
        assert place <= start < end <= len(text)
        assert not text[place:start].strip(), "nothing but white space lies between sentences"
        place = end
    assert not text[place:].strip()


def test_utf16_borders_become_code_points() -> None:
    assert _code_points("a😀b", [0, 1, 3, 4]) == [0, 1, 2, 3]
    assert _code_points("", [0]) == [0]


@pytest.mark.skipif(importlib.util.find_spec("icu") is None, reason="PyICU is not installed")
def test_icu_counts_code_points() -> None:
    text = "😀 One. Two 😀. Three."
    spans = make_sentence_splitter("icu", "en")(text)
    assert [text[start:end] for start, end in spans] == ["😀 One. ", "Two 😀. ", "Three."]


@pytest.mark.skipif(importlib.util.find_spec("icu") is None, reason="PyICU is not installed")
def test_icu_finds_the_sentences_of_the_public_code() -> None:
    splitter, golden = make_sentence_splitter("icu", "en"), GoldenSplitter("icu")
    for text, spans in golden.spans.items():
        assert stripped(text, splitter(text)) == stripped(text, spans)


def stripped(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The public code leaves the white space at a section's end out."""
    pieces = [(start, end, text[start:end]) for start, end in spans if text[start:end].strip()]
    return [(end - len(piece.lstrip()), start + len(piece.rstrip())) for start, end, piece in pieces]


@pytest.mark.skipif(importlib.util.find_spec("icu") is not None, reason="PyICU is installed")
def test_missing_icu_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match=r"pip install 'luke\[icu\]'"):
        make_sentence_splitter("icu", "en")


def test_unknown_splitter_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="sentencex, icu, none"):
        make_sentence_splitter("opennlp", "en")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "icu"])
def test_splitters_travel_to_workers(name: str) -> None:
    splitter = pickle.loads(pickle.dumps(make_sentence_splitter(name, "en")))
    assert len(splitter("One. Two.")) == (1 if name == "none" else 2)
