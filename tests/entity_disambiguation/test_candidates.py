"""Candidate tables: counts by hand on a small store, forms of a text, kills."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_disambiguation import build_candidates as builder
from luke.entity_disambiguation.anchor_text import EXACT, FOLDED, LOWER, Hasher, fold, tokenize
from luke.entity_disambiguation.build_candidates import CandidateOptions, build_candidates
from luke.entity_disambiguation.candidate_table import CandidateTable
from luke.entity_disambiguation.documents import Candidate
from luke.errors import UserError
from luke.pretraining.build_dataset import is_held_out

from ..command_line import refused, run_luke
from ..golden_pages import write_page_store


def paragraph(marked: str) -> Paragraph:
    """``[anchor](title)`` marks a link."""
    text, links, place = "", [], 0
    for match in re.finditer(r"\[([^\]]*)\]\(([^()]*(?:\([^()]*\))?)\)", marked):
        text += marked[place : match.start()]
        links.append(Link(match[2], len(text), len(text) + len(match[1])))
        text += match[1]
        place = match.end()
    return Paragraph(text + marked[place:], True, links)


PAGES = [
    Page("Paris", 1, [paragraph("Paris is the capital of [France](France).")]),
    Page("France", 2, [paragraph("[paris](Paris) and [Paris](Paris), [the capital](Paris); Paris.")]),
    Page("Paris (mythology)", 3, [paragraph("[Paris](Paris (mythology)) of [Troy](Troy). The US.")]),
    Page("Troy", 4, [paragraph("[Pâris](Paris (mythology)) came to Troy, troy, not to paris.")]),
    Page("United States", 5, [paragraph("They and us.  [New  York](New York City) and [US](United States).")]),
    Page("New York City", 6, [paragraph("東京と[ 東京都 ](Tokyo). New York.")]),
    Page("Paris (disambiguation)", 7, [
        paragraph("Paris may refer to:"), paragraph("[Paris](Paris), capital of [France](France)"),
        paragraph("[Paris, Texas](Paris, Texas)"), paragraph("[Paris](Paris (mythology)) in myth"),
    ]),
    Page("Paris, Texas", 8, [paragraph("A town. See [others](Paris (disambiguation)).")]),
]  # fmt: skip
REDIRECTS = {"USA": "United States", "Alexandros": "Paris (mythology)", "NYC": "New York City", "Lost": "Nowhere"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page_store(tmp_path_factory.mktemp("store") / "db", PAGES, REDIRECTS, shards=3)


@pytest.fixture(scope="module")
def table(store: Path) -> CandidateTable:
    build_candidates(store, store.parent / "candidates", workers=1)
    return CandidateTable(store.parent / "candidates")


def candidates(table: CandidateTable, text: str) -> dict[str, float]:
    return {candidate.title: round(candidate.prior, 4) for candidate in table.candidates(text)}


def test_counts_of_an_anchor(table: CandidateTable) -> None:
    """ "Paris": one link of each to the two cities' pages; one for each title of that name, one for each line."""
    entry = table.lookup("Paris")
    assert entry is not None and entry.key == "Paris" and entry.links == 2 and entry.pages_linked == 2
    assert {c.title: round(c.prior * 7) for c in entry.candidates} == {"Paris": 3, "Paris (mythology)": 3, "Paris, Texas": 1}
    # The pages Paris, France, Paris (mythology), Paris (disambiguation) have the word so spelt; Paris, Texas does not.
    assert entry.pages_with == 4 and entry.link_probability == 0.5


def test_titles_redirects_and_disambiguation_pages_are_sources(table: CandidateTable) -> None:
    assert candidates(table, "USA") == {"United States": 1.0}
    assert candidates(table, "Alexandros") == {"Paris (mythology)": 1.0}
    assert candidates(table, "Paris, Texas") == {"Paris, Texas": 1.0}
    assert table.lookup("Lost") is None and table.lookup("others") is None  # no page; a disambiguation page


def test_forms(table: CandidateTable) -> None:
    assert [entry.key for entry in map(table.lookup, ("paris", "PARIS", "Pâris", "PÂRIS")) if entry] == [
        "paris", "paris", "Pâris", "pâris",
    ]  # fmt: skip
    assert candidates(table, "paris") == {"Paris": 1.0}  # as it is spelt
    upper = table.lookup("PARIS")  # all spellings that are lower-cased to it
    assert upper is not None and upper.links == 3
    folded = table.lookup("pàris")  # and all accents
    assert folded is not None and folded.links == 4 and folded.key == "paris"
    assert candidates(table, " New\nYork ") == {"New York City": 1.0}
    assert table.lookup("") is None and table.lookup("  ") is None


def test_spans_of_a_text(table: CandidateTable) -> None:
    text = "PARIS, the  capital; New York in the US, with us; comparison. 東京都"
    found = {text[span.start : span.end] for span in table.find_spans(text)}
    assert found == {"PARIS", "the  capital", "New York", "US", "us"}  # 東京都 has no page in the store
    for span in table.find_spans(text):
        assert table.entry(span.row) == table.lookup(text[span.start : span.end])


