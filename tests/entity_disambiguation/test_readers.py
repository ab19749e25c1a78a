"""Every form of benchmark, in small files of that form, and the real files of the data folder where it is there."""

import json
from pathlib import Path

import pytest

from luke.corpus.page_store import Link, Page, Paragraph
from luke.entity_disambiguation.benchmark_files import ReadOptions, read_benchmark, write_json_lines
from luke.entity_disambiguation.documents import Candidate, Collection, Document
from luke.errors import UserError
from luke.pretraining.build_dataset import is_held_out

from ..golden_pages import write_page_store

DATA = Path(__file__).parents[3] / "shared" / "data" / "ed" / "elevant"


def texts(document: Document) -> list[tuple[str, str | None]]:
    return [(document.mention_text(mention), mention.title) for mention in document.mentions]


def candidate_line(document: str, text: str, candidates: list[str], gold: str) -> str:
    fields = [document, "0", text, "left", "right", "CANDIDATES", *(candidates or ["EMPTYCAND"]), "GT:", gold]
    return "\t".join(fields) + "\n"


@pytest.fixture
def mulrel(tmp_path: Path) -> Path:
    """Two documents: a person's full name and surname, a comma in a title, no candidate, no answer, a mention not found."""
    lines = [
        candidate_line("1 NEWS", "Anna Berg", ["5,0.9,Anna Berg", "6,0.1,Anna Berg (singer)"], "0,5,0.9,Anna Berg"),
        candidate_line("1 NEWS", "Berg", ["7,0.8,Mountain", "8,0.2,Berg, Leoben"], "1,8,0.2,Berg, Leoben"),
        candidate_line("1 NEWS", "U.S.", ["9,0.2,US (song)", "4,0.8,United States"], "1,4,0.8,United States"),
        candidate_line("1 NEWS", "AT&T", [], "-1,11,AT&amp;T"),
        candidate_line("1 NEWS", "Nobody", [], "-1"),
        candidate_line("2", "Missing", [], "-1,12,Missing"),
    ]
    (tmp_path / "wned-news.csv").write_text("".join(lines))
    tag = "\tB\tx\tx\tx\tx\n"
    words = [
        "-DOCSTART- (1 NEWS)\n",
        f"Anna{tag}",
        "Berg\tI\tx\tx\tx\tx\n",
        "met\n",
        "\n",
        f"Berg{tag}",
        "of\n",
        f"Other{tag}",
    ]
    words += [f"U.S{tag}", ".\n", f"AT&T{tag}", "-DOCSTART- (2)\n", "Nothing\n"]
    (tmp_path / "news.conll").write_text("".join(words))
    return tmp_path / "wned-news.csv"


def test_mulrel(mulrel: Path) -> None:
    documents, report = read_benchmark(mulrel)
    assert [document.id for document in documents] == ["1 NEWS", "2"]
    assert documents[0].text == "Anna Berg met Berg of Other U.S . AT&T"
    assert texts(documents[0]) == [
        ("Anna Berg", "Anna Berg"), ("Berg", "Berg, Leoben"), ("U.S", "United States"), ("AT&T", "AT&T")
    ]  # fmt: skip
    surname, country, company = documents[0].mentions[1:]
    assert surname.candidates == [Candidate("Mountain", 0.8), Candidate("Berg, Leoben", 0.2)]
    assert country.candidates[0].title == "United States" and company.candidates == []
    assert report.mentions == 6 and report.kept == 4
    assert report.dropped == {"no right entity is given": 1, "the mention is not found in the text file": 1}


def test_mulrel_surnames_take_the_candidates_of_the_person(mulrel: Path, tmp_path: Path) -> None:
    (tmp_path / "persons.txt").write_text("Anna Berg\n")
    documents, report = read_benchmark(mulrel, ReadOptions(persons=tmp_path / "persons.txt"))
    assert [candidate.title for candidate in documents[0].mentions[1].candidates] == ["Anna Berg", "Anna Berg (singer)"]
    assert report.notes == {"mentions take the candidates of a longer mention of a person": 1}


def test_titles_and_redirects(mulrel: Path, tmp_path: Path) -> None:
    (tmp_path / "redirects.tsv").write_text("US (song)\tUnited States\nMountain\tHill\n")
    (tmp_path / "titles.txt").write_text("United States\nAnna Berg\nAT&T\n")
    options = ReadOptions(titles_file=tmp_path / "titles.txt", redirects_file=tmp_path / "redirects.tsv")
    documents, report = read_benchmark(mulrel, options)
    assert [title for _, title in texts(documents[0])] == ["Anna Berg", "United States", "AT&T"]
    assert documents[0].mentions[1].candidates == [Candidate("United States", 1.0)]
    assert report.dropped["the right entity is not among the titles"] == 1


