"""The XML of a dump file, without the pages that damage has torn.

Only bzip2 can be read past damage. The parser is never given part of a page: what comes before a damaged place is held back
from the last ``<page>`` on, what comes after it is left out up to the next one. Both tags are always tags, as a dump has
``&lt;`` wherever text has ``<``.
"""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from html import unescape
from pathlib import Path
from typing import IO, Any

from luke.corpus.bzip2 import Damage, check_bz2_end, iter_bz2
from luke.corpus.streams import compression_of, open_decompressed
from luke.errors import UserError

logger = logging.getLogger(__name__)

_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"
_TITLE = re.compile(rb"<title>([^<]*)</title>")
# A title comes first in a page; more than this of a page is not looked at.
_TITLE_BYTES = 1 << 12
_PARSERS_A_THREAD = 8  # a thread decompresses about as fast as eight processes parse


@dataclass(slots=True)
class LostRegion:
    """A place of a dump file that could not be read.

    Attributes:
        file: The dump file.
        start: Its first byte in the file, as compressed.
        end: The byte behind its last one.
        torn: The page that is read in part, and so is lost too; None if it is not known.
        before: The last whole page before it; None if there is none.
        after: The first page after it; None if there is none.
    """

    file: str
    start: int
    end: int
    torn: str | None = None
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        pages = [f"torn: {self.torn!r}"] if self.torn else []
        pages += [f"last before: {self.before!r}"] if self.before else []
        pages += [f"next after: {self.after!r}"] if self.after else ["none after"]
        size = self.end - self.start
        return f"{self.file}: bytes {self.start:,} to {self.end:,} ({size:,} bytes) are damaged (pages: {', '.join(pages)})"

    def as_metadata(self) -> dict[str, Any]:
        """For the store's metadata."""
        return asdict(self)


def check_bounds(path: Path) -> None:
    """Refuses a bzip2 file that was cut short, or whose first block is damaged, before hours are spent on it.

    Raises:
        UserError: it is truncated, or damaged where it says which wiki it is of.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
    if compression_of(start) == "bz2":
        check_bz2_end(path)
        first = next(iter_bz2(path), None)
        if isinstance(first, Damage):
            raise _damaged_start(path, first.start)


def _damaged_start(path: Path | str, byte: int) -> UserError:
    return UserError(f"{path}: the bz2 data is damaged at its start (byte {byte:,}); download it again")


@contextmanager
def open_dump(path: Path, workers: int, lost: list[LostRegion], strict: bool = False) -> Iterator[IO[bytes]]:
    """The XML of a dump file, decompressed by its content.

    Args:
        path: The file.
        workers: Processes that will parse it; by more than one, a bzip2 file is decompressed by threads.
        lost: Takes the damaged places, while the file is read.
        strict: Refuse damage in place of leaving out the pages in it.

    Raises:
        UserError: while it is read: it is empty, truncated, or damaged where nothing can go on.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
    if compression_of(start) != "bz2":
        with open_decompressed(path) as stream:
            yield stream
        return
    threads = 0 if workers <= 1 else 1 + workers // _PARSERS_A_THREAD
    pieces = iter_bz2(path, threads)
    try:
        yield _PieceReader(_whole_pages(path, pieces, lost, strict))  # type: ignore[misc]
    finally:
        pieces.close()


class _PieceReader(io.RawIOBase):
    """A file of pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _whole_pages(path: Path, pieces: Iterator[bytes | Damage], lost: list[LostRegion], strict: bool) -> Iterator[bytes]:
    """The pieces, less the pages that damage has torn."""
    held = b""  # from the last "<page>" on: what damage would tear
    before = b""  # the beginning of the page before it
    region: LostRegion | None = None  # while the page after it is looked for
    for piece in pieces:
        if isinstance(piece, Damage):
            if region is None:
                region = LostRegion(str(path), piece.start, piece.end)
                yield _keep_whole(held, before, region)
            region.end, held = piece.end, b""
            continue
        held += piece
        if region is not None:
            start = held.find(_OPEN)
            held = held[start:] if start >= 0 else held[-len(_OPEN) :]
            if start < 0 or (len(held) < _TITLE_BYTES and _CLOSE not in held):
                continue  # the rest of the tag, or of the title, may be in the next piece
            region.after = _title(held)
            _report(region, lost, strict)
            region = None
        cut = held.rfind(_OPEN)
        if cut > 0:
            before = held[max(0, held.rfind(_OPEN, 0, cut)) :][:_TITLE_BYTES]
            yield held[:cut]
            held = held[cut:]
    if region is not None:
        _report(region, lost, strict)
        held = _END
    yield held


def _keep_whole(held: bytes, before: bytes, region: LostRegion) -> bytes:
    """What of ``held`` is a whole page; names the pages in ``region``.

    Raises:
        UserError: no page has begun: what the wiki is lies in the damage.
    """
    if not held.startswith(_OPEN):
        raise _damaged_start(region.file, region.start)
    end = held.rfind(_CLOSE)
    if end >= 0:
        region.before = _title(held)
        return held[: end + len(_CLOSE)]
    region.before, region.torn = _title(before), _title(held)
    return b""


def _title(page: bytes) -> str | None:
    found = _TITLE.search(page, 0, _TITLE_BYTES)
    return unescape(found[1].decode(errors="replace")) if found else None


def _report(region: LostRegion, lost: list[LostRegion], strict: bool) -> None:
    if strict:
        raise UserError(f"{region}; download the file again, or leave out --strict to lose only the pages in it")
    logger.warning("%s: left out", region)
    lost.append(region)
