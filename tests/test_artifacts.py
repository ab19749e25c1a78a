"""Outputs appear whole or not at all, and say what they were made from."""

import errno
import json
import os
from pathlib import Path

import pytest

from luke import artifacts
from luke.artifacts import (
    StagedFolder,
    fingerprint_file,
    fingerprint_folder,
    fingerprint_value,
    make_metadata,
    metadata_path,
    read_metadata,
    replace_file,
    write_json,
)
from luke.errors import InterruptedWorkError, UserError

PLAN = {"options": {"size": 3}, "inputs": {"dump": {"path": "a", "fingerprint": "f"}}}


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replace_file(path) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and names(tmp_path) == {"a"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replace_file(path) as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and names(tmp_path) == {"a"}


def test_a_full_disk_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as error, replace_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert error.value.filename == str(tmp_path / "a")


def test_json_keeps_its_letters(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"東京": 1})
    assert "東京" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_fingerprint_of_a_value_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint_value({"a": 1, "b": 2}) == fingerprint_value({"b": 2, "a": 1}) != fingerprint_value({"a": 1, "b": 3})


@pytest.mark.parametrize("whole", [True, False])
def test_fingerprint_of_a_file_follows_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    monkeypatch.setattr(artifacts, "_SAMPLE_BYTES", 8)
    monkeypatch.setattr(artifacts, "_HASH_WHOLE_UP_TO", 1000 if whole else 50)
    path = tmp_path / "a"
    seen = set()
    for content in (b"x" * 100, b"y" + b"x" * 99, b"x" * 99 + b"y", b"x" * 50 + b"y" + b"x" * 49, b"x" * 101):
        path.write_bytes(content)
        assert fingerprint_file(path) == fingerprint_file(path)
        seen.add(fingerprint_file(path))
    assert len(seen) == 5


