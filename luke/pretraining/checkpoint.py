"""Checkpoints: whole, verified, and independent of the number of processes, the ZeRO stage and the micro batch.

A checkpoint is a folder ``checkpoints/step00001234`` in the run's output folder; its files are described in
``docs/architecture.md``. It is written beside and renamed, and carries the SHA-256 of each file.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from luke.artifacts import METADATA_FILE, Metadata, fingerprint_value, make_metadata, read_metadata, sync_folder, write_json
from luke.errors import UserError
from luke.tensors import save_tensors

logger = logging.getLogger(__name__)

KIND = "checkpoint"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
_NAME = re.compile(r"step(\d{8})")


def checkpoint_folder(output_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return output_dir / "checkpoints" / f"step{step:08d}"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class CheckpointWriter:
    """Writes one checkpoint; only one process does.

    Args:
        folder: Its final folder.
        model_config: ``config.json``.
        companions: Files and folders copied into it: the tokenizer, the entity vocabulary.
    """

    def __init__(self, folder: Path, model_config: dict[str, Any], companions: Iterable[Path]) -> None:
        self.folder, self.model_config, self.companions = folder, model_config, list(companions)
        self.work = folder.with_name(f".{folder.name}.partial")

    def write(self, weights: dict[str, Tensor], moments: dict[str, Tensor], plan: dict[str, Any], **facts: Any) -> None:
        """Writes everything under a working name, syncs, renames."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        try:
            self._write_files(weights, moments)
            self._seal(plan, facts)
        except BaseException:
            shutil.rmtree(self.work, ignore_errors=True)
            raise
        if self.folder.exists():  # an earlier try at this step, such as one that did not verify
            shutil.rmtree(self.folder)
        self.work.rename(self.folder)
        sync_folder(self.folder.parent)

    def _write_files(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        save_tensors(weights, self.work / MODEL_FILE)
        save_tensors(moments, self.work / OPTIMIZER_FILE)
        write_json(self.work / "config.json", self.model_config)
        for companion in self.companions:
            copy = shutil.copytree if companion.is_dir() else shutil.copy2
            copy(companion, self.work / companion.name)

    def _seal(self, plan: dict[str, Any], facts: dict[str, Any]) -> None:
        """Syncs every file and writes the metadata with their checksums."""
        files = sorted(path for path in self.work.rglob("*") if path.is_file())
        sums = {str(path.relative_to(self.work)): _sha256(path) for path in files}
        for path in files:
            with path.open("rb+") as stream:
                os.fsync(stream.fileno())
        write_json(self.work / METADATA_FILE, make_metadata(KIND, plan, fingerprint_value(sums), sha256=sums, **facts))


def verify(folder: Path) -> Metadata:
    """The metadata of a checkpoint whose files are all there and unchanged.

    Raises:
        UserError: it is not a checkpoint, or a file is missing or has changed.
    """
    metadata = read_metadata(folder, KIND)
    for name, expected in metadata["sha256"].items():
        path = folder / name
        if not path.exists():
            raise UserError(f"{folder}: the checkpoint is torn: {name} is missing")
        if _sha256(path) != expected:
            raise UserError(f"{folder}: the checkpoint is damaged: {name} does not have its checksum")
    return metadata


def list_checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints of a run, newest first, unverified."""
    folders = [path for path in (output_dir / "checkpoints").glob("step*") if _NAME.fullmatch(path.name)]
    return sorted(folders, reverse=True)


def newest_valid(output_dir: Path) -> Path | None:
    """The newest checkpoint that verifies; each one passed over is reported."""
    for folder in list_checkpoints(output_dir):
        try:
            verify(folder)
        except UserError as error:
            logger.warning("%s; trying the one before it", error)
        else:
            return folder
    return None


def best_checkpoint(output_dir: Path) -> Path | None:
    """The checkpoint with the lowest held-out loss, of those that were evaluated; of equals the newest."""
    losses = {folder: _eval_loss(folder) for folder in list_checkpoints(output_dir)}
    evaluated = [folder for folder, loss in losses.items() if loss is not None]
    return min(evaluated, key=lambda folder: losses[folder] or 0.0, default=None)


def _eval_loss(folder: Path) -> float | None:
    try:
        figures = read_metadata(folder, KIND).get("evaluation") or {}
    except UserError:
        return None
    return figures.get("eval_loss")


def prune(output_dir: Path, keep_last: int) -> None:
    """Deletes all checkpoints but the newest ``keep_last`` and the best, with their exports."""
    kept = {*list_checkpoints(output_dir)[:keep_last], best_checkpoint(output_dir)}
    for folder in list_checkpoints(output_dir):
        if folder not in kept:
            doomed = folder.with_name(f".{folder.name}.partial")  # so that no half-deleted one ever has a final name
            folder.rename(doomed)
            shutil.rmtree(doomed)
            shutil.rmtree(export_folder(folder), ignore_errors=True)


def export_folder(folder: Path) -> Path:
    """Where the Hugging Face form of a checkpoint lies."""
    return folder.parent.with_name("exports") / folder.name


def find_checkpoint(name: str, output_dir: Path) -> Path:
    """The checkpoint that ``--resume-checkpoint-id`` names: one of this run by its name, a checkpoint folder, or the newest
    of another run's output folder.

    Raises:
        UserError: there is none.
    """
    own = output_dir / "checkpoints" / name
    for candidate in (own, Path(name)):
        if (candidate / METADATA_FILE).exists() and (candidate / MODEL_FILE).exists():
            return candidate
    newest = newest_valid(Path(name))
    if newest is None:
        raise UserError(f"{name}: neither a checkpoint nor a run's output folder with one")
    return newest


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, verified."""
    verify(folder)
    return _load(folder / MODEL_FILE)


def load_moments(folder: Path) -> dict[str, Tensor]:
    """The optimizer's moments of a checkpoint."""
    return _load(folder / OPTIMIZER_FILE)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def remove_unfinished(output_dir: Path) -> None:
    """Removes what a killed run left half-written."""
    for leftover in (output_dir / "checkpoints").glob(".step*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config
