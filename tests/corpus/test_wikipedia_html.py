"""Enterprise dumps -> page store: HTML and structured contents, real samples, and everything that can be wrong."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luke.corpus.page_store import Page, PageStore, Paragraph, read_pages
from luke.corpus.sources import build_page_store
from luke.corpus.wikipedia_html import parse_html
from luke.corpus.wikitext import Site
from luke.errors import UserError
from tests.command_line import refused, run_luke

SAMPLES = Path(__file__).parents[3] / "shared" / "data" / "enterprise_html"
GERMAN = Site("de", {14: "Kategorie", 10: "Vorlage"})


def shown(paragraphs: list[Paragraph]) -> list[str]:
    """The text with its links as [anchor|title]; headings and what follows them with a # before."""
    lines = []
    for paragraph in paragraphs:
        text = paragraph.text
        for link in reversed(paragraph.links):
            text = f"{text[: link.start]}[{text[link.start : link.end]}|{link.title}]{text[link.end :]}"
        lines.append(text if paragraph.abstract else f"#{text}")
    return lines


CASES: list[tuple[str, list[str]]] = [
    ("<p>A <b>bold</b>\n <i>word</i>.</p>", ["A bold word."]),
    ("<p>one</p>two<h2>H</h2><p>three</p>", ["one", "two", "#H", "#three"]),
    ("<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>", ["a", "b", "c"]),
    ("<p>a<br/>b</p>", ["a b"]),
    ("<p>x <a rel='mw:WikiLink' href='./Wilde_Katze#Fell' title='t'>Katze</a>n</p>", ["x [Katze|Wilde Katze]n"]),
    ("<p><a rel='mw:WikiLink' href='./AC%2FDC%3F'> the band </a>!</p>", ["[the band|AC/DC?] !"]),
    ("<p><a rel='mw:WikiLink' href='./Rot?action=edit&amp;redlink=1' class='new'>rot</a></p>", ["[rot|Rot]"]),
    ("<p><a rel='mw:WikiLink' href='./A'><b>a</b> <i>b</i></a></p>", ["[a b|A]"]),
    ("<p><a rel='mw:WikiLink' href='./%F0%9F%98%80'>😀</a> <a rel='mw:WikiLink' href='./B'>b</a></p>", ["[😀|😀] [b|B]"]),
    ("<p><a rel='mw:WikiLink' href='./A'></a>b</p>", ["b"]),
    ("<p><a rel='mw:WikiLink' href='./#Abschnitt'>hier</a></p>", ["hier"]),
    ("<p><a rel='mw:WikiLink' href='./Kategorie:Tier'>Tiere</a></p>", ["Tiere"]),
    ("<p><a rel='mw:WikiLink' href='./Vorlage:X'>x</a> <a rel='mw:WikiLink' href='./File:X.jpg'>y</a></p>", ["x y"]),
    ("<p><a rel='mw:WikiLink/Interwiki' href='https://en.wikipedia.org/wiki/A'>a</a></p>", ["a"]),
    ("<p><a rel='mw:ExtLink' href='https://x.org'>a</a></p>", ["a"]),
    ("<p>a<sup class='mw-ref reference' typeof='mw:Extension/ref'><a href='#1'>[1]</a></sup>b</p>", ["ab"]),
    ("<p>E = <span typeof='mw:Extension/math'>mc</span>!</p>", ["E = !"]),
    ("<p>a <span typeof='mw:Nowiki'>[[b]]</span></p>", ["a [[b]]"]),
    ("<figure typeof='mw:File/Thumb'><figcaption>c</figcaption></figure><p>a</p>", ["a"]),
    ("<p>a <span typeof='mw:File'><a href='./Datei:X'><img alt='x'/></a></span>b</p>", ["a b"]),
    ("<table><tr><td>t</td></tr></table><p>a</p>", ["a"]),
    ("<p>5 <span about='#mwt1' typeof='mw:Transclusion'>km</span> far</p>", ["5 km far"]),
    ("<p about='#mwt2' typeof='mw:Transclusion'>a word</p><div about='#mwt2'>a box</div><p>a</p>", ["a word", "a"]),
    ("<div>no template's</div>", ["no template's"]),
    ("<p>a<span style='display: none'>hidden</span></p>", ["a"]),
    ("<p>a<!-- comment -->b<style>c</style>d<script>e</script>f</p>", ["abdf"]),
    ("<p>a&nbsp;b &amp;amp; &lt;c&gt;</p>", ["a\xa0b &amp; <c>"]),
    ("<div class='navbox'>n</div><div class='hatnote'>h</div><p class='mw-empty-elt'></p>", []),
    ("<dl><dt>term</dt><dd>meaning</dd></dl><blockquote>said</blockquote>", ["term", "meaning", "said"]),
    ("", []),
]  # fmt: skip


@pytest.mark.parametrize(("html", "expected"), CASES)
def test_html(html: str, expected: list[str]) -> None:
    assert shown(parse_html(f"<html><body>{html}</body></html>", GERMAN)) == expected


