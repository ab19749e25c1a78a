"""The spaCy component: one document, many, mentions of a recognizer before it."""

from pathlib import Path

import pytest

spacy = pytest.importorskip("spacy")

from luke.entity_disambiguation import spacy_component  # noqa: E402
from luke.entity_disambiguation.spacy_component import SpacyEntityLinker  # noqa: E402

from .linker_fixture import WordLinker  # noqa: E402


@pytest.fixture
def linker(monkeypatch: pytest.MonkeyPatch) -> WordLinker:
    linker = WordLinker()
    monkeypatch.setattr(spacy_component.EntityLinker, "from_pretrained", lambda *_, **__: linker)
    return linker


def test_pipeline(linker: WordLinker, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("luke_entity_linker", config={"model": str(tmp_path)})
    doc = nlp("All roads lead to Rome, not to Nil.")
    assert [(ent.text, ent.kb_id_, ent.label_) for ent in doc.ents] == [
        ("Rome", "Rome (city)", "ENTITY"), ("Nil", "NIL", "ENTITY"),
    ]  # fmt: skip
    linker.batches.clear()
    docs = list(nlp.pipe(["Rome", "x", "Rome"], batch_size=2))
    assert [len(doc.ents) for doc in docs] == [1, 0, 1]
    assert linker.batches == [["Rome", "x"], ["Rome"]]


def test_entities_of_a_recognizer_are_the_mentions(linker: WordLinker) -> None:
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "GPE", "pattern": "Rome"}, {"label": "ORG", "pattern": "roads"}])
    nlp.add_pipe("luke_entity_linker", config={"model": "m"})
    ents = nlp("roads to Rome and Nil").ents
    assert [(ent.text, ent.kb_id_, ent.label_) for ent in ents] == [("roads", "NIL", "ORG"), ("Rome", "Rome (city)", "GPE")]


def test_mentions_inside_tokens(linker: WordLinker) -> None:
    """A mention that does not end where a token does gets the whole token."""
    doc = SpacyEntityLinker(linker)(spacy.blank("en")("Romeward"))
    assert [(ent.text, ent.kb_id_) for ent in doc.ents] == [("Romeward", "Rome (city)")]
