"""bzip2 by its blocks: the same bytes as the standard library, and past damage."""

import bz2
import random
from pathlib import Path

import pytest

from luke.corpus import bzip2
from luke.corpus.bzip2 import Damage, check_bz2_end, iter_bz2
from luke.errors import UserError


def text(size: int) -> bytes:
    """Words by chance: compresses, but not to nothing."""
    random_ = random.Random(0)
    words = [random_.randbytes(3).hex() for _ in range(2000)]
    return " ".join(random_.choices(words, k=size // 7 + 1)).encode()[:size]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def blocks(path: Path) -> list[tuple[int, int]]:
    """The bytes in which each block begins and ends."""
    with path.open("rb") as stream:
        spans = [span for span in bzip2._iter_spans(stream) if not span.mark.is_end]
    return [(span.start // 8, span.end // 8) for span in spans]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize(
    "form", ["one stream", "two streams", "an empty one between", "all one byte", "nothing", "garbage behind"]
)
def test_it_reads_what_the_standard_library_reads(tmp_path: Path, form: str, threads: int) -> None:
    data = text(450_000)
    compressed = {
        "one stream": bz2.compress(data, 1),
        "two streams": bz2.compress(data[:250_001], 1) + bz2.compress(data[250_001:], 9),
        "an empty one between": bz2.compress(data, 1) + bz2.compress(b"") + bz2.compress(data, 3),
        "all one byte": bz2.compress(bytes(5_000_000), 1),
        "nothing": bz2.compress(b""),
        "garbage behind": bz2.compress(data, 1) + b"garbage",
    }[form]
    path = write(tmp_path / "f", compressed)
    check_bz2_end(path)
    with bz2.open(path) as stream:
        assert b"".join(iter_bz2(path, threads)) == stream.read()  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [11, 12, 13, 4096])
def test_marks_may_lie_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    data = text(30_000)
    path = write(tmp_path / "f", b"".join(bz2.compress(data[n : n + 2000]) for n in range(0, 30_000, 2000)))
    monkeypatch.setattr(bzip2, "_CHUNK", chunk)
    assert b"".join(iter_bz2(path)) == data  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("length", [1, 1000])
def test_a_damaged_block_is_lost_alone(tmp_path: Path, threads: int, length: int) -> None:
    data = text(450_000)
    path = write(tmp_path / "f", bz2.compress(data, 1))
    whole = list(iter_bz2(path))
    start, end = blocks(path)[2]
    damaged = bytearray(path.read_bytes())
    middle = (start + end) // 2
    for at in range(middle, middle + length):
        damaged[at] ^= 0xFF
    path.write_bytes(damaged)
    read = list(iter_bz2(path, threads))
    assert len(read) == len(whole) == 5
    assert read[:2] + read[3:] == whole[:2] + whole[3:]
    assert isinstance(read[2], Damage) and read[2].start == start and read[2].end - 1 <= end <= read[2].end


def test_a_damaged_mark_loses_the_blocks_beside_it(tmp_path: Path) -> None:
    path = write(tmp_path / "f", bz2.compress(text(450_000), 1))
    whole, (start, _) = list(iter_bz2(path)), blocks(path)[2]
    damaged = bytearray(path.read_bytes())
    damaged[start + 2] ^= 0xFF
    path.write_bytes(damaged)
    read = list(iter_bz2(path))
    assert read[:1] + read[2:] == whole[:1] + whole[3:] and isinstance(read[1], Damage)


def test_the_first_mark_of_a_later_stream_may_be_damaged(tmp_path: Path) -> None:
    first, second = bz2.compress(text(150_000), 1), bytearray(bz2.compress(text(250_000), 1))
    second[5] ^= 0xFF
    path = write(tmp_path / "f", first + second)
    read = list(iter_bz2(path))
    assert [isinstance(piece, Damage) for piece in read] == [False, False, True, False, False]
    assert read[2].start == len(first) + 4  # type: ignore[union-attr]


def test_a_wrong_checksum_of_a_stream_is_damage_at_its_end(tmp_path: Path) -> None:
    one, two = bz2.compress(text(2000)), bz2.compress(text(3000))
    path = write(tmp_path / "f", one)
    with path.open("rb") as stream:
        end = next(span for span in bzip2._iter_spans(stream) if span.mark.is_end)
    last_bit = 1 << (len(one) * 8 - end.start - 80)
    path.write_bytes((int.from_bytes(one, "big") ^ last_bit).to_bytes(len(one), "big") + two)
    assert [isinstance(piece, Damage) for piece in iter_bz2(path)] == [False, True, False]


@pytest.mark.parametrize("is_end", [False, True])
def test_a_number_that_a_block_holds_by_chance_is_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_end: bool
) -> None:
    data = text(450_000)
    path = write(tmp_path / "f", bz2.compress(data, 1))
    start, end = blocks(path)[1]
    find = bzip2._find_marks

    def find_one_more(buffer: bytes, first: int) -> list[bzip2._Mark]:
        by_chance = bzip2._Mark((start + end) * 4 + 3, is_end, 7)
        return sorted([*find(buffer, first), by_chance], key=lambda mark: mark.start)

    monkeypatch.setattr(bzip2, "_find_marks", find_one_more)
    assert b"".join(iter_bz2(path)) == data  # type: ignore[arg-type]


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_at_once_and_when_it_is_read(tmp_path: Path, left: float) -> None:
    compressed = bz2.compress(text(450_000), 1)
    path = write(tmp_path / "f", compressed[: int(left * len(compressed))])
    with pytest.raises(UserError, match="truncated; download it again"):
        check_bz2_end(path)
    with pytest.raises(UserError, match="truncated; download it again"):
        list(iter_bz2(path))


def test_a_hole_longer_than_any_block_is_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bzip2, "_CHUNK", 1 << 16)
    monkeypatch.setattr(bzip2, "_LONGEST_BLOCK", 1 << 18)
    streams = [bz2.compress(text(50_000)) for _ in range(2)]
    path = write(tmp_path / "f", streams[0][:-2000] + bytes(1 << 20) + streams[1])
    assert max(len(span.data) for span in bzip2._iter_spans(path.open("rb"))) < 1 << 18
    damage, rest = iter_bz2(path)
    assert isinstance(damage, Damage) and damage.end - damage.start > 1 << 20 and rest == bz2.decompress(streams[1])