@given(st.text("ab <>/&;'\"=#./😀pliu", max_size=80))
def test_any_html_keeps_its_offsets(text: str) -> None:
    link = "<a rel='mw:WikiLink' href='./T'>ANCHOR</a>"
    for paragraph in parse_html(f"<body><p>{text}{link}{text}</p></body>", GERMAN):
        for found in paragraph.links:
            assert "ANCHOR" in paragraph.text[found.start : found.end]


def test_deep_html_neither_crashes_nor_hangs() -> None:
    assert shown(parse_html("<body><p>a</p>" + "<div>" * 100_000 + "b", GERMAN))[:1] == ["a"]


def article(name: str, html: str = "<p>a</p>", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "identifier": 7,
        "namespace": {"identifier": 0},
        "in_language": {"identifier": "de"},
        "is_part_of": {"identifier": "dewiki"},
        "article_body": {"html": f"<body>{html}</body>"},
        **more,
    }


def write_lines(path: Path, *entries: Any) -> Path:
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def stored(folder: Path) -> list[Page]:
    return [page for file in PageStore(folder).page_files for page in read_pages(file)]


def add(archive: tarfile.TarFile, name: str, *entries: Any) -> None:
    data = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def test_an_archive_of_several_files(tmp_path: Path) -> None:
    dump = tmp_path / "dewiki-NS0-20240101-ENTERPRISE-HTML.json.tar.gz"
    with tarfile.open(dump, "w:gz") as archive:
        add(archive, "dewiki_0.ndjson", article("A", redirects=[{"name": "Alt"}, {"name": "A"}]), article("B"))
        add(
            archive,
            "dewiki_1.ndjson",
            article("Benutzer:X", namespace={"identifier": 2}),
            article("wort", is_part_of={"identifier": "dewiktionary"}),
            article("English", is_part_of={"identifier": "enwiki"}),
            article("C", "<p><a rel='mw:WikiLink' href='./Kategorie:X'>x</a></p>", categories=[{"name": "Kategorie:Y"}]),
        )
    result = run_luke("build-dump-db", dump, tmp_path / "out", "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert [(page.title, page.page_id) for page in stored(tmp_path / "out")] == [("A", 7), ("B", 7), ("C", 7)]
    assert stored(tmp_path / "out")[2].paragraphs == [Paragraph("x", True)]
    store = PageStore(tmp_path / "out")
    assert store.language == "de" and store.redirects() == {"Alt": "A"} and store.metadata["counts"]["skipped"] == 0


def test_bad_lines_are_left_out_and_listed(tmp_path: Path) -> None:
    deep = '{"article_body": ' * 50_000
    bad = [
        "{",
        "[]",
        deep,
        article("B", identifier="x"),
        {**article("B"), "name": None},
        {**article("C"), "article_body": {}},
    ]
    dump = write_lines(tmp_path / "d.ndjson", article("A"), *bad)
    result = run_luke("build-dump-db", dump, tmp_path / "out", "--workers", 1)
    assert result.returncode == 0 and "6 bad lines left out" in result.stdout
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert [entry["line"] for entry in skipped] == [2, 3, 4, 5, 6, 7]
    assert [entry["reason"].split()[-1] for entry in skipped[-3:]] == ["number", "name", "article_body.html"]
    assert "nested too deeply" in skipped[2]["reason"]


def test_several_languages_need_a_choice(tmp_path: Path) -> None:
    dump = write_lines(tmp_path / "d.ndjson", article("A"), article("B", is_part_of={"identifier": "frwiki"}))
    message = refused("build-dump-db", dump, tmp_path / "out", "--workers", 2, leaving=tmp_path / "out")
    assert "line 2: a page in fr, while the first is in de; choose one with --language" in message
    build_page_store([dump], tmp_path / "out", 1, "fr")
    assert [page.title for page in stored(tmp_path / "out")] == ["B"]


@pytest.mark.parametrize("name", ["../x.ndjson", "/etc/x.ndjson", "a/../../x"])
def test_members_that_lead_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    dump = tmp_path / "d.tar"
    with tarfile.open(dump, "w") as archive:
        add(archive, "a.ndjson", article("A"))
        add(archive, name, article("B"))
    message = refused("build-dump-db", dump, tmp_path / "out", "--workers", 1, leaving=tmp_path / "out")
    assert f"its member {name!r} leads out of the archive" in message


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_archives_are_refused(tmp_path: Path, kind: bytes) -> None:
    dump = tmp_path / "d.tar"
    with tarfile.open(dump, "w") as archive:
        add(archive, "a.ndjson", article("A"))
        member = tarfile.TarInfo("b.ndjson")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    message = refused("build-dump-db", dump, tmp_path / "out", "--workers", 1, leaving=tmp_path / "out")
    assert "'b.ndjson' is neither a file nor a folder" in message


def test_torn_archives(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        add(archive, "a.ndjson", *[article("A", "word " * 2000)] * 20)
    whole = (tmp_path / "d.tar").read_bytes()
    for name, data in (("t.tar", whole[:50_000]), ("t.tar.gz", gzip.compress(whole)[:-400])):
        (tmp_path / name).write_bytes(data)
        message = refused("build-dump-db", tmp_path / name, tmp_path / "out", "--workers", 1, leaving=tmp_path / "out")
        assert "truncated" in message and name in message


def test_other_json_is_refused(tmp_path: Path) -> None:
    dump = write_lines(tmp_path / "d.jsonl", {"text": "a"})
    message = refused("build-dump-db", dump, tmp_path / "out", leaving=tmp_path / "out")
    assert "neither article_body (Enterprise HTML) nor sections" in message and "build-corpus-db" in message


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    html, xml = write_lines(tmp_path / "d.jsonl", article("A")), write_lines(tmp_path / "d.xml", "<mediawiki/>")
    assert "are of several kinds" in refused("build-dump-db", html, xml, tmp_path / "out", leaving=tmp_path / "out")


def link(text: str, title: str, host: str = "de.wikipedia.org") -> dict[str, str]:
    return {"text": text, "url": f"https://{host}/wiki/{title}"}


SECTIONS: list[dict[str, Any]] = [
    {
        "name": "Abstract",
        "type": "section",
        "has_parts": [
            {
                "type": "paragraph",
                "value": "Eine Party mit\n Art und Weise, Kunst, Kunst.",
                "links": [
                    link("Art", "Art_(Biologie)#x"),
                    link("Weise", "File:Weise.jpg"),
                    link("Kunst", "Kunst"),
                    link("Kunst", "Kunst_2"),
                    link("nirgends", "N"),
                    link("Kunst", "Art", "en.wikipedia.org"),
                ],
            }
        ],
    },
    {
        "name": "Leben",
        "type": "section",
        "has_parts": [
            {"type": "list", "has_parts": [{"type": "list_item", "value": "eins", "links": [link("eins", "1")]}]},
            {"type": "table", "value": "t"},
            {"name": "Abstract", "type": "section", "has_parts": [{"type": "paragraph", "value": "zwei"}]},
        ],
    },
]
STRUCTURED = {
    "name": "A",
    "identifier": 3,
    "url": "https://de.wikipedia.org/wiki/A",
    "in_language": {"identifier": "de"},
    "is_part_of": {"identifier": "dewiki"},
    "sections": SECTIONS,
}
EXPECTED = [
    "Eine Party mit [Art|Art (Biologie)] und Weise, [Kunst|Kunst], [Kunst|Kunst 2].",
    "#Leben",
    "#[eins|1]",
    "#Abstract",
    "#zwei",
]


@pytest.mark.parametrize("form", ["json", "parquet", "parquet with strings"])
def test_structured_contents(tmp_path: Path, form: str) -> None:
    dump = tmp_path / "dump"
    if form == "json":
        write_lines(dump, STRUCTURED)
    else:
        sections = SECTIONS if form == "parquet" else json.dumps(SECTIONS)
        pq.write_table(pa.Table.from_pylist([{**STRUCTURED, "sections": sections}]), dump)
    build_page_store([dump], tmp_path / "out", 1)
    [page] = stored(tmp_path / "out")
    assert (page.title, page.page_id) == ("A", 3) and shown(page.paragraphs) == EXPECTED
    assert PageStore(tmp_path / "out").language == "de"


def test_torn_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([STRUCTURED]), tmp_path / "d.parquet")
    (tmp_path / "t.parquet").write_bytes((tmp_path / "d.parquet").read_bytes()[:-50])
    message = refused("build-dump-db", tmp_path / "t.parquet", tmp_path / "out", leaving=tmp_path / "out")
    assert "t.parquet: the Parquet file is damaged" in message


def test_real_samples(tmp_path: Path) -> None:
    if not SAMPLES.exists():
        pytest.skip("the samples of Enterprise HTML are not here")
    build_page_store([SAMPLES / "squirrel_de_en_ru.ndjson"], tmp_path / "en", 1, "en")
    [page] = stored(tmp_path / "en")
    lines = shown(page.paragraphs)
    assert lines[0].startswith(
        "Squirrels are members of the [family|Family (biology)] Sciuridae (/sɪˈjuːrɪdeɪ, -diː/), a family that includes "
        "small or medium-size [rodents|Rodent]."
    )
    assert lines[1] == "#Etymology" and "#References" in lines
    # Of its 807 links most lie in navigation boxes, the taxobox and references.
    assert sum(len(paragraph.links) for paragraph in page.paragraphs) == 183
    assert not any(mark in line for line in lines for mark in ("[1]", "doi:", "{{", "</", "[edit]"))
    assert PageStore(tmp_path / "en").redirects()["Sciurid"] == "Squirrel"
    others = SAMPLES / "montreal_ceb_nl_war_plus_wiktionary.ndjson"
    build_page_store([others], tmp_path / "war", 1, "war")
    [page] = stored(tmp_path / "war")
    assert (
        shown(page.paragraphs)[0]
        == "An Montréal amo an usa ka syudad ha lalawigan han [Quebec|Quebec] ha nasod han [Kanada|Kanada]."
    )
    with pytest.raises(UserError, match="holds no page"):
        build_page_store([others], tmp_path / "fr", 1, "fr")  # only a page of the French Wiktionary
