"""The entity vocabulary: counting links, choosing entities, reading vocabularies."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luke.artifacts import read_metadata
from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_vocab import KIND, SPECIAL, EntityVocab, VocabOptions, build_entity_vocab
from luke.errors import UserError
from tests.command_line import refused, run_luke
from tests.golden_pages import GOLDEN, golden_pages, golden_redirects, read_lines, stub_pages, write_page_store


def page(title: str, *targets: str) -> Page:
    links = [Link(target, number, number + 1) for number, target in enumerate(targets)]
    return Page(title, 1, [Paragraph("x" * len(targets), True, links[:2]), Paragraph("x" * len(targets), False, links[2:])])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Links: A 4 (one by a redirect), B 2, C 2, Missing 3, Category:X 1, Lonely none."""
    pages = [
        page("A", "B", "C", "Missing", "Missing", "Category:X"),
        page("B", "A", "A", "Old A", "A", "C", ""),
        page("C", "B", "Missing"),
        page("Lonely"),
    ]
    redirects = {"Old A": "A", "Gone": "Lonely"}
    return write_page_store(tmp_path_factory.mktemp("vocab") / "store", pages, redirects, shards=2, language="en")


def build(store: Path, output: Path, **options: Any) -> list[tuple[str, int]]:
    """Builds a vocabulary; returns its titles and counts without the special tokens."""
    build_entity_vocab(store, output, VocabOptions(**options))
    entries = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [entry["id"] for entry in entries] == list(range(len(entries)))
    assert [entry["entities"] for entry in entries[:3]] == [[[special, None]] for special in SPECIAL]
    return [(entry["entities"][0][0], entry["count"]) for entry in entries[3:]]


