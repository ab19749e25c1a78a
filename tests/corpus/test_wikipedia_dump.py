"""Dump -> page store: against the public code's extraction, and everything that can be wrong with a dump."""

import bz2
import gzip
import importlib.resources
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from html import escape
from pathlib import Path

import pyarrow as pa
import pytest

from luke.artifacts import StagedFolder
from luke.corpus import wikipedia_dump
from luke.corpus.page_store import Page, PageStore, read_pages
from luke.corpus.wikipedia_dump import build_dump_db

from ..command_line import refused, run_luke
from ..golden_pages import golden_redirects, read_lines

EXCERPT = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SITEINFO = """<siteinfo><sitename>W</sitename><case>first-letter</case><namespaces>
<namespace key="-2" case="first-letter">Medium</namespace><namespace key="0" case="first-letter" />
<namespace key="6" case="first-letter">Datei</namespace><namespace key="14" case="first-letter">Kategorie</namespace>
</namespaces></siteinfo>"""


def page_xml(title: str, text: str | None, namespace: int = 0, redirect: str | None = None, number: int = 1) -> str:
    body = "" if text is None else f'<text xml:space="preserve">{escape(text)}</text>'
    target = f'<redirect title="{escape(redirect)}" />' if redirect else ""
    head = f"<page><title>{escape(title)}</title><ns>{namespace}</ns><id>{number}</id>{target}"
    return f"{head}<revision><id>9</id>{body}</revision></page>"


def dump_xml(*pages: str, language: str = "de") -> str:
    name = 'xmlns="http://www.mediawiki.org/xml/export-0.11/"'
    return f'<mediawiki {name} version="0.11" xml:lang="{language}">{SITEINFO}{"".join(pages)}</mediawiki>'


def write(path: Path, content: str) -> Path:
    path.write_bytes(bz2.compress(content.encode()))
    return path


def stored(folder: Path) -> dict[str, Page]:
    return {page.title: page for file in PageStore(folder).page_files for page in read_pages(file)}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def zstd(data: bytes) -> bytes:
    compressed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return compressed


def excerpt() -> Path:
    if importlib.util.find_spec("gensim") is None:
        pytest.skip("gensim, which carries the excerpt of the English Wikipedia, is not installed")
    return Path(str(importlib.resources.files("gensim") / "test" / "test_data" / EXCERPT))


