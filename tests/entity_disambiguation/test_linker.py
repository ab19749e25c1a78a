"""Raw text -> links: which mentions are found, NIL, known spans, the command line, the page."""

import json
from pathlib import Path

import pytest

from luke.artifacts import StagedFolder
from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_disambiguation.build_candidates import CandidateOptions, build_candidates
from luke.entity_disambiguation.convert import DisambiguationParts, save_parts
from luke.entity_disambiguation.link_page import link_html
from luke.entity_disambiguation.linker import EntityLink, EntityLinker, LinkedText, LinkOptions
from luke.errors import UserError

from ..command_line import refused, run_luke
from ..golden_pages import write_page_store
from .tiny_disambiguators import make_disambiguator

TEXT = "Aristotle was born in Stagira, north of Athens.\nTokyo Bay is far from New\nYork and Tokyo."


def page(number: int, text: str, *anchors: tuple[str, str]) -> Page:
    links = [Link(title, text.index(anchor), text.index(anchor) + len(anchor)) for anchor, title in anchors]
    return Page(f"Page {number}", number, [Paragraph(text, True, links)])


PAGES = [
    page(0, "Aristotle of Stagira", ("Aristotle", "Entity 1"), ("Stagira", "Entity 2")),
    page(1, "Aristotle in Athens", ("Aristotle", "Entity 3"), ("Athens", "Entity 4")),
    page(2, "Tokyo Bay near Tokyo", ("Tokyo Bay", "Entity 5")),
    page(3, "They saw Tokyo", ("Tokyo", "Entity 6"), ("saw", "Entity 7")),
    page(4, "New York saw far", ("New York", "Entity 8")),
    page(5, "the bay they saw"),
    page(6, "a saw was not what they saw"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a candidate table in it."""
    folder = tmp_path_factory.mktemp("linker")
    made = make_disambiguator(folder)
    with StagedFolder(folder / "model", "entity-disambiguation-model", {"options": {}, "inputs": {}}) as stage:
        save_parts(DisambiguationParts(made.model, made.tokenizer, made.vocab), stage.work)
        stage.finish()
    store = write_page_store(folder / "db", PAGES, {})
    build_candidates(store, folder / "model" / "candidates", CandidateOptions(allow_missing_pages=True), workers=1)
    return folder / "model"


def test_mentions_are_the_longest_anchors_that_are_linked_often(model: Path) -> None:
    (linked,) = EntityLinker.from_pretrained(model, options=LinkOptions(min_link_probability=0.4)).link([TEXT])
    assert [link.text for link in linked.links] == ["Aristotle", "Stagira", "Athens", "Tokyo Bay", "Tokyo"]
    assert all(TEXT[link.start : link.end] == link.text for link in linked.links)
    titles = {link.text: link.title for link in linked.links}
    assert titles["Stagira"] == "Entity 2" and titles["Aristotle"] in ("Entity 1", "Entity 3")
    (few,) = EntityLinker.from_pretrained(model, options=LinkOptions(min_link_probability=0.8)).link([TEXT])
    assert [link.text for link in few.links] == ["Aristotle", "Stagira", "Athens", "Tokyo Bay"]  # Tokyo: 1 of 2 pages
    (more,) = EntityLinker.from_pretrained(model, options=LinkOptions(min_link_probability=0.2)).link(["They saw Athens"])
    assert [link.text for link in more.links] == ["saw", "Athens"]


def test_texts_together_and_apart(model: Path) -> None:
    linker = EntityLinker.from_pretrained(model)
    texts = [TEXT, "", "Nothing here", "Athens, Aristotle"]
    together = linker.link(texts)
    assert [entry.text for entry in together] == texts and together[1].links == []
    for entry, text in zip(together, texts, strict=True):
        (alone,) = linker.link([text])
        assert [link[:4] for link in entry.links] == [link[:4] for link in alone.links]


def test_unsure_links_are_nil(model: Path) -> None:
    (linked,) = EntityLinker.from_pretrained(model, options=LinkOptions(nil_threshold=1.0)).link([TEXT])
    by_text = {link.text: link for link in linked.links}
    assert by_text["Aristotle"].title is None and 0.5 <= by_text["Aristotle"].probability < 1
    assert by_text["Stagira"].title == "Entity 2"  # an only candidate


def test_known_spans(model: Path) -> None:
    linker = EntityLinker.from_pretrained(model)
    (first, second) = linker.link(["Athens and x", "Athens"], [[(0, 6), (11, 12)], None])
    assert [(link.text, link.title) for link in first.links] == [("Athens", "Entity 4"), ("x", None)]
    assert len(second.links) == 1
    with pytest.raises(UserError, match="span 3:9"):
        linker.link(["Athens"], [[(3, 9)]])
    with pytest.raises(UserError, match="--nil-threshold"):
        LinkOptions(nil_threshold=2)


def test_command_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Born in Athens", encoding="utf-8")
    done = run_luke("link", "--model", model, tmp_path / "text.txt", "Stagira")
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["links"] == [{"start": 8, "end": 14, "text": "Athens", "title": "Entity 4", "probability": 1.0}]
    assert second["links"][0]["title"] == "Entity 2"
    spans = run_luke("link", "--model", model, "Athens x", "--spans", "7:8")
    assert [link["text"] for link in json.loads(spans.stdout)["links"]] == ["x"]
    page = run_luke("link", "--model", model, "Athens", "--html", tmp_path / "page.html")
    assert page.returncode == 0 and "Entity_4" in (tmp_path / "page.html").read_text()
    missing = refused("link", "--model", model, "x", "--candidates", tmp_path / "no", leaving=tmp_path / "unwritten")
    assert "luke build-candidates" in missing


def test_html_escapes() -> None:
    text = "<b> & Õ"
    linked = LinkedText(
        text, [EntityLink(0, 3, "<b>", 'A "b" <c>', 0.5), EntityLink(1, 2, "b", "B", 1.0), EntityLink(6, 7, "Õ", None, 0.1)]
    )
    html = link_html(linked, "https://x/")
    assert html == (
        '<a href="https://x/A_%22b%22_%3Cc%3E" title="A &quot;b&quot; &lt;c&gt; (0.50)">&lt;b&gt;</a> &amp; '
        '<span class="nil" title="no entity">Õ</span>'
    )