def test_counts_pages_only_ties_by_title(store: Path, tmp_path: Path) -> None:
    assert build(store, tmp_path / "v.jsonl") == [("A", 4), ("B", 2), ("C", 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.jsonl", "v.jsonl.metadata.json"]


def test_allow_missing_pages(store: Path, tmp_path: Path) -> None:
    expected = [("A", 4), ("Missing", 3), ("B", 2), ("C", 2)]
    assert build(store, tmp_path / "v.jsonl", allow_missing_pages=True) == expected


def test_size_counts_special_tokens(store: Path, tmp_path: Path) -> None:
    assert build(store, tmp_path / "v.jsonl", vocab_size=5) == [("A", 4), ("B", 2)]


def test_min_count_leaves_no_gap(store: Path, tmp_path: Path) -> None:
    assert build(store, tmp_path / "v.jsonl", min_count=3) == [("A", 4)]


def test_white_list(store: Path, tmp_path: Path) -> None:
    white_list = tmp_path / "titles.txt"
    white_list.write_text("C\nLonely\n\nNowhere\n")
    assert build(store, tmp_path / "a", white_list=white_list, min_count=3) == [("A", 4), ("C", 2)]
    assert build(store, tmp_path / "b", white_list=white_list, vocab_size=4) == [("C", 2)]
    assert build(store, tmp_path / "c", white_list=white_list, white_list_only=True) == [("C", 2)]


def test_language_goes_with_the_titles(store: Path, tmp_path: Path) -> None:
    build(store, tmp_path / "v.jsonl", language="en")
    vocabulary = EntityVocab(tmp_path / "v.jsonl")
    assert vocabulary.get_id("A", "en") == 3
    assert vocabulary.get_id("A", "de") is None
    assert vocabulary.get_id("[UNK]", "en") == 1


def test_metadata(store: Path, tmp_path: Path) -> None:
    build(store, tmp_path / "v.jsonl")
    metadata = read_metadata(tmp_path / "v.jsonl", KIND)
    assert metadata["fingerprint"] == EntityVocab(tmp_path / "v.jsonl").fingerprint
    assert metadata["counts"] == {"entities": 6, "links": 8}
    assert metadata["inputs"]["pages"]["fingerprint"] == read_metadata(store, "page-store")["fingerprint"]


def test_a_finished_vocabulary_is_kept_and_others_are_refused(store: Path, tmp_path: Path) -> None:
    output = tmp_path / "v.jsonl"
    build(store, output)
    time = output.stat().st_mtime_ns
    build(store, output)
    assert output.stat().st_mtime_ns == time
    with pytest.raises(UserError, match="other options"):
        build(store, output, min_count=3)
    output.write_text(output.read_text() + "\n")
    with pytest.raises(UserError, match="has changed"):
        build(store, output)


def test_a_kill_between_metadata_and_vocabulary_does_no_harm(store: Path, tmp_path: Path) -> None:
    build(store, tmp_path / "v.jsonl")
    content = (tmp_path / "v.jsonl").read_bytes()
    (tmp_path / "v.jsonl").unlink()
    build(store, tmp_path / "v.jsonl")
    assert (tmp_path / "v.jsonl").read_bytes() == content


targets = st.sampled_from(["A", "B", "C", "D", "R1", "R2", "Ä", "a", "東"])


@given(st.lists(st.lists(targets, max_size=12), min_size=1, max_size=4), st.booleans())
@settings(max_examples=15, deadline=None)
def test_counts_are_those_of_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, links: list[list[str]], allow_missing: bool
) -> None:
    folder = tmp_path_factory.mktemp("plain")
    pages = [page(title, *targets) for title, targets in zip("ABCÄ", links, strict=False)]
    redirects = {"R1": "A", "R2": "東"}
    write_page_store(folder / "store", pages, redirects)
    counts = Counter(redirects.get(title, title) for targets in links for title in targets)
    kept = {title: n for title, n in counts.items() if allow_missing or title in {page.title for page in pages}}
    expected = sorted(kept.items(), key=lambda entry: (-entry[1], entry[0]))
    if expected:
        assert build(folder / "store", folder / "v.jsonl", allow_missing_pages=allow_missing) == expected
    else:
        with pytest.raises(UserError, match="no link leads to a page"):
            build(folder / "store", folder / "v.jsonl", allow_missing_pages=allow_missing)
        assert [path.name for path in folder.iterdir()] == ["store"]


# -- the public code's vocabularies ------------------------------------------------------------------------------------


def golden_counts(name: str) -> dict[str, int]:
    return {entry["entities"][0][0]: entry["count"] for entry in read_lines(name)[3:]}


def public_link_targets(pages: list[Page]) -> list[Page]:
    """The links as the public code counts them: it cuts no section off, so a link to one counts for no page."""
    rows = read_lines("pages_excerpt.jsonl.gz")
    for golden, row in zip(pages, rows, strict=True):
        for paragraph, entry in zip(golden.paragraphs, row["paragraphs"], strict=True):
            paragraph.links = [Link(title, start, end) for title, _, start, end in entry["links"]]
    return pages


def test_excerpt_counts_are_the_public_ones(tmp_path: Path) -> None:
    """All titles and counts agree; the order of ties is by title here, by chance there."""
    write_page_store(tmp_path / "store", public_link_targets(golden_pages()), golden_redirects(), shards=3)
    found = build(tmp_path / "store", tmp_path / "v.jsonl")
    assert dict(found) == golden_counts("entity_vocab_excerpt.jsonl")
    assert found == sorted(found, key=lambda entry: (-entry[1], entry[0]))


def test_links_to_sections_count_for_their_page(tmp_path: Path) -> None:
    """The one difference: `Apollo#Youth` is a link to Apollo (spec: section anchors are cut from titles)."""
    write_page_store(tmp_path / "store", golden_pages(), golden_redirects())
    found, public = dict(build(tmp_path / "store", tmp_path / "v.jsonl")), golden_counts("entity_vocab_excerpt.jsonl")
    assert set(public) <= set(found)
    assert all(found[title] >= count for title, count in public.items())
    sections = [link[0] for row in read_lines("pages_excerpt.jsonl.gz") for p in row["paragraphs"] for link in p["links"]]
    redirects = golden_redirects()
    cut = Counter(redirects.get(t.split("#")[0], t.split("#")[0]) for t in sections if "#" in t)
    assert {title: count - public.get(title, 0) for title, count in found.items()} == {
        title: cut.get(title, 0) for title in found
    }


def test_stubs_counts_are_the_public_ones(tmp_path: Path) -> None:
    """5,000 entries: all counts above the last agree title by title; which titles of the last one enter is chance there."""
    pages = public_link_targets(golden_pages())
    redirects = golden_redirects()
    write_page_store(tmp_path / "store", [*pages, *stub_pages(pages, redirects)], redirects, shards=2)
    found = build(tmp_path / "store", tmp_path / "v.jsonl", vocab_size=5000)
    public = golden_counts("entity_vocab_stubs5000.jsonl.gz")
    assert len(found) == len(public) == 4997
    last = min(public.values())
    assert last == found[-1][1]
    assert {t: n for t, n in found if n > last} == {t: n for t, n in public.items() if n > last}
    missing_ok = build(tmp_path / "store", tmp_path / "w.jsonl", vocab_size=5000, allow_missing_pages=True)
    assert {t: n for t, n in missing_ok if n > last} == {t: n for t, n in found if n > last}


# -- reading -----------------------------------------------------------------------------------------------------------


def write(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries), encoding="utf-8")
    return path


