"""The shipped configurations, and several machines: as users start them."""

import subprocess
from pathlib import Path

import pytest

from .runs import ROOT, arguments, bad, environment, free_port, losses, luke, metrics

SHIPPED = sorted((ROOT / "pretraining_config").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("config", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_configuration_trains(work: Path, config: Path) -> None:
    output = work / config.stem
    options = ("--deepspeed-config-file", config, "--override", "train_batch_size=8", "--max-train-steps", 2)
    done = luke(work, output, *options)
    assert done.returncode == 0, done.stderr
    assert [entry["step"] for entry in metrics(output)] == [1, 2]
    assert (output / "checkpoints" / "step00000002").is_dir()


def test_all_eight_are_there() -> None:
    assert len(SHIPPED) == 8


@pytest.mark.slow
def test_two_machines_of_two_processes_give_the_same_losses(work: Path, reference: Path) -> None:
    """Two loopback addresses stand for the machines; on each the same command is started, without ssh."""
    output, port = work / "machines", free_port()
    hosts = work / "hostfile"
    hosts.write_text("127.0.0.1 slots=2\n127.0.0.2 slots=2\n")
    machines = []
    for rank in range(2):
        command = ["deepspeed", f"--hostfile={hosts}", "--num_nodes=2", "--num_gpus=2", "--no_ssh", f"--node_rank={rank}"]
        command += ["--master_addr=127.0.0.1", f"--master_port={port}", str(ROOT / "luke/pretraining/train.py")]
        command += arguments(work, output, "--override", "train_micro_batch_size_per_gpu=2")
        machines.append(
            subprocess.Popen(
                command,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        )
    printed = [machine.communicate(timeout=400)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], printed
    assert losses(output) == pytest.approx(losses(reference), rel=1e-4)
    logs = work / "machines_logs"
    assert {path.name for path in logs.iterdir()} == {f"worker_{rank}.log" for rank in range(4)}


def test_a_backend_that_the_machine_lacks_is_refused(work: Path) -> None:
    bad(work, "--backend nccl needs GPUs", "--backend", "nccl")
