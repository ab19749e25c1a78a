"""Runs that are killed, stopped, or run out of room, and go on as if nothing had been."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from luke.pretraining.checkpoint import list_checkpoints, newest_valid

from .runs import BIN, arguments, environment, launch, launch_command, losses, luke, weights

LOCK_HELD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


def last_step(output: Path) -> int:
    """The newest step whose figures are logged."""
    try:
        lines = (output / "metrics.jsonl").read_text().splitlines()
        return int(json.loads(lines[-1])["step"])
    except (OSError, IndexError, ValueError):
        return 0


def wait_for_step(output: Path, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while last_step(output) < step and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def family(process: int) -> list[int]:
    """A process and all below it, parents first."""
    children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True, check=False).stdout.split()
    return [process, *(member for child in children for member in family(int(child)))]


def soak(work: Path, output: Path, kills: int, seed: int) -> int:
    """Kills a run of two processes ``kills`` times, each time the launcher or a process of the run, at a random moment.

    Returns:
        How many of the kills fell into the writing of a checkpoint.
    """
    rng = random.Random(seed)
    steps = 12 * max(1, kills)
    options = ("--num-epochs", max(1, kills), "--save-interval-steps", 2, "--override", "zero_optimization.stage=1")
    straight = output.with_name(output.name + "_undisturbed")
    launch(work, straight, 2, *options)
    torn = 0
    for kill in range(kills):
        process = subprocess.Popen(
            launch_command(work, output, 2, *options), env=environment(), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        if rng.random() < 0.15:
            time.sleep(rng.uniform(0, 8))  # while it starts
        else:
            wait_for_step(output, steps * (kill + 1) // (kills + 1), process)
            time.sleep(rng.uniform(0, 0.1))
        victims = family(process.pid)
        os.kill(rng.choice(victims), signal.SIGKILL)
        torn += len(list((output / "checkpoints").glob(".step*.partial")))
        process.wait(timeout=120)
    launch(work, output, 2, *options)
    assert losses(output) == losses(straight)
    ours, theirs = weights(output), weights(straight)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return torn


@pytest.mark.slow
def test_a_run_killed_now_and_then_ends_bit_for_bit_like_one_undisturbed(work: Path) -> None:
    soak(work, work / "soaked", kills=2, seed=0)


@pytest.mark.soak
def test_a_run_killed_twenty_times_ends_bit_for_bit_like_one_undisturbed(work: Path) -> None:
    torn = soak(work, work / "soaked_long", kills=20, seed=1)
    print(f"{torn} of 20 kills fell into the writing of a checkpoint")


def test_sigterm_saves_and_exits_well(work: Path, reference: Path) -> None:
    output = work / "terminated"
    command = [str(BIN / "luke"), "pretrain", *arguments(work, output, "--num-epochs", 1, "--num-workers", 1)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_step(output, 2, process)
    os.killpg(process.pid, signal.SIGTERM)  # as schedulers do: the loader process gets it too
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    done = luke(work, output)
    assert done.returncode == 0, done.stderr
    assert losses(output) == losses(reference)


def test_processes_whose_launcher_was_killed_save_and_stop(work: Path) -> None:
    output = work / "orphaned"
    command = launch_command(work, output, 2, "--num-epochs", 200)
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    wait_for_step(output, 2, process)
    members = family(process.pid)
    assert len(members) >= 4
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{member}").exists() for member in members) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [member for member in members if Path(f"/proc/{member}").exists()]
    newest = newest_valid(output)
    assert newest is not None and int(newest.name.removeprefix("step")) == last_step(output)


def test_a_folder_in_which_another_process_trains_is_left_alone(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from luke.errors import UserError
    from luke.pretraining import run_plan

    output = work / "held"
    output.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", LOCK_HELD, str(output)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    monkeypatch.setattr(run_plan, "_LOCK_SECONDS", 0.5)
    with pytest.raises(UserError, match="another process is training into it"):
        run_plan._lock(output)
    holder.kill()
    holder.wait()
    run_plan._lock(output)


def test_a_full_disk_stops_with_one_line_and_the_last_checkpoint_whole(work: Path, reference: Path) -> None:
    output = work / "full"
    assert luke(work, output, "--max-train-steps", 3).returncode == 0
    whole = list_checkpoints(output)
    size = (whole[0] / "optimizer.safetensors").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

    command = [BIN / "luke", "pretrain", *arguments(work, output)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, preexec_fn=limit, timeout=300)
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("luke: error:")]
    assert len(errors) == 1 and "could not be written" in errors[0] and whole[0].name in errors[0], done.stderr
    assert "Traceback" not in done.stderr
    assert list_checkpoints(output) == whole and newest_valid(output) == whole[0]
    assert not list((output / "checkpoints").glob(".*"))
    assert luke(work, output).returncode == 0
    assert losses(output) == losses(reference)
