"""What a stage leaves behind: files and folders that appear whole, each with a metadata that the next stage checks.

A folder is built as ``OUT.partial`` and renamed to ``OUT`` when it is complete, so that nothing half-written ever has the
final name. A killed stage leaves ``OUT.partial`` with its finished shards; the same command continues from them.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from luke import __version__
from luke.errors import InterruptedWorkError, UserError

FORMAT_VERSION = 1
METADATA_FILE = "metadata.json"
_PLAN_FILE = "plan.json"
_SAMPLE_BYTES = 1 << 20
_HASH_WHOLE_UP_TO = 64 * _SAMPLE_BYTES

Metadata = dict[str, Any]


@contextlib.contextmanager
def replace_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Opens a temporary file beside ``path``; on success it is synced and renamed to ``path``, on failure removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is noticed by a write, which does not know its file
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes ``value`` as indented JSON, whole or not at all."""
    with replace_file(path, "w") as stream:
        json.dump(value, stream, ensure_ascii=False, indent=2)
        stream.write("\n")


def sync_folder(path: Path) -> None:
    """Makes renames inside ``path`` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint_value(value: Any) -> str:
    """SHA-256 of ``value`` as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def fingerprint_file(path: Path) -> str:
    """SHA-256 of a file. Of a file over 64 MiB: of its size and its first, middle and last MiB, so that a dump of
    25 GB costs milliseconds, not minutes."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= _HASH_WHOLE_UP_TO:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode())
        for offset in (0, size // 2, size - _SAMPLE_BYTES):
            stream.seek(offset)
            digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()


def fingerprint_inputs(name: str, files: Sequence[Path]) -> dict[str, dict[str, str]]:
    """The ``inputs`` of a plan: ``name``, ``name_2``, … for several files, whose order matters.

    Raises:
        UserError: a file is not there.
    """
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: no such {name} file")
    names = [name if number == 1 else f"{name}_{number}" for number in range(1, len(files) + 1)]
    return {key: {"path": str(file), "fingerprint": fingerprint_file(file)} for key, file in zip(names, files, strict=True)}


def fingerprint_folder(folder: Path) -> str:
    """SHA-256 over the relative names and fingerprints of all files below ``folder``, its metadata left out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return fingerprint_value(
        {
            str(path.relative_to(folder)): fingerprint_file(path)
            for path in files
            if path.relative_to(folder).parts not in ((METADATA_FILE,), (_PLAN_FILE,))
        }
    )


def make_metadata(kind: str, plan: Mapping[str, Any], fingerprint: str, **facts: Any) -> Metadata:
    """The metadata of an artifact. ``plan`` is ``{"options": …, "inputs": {name: {"path", "fingerprint"}}}``."""
    return {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "luke_version": __version__,
        "fingerprint": fingerprint,
        **plan,
        **facts,
    }


def metadata_path(artifact: Path) -> Path:
    """``metadata.json`` inside a folder; ``NAME.metadata.json`` beside a file."""
    return artifact / METADATA_FILE if artifact.is_dir() else artifact.with_name(artifact.name + "." + METADATA_FILE)


def read_metadata(artifact: Path, kind: str) -> Metadata:
    """The metadata of ``artifact``, checked to be of ``kind``.

    Raises:
        UserError: there is no such artifact, it is of another kind, or of a format this version cannot read.
    """
    if not artifact.exists():
        raise UserError(f"{artifact}: not found (a {_words(kind)} is needed here)")
    path = metadata_path(artifact)
    if not path.exists():
        raise UserError(f"{artifact}: not a {_words(kind)}: {path} is missing")
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        found, version = str(metadata["kind"]), int(metadata["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not the metadata of a {_words(kind)}: {error}") from None
    if found != kind:
        raise UserError(f"{artifact}: this is a {_words(found)}, but a {_words(kind)} is needed here")
    if version > FORMAT_VERSION:
        raise UserError(f"{artifact}: format version {version} is newer than this luke reads ({FORMAT_VERSION}); upgrade")
    return metadata


def _words(kind: str) -> str:
    return kind.replace("-", " ")


def same_plan(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Plans agree if their options and the contents of their inputs do; where an input lies does not matter."""

    def essence(plan: Mapping[str, Any]) -> Any:
        inputs = {name: entry["fingerprint"] for name, entry in plan["inputs"].items()}
        return json.loads(json.dumps([plan["options"], inputs], default=str))

    return bool(essence(left) == essence(right))


class StagedFolder:
    """A folder under construction.

    Args:
        output: The final folder.
        kind: What it will hold, such as ``page-store``.
        plan: ``{"options": {...}, "inputs": {name: {"path": str, "fingerprint": str}}}``: whatever decides the content.

    Raises:
        UserError: ``output`` exists and holds something else.
    """

    def __init__(self, output: Path, kind: str, plan: Mapping[str, Any]) -> None:
        self.output, self.kind, self.plan = output, kind, plan
        self.work = output.with_name(output.name + ".partial")
        self.done = self._check_output()
        if not self.done:
            self._open_work()

    def _check_output(self) -> bool:
        if not self.output.exists():
            return False
        if not self.output.is_dir():
            raise UserError(f"{self.output}: exists and is not a folder; choose another output")
        if not any(self.output.iterdir()):
            return False
        if not (self.output / METADATA_FILE).exists():
            raise UserError(f"{self.output}: exists and holds something else; choose another output or delete it")
        metadata = read_metadata(self.output, self.kind)
        if not same_plan(metadata, self.plan):
            raise UserError(
                f"{self.output}: already holds a {_words(self.kind)} made with other options or input; "
                "choose another output or delete it"
            )
        return True

    def _open_work(self) -> None:
        plan_file = self.work / _PLAN_FILE
        if self.work.exists():
            try:
                stored = json.loads(plan_file.read_text(encoding="utf-8"))
                resumable = stored["kind"] == self.kind and same_plan(stored, self.plan)
            except (OSError, ValueError, KeyError, TypeError):
                if any(self.work.iterdir()) and not plan_file.exists():
                    raise UserError(f"{self.work}: exists and is not ours; move it away") from None
                resumable = False
            if resumable:
                for unfinished in list(self.work.rglob(".*.tmp")):
                    if unfinished.is_dir():
                        shutil.rmtree(unfinished)
                    else:
                        unfinished.unlink()
                return
            shutil.rmtree(self.work)
        try:
            self.work.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"{self.work}: cannot be made: {error.strerror}") from None
        write_json(plan_file, {"kind": self.kind, **self.plan})

    def __enter__(self) -> "StagedFolder":
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        # Bad input will not get better: nothing of it is worth continuing from. A kill or a full disk is another matter.
        if isinstance(error, UserError) and not isinstance(error, InterruptedWorkError):
            shutil.rmtree(self.work, ignore_errors=True)

    def finish(self, **facts: Any) -> Metadata:
        """Writes the metadata, syncs, and gives the folder its final name."""
        metadata = make_metadata(self.kind, self.plan, fingerprint_folder(self.work), **facts)
        write_json(self.work / METADATA_FILE, metadata)
        (self.work / _PLAN_FILE).unlink()
        if self.output.exists():
            self.output.rmdir()
        self.work.rename(self.output)
        sync_folder(self.output.parent)
        return metadata
