import logging
from pathlib import Path

import pytest
import torch

from luke.errors import UserError
from luke.pretraining import checkpoint as checkpoints


def write(output: Path, step: int, value: float = 0.0) -> Path:
    companion = output / "entity_vocab.jsonl"
    companion.parent.mkdir(parents=True, exist_ok=True)
    companion.write_text("{}\n")
    folder = checkpoints.checkpoint_folder(output, step)
    weights, moments = {"a": torch.full((3,), value)}, {"exp_avg.a": torch.ones(3)}
    writer = checkpoints.CheckpointWriter(folder, {"model_type": "luke"}, [companion])
    writer.write(weights, moments, {"options": {}, "inputs": {}}, step=step)
    return folder


def test_a_checkpoint_comes_back_as_written(tmp_path: Path) -> None:
    folder = write(tmp_path, 12, 3.5)
    assert checkpoints.verify(folder)["step"] == 12
    assert torch.equal(checkpoints.load_weights(folder)["a"], torch.full((3,), 3.5))
    assert torch.equal(checkpoints.load_moments(folder)["exp_avg.a"], torch.ones(3))
    assert checkpoints.read_config(folder) == {"model_type": "luke"}
    assert (folder / "entity_vocab.jsonl").exists()
    assert not list((tmp_path / "checkpoints").glob(".*")), "no working name is left"


@pytest.mark.parametrize("damage", ["flip", "tear", "remove"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = write(tmp_path, 10), write(tmp_path, 20)
    assert checkpoints.newest_valid(tmp_path) == newer
    model = newer / "model.safetensors"
    content = bytearray(model.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        model.write_bytes(content)
    elif damage == "tear":
        model.write_bytes(content[:-5])
    else:
        model.unlink()
    with caplog.at_level(logging.WARNING):
        assert checkpoints.newest_valid(tmp_path) == older
    assert str(newer) in caplog.text and "model.safetensors" in caplog.text
    with pytest.raises(UserError, match=r"model\.safetensors"):
        checkpoints.load_weights(newer)


def test_a_half_written_checkpoint_is_never_seen(tmp_path: Path) -> None:
    complete = write(tmp_path, 10)
    torn = tmp_path / "checkpoints" / ".step00000020.partial"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    assert checkpoints.newest_valid(tmp_path) == complete
    checkpoints.remove_unfinished(tmp_path)
    assert not torn.exists()


def test_checkpoints_are_found_by_name_by_folder_and_by_run(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    folder, newest = write(run, 10), write(run, 20)
    assert checkpoints.find_checkpoint("step00000010", run) == folder
    assert checkpoints.find_checkpoint(str(folder), other) == folder
    assert checkpoints.find_checkpoint(str(run), other) == newest
    with pytest.raises(UserError, match="neither a checkpoint nor a run"):
        checkpoints.find_checkpoint("nothing", run)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    good = write(tmp_path, 10)

    def no_space(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("luke.tensors.save_file", no_space)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, 20)
    assert checkpoints.newest_valid(tmp_path) == good
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step00000010"]