def special_entries() -> list[dict[str, Any]]:
    return [{"id": number, "entities": [[title, None]], "count": 0} for number, title in enumerate(SPECIAL)]


def test_reading_several_languages(tmp_path: Path) -> None:
    entry = {"id": 3, "entities": [["Tokyo", "en"], ["東京", "ja"]], "count": 7}
    vocabulary = EntityVocab(write(tmp_path / "v.jsonl", *special_entries(), entry))
    assert len(vocabulary) == 4
    assert vocabulary.get_id("東京", "ja") == vocabulary.get_id("Tokyo", "en") == 3
    assert vocabulary.get_id("東京", "en", default=1) == 1
    assert vocabulary.get_title(3) == "Tokyo"
    assert vocabulary.get_title(3, "ja") == "東京"
    assert vocabulary.titles("ja") == {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "東京": 3}


def test_reading_the_public_form(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_bytes(gzip.decompress((GOLDEN / "entity_vocab_stubs5000.jsonl.gz").read_bytes()))
    vocabulary = EntityVocab(path)
    assert len(vocabulary) == 5000
    assert vocabulary.get_id("Soviet Union") == 3 and vocabulary.counts[3] == 18


def test_reading_and_saving_the_old_form(tmp_path: Path) -> None:
    old = tmp_path / "v.tsv"
    old.write_text("[PAD]\t0\n[UNK]\t0\n[MASK]\t0\nTokyo\t12\nAC/DC\t3\n")
    vocabulary = EntityVocab(old)
    assert (vocabulary.get_id("Tokyo"), vocabulary.counts[3]) == (3, 12)
    vocabulary.save(tmp_path / "v.jsonl")
    assert EntityVocab(tmp_path / "v.jsonl").titles() == vocabulary.titles()


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"id": 0, "entities": [["Tokyo", None]], "count": 1}], r"\[PAD\]"),
        ([*special_entries(), {"id": 4, "entities": [["Tokyo", None]], "count": 1}], "line 4.*gaps"),
        ([*special_entries(), {"id": 3, "entities": [["[UNK]", None]], "count": 1}], "line 4.*twice"),
        ([*special_entries(), {"id": 3, "titles": []}], "line 4"),
        ([*special_entries(), {"id": 3, "entities": [], "count": 1}], "line 4"),
        ([], r"\[PAD\]"),
    ],
)
def test_bad_vocabularies_are_refused(tmp_path: Path, entries: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EntityVocab(write(tmp_path / "v.jsonl", *entries))


def test_bad_json_is_named_by_line(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", *special_entries())
    path.write_text(path.read_text() + '{"id": 3,\n')
    with pytest.raises(UserError, match="line 4"):
        EntityVocab(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        EntityVocab(path)
    with pytest.raises(UserError, match="cannot be read"):
        EntityVocab(tmp_path / "nowhere.jsonl")


# -- the command line --------------------------------------------------------------------------------------------------


def test_command(store: Path, tmp_path: Path) -> None:
    result = run_luke("build-entity-vocab", store, tmp_path / "sub" / "v.jsonl", "-v", 5, "--language", "en")
    assert result.returncode == 0, result.stderr
    assert len(EntityVocab(tmp_path / "sub" / "v.jsonl")) == 5


def test_bad_command_lines(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.jsonl"
    assert "special tokens" in refused("build-entity-vocab", store, out, "-v", 3, leaving=out)
    assert "page store" in refused("build-entity-vocab", tmp_path, out, leaving=out)
    assert "not found" in refused("build-entity-vocab", tmp_path / "nowhere", out, leaving=out)
    assert "--white-list" in refused("build-entity-vocab", store, out, "--white-list-only", leaving=out)
    missing = tmp_path / "titles.txt"
    assert "titles.txt" in refused("build-entity-vocab", store, out, "--white-list", missing, leaving=out)
    missing.write_text("Nowhere\n")
    arguments = ("build-entity-vocab", store, out, "--white-list", missing, "--white-list-only")
    assert re.search("no link leads to a page .* --allow-missing-pages", refused(*arguments, leaving=out))
    out.write_text("mine")
    assert "exists and is not a vocabulary" in refused("build-entity-vocab", store, out, leaving=out)
    assert out.read_text() == "mine"
