"""A checkpoint -> one file to pass on: a tar archive without the optimizer's state, which unpacked is a checkpoint again."""

import copy
import gzip
import io
import json
import tarfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from luke.artifacts import METADATA_FILE, replace_file
from luke.errors import UserError
from luke.pretraining.checkpoint import OPTIMIZER_FILE, find_checkpoint, verify


def create_model_archive(checkpoint: Path, output: Path) -> list[str]:
    """Writes the archive; equal checkpoints give equal bytes.

    Args:
        checkpoint: A checkpoint, or a run's output folder (its newest checkpoint that is whole).
        output: Compressed if its name ends in ``.gz``.

    Returns:
        The names of its files; all lie in one folder named as the checkpoint.

    Raises:
        UserError: there is no checkpoint, it is damaged, or ``output`` exists.
    """
    if output.exists():
        raise UserError(f"{output}: exists; choose another output or delete it")
    folder = find_checkpoint(str(checkpoint), checkpoint)
    metadata = copy.deepcopy(verify(folder))
    metadata["sha256"].pop(OPTIMIZER_FILE, None)
    names = sorted(metadata["sha256"])
    output.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(output) as stream, _packed(stream, output) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in names:
            with (folder / name).open("rb") as file:
                tar.addfile(_member(f"{folder.name}/{name}", (folder / name).stat().st_size), file)
        content = json.dumps(metadata, ensure_ascii=False, indent=2).encode()
        tar.addfile(_member(f"{folder.name}/{METADATA_FILE}", len(content)), io.BytesIO(content))
    return [*names, METADATA_FILE]


def _packed(stream: IO[bytes], output: Path) -> AbstractContextManager[Any]:
    """The stream to write to; a gzip file without the time, which would make each another."""
    if output.suffix != ".gz":
        return nullcontext(stream)
    return gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)  # without owner and time, which say nothing about the model
    member.size = size
    return member
