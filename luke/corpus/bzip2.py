"""Reading bzip2 by its blocks: several at a time, and past those that are damaged.

A block begins with a number of 48 bits at any bit of the file, says nothing of its length, and depends on no other block.
So each is found by that number, made a stream of its own, and decompressed by a thread (`bz2` lets go of the interpreter
while it works); its checksum tells whether it is whole. Files of several streams are read the same way.
"""

import bz2
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from luke.errors import UserError

_BLOCK, _END = 0x314159265359, 0x177245385090
_MAGIC_BITS, _MARK_BITS = 48, 80  # a checksum of 32 bits follows the number
_MASK = (1 << _MAGIC_BITS) - 1
_HEADER, _HEADER_BITS = b"BZh9", 32  # the largest blocks, which read smaller ones too
_CHUNK = 4 << 20
_LONGEST_BLOCK = 4 << 20  # compressed: 900,000 symbols of at most 20 bits, and the tables
_IN_FLIGHT = 3  # blocks a thread


class Damage(NamedTuple):
    """Bytes [start, end) of a file that could not be decompressed."""

    start: int
    end: int


@dataclass(slots=True)
class _Mark:
    """Where a block or a stream's end begins, in bits from the file's start, and its checksum."""

    start: int
    is_end: bool
    checksum: int


@dataclass(slots=True)
class _Span:
    """From a mark to the next; ``data`` holds a block's bytes, from the one in which it begins."""

    mark: _Mark
    end: int
    data: bytes

    @property
    def start(self) -> int:
        return self.mark.start


def _patterns() -> list[tuple[bytes, int, bool]]:
    """The five whole bytes that show a number at each of eight bit positions, the bits before them, and which it is."""
    found = []
    for is_end, magic in ((False, _BLOCK), (True, _END)):
        for shift in range(8):
            lead = (8 - shift) % 8  # bits of the number in a byte that it shares
            whole = (magic >> (_MAGIC_BITS - 40 - lead)) & ((1 << 40) - 1)
            found.append((whole.to_bytes(5, "big"), lead, is_end))
    return found


_PATTERNS = _patterns()


def _find_marks(buffer: bytes, start: int) -> list[_Mark]:
    """The marks of a buffer from byte ``start`` on, in order, with places counted from the buffer's start."""
    marks = []
    for pattern, lead, is_end in _PATTERNS:
        at = buffer.find(pattern, start)
        while at >= 0:
            bit = at * 8 - lead
            number = _bits(buffer, bit, _MARK_BITS)
            if number is not None and number >> 32 == (_END if is_end else _BLOCK):
                marks.append(_Mark(bit, is_end, number & 0xFFFFFFFF))
            at = buffer.find(pattern, at + 1)
    return sorted(marks, key=lambda mark: mark.start)