@pytest.fixture(scope="module")
def excerpt_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without the words of templates, which the public code cuts."""
    folder = tmp_path_factory.mktemp("excerpt")
    built_in = json.loads(Path(wikipedia_dump.__file__).with_name("template_rules.json").read_text(encoding="utf-8"))[
        "rules"
    ]
    rules = folder / "no_rules.json"
    rules.write_text(json.dumps(dict.fromkeys([*built_in["*"], *built_in["en"]])), encoding="utf-8")
    build_dump_db(excerpt(), folder / "pages", workers=1, template_rules=rules)
    return folder / "pages"


Occurrence = tuple[str, str, str]  # page, target, anchor


def test_excerpt_has_the_pages_and_redirects_of_the_public_code(excerpt_store: Path) -> None:
    assert stored(excerpt_store).keys() == {row["title"] for row in read_lines("pages_excerpt.jsonl.gz")}
    assert PageStore(excerpt_store).redirects() == golden_redirects()


def test_excerpt_has_the_text_of_the_public_code(excerpt_store: Path) -> None:
    """Up to white space (its paragraphs are sections) and the names of categories, which it keeps as text."""
    pages, likeness = stored(excerpt_store), []
    for row in read_lines("pages_excerpt.jsonl.gz"):
        theirs = Counter(word for p in row["paragraphs"] for word in p["text"].split())
        ours = Counter(word for p in pages[row["title"]].paragraphs for word in p.text.split())
        likeness.append(2 * (ours & theirs).total() / (ours.total() + theirs.total()))
    assert sum(likeness) / len(likeness) > 0.99 and min(likeness) > 0.85


def test_excerpt_has_the_links_of_the_public_code(excerpt_store: Path) -> None:
    """Each of its 23,559 links is here with the same target and anchor, or differs for a reason named below."""
    ours, theirs = our_links(excerpt_store), golden_links()
    assert theirs.total() == 23_559
    extra = ours - theirs
    reasons: Counter[str] = Counter()
    for occurrence in (theirs - ours).elements():
        reason, instead = explain(occurrence, extra)
        reasons[reason] += 1
        if instead is not None:
            extra[instead] -= 1
    assert reasons == {
        "a category is no link": 882,
        "a trail belongs to its anchor": 1_282,
        "it leads to no article of this wiki": 58,
        "a section of the same page is no link": 15,
        "no anchor is empty": 10,
        "the capital of ß is two letters, so titles keep it": 1,
    }
    # It misses the link before a trail in one place, and one in the label of an external link.
    assert sorted((+extra).elements()) == [
        ("Aldous Huxley", "University of California, Berkeley", "UC Berkeley"),
        ("Allah", "God", "Godt"),
    ]


def our_links(store: Path) -> Counter[Occurrence]:
    return Counter(
        (title, link.title, " ".join(p.text[link.start : link.end].split()))
        for title, page in stored(store).items()
        for p in page.paragraphs
        for link in p.links
    )


def golden_links() -> Counter[Occurrence]:
    return Counter(
        (row["title"], normalized(target), " ".join(p["text"][start:end].split()))
        for row in read_lines("pages_excerpt.jsonl.gz")
        for p in row["paragraphs"]
        for target, _, start, end in p["links"]
    )


def explain(occurrence: Occurrence, extra: Counter[Occurrence]) -> tuple[str, Occurrence | None]:
    """Why the public code's link is not ours, and the one we have in its place."""
    page, target, anchor = occurrence
    same_target = [other for other in extra if other[:2] == (page, target) and extra[other] > 0]
    if target.startswith("Category:"):
        return "a category is no link", None
    if not target:
        return "a section of the same page is no link", None
    if not anchor:
        return "no anchor is empty", same_target[0]
    if target == "SS" and anchor == "ß":
        return "the capital of ß is two letters, so titles keep it", (page, "ß", "ß")
    for other in same_target:
        if re.fullmatch(re.escape(anchor) + "[a-z]+", other[2]):
            return "a trail belongs to its anchor", other
    prefix = target.partition(":")[0].lower()
    assert ":" in target and prefix in FOREIGN_PREFIXES, occurrence
    return "it leads to no article of this wiki", None


# Other projects, languages and namespaces that the excerpt links to.
FOREIGN_PREFIXES = """wikt wiktionary s wikisource v w commons talk special
fr zh be-x-old bg da es it he nl ja pl fi sv th en te no de""".split()  # noqa: SIM905


def normalized(title: str) -> str:
    title = " ".join(title.split("#")[0].replace("_", " ").split())
    return title[:1].upper() + title[1:]


def test_metadata_says_what_it_is(excerpt_store: Path) -> None:
    metadata = PageStore(excerpt_store).metadata
    assert metadata["language"] == "en" and metadata["site"]["namespaces"]["14"] == "Category"
    assert metadata["counts"] == {"pages": 106, "redirects": 99, "paragraphs": 11_340, "links": 22_606}
    assert len(metadata["inputs"]["dump"]["fingerprint"]) == 64


def test_only_articles_become_pages(tmp_path: Path) -> None:
    dump = write(
        tmp_path / "d.xml.bz2",
        dump_xml(
            page_xml("Katze", "Eine [[Maus|Feldmaus]] [[Datei:a.jpg]] [[Kategorie:Tier]]", number=7),
            page_xml("Diskussion:Katze", "x", namespace=1),
            page_xml("Category:Tiere", "x"),
            page_xml("Leer", ""),
            page_xml("Ohne Text", None),
            page_xml("Kater", "#WEITERLEITUNG [[Katze]]", redirect="Katze#Männlich"),
        ),
    )
    build_dump_db(dump, tmp_path / "out", workers=1)
    pages = stored(tmp_path / "out")
    assert list(pages) == ["Katze", "Leer", "Ohne Text"]
    assert pages["Katze"].page_id == 7
    paragraph = pages["Katze"].paragraphs[0]
    assert paragraph.text == "Eine Feldmaus"
    assert [(link.title, paragraph.text[link.start : link.end]) for link in paragraph.links] == [("Maus", "Feldmaus")]
    store = PageStore(tmp_path / "out")
    assert store.redirects() == {"Kater": "Katze"} and store.language == "de"