def test_options_change_the_table(store: Path, tmp_path: Path) -> None:
    def build(name: str, **options: object) -> CandidateTable:
        build_candidates(store, tmp_path / name, CandidateOptions(**options), workers=1)  # type: ignore[arg-type]
        return CandidateTable(tmp_path / name)

    missing = build("missing", allow_missing_pages=True)
    assert candidates(missing, "東京都") == {"Tokyo": 1.0}
    assert candidates(build("links", min_links=2), "the capital") == {}
    assert len(build("few", max_candidates=1).candidates("Paris")) == 1
    assert build("few2", max_candidates=1).candidates("Paris")[0].prior == pytest.approx(3 / 7)
    short = build("short", max_anchor_tokens=1)
    assert short.find_spans("New York") == [] and short.lookup("New York") is not None
    left_out = build("left_out", held_out_fraction=0.5)
    kept = [page for page in PAGES if not is_held_out(page.title, 0.5)]
    assert 0 < len(kept) < len(PAGES)
    links = [p.text[link.start : link.end] for page in kept for p in page.paragraphs for link in p.links]
    entry = left_out.lookup("Paris")
    assert entry is not None and entry.links == links.count("Paris") - 2 * (PAGES[6] in kept)
    own = build("own", disambiguation_suffix="York City")
    assert candidates(own, "New York") == {}


def test_a_limit_names_itself(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--min-links 0"):
        CandidateOptions(min_links=0)
    with pytest.raises(UserError, match="--held-out-fraction 1"):
        CandidateOptions(held_out_fraction=1)
    assert "not found" in refused("build-candidates", tmp_path / "no", tmp_path / "out", leaving=tmp_path / "out")
    lonely = write_page_store(tmp_path / "lonely", [], {})
    assert "--allow-missing-pages" in refused("build-candidates", lonely, tmp_path / "out", leaving=tmp_path / "out")


def test_workers_and_kills_change_nothing(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = store.parent / "candidates"
    if not reference.exists():
        build_candidates(store, reference, workers=1)
    count = builder._count_shard

    def killed_at_the_second(task: tuple[Path, Path]) -> tuple[Path, int]:
        if "00001" in task[0].name:
            raise KeyboardInterrupt
        return count(task)

    monkeypatch.setattr(builder, "_count_shard", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        build_candidates(store, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists() and (tmp_path / "out.partial" / "counts-00000.arrow").exists()
    monkeypatch.undo()
    monkeypatch.setattr(builder, "_write_tables", lambda *_: pytest.fail("anchors are done again"))
    build_candidates(store, tmp_path / "out", workers=2)
    names = {path.name for path in reference.iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    for name in names - {"metadata.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (reference / name).read_bytes()
    again = run_luke("build-candidates", store, tmp_path / "out")
    assert again.returncode == 0 and "anchor texts" in again.stdout


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30), st.sampled_from([EXACT, LOWER, FOLDED]))
def test_tokens_and_hashes(text: str, level: int) -> None:
    tokens = tokenize(text)
    assert "".join(text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)) == text
    hasher = Hasher()
    sums = hasher.sums(tokens.texts)
    for start in range(len(tokens.texts)):
        for end in range(start + 1, len(tokens.texts) + 1):
            key = "".join(tokens.texts[start:end])
            if tokenize(key).texts == tokens.texts[start:end]:
                found = int(hasher.of_spans(sums, np.array([start]), np.array([end]), level)[0])
                assert found == hasher.of_key(key, level)


def test_hashes_tell_order_and_level_apart() -> None:
    hasher = Hasher()
    keys = ["a b", "b a", "ab", "a", "b", "a  b".replace("  ", " - "), "a-b"]
    assert len({hasher.of_key(key, level) for key in keys for level in (EXACT, LOWER, FOLDED)}) == 3 * len(keys)


def test_folding() -> None:
    assert [fold("Éa ΣΊΣ Straße Ğ", level) for level in (EXACT, LOWER, FOLDED)] == [
        "Éa ΣΊΣ Straße Ğ", "éa σίσ strasse ğ", "ea σισ strasse g",
    ]  # fmt: skip
    assert fold("हिन्दी", FOLDED) == "हिन्दी"  # vowel signs are no accents


def test_words_keep_their_marks() -> None:
    assert tokenize("हिन्दी है").texts == ["हिन्दी", " ", "है"]
    assert tokenize("x-ray 東京に").texts == ["x", "-", "ray", " ", "東", "京", "に"]


def test_many_record_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of equal hashes over the borders of batches, and keys of every batch, are found."""
    monkeypatch.setattr(builder, "_ROWS_A_BATCH", 3)
    pages = [Page(f"T{n}", n, [paragraph(f"[anchor {n}](T{n})")]) for n in range(50)]
    store = write_page_store(tmp_path / "db", pages, {})
    build_candidates(store, tmp_path / "out", workers=1)
    table = CandidateTable(tmp_path / "out")
    assert len(table.index.batches) > 10
    for number in range(50):
        assert table.candidates(f"anchor {number}") == [Candidate(f"T{number}", 1.0)]
        assert table.candidates(f"t{number}") == [Candidate(f"T{number}", 1.0)]
    assert table.lookup("anchor 50") is None