def test_mulrel_names_what_is_wrong(mulrel: Path, tmp_path: Path) -> None:
    with mulrel.open("a") as stream:
        stream.write("2\tx\n")
    with pytest.raises(UserError, match=r"wned-news.csv, line 7: 2 tab-separated fields"):
        read_benchmark(mulrel)
    (tmp_path / "news.conll").unlink()
    with pytest.raises(UserError, match=r"news\.conll"):
        read_benchmark(mulrel)
    with pytest.raises(UserError, match="not found"):
        read_benchmark(tmp_path / "nothing.csv")
    (tmp_path / "data.bin").write_text("")
    with pytest.raises(UserError, match="--format"):
        read_benchmark(tmp_path / "data.bin")


def test_ppr_candidates_replace_others(mulrel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "PPRforNED" / "AIDA_candidates"
    folder.mkdir(parents=True)
    entity = "ENTITY\ttext:Berg\tnormalName:berg\tq:true\torigText:{}\turl:http://en.wikipedia.org/wiki/Berg\n"
    candidate = "CANDIDATE\tid:1\tinCount:2\turl:http://en.wikipedia.org/wiki/{}\tname:x\n"
    (folder / "1").write_text(
        entity.format("Anna Berg")
        + candidate.format("Anna_Berg")
        + entity.format("U.S.")
        + candidate.format("United_States")
    )
    documents, report = read_benchmark(mulrel, ReadOptions(ppr_for_ned_dir=tmp_path / "PPRforNED"))
    assert [[c.title for c in m.candidates] for m in documents[0].mentions] == [["Anna Berg"], [], ["United States"], []]
    assert report.notes["mentions without candidates: not in the document's PPRforNED file"] == 2


AIDA = """-DOCSTART- (1 EU)
EU\tB\tEU\t--NME--

Peter\tB\tPeter Blackburn\tPeter_Bl\\u00e4ck
Blackburn\tI\tPeter Blackburn\tPeter_Bl\\u00e4ck
in
Brussels\tB\tBrussels\tBrussels\thttp://en.wikipedia.org/wiki/Brussels_%28city%29\t3708\t/m/0177z
-DOCSTART- (947testa CRICKET)
Essex\tB\tEssex\tEssex\thttp://en.wikipedia.org/wiki/Essex\t1\t/m/1
"""


def test_aida(tmp_path: Path) -> None:
    path = tmp_path / "AIDA-YAGO2-dataset.tsv"
    path.write_text(AIDA)
    documents, report = read_benchmark(path)
    assert [document.id for document in documents] == ["1 EU", "947testa CRICKET"]
    assert documents[0].text == "EU Peter Blackburn in Brussels"
    assert texts(documents[0]) == [("Peter Blackburn", "Peter Bläck"), ("Brussels", "Brussels (city)")]
    assert (report.mentions, report.kept, report.dropped) == (4, 3, {"the mention has no entity (--NME--)": 1})
    part, report = read_benchmark(path, ReadOptions(part="testa"))
    assert [document.id for document in part] == ["947testa CRICKET"] and not report.dropped
    path.write_text("-DOCSTART- (1)\nx\tI\tx\tx\n")
    with pytest.raises(UserError, match="line 2: tag 'I'"):
        read_benchmark(path)


def test_json_lines_of_all_kinds(tmp_path: Path) -> None:
    lines = [
        {"id": "a", "text": "Rome, Bern", "mentions": [
            {"start": 6, "end": 10, "title": "Bern", "candidates": ["Berne", {"title": "Bern", "prior": 0.5}]},
            {"start": 0, "end": 4, "title": "Rome", "type": "LOC"},
            {"start": 8, "end": 99, "title": "Far"},
        ]},
        {"id": 3, "context_left": "in", "mention": "Rome", "context_right": "now", "Wikipedia_title": "Rome_(city)"},
        {"context_left": "", "mention": "Rome", "context_right": "", "label_title": "Rome"},
        {"id": 7, "text": "Ünder Rome", "index": [[6, 10]], "wikipedia_titles": ["Rome"], "wikipedia_ids": [1]},
        {"title": "E", "text": "Rome 1990", "labels": [
            {"span": [0, 4], "entity_id": "Q220", "name": "Roma", "type": "Q27096213|Q43229"},
            {"span": [5, 9], "entity_id": "DATETIME", "name": "Unknown", "type": "DATETIME"},
        ], "hyperlinks": [[[0, 4], "Rome"]]},
    ]  # fmt: skip
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    documents, report = read_benchmark(path)
    assert [texts(document) for document in documents] == [
        [("Rome", "Rome"), ("Bern", "Bern")], [("Rome", "Rome (city)")], [("Rome", "Rome")], [("Rome", "Rome")],
        [("Rome", "Rome")],
    ]  # fmt: skip
    assert documents[0].mentions[1].candidates[0] == Candidate("Bern", 0.5)
    assert documents[1].text == "in Rome now" and documents[4].mentions[0].type == "LOC"
    assert report.mentions == 8 and report.kept == 6
    (tmp_path / "items.tsv").write_text("Q220\tRome (city)\n")
    named, _ = read_benchmark(path, ReadOptions(wikidata_titles=tmp_path / "items.tsv"))
    assert texts(named[4]) == [("Rome", "Rome (city)")]
    path.write_text('{"id": 1}\n')
    with pytest.raises(UserError, match=r"all.jsonl, line 1: .*mentions"):
        read_benchmark(path)


NIF = """
@prefix nif: <http://persistence.uni-leipzig.org/nlp2rdf/ontologies/nif-core#> .
@prefix itsrdf: <http://www.w3.org/2005/11/its/rdf#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
<http://x/1#char=0,24> a nif:Context ; nif:isString "Bern in der Schweiz, 東京" ; nif:beginIndex "0"^^xsd:int .
<http://x/1#char=12,19> nif:referenceContext <http://x/1#char=0,24> ; nif:beginIndex "12"^^xsd:int ;
  nif:endIndex "19"^^xsd:int ; itsrdf:taIdentRef <http://dbpedia.org/resource/Switzerland> .
<http://x/1#char=0,4> nif:referenceContext <http://x/1#char=0,24> ; nif:beginIndex "0"^^xsd:int ;
  nif:endIndex "4"^^xsd:int ; itsrdf:taIdentRef <http://de.wikipedia.org/wiki/Bern_%28Stadt%29> .
<http://x/1#char=21,23> nif:referenceContext <http://x/1#char=0,24> ; nif:beginIndex "21"^^xsd:int ;
  nif:endIndex "23"^^xsd:int ; itsrdf:taIdentRef <http://www.wikidata.org/entity/Q1490> .
"""


def test_nif(tmp_path: Path) -> None:
    pytest.importorskip("rdflib")
    path = tmp_path / "benchmark.ttl"
    path.write_text(NIF)
    documents, report = read_benchmark(path)
    assert texts(documents[0]) == [("Bern", "Bern (Stadt)"), ("Schweiz", "Switzerland")]
    assert (report.mentions, report.kept) == (3, 2)
    (tmp_path / "items.tsv").write_text("Q1490\tTokyo\n")
    documents, report = read_benchmark(path, ReadOptions(wikidata_titles=tmp_path / "items.tsv"))
    assert texts(documents[0])[2] == ("東京", "Tokyo") and not report.dropped
    path.write_text("this is no turtle")
    with pytest.raises(UserError, match="not a Turtle file"):
        read_benchmark(path)


def test_pages_of_a_store(tmp_path: Path) -> None:
    links = [Link("Bern", 6, 10), Link("Roma", 0, 4)]
    paragraphs = [Paragraph("Of X.", True), Paragraph("Rome, Bern", False, links)]
    pages = [Page(f"Page {n}", n, paragraphs) for n in range(20)]
    store = write_page_store(tmp_path / "db", pages, {"Roma": "Rome"}, shards=2)
    documents, report = read_benchmark(store, ReadOptions(held_out_fraction=0.3))
    assert {document.id for document in documents} == {p.title for p in pages if is_held_out(p.title, 0.3)}
    assert texts(documents[0]) == [("Rome", "Rome"), ("Bern", "Bern")]
    assert report.mentions == 2 * len(documents)
    assert len(read_benchmark(store).documents) == 20


def test_written_documents_are_read_again(mulrel: Path, tmp_path: Path) -> None:
    collection: Collection = read_benchmark(mulrel)
    write_json_lines(collection, tmp_path / "copy.jsonl")
    assert read_benchmark(tmp_path / "copy.jsonl").documents == collection.documents


@pytest.mark.skipif(not DATA.exists(), reason="the data folder is not there")
@pytest.mark.parametrize(
    ("name", "documents", "mentions", "items"),
    [("wiki-fair-v2-minus-test", 80, 2006, 1659), ("oke-2015-train", 95, 341, 301)],
)
def test_real_benchmarks_have_the_counts_of_their_sources(name: str, documents: int, mentions: int, items: int) -> None:
    read, report = read_benchmark(DATA / f"{name}.benchmark.jsonl")
    assert (len(read), report.documents, report.mentions, report.kept) == (documents, documents, mentions, items)
    assert sum(len(document.mentions) for document in read) == items
