"""A dump with a damaged part: only the pages in it are lost, and it is said where."""

import bz2
import random
from pathlib import Path

import pytest

from luke.corpus import bzip2
from luke.corpus.wikipedia_dump import build_dump_db

from ..command_line import refused, run_luke
from .test_wikipedia_dump import contents, dump_xml, page_xml, stored

NUMBER = 200


@pytest.fixture(scope="module")
def data() -> bytes:
    """About 4 KB a page, 25 pages a block."""
    random_ = random.Random(0)
    words = [random_.randbytes(3).hex() for _ in range(3000)]
    text = [" ".join(random_.choices(words, k=600)) for _ in range(NUMBER)]
    return dump_xml(*(page_xml(f"P{n}", f"[[L{n}]] {text[n]}", number=n) for n in range(NUMBER))).encode()


def damage(path: Path, data: bytes, number: int) -> tuple[int, int, int, int]:
    """Writes the dump with bytes flipped in a block; returns the block's place in the file and in the XML."""
    path.write_bytes(bz2.compress(data, 1))
    sizes = [len(piece) for piece in bzip2.iter_bz2(path)]
    with path.open("rb") as stream:
        span = [span for span in bzip2._iter_spans(stream) if not span.mark.is_end][number]
    start, end = span.start // 8, -(-span.end // 8)
    damaged = bytearray(path.read_bytes())
    for at in range((start + end) // 2, (start + end) // 2 + 10):
        damaged[at] ^= 0xFF
    path.write_bytes(damaged)
    first = sum(sizes[:number])
    return start, end, first, first + sizes[number]


def surviving(data: bytes, first: int, last: int) -> list[str]:
    """The titles of the pages no byte of which lies in [first, last)."""
    found, at = [], data.find(b"<page>")
    for n in range(NUMBER):
        end = data.index(b"</page>", at) + len(b"</page>")
        if end <= first or at >= last:
            found.append(f"P{n}")
        at = end
    return found


@pytest.mark.parametrize("number", [1, 3, -1])
@pytest.mark.parametrize("workers", [1, 2])
def test_only_the_pages_of_a_damaged_block_are_lost(tmp_path: Path, data: bytes, number: int, workers: int) -> None:
    dump = tmp_path / "d.bz2"
    number %= sum(1 for _ in bzip2.iter_bz2(_whole(tmp_path, data)))
    start, end, first, last = damage(dump, data, number)
    metadata = build_dump_db(dump, tmp_path / "out", workers=workers)
    left = surviving(data, first, last)
    assert list(stored(tmp_path / "out")) == left and 0 < len(left) < NUMBER
    lost = [n for n in range(NUMBER) if f"P{n}" not in left]
    (region,) = metadata["damaged"]
    assert (region["file"], region["start"], region["end"]) == (str(dump), start, end)
    assert region["torn"] == f"P{lost[0]}" and region["before"] == f"P{lost[0] - 1}"
    assert region["after"] == (f"P{lost[-1] + 1}" if lost[-1] + 1 < NUMBER else None)


def _whole(folder: Path, data: bytes) -> Path:
    path = folder / "whole.bz2"
    path.write_bytes(bz2.compress(data, 1))
    return path


def test_the_command_warns_and_strict_refuses(tmp_path: Path, data: bytes) -> None:
    dump, output = tmp_path / "d.bz2", tmp_path / "out"
    start, end, *_ = damage(dump, data, 2)
    line = refused("build-dump-db", "--strict", dump, output, leaving=output)
    assert f"bytes {start:,} to {end:,} ({end - start:,} bytes) are damaged" in line and "download the file again" in line
    result = run_luke("build-dump-db", dump, output)
    assert result.returncode == 0, result.stderr
    assert f"bytes {start:,} to {end:,}" in result.stderr and "next after: 'P" in result.stderr
    assert f"1 damaged places ({end - start:,} bytes) left out" in result.stdout
    assert "without the pages in damaged parts" in refused("build-dump-db", "--strict", dump, output, leaving=output)


def test_strict_changes_nothing_for_a_whole_dump(tmp_path: Path, data: bytes) -> None:
    dump = _whole(tmp_path, data)
    for strict in (False, True):
        assert "damaged" not in build_dump_db(dump, tmp_path / f"out{strict}", workers=1, strict=strict)
    assert contents(tmp_path / "outFalse") == contents(tmp_path / "outTrue")


def test_two_damaged_places_are_two_regions(tmp_path: Path, data: bytes) -> None:
    dump = tmp_path / "d.bz2"
    damage(dump, data, 5)
    with dump.open("rb") as stream:
        span = [span for span in bzip2._iter_spans(stream) if not span.mark.is_end][2]
    damaged = bytearray(dump.read_bytes())
    damaged[(span.start + span.end) // 16] ^= 0xFF
    dump.write_bytes(damaged)
    assert len(build_dump_db(dump, tmp_path / "out", workers=1)["damaged"]) == 2


def test_damage_before_the_first_page_is_refused(tmp_path: Path, data: bytes) -> None:
    dump, output = tmp_path / "d.bz2", tmp_path / "out"
    damage(dump, data, 0)
    assert "damaged at its start (byte 4)" in refused("build-dump-db", dump, output, leaving=output)
