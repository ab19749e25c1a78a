"""Which titles are one item: sites, forms of the dump, languages, broken lines."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from luke.corpus.interwiki import SITELINKS_FILE, build_interwiki_db, wikipedia_language
from tests.command_line import refused, run_luke

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "wikidata"


def entity(number: str | None, kind: str = "item", **titles: str) -> dict[str, Any]:
    named = {} if number is None else {"id": number}
    return {"type": kind, **named, "sitelinks": {site: {"site": site, "title": title} for site, title in titles.items()}}


TOKYO = entity(
    "Q1490", jawiki="東京都", enwiki="Tokyo", commonswiki="Tokyo", enwikivoyage="Tokyo", zh_min_nanwiki="Tang-kiaⁿ"
)
ATHENS = entity("Q1524", enwiki="Athens", elwiki="Αθήνα")
DUMP = "[\n" + ",\n".join(map(json.dumps, [TOKYO, entity("P31", "property", enwiki="Property:P31"), ATHENS])) + "\n]\n"


def rows(folder: Path) -> list[tuple[Any, ...]]:
    table = pq.read_table(folder / SITELINKS_FILE)
    return list(zip(*table.to_pydict().values(), strict=True))


@pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
def test_items_have_the_titles_of_their_wikipedias(tmp_path: Path, pack: Any) -> None:
    dump = tmp_path / "latest-all.json"
    dump.write_bytes(pack(DUMP.encode()))
    metadata = build_interwiki_db([dump], tmp_path / "out")
    assert rows(tmp_path / "out") == [
        *((0, "Q1490", "en", "Tokyo"), (0, "Q1490", "ja", "東京都"), (0, "Q1490", "zh-min-nan", "Tang-kiaⁿ")),
        *((1, "Q1524", "el", "Αθήνα"), (1, "Q1524", "en", "Athens")),
    ]
    assert metadata["counts"] == {"items": 2, "titles": 5}


def test_languages_leave_out_the_others_and_items_without_title(tmp_path: Path) -> None:
    dump = tmp_path / "lines.json"  # JSON lines; items without ids, and with the list that stands for no title
    lines = [entity(None, enwiki="Athens", elwiki="Αθήνα"), {"type": "item", "sitelinks": []}, entity(None, jawiki="東京都")]
    dump.write_text("\n".join(map(json.dumps, lines)))
    result = run_luke("build-interwiki-db", dump, tmp_path / "out", "--languages", "ja, el")
    assert result.returncode == 0 and "2 items, 2 titles" in result.stdout, result.stderr
    assert rows(tmp_path / "out") == [(0, None, "el", "Αθήνα"), (1, None, "ja", "東京都")]


@pytest.mark.parametrize("site", ["commonswiki", "wikidatawiki", "specieswiki", "metawiki", "enwikiquote", "dewikivoyage"])
def test_other_wikis_are_no_wikipedias(site: str) -> None:
    assert wikipedia_language(site) is None
    assert wikipedia_language("simplewiki") == "simple"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[\n" + json.dumps(TOKYO) + ",\n" + json.dumps(ATHENS)[:40], "line 3: not an entity of a Wikidata JSON dump"),
        ('{"id": "Q1"}', "line 1: not an entity of a Wikidata JSON dump (KeyError('type'))"),
        ('{"type": "item", "sitelinks": {"enwiki": "Tokyo"}}', "line 1: not an entity"),
        ("[" * 100_000, "line 1: nested too deep"),
        (json.dumps(entity("Q1", commonswiki="Tokyo")), "no item has a title in any Wikipedia"),
        ("", "the file is empty"),
    ],
)
def test_bad_dumps_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.json").write_text(text)
    assert message in refused("build-interwiki-db", tmp_path / "d.json", tmp_path / "out", leaving=tmp_path / "out")


@pytest.mark.skipif(not SAMPLES.exists(), reason="the shared files are not here")
def test_real_lines(tmp_path: Path) -> None:
    build_interwiki_db([SAMPLES / "wikidata-latest-all-head50.json"], tmp_path / "out")
    found = rows(tmp_path / "out")
    berlin = {language: title for _, number, language, title in found if number == "Q64"}
    assert berlin["ja"] == "ベルリン" and berlin["ar"] == "برلين" and len({item for item, *_ in found}) == 49
