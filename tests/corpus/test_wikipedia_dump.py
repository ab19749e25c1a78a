"""Dump -> page store: against the public code's extraction, and everything that can be wrong with a dump."""

import bz2
import gzip
import importlib.resources
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from html import escape
from pathlib import Path

import pytest

from luke.corpus.page_store import Page, PageStore, read_pages
from luke.corpus.wikipedia_dump import build_dump_db
from luke.errors import UserError

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


def excerpt() -> Path:
    path = Path(str(importlib.resources.files("gensim") / "test" / "test_data" / EXCERPT))
    if not path.exists():
        pytest.skip("gensim's excerpt of the English Wikipedia is not there")
    return path


@pytest.fixture(scope="module")
def excerpt_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("excerpt") / "pages"
    build_dump_db(excerpt(), output, workers=1)
    return output


def test_excerpt_agrees_with_the_public_code(excerpt_store: Path) -> None:
    """All its pages and redirects; its links but those to other wikis and special pages, which lead to no article; its
    text. Anchors differ by link trails, which it leaves outside."""
    pages, golden = stored(excerpt_store), {row["title"]: row for row in read_lines("pages_excerpt.jsonl.gz")}
    assert pages.keys() == golden.keys()
    assert PageStore(excerpt_store).redirects() == golden_redirects()
    wanted = found = foreign = 0
    likeness = []
    for title, page in golden.items():
        targets = Counter(normalized(link[0]) for p in page["paragraphs"] for link in p["links"])
        del targets[""]
        for target in [target for target in targets if leads_elsewhere(target)]:
            foreign += targets.pop(target)
        ours = Counter(link.title for p in pages[title].paragraphs for link in p.links)
        wanted += targets.total()
        found += (targets & ours).total()
        theirs = Counter(word for p in page["paragraphs"] for word in p["text"].split())
        words = Counter(word for p in pages[title].paragraphs for word in p.text.split())
        likeness.append(2 * (words & theirs).total() / (words.total() + theirs.total()))
    assert wanted > 22_000 and found / wanted > 0.999
    assert foreign < 950, "categories (882) and other wikis"
    assert sum(likeness) / len(likeness) > 0.99


def normalized(title: str) -> str:
    title = title.split("#")[0].replace("_", " ").strip()
    return title[:1].upper() + title[1:]


def leads_elsewhere(title: str) -> bool:
    prefix = title.split(":")[0].lower() if ":" in title else ""
    return (
        prefix in ("category", "special", "w", "s", "v")
        or prefix.startswith("wik")
        or (len(prefix) == 2 and prefix.isalpha())
    )


def test_metadata_says_what_it_is(excerpt_store: Path) -> None:
    metadata = PageStore(excerpt_store).metadata
    assert metadata["language"] == "en" and metadata["site"]["namespaces"]["14"] == "Category"
    assert metadata["counts"] == {"pages": 106, "redirects": 99}
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


@pytest.mark.parametrize("form", ["xml", "gz", "bz2", "two streams"])
def test_compression_is_told_by_content(tmp_path: Path, form: str) -> None:
    raw = dump_xml(page_xml("A", "b [[c]]")).encode()
    data = {
        "xml": raw,
        "gz": gzip.compress(raw),
        "bz2": bz2.compress(raw),
        "two streams": bz2.compress(raw[:200]) + bz2.compress(raw[200:]),
    }
    (tmp_path / "dump").write_bytes(data[form])
    build_dump_db(tmp_path / "dump", tmp_path / "out", workers=1)
    assert list(stored(tmp_path / "out")) == ["A"]


def many_pages(number: int = 60) -> str:
    return dump_xml(*(page_xml(f"P{n}", f"text {n} with [[link {n}|a link]]. " * 1500, number=n) for n in range(number)))