def test_redirects_follow_chains_and_drop_cycles(tmp_path: Path) -> None:
    chain = [page_xml(f"R{n}", "", redirect=f"R{n + 1}") for n in range(20)]
    cycle = [page_xml("A", "", redirect="B"), page_xml("B", "", redirect="C"), page_xml("C", "", redirect="A")]
    into_cycle = [page_xml("D", "", redirect="A"), page_xml("S", "", redirect="S")]
    dump = write(tmp_path / "d.bz2", dump_xml(page_xml("R20", "x"), *chain, *cycle, *into_cycle))
    build_dump_db(dump, tmp_path / "out", workers=1)
    assert PageStore(tmp_path / "out").redirects() == {f"R{n}": "R20" for n in range(20)}


def test_redirects_of_a_dump_that_does_not_mark_them(tmp_path: Path) -> None:
    pages = page_xml("Kater", "#WEITERLEITUNG [[katze#Männlich]]"), page_xml("Katze", "Siehe #REDIRECT [[Kater]]")
    dump = write(tmp_path / "dewiki-1-pages-articles.xml.bz2", dump_xml(*pages))
    build_dump_db(dump, tmp_path / "out", workers=1)
    assert PageStore(tmp_path / "out").redirects() == {"Kater": "Katze"}
    assert list(stored(tmp_path / "out")) == ["Katze"]


@pytest.mark.parametrize("form", ["xml", "gz", "bz2", "zst", "two streams", "two frames"])
def test_compression_is_told_by_content(tmp_path: Path, form: str) -> None:
    raw = dump_xml(page_xml("A", "b [[c]]")).encode()
    data = {
        "xml": raw,
        "gz": gzip.compress(raw),
        "bz2": bz2.compress(raw),
        "zst": zstd(raw),
        "two frames": zstd(raw[:200]) + zstd(raw[200:]),
        "two streams": bz2.compress(raw[:200]) + bz2.compress(raw[200:]),
    }
    (tmp_path / "dump").write_bytes(data[form])
    build_dump_db(tmp_path / "dump", tmp_path / "out", workers=1)
    assert list(stored(tmp_path / "out")) == ["A"]