def _bits(buffer: bytes, start: int, number: int) -> int | None:
    """Bits [start, start + number), or None if the buffer does not hold them."""
    end = start + number
    if start < 0 or end > len(buffer) * 8:
        return None
    last = -(-end // 8)
    return int.from_bytes(buffer[start // 8 : last], "big") >> (last * 8 - end) & ((1 << number) - 1)


def _iter_spans(stream: IO[bytes]) -> Iterator[_Span]:
    """The file cut at its marks; its bytes before the first mark are left out."""
    buffer, base = b"", 0  # base: the buffer's place in the file, in bytes
    mark: _Mark | None = None
    searched = 0  # bytes of the buffer that hold no further mark
    while chunk := stream.read(_CHUNK):
        buffer += chunk
        for found in _find_marks(buffer, searched):
            found.start += base * 8
            if mark is not None and found.start <= mark.start:
                continue
            if mark is not None:
                yield _cut(buffer, base, mark, found.start)
            mark = found
        # A mark may go on in the next chunk; what is longer than any block is not kept.
        searched = max(0, len(buffer) - _MARK_BITS // 8 - 1)
        keep = searched if mark is None else min(searched, mark.start // 8 - base)
        if len(buffer) - keep > _LONGEST_BLOCK:
            keep = searched
        if keep > 0:
            buffer, base, searched = buffer[keep:], base + keep, searched - keep
    if mark is not None:
        yield _cut(buffer, base, mark, (base + len(buffer)) * 8)


def _cut(buffer: bytes, base: int, mark: _Mark, end: int) -> _Span:
    first = mark.start // 8 - base
    whole = first >= 0 and not mark.is_end
    return _Span(mark, end, buffer[first : -(-end // 8) - base] if whole else b"")


def _decompress(data: bytes, start: int, end: int, checksum: int) -> bytes | None:
    """What the block at bits [start, end) of ``data`` holds; None if it is damaged."""
    whole, rest = divmod(end - start, 8)
    last = _bits(data, end - rest, rest)
    if last is None or not whole:
        return None
    body = np.frombuffer(data, np.uint8, whole + (start % 8 > 0), start // 8)
    if start % 8:
        body = (body[:-1] << np.uint8(start % 8)) | (body[1:] >> np.uint8(8 - start % 8))
    bits = rest + _MARK_BITS
    tail = ((last << _MAGIC_BITS | _END) << 32 | checksum) << (-bits % 8)
    stream = b"".join((_HEADER, body.tobytes(), tail.to_bytes(-(-bits // 8), "big")))
    decompressor = bz2.BZ2Decompressor()
    try:
        block = decompressor.decompress(stream)
    except OSError:
        return None
    return block if decompressor.eof else None


def _decompress_span(span: _Span) -> bytes | None:
    first = span.start // 8 * 8
    return _decompress(span.data, span.start - first, span.end - first, span.mark.checksum)


def check_bz2_end(path: Path) -> None:
    """Looks at the end of a bzip2 file, so that a download that was cut short is refused at once.

    Raises:
        UserError: it ends within a stream.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _CHUNK))
        marks = _find_marks(stream.read(), 0)
    if not marks or not marks[-1].is_end:
        raise _truncated(path)


def _truncated(path: Path) -> UserError:
    return UserError(f"{path}: the bz2 file is truncated; download it again")


def iter_bz2(path: Path, threads: int = 0) -> Generator[bytes | Damage, None, None]:
    """What a bzip2 file holds, a block at a time, with what is damaged in its place.

    Args:
        path: The file, of one or several streams.
        threads: That decompress; 0: none but the caller's. Memory is some blocks a thread.

    Raises:
        UserError: the file ends within a stream.
    """
    expected: int | None = 0  # the checksum of the stream so far; None: a part of it is lost
    place = _HEADER_BITS  # up to where everything is accounted for, in bits
    ended = False
    with path.open("rb") as stream:
        for span, block in _with_blocks(path, _iter_spans(stream), threads):
            if span.start != place:
                yield Damage(place // 8, -(-span.start // 8))
                expected = None
            place, ended = span.end, span.mark.is_end
            if ended:
                if expected is not None and expected != span.mark.checksum:
                    yield Damage(span.start // 8, -(-(span.start + _MARK_BITS) // 8))
                expected = 0
                place = -(-(span.start + _MARK_BITS) // 8) * 8 + _HEADER_BITS
            elif block is None:
                expected = None
                if not _is_last(path, span):
                    yield Damage(span.start // 8, -(-span.end // 8))
            else:
                if expected is not None:
                    expected = ((expected << 1 | expected >> 31) & 0xFFFFFFFF) ^ span.mark.checksum
                yield block
    if not ended:
        raise _truncated(path)


def _is_last(path: Path, span: _Span) -> bool:
    return span.end >= path.stat().st_size * 8


def _with_blocks(path: Path, spans: Iterator[_Span], threads: int) -> Iterator[tuple[_Span, bytes | None]]:
    """The spans, each with what it holds (None: damaged, or a stream's end)."""
    pending: deque[tuple[_Span, Callable[[], bytes | None]]] = deque()
    with ThreadPoolExecutor(threads) if threads else nullcontext() as pool:
        for span in spans:
            pending.append((span, _start(span, pool)))
            if len(pending) > _IN_FLIGHT * threads + 1:
                yield _next_block(path, pending)
        while pending:
            yield _next_block(path, pending)


def _start(span: _Span, pool: ThreadPoolExecutor | None) -> Callable[[], bytes | None]:
    if span.mark.is_end:
        return lambda: None
    if pool is None:
        return lambda: _decompress_span(span)
    future: Future[bytes | None] = pool.submit(_decompress_span, span)
    return future.result


def _next_block(path: Path, pending: deque[tuple[_Span, Callable[[], bytes | None]]]) -> tuple[_Span, bytes | None]:
    span, result = pending.popleft()
    block = result()
    if block is None and not span.mark.is_end and pending:
        # A block may hold the number of a mark by chance, once in some thousand dumps: then it goes on behind it.
        end = pending[0][0].end
        block = _decompress(
            _read(path, span.start, end), span.start % 8, span.start % 8 + end - span.start, span.mark.checksum
        )
        if block is not None:
            pending.popleft()
            span.end = end
    return span, block


def _read(path: Path, start: int, end: int) -> bytes:
    """The bytes that hold bits [start, end) of a file; none if they are more than two blocks."""
    first, last = start // 8, -(-end // 8)
    if last - first > 2 * _LONGEST_BLOCK:
        return b""
    with path.open("rb") as stream:
        stream.seek(first)
        return stream.read(last - first)
