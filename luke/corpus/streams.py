"""Reading source files: what compressed them, lines of bounded length, members of tar archives, names with wildcards.

Nothing is ever unpacked to disk, so memory and disk stay bounded whatever an archive holds.
"""

import bz2
import glob
import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from luke.errors import UserError

_MAGIC = {b"BZh": "bz2", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
# Far above the longest page of any wiki as HTML in JSON (some ten MiB) and the longest Wikidata item (a few).
_LONGEST_LINE = 256 << 20


class Line(NamedTuple):
    """A line of a source file: the file (of a tar archive with its member), its number from 1, and its bytes."""

    file: str
    number: int
    data: bytes

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.file}, line {self.number}"


def expand_paths(names: Sequence[str | Path]) -> list[Path]:
    """The files that names and wildcards stand for, each once; what a wildcard finds is ordered by the numbers in the names,
    so that part 2 comes before part 10.

    Raises:
        UserError: a name stands for no file.
    """
    paths: list[Path] = []
    for name in map(str, names):
        # A file may have brackets in its name. Path.glob does not expand an absolute pattern.
        found = [name] if Path(name).is_file() else [n for n in glob.glob(name) if Path(n).is_file()]  # noqa: PTH207
        if not found:
            what = "no file matches this pattern" if glob.has_magic(name) else "no such dump file"
            raise UserError(f"{name}: {what}")
        paths += sorted(map(Path, found), key=_natural)
    return list(dict.fromkeys(paths))


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def compression_of(start: bytes) -> str | None:
    """``bz2``, ``gzip`` or ``zstd`` by a file's first four bytes, or None."""
    return next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """What a file holds, decompressed by its content, not by its name.

    Raises:
        UserError: while it is read: it is empty, torn, or damaged.
    """
    with path.open("rb") as stream:
        start = stream.read(4)
    if not start:
        raise UserError(f"{path}: the file is empty; download it again")
    kind = compression_of(start)
    try:
        with _OPENERS[kind](path, "rb") as stream:
            yield stream
    except EOFError:
        raise UserError(f"{path}: the {kind} file is truncated; download it again") from None
    except (zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if "Truncated" in str(error):  # as pyarrow says
            raise UserError(f"{path}: the {kind} file is truncated; download it again") from None
        raise UserError(f"{path}: the {kind} data is damaged ({error}); download it again") from None


def _open_zstd(path: Path, _mode: str) -> Any:
    import pyarrow as pa

    return pa.input_stream(str(path), compression="zstd", buffer_size=1 << 20)


_OPENERS: dict[str | None, Any] = {None: open, "bz2": bz2.open, "gzip": gzip.open, "zstd": _open_zstd}


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def head(path: Path, size: int) -> bytes:
    """The first bytes of what a file holds, decompressed; of a tar archive, of its first file."""
    with open_decompressed(path) as stream:
        start = _read_fully(stream, size)
    if not is_tar(start):
        return start
    with open_decompressed(path) as stream, _tar_errors(path):
        for _, member in _tar_members(path, stream):
            return _read_fully(member, size)
    return b""


def _read_fully(stream: IO[bytes], size: int) -> bytes:
    parts, left = [], size
    while left and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def is_tar(start: bytes) -> bool:
    """Whether decompressed data that begins so is a tar archive."""
    return start[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC


def iter_lines(path: Path, longest: int = _LONGEST_LINE) -> Iterator[Line]:
    """The lines of a file, or of each file of a tar archive, without those that are empty.

    Raises:
        UserError: a line has over ``longest`` bytes; the archive is damaged, or has a member that no dump has (a link, a
            device, a path that leads out of the archive).
    """
    with open_decompressed(path) as stream:
        start = _read_fully(stream, _TAR_MAGIC_AT + len(_TAR_MAGIC))
    with open_decompressed(path) as stream, _tar_errors(path):
        members = _tar_members(path, stream) if is_tar(start) else [(str(path), stream)]
        for name, member in members:
            yield from _lines(name, member, longest)


def _lines(name: str, stream: IO[bytes], longest: int) -> Iterator[Line]:
    buffer, number = bytearray(), 0
    while block := stream.read(1 << 20):
        # Only a block with a line's end is searched through: a line may be long.
        cut = block.rfind(b"\n") + 1
        buffer += block[:cut]
        if cut:
            for data in bytes(buffer).split(b"\n")[:-1]:
                number += 1
                if data.strip():
                    yield Line(name, number, data)
            buffer.clear()
        buffer += block[cut:]
        if len(buffer) > longest:
            raise UserError(f"{name}, line {number + 1}: longer than {longest >> 20} MiB; is it a JSON-lines file?")
    if buffer.strip():
        yield Line(name, number + 1, bytes(buffer))


@contextmanager
def _tar_errors(path: Path) -> Iterator[None]:
    """Around all reading of an archive: a torn one shows where its members are read, not only between them."""
    try:
        yield
    except tarfile.TarError as error:
        raise UserError(f"{path}: the tar archive is damaged or truncated ({error}); download it again") from None


def _tar_members(path: Path, stream: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts:
                raise UserError(f"{path}: refused: its member {member.name!r} leads out of the archive")
            if member.isdir():
                continue
            if not member.isreg():
                raise UserError(f"{path}: refused: its member {member.name!r} is neither a file nor a folder")
            file = archive.extractfile(member)
            assert file is not None
            yield f"{path}:{member.name}", file