def test_part_files_are_one_dump(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        redirect = [page_xml("R", "", redirect="P10")] if number == 2 else []
        pages = dump_xml(page_xml(f"P{number}", "b [[R]]"), *redirect)
        write(tmp_path / f"dewiki-20240101-pages-articles{number}.xml-p1p2.bz2", pages)
    pattern = tmp_path / "dewiki-*-pages-articles[0-9]*.xml-p*.bz2"
    assert run_luke("build-dump-db", pattern, tmp_path / "out", "--workers", 1).returncode == 0
    assert list(stored(tmp_path / "out")) == ["P1", "P2", "P10"]
    assert PageStore(tmp_path / "out").redirects() == {"R": "P10"}
    assert sorted(PageStore(tmp_path / "out").metadata["inputs"]) == ["dump", "dump_2", "dump_3"]


def test_part_files_of_two_wikis_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.bz2", dump_xml(page_xml("A", "b")))
    second = write(tmp_path / "b.bz2", dump_xml(page_xml("A", "b")).replace("Datei", "Fichier"))
    assert f"{second}: of another wiki" in refused(
        "build-dump-db", first, second, tmp_path / "out", leaving=tmp_path / "out"
    )
    japanese, german = (write(tmp_path / f"{code}wiki-x.xml.bz2", dump_xml(page_xml("A", "b"))) for code in ("ja", "de"))
    message = refused("build-dump-db", japanese, german, tmp_path / "out", leaving=tmp_path / "out")
    assert "several languages" in message


@pytest.mark.parametrize(
    ("name", "option", "language"),
    [
        ("dump.bz2", None, "de"),
        ("jawiki-20240101-pages-articles.xml.bz2", None, "ja"),
        ("zh_yuewiki-x.bz2", None, "zh-yue"),
        ("jawiki-x.bz2", "ko", "ko"),
        ("mywiki_of_cats.bz2", None, "my"),
        ("commonswiki-x.bz2", None, "de"),
        ("jawiktionary-x.bz2", None, "de"),
    ],
)
def test_the_language_is_the_options_or_the_names_or_the_dumps(
    tmp_path: Path, name: str, option: str | None, language: str
) -> None:
    dump = write(tmp_path / name, dump_xml(page_xml("A", "b")))
    build_dump_db([dump], tmp_path / "out", workers=1, language=option)
    assert PageStore(tmp_path / "out").language == language


def many_pages(number: int = 60) -> str:
    """50,000 characters a page: 20 pages make a shard."""
    filler = "and more words " * 15
    return dump_xml(
        *(page_xml(f"P{n}", f"text {n} with [[link {n}|a link]] {filler}. " * 200, number=n) for n in range(number))
    )


def test_workers_do_not_change_the_result(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", many_pages())
    for workers in (1, 2):
        build_dump_db(dump, tmp_path / f"out{workers}", workers=workers)
    one, two = contents(tmp_path / "out1"), contents(tmp_path / "out2")
    assert one == two and len([name for name in one if name.startswith("pages-")]) >= 2


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return children + [pid for child in children for pid in descendants(child)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_build_continues_and_ends_the_same(tmp_path: Path, workers: int) -> None:
    dump = write(tmp_path / "d.bz2", many_pages(90))
    build_dump_db(dump, tmp_path / "whole", workers=1)
    output, partial = tmp_path / "out", tmp_path / "out.partial"
    command = [sys.executable, "-m", "luke.cli", "build-dump-db", str(dump), str(output), "--workers", str(workers)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(partial.glob("pages-*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    helpers = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists(), "the build was to be killed midway"
    while any(map(alive, helpers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, helpers)), "workers end with the process that started them"
    finished = {path: path.stat().st_mtime_ns for path in partial.glob("pages-*.parquet")}
    assert finished
    build_dump_db(dump, output, workers=workers)
    assert contents(output) == contents(tmp_path / "whole")
    assert all((output / path.name).stat().st_mtime_ns == when for path, when in finished.items())


def test_a_build_killed_after_its_redirects_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b"), page_xml("R", "", redirect="A")))
    build_dump_db(dump, tmp_path / "whole", workers=1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StagedFolder, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            build_dump_db(dump, tmp_path / "out", workers=1)
    assert (tmp_path / "out.partial").exists()
    build_dump_db(dump, tmp_path / "out", workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert PageStore(tmp_path / "out").redirects() == {"R": "A"}


def test_the_same_command_again_reuses_the_store_and_another_is_refused(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    output = tmp_path / "out"
    assert run_luke("build-dump-db", dump, output).returncode == 0
    before = contents(output)
    again = run_luke("build-dump-db", dump, output)
    assert again.returncode == 0 and "already built" in again.stderr
    assert contents(output) == before
    other = write(tmp_path / "e.bz2", dump_xml(page_xml("B", "b")))
    assert "made with other options or input" in refused("build-dump-db", other, output, leaving=output)
    assert contents(output) == before


HTML = "<!DOCTYPE html>\n<html><head><title>503</title></head><body><h1>Error</h1></body></html>"
BAD: dict[str, tuple[bytes, str]] = {
    "truncated bz2": (bz2.compress(many_pages(20).encode())[:-200], "the bz2 file is truncated"),
    "damaged bz2": (b"BZh9" + b"1AY&SY" + bytes(200), "damaged"),
    "HTML page saved as bz2": (HTML.encode(), "not a MediaWiki dump: it begins with a DOCTYPE"),
    "HTML page in bz2": (bz2.compress(HTML.encode()), "not a MediaWiki dump: it begins with a DOCTYPE"),
    "HTML without DOCTYPE": (bz2.compress(b"<html><body/></html>"), "its root element is <html>, not <mediawiki>"),
    "other XML": (b'<?xml version="1.0"?>\n<!-- x -->\n<feed><page/></feed>', "its root element is <feed>"),
    "not XML": (b"hello there", "neither XML, JSON lines nor Parquet, nor compressed"),
    "text in bz2": (bz2.compress(b"hello there"), "no XML element at its start"),
    "empty": (b"", "the file is empty"),
    "empty in bz2": (bz2.compress(b""), "holds nothing"),
    "truncated XML": (bz2.compress(many_pages(20).encode()[:-500]), "not well-formed XML, perhaps truncated"),
    "truncated gzip": (gzip.compress(many_pages(2).encode())[:-20], "the gzip file is truncated"),
    "damaged gzip": (bytes(gzip.compress(many_pages(2).encode())[:200]) + bytes(2000), "the gzip data is damaged"),
    "truncated zstd": (zstd(many_pages(2).encode())[:-20], "the zstd file is truncated"),
    "damaged zstd": (zstd(b"")[:4] + b"\xff" * 200, "the zstd data is damaged"),
    "no article": (bz2.compress(dump_xml(page_xml("Talk:A", "x", namespace=1)).encode()), "holds no article"),
    "entities": (b'<!DOCTYPE mediawiki [<!ENTITY a "b">]>' + dump_xml(page_xml("A", "x")).encode(), "begins with a DOCTYPE"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_dump(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    dump = tmp_path / "bad.xml.bz2"
    dump.write_bytes(data)
    line = refused("build-dump-db", dump, tmp_path / "out", "--workers", 1, leaving=tmp_path / "out")
    assert message in line and "bad.xml.bz2" in line


def test_bad_dump_with_workers(tmp_path: Path) -> None:
    dump = tmp_path / "torn.bz2"
    dump.write_bytes(BAD["truncated bz2"][0])
    assert "truncated" in refused("build-dump-db", dump, tmp_path / "out", "--workers", 2, leaving=tmp_path / "out")


def test_missing_dump(tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert "no such dump" in refused("build-dump-db", tmp_path / "missing.bz2", output, leaving=output)


def test_bad_output(tmp_path: Path) -> None:
    good = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    output = tmp_path / "out"
    output.mkdir()
    (output / "note").write_text("mine")
    assert "holds something else" in refused("build-dump-db", good, output, leaving=output)
    assert (output / "note").read_text() == "mine"
    assert "is not a folder" in refused("build-dump-db", good, good, leaving=good)
    below_a_file = good / "out"
    assert "cannot be made" in refused("build-dump-db", good, below_a_file, leaving=below_a_file)


def test_missing_parent_is_made_and_a_read_only_one_is_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    assert run_luke("build-dump-db", good, tmp_path / "a" / "b" / "out").returncode == 0
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if os.access(locked, os.W_OK):  # root may write anywhere but on a read-only disk
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(locked)]
        if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("a folder that cannot be written cannot be made here")
    try:
        assert "cannot be made" in refused("build-dump-db", good, locked / "out", leaving=locked / "out")
    finally:
        subprocess.run(["umount", str(locked)], check=False, capture_output=True)


def test_a_full_disk_is_one_line_and_the_build_continues_with_space(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    size = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(size, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        pages = [page_xml(f"P{n}", os.urandom(30_000).hex() + " [[x]]", number=n) for n in range(120)]
        dump = write(tmp_path / "d.bz2", dump_xml(*pages))
        result = run_luke("build-dump-db", dump, mount / "out", "--workers", 1)
        assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
        assert "no space left" in result.stderr and str(mount) in result.stderr
        assert result.stderr.count("luke: error:") == 1
        assert not (mount / "out").exists()
        finished = {path.name: path.stat().st_mtime_ns for path in (mount / "out.partial").glob("pages-*.parquet")}
        subprocess.run(["mount", "-o", "remount,size=50m", str(mount)], check=True)
        assert run_luke("build-dump-db", dump, mount / "out", "--workers", 1).returncode == 0
        assert len(stored(mount / "out")) == 120 and finished
        assert all((mount / "out" / name).stat().st_mtime_ns == when for name, when in finished.items())
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def test_a_data_command_never_imports_torch(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    code = (
        "import sys; from pathlib import Path; from luke.corpus.wikipedia_dump import build_dump_db; "
        f"build_dump_db(Path({str(dump)!r}), Path({str(tmp_path / 'out')!r}), 1); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