def test_workers_do_not_change_the_result(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", many_pages())
    for workers in (1, 2):
        build_dump_db(dump, tmp_path / f"out{workers}", workers=workers)
    one, two = contents(tmp_path / "out1"), contents(tmp_path / "out2")
    assert one == two and len([name for name in one if name.startswith("pages-")]) >= 2


def test_a_killed_build_continues_and_ends_the_same(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", many_pages(150))
    build_dump_db(dump, tmp_path / "whole", workers=1)
    output = tmp_path / "out"
    command = [sys.executable, "-m", "luke.cli", "build-dump-db", str(dump), str(output), "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    partial = tmp_path / "out.partial"
    deadline = time.monotonic() + 60
    while not list(partial.glob("pages-*.parquet")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if output.exists():
        pytest.skip("the build was faster than the kill")
    finished = {path: path.stat().st_mtime_ns for path in partial.glob("pages-*.parquet")}
    assert finished
    build_dump_db(dump, output, workers=1)
    assert contents(output) == contents(tmp_path / "whole")
    assert all((output / path.name).stat().st_mtime_ns == when for path, when in finished.items())


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
BAD = {
    "truncated bz2": (bz2.compress(many_pages(20).encode())[:-200], "truncated"),
    "damaged bz2": (b"BZh9" + b"1AY&SY" + bytes(200), "damaged"),
    "HTML page saved as bz2": (HTML.encode(), "not a MediaWiki dump|not well-formed"),
    "HTML page in bz2": (bz2.compress(b"<html><body/></html>"), "not a MediaWiki dump: its root element is <html>"),
    "other XML": (bz2.compress(b"<feed><page/></feed>"), "root element is <feed>"),
    "not XML": (b"hello there", "neither XML nor compressed"),
    "binary": (os.urandom(500), "neither XML nor compressed|damaged|truncated"),
    "empty": (b"", "is empty"),
    "empty in bz2": (bz2.compress(b""), "not well-formed"),
    "truncated XML": (bz2.compress(many_pages(20).encode()[:-500]), "not well-formed XML, perhaps truncated"),
    "no article": (bz2.compress(dump_xml(page_xml("Talk:A", "x", namespace=1)).encode()), "holds no article"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_dump(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    dump = tmp_path / "bad.xml.bz2"
    dump.write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        build_dump_db(dump, tmp_path / "out", workers=1)
    assert "bad.xml.bz2" in str(error.value)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_bad_dump_through_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert "no such dump" in refused("build-dump-db", tmp_path / "missing.bz2", output, leaving=output)
    dump = tmp_path / "torn.bz2"
    dump.write_bytes(BAD["truncated bz2"][0])
    result = run_luke("build-dump-db", dump, output, "--workers", 2)
    assert result.returncode == 2 and result.stderr.count("luke: error:") == 1 and "Traceback" not in result.stderr
    assert not output.exists() and not (tmp_path / "out.partial").exists()
    output.mkdir()
    (output / "note").write_text("mine")
    good = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    assert "holds something else" in refused("build-dump-db", good, output, leaving=output)


def test_entities_are_neither_expanded_nor_fetched(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    bombs = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    doctype = f'<!DOCTYPE mediawiki [<!ENTITY e0 "ha"><!ENTITY x SYSTEM "file://{secret}">{bombs}]>'
    body = dump_xml("<page><title>A</title><ns>0</ns><id>1</id><revision><text>b &x; &e9; c</text></revision></page>")
    dump = write(tmp_path / "d.bz2", doctype + body)
    try:
        build_dump_db(dump, tmp_path / "out", workers=1)
    except UserError:
        return
    assert "SECRET" not in repr(stored(tmp_path / "out")) and len(repr(stored(tmp_path / "out"))) < 1000


def test_a_full_disk_is_one_line_and_the_build_continues_with_space(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    size = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(size, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        pages = [page_xml(f"P{n}", os.urandom(30_000).hex() + " [[x]]", number=n) for n in range(60)]
        dump = write(tmp_path / "d.bz2", dump_xml(*pages))
        result = run_luke("build-dump-db", dump, mount / "out", "--workers", 1)
        assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
        assert "no space left" in result.stderr
        assert not (mount / "out").exists()
        subprocess.run(["mount", "-o", "remount,size=50m", str(mount)], check=True)
        assert run_luke("build-dump-db", dump, mount / "out", "--workers", 1).returncode == 0
        assert len(stored(mount / "out")) == 60
    finally:
        subprocess.run(["umount", str(mount)], check=False)


def test_a_data_command_never_imports_torch(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.bz2", dump_xml(page_xml("A", "b")))
    code = (
        "import sys; from pathlib import Path; from luke.corpus.wikipedia_dump import build_dump_db; "
        f"build_dump_db(Path({str(dump)!r}), Path({str(tmp_path / 'out')!r}), 1); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
