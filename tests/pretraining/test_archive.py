"""A checkpoint in one file: without the optimizer's state, the same bytes each time, a checkpoint again when unpacked."""

import tarfile
from pathlib import Path

import pytest
import torch

from luke.errors import UserError
from luke.pretraining import checkpoint as checkpoints
from luke.pretraining.archive import create_model_archive
from tests.command_line import refused, run_luke

from .test_checkpoint import write


@pytest.mark.parametrize("name", ["m.tar", "m.tar.gz"])
def test_an_unpacked_archive_is_a_checkpoint(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "run", 7, 2.5)
    result = run_luke("create-model-archive", tmp_path / "run", tmp_path / name)
    assert result.returncode == 0 and "4 files" in result.stdout, result.stderr
    with tarfile.open(tmp_path / name, "r:gz" if name.endswith(".gz") else "r:") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    unpacked = tmp_path / "there" / folder.name
    assert checkpoints.verify(unpacked)["step"] == 7
    assert torch.equal(checkpoints.load_weights(unpacked)["a"], torch.full((3,), 2.5))
    assert {path.name for path in unpacked.iterdir()} == {
        *("config.json", "entity_vocab.jsonl", "metadata.json", "model.safetensors")
    }


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_equal_checkpoints_give_equal_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    folder = write(tmp_path / "run", 7)
    create_model_archive(folder, tmp_path / f"a.{kind}")
    (folder / "config.json").touch()
    monkeypatch.setattr("time.time", lambda: 0.0)  # what gzip would write down
    create_model_archive(folder, tmp_path / f"b.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    folder, output = write(tmp_path / "run", 7), tmp_path / "m.tar"
    (folder / "config.json").write_text("{}")
    assert "config.json does not have its checksum" in refused("create-model-archive", folder, output, leaving=output)
    output.touch()
    with pytest.raises(UserError, match="exists; choose another output"):
        create_model_archive(folder, output)