def test_fingerprint_of_a_folder_leaves_its_metadata_out(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_text("x")
    before = fingerprint_folder(tmp_path)
    write_json(tmp_path / "metadata.json", {})
    assert fingerprint_folder(tmp_path) == before
    write_json(tmp_path / "b" / "metadata.json", {})
    assert fingerprint_folder(tmp_path) != before


def test_a_folder_appears_when_it_is_finished(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out"
    with StagedFolder(output, "page-store", PLAN) as stage:
        assert not stage.done and stage.work.is_dir()
        (stage.work / "part").write_text("x")
        assert not output.exists()
        made = stage.finish(counts={"pages": 1})
    assert names(tmp_path / "deep") == {"out", "out/part", "out/metadata.json"}
    assert read_metadata(output, "page-store") == made
    assert made["counts"] == {"pages": 1} and made["options"] == {"size": 3} and made["format_version"] == 1


def test_an_empty_folder_may_be_the_output(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with StagedFolder(tmp_path / "out", "page-store", PLAN) as stage:
        stage.finish()
    assert read_metadata(tmp_path / "out", "page-store")["kind"] == "page-store"


def test_a_finished_folder_is_done_wherever_its_input_lies(tmp_path: Path) -> None:
    with StagedFolder(tmp_path / "out", "page-store", PLAN) as stage:
        stage.finish()
    moved = {**PLAN, "inputs": {"dump": {"path": "elsewhere", "fingerprint": "f"}}}
    assert StagedFolder(tmp_path / "out", "page-store", moved).done
    assert names(tmp_path) == {"out", "out/metadata.json"}


@pytest.mark.parametrize(
    ("kind", "plan", "message"),
    [
        ("page-store", {**PLAN, "options": {"size": 4}}, "made with other options or input"),
        ("page-store", {**PLAN, "inputs": {"dump": {"path": "a", "fingerprint": "g"}}}, "made with other options or input"),
        ("checkpoint", PLAN, "this is a page store, but a checkpoint is needed here"),
    ],
)
def test_another_output_is_refused(tmp_path: Path, kind: str, plan: dict[str, object], message: str) -> None:
    with StagedFolder(tmp_path / "out", "page-store", PLAN) as stage:
        stage.finish()
    before = names(tmp_path)
    with pytest.raises(UserError, match=message):
        StagedFolder(tmp_path / "out", kind, plan)
    assert names(tmp_path) == before


def test_other_peoples_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is not a folder"):
        StagedFolder(tmp_path / "file", "page-store", PLAN)
    for name in ("out", "new.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        StagedFolder(tmp_path / "out", "page-store", PLAN)
    with pytest.raises(UserError, match="is not ours"):
        StagedFolder(tmp_path / "new", "page-store", PLAN)
    assert (tmp_path / "file").read_text() == (tmp_path / "new.partial" / "note").read_text() == "mine"


def test_finished_parts_are_kept_and_unfinished_ones_removed(tmp_path: Path) -> None:
    first = StagedFolder(tmp_path / "out", "page-store", PLAN)
    (first.work / "part").write_text("x")
    (first.work / ".part2.77.tmp").write_text("half")
    (first.work / ".database.tmp").mkdir()
    (first.work / ".database.tmp" / "spilled").write_text("x")
    again = StagedFolder(tmp_path / "out", "page-store", {**PLAN, "inputs": {"dump": {"path": "b", "fingerprint": "f"}}})
    assert names(again.work) == {"part", "plan.json"}


@pytest.mark.parametrize("damage", [None, "", "{", "[]", '{"kind": "page-store"}'])
def test_parts_of_another_plan_are_not_used(tmp_path: Path, damage: str | None) -> None:
    first = StagedFolder(tmp_path / "out", "page-store", PLAN)
    (first.work / "part").write_text("x")
    if damage is not None:
        (first.work / "plan.json").write_text(damage)
    again = StagedFolder(tmp_path / "out", "page-store", {**PLAN, "options": {"size": 4}})
    assert names(again.work) == {"plan.json"}


def test_bad_input_leaves_nothing_and_other_failures_leave_the_finished_parts(tmp_path: Path) -> None:
    for error, left in (
        (UserError("bad"), False),
        (InterruptedWorkError("a worker died"), True),
        (OSError(errno.ENOSPC, "full"), True),
        (KeyboardInterrupt(), True),
    ):
        output = tmp_path / type(error).__name__
        with pytest.raises(type(error)), StagedFolder(output, "page-store", PLAN):
            raise error
        assert not output.exists() and output.with_name(output.name + ".partial").exists() is left


def test_metadata_lies_in_a_folder_or_beside_a_file(tmp_path: Path) -> None:
    (tmp_path / "vocab.jsonl").write_text("x")
    assert metadata_path(tmp_path) == tmp_path / "metadata.json"
    assert metadata_path(tmp_path / "vocab.jsonl") == tmp_path / "vocab.jsonl.metadata.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "metadata.json is missing"),
        ("{", "not the metadata of a page store"),
        ("[1]", "not the metadata of a page store"),
        ("{}", "not the metadata of a page store"),
        (json.dumps({"kind": "checkpoint", "format_version": 1}), "this is a checkpoint, but a page store is needed"),
        (json.dumps({"kind": "page-store", "format_version": 99}), "format version 99 is newer"),
        (json.dumps({"kind": "page-store", "format_version": "x"}), "not the metadata of a page store"),
    ],
)
def test_bad_metadata(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "metadata.json").write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read_metadata(tmp_path, "page-store")
    assert "\n" not in str(error.value)


def test_missing_artifact(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not found \(a page store is needed here\)"):
        read_metadata(tmp_path / "none", "page-store")


def test_metadata_holds_the_plan() -> None:
    metadata = make_metadata("page-store", PLAN, "abc", language="en")
    assert metadata["fingerprint"] == "abc" and metadata["inputs"] == PLAN["inputs"] and metadata["language"] == "en"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be made: Permission denied"):
        StagedFolder(tmp_path / "out", "page-store", PLAN)
