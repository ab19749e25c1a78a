"""What every command line of the package has in common."""

import os
import subprocess
import sys

import pytest

_ABORTS_AT_THE_END = """
import atexit, os, sys
import click
from luke.cli import run_command
from luke.errors import UserError

class Aborts:
    def __del__(self):
        os.abort()

kept = Aborts()
atexit.register(lambda: print("writers closed"))

@click.command()
@click.argument("how")
def command(how):
    print("finished")
    if how == "mistake":
        raise UserError("no such folder")

run_command(command)
"""


@pytest.mark.parametrize(("how", "status"), [("well", 0), ("mistake", 2)])
def test_a_launched_process_ends_before_the_teardown_that_can_abort_it(how: str, status: int) -> None:
    command = [sys.executable, "-c", _ABORTS_AT_THE_END, how]
    launched = {**os.environ, "LOCAL_RANK": "1"}
    alone = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=launched)
    assert result.returncode == status
    assert result.stdout.splitlines() == ["finished", "writers closed"]
    assert subprocess.run(command, capture_output=True, check=False, env=alone).returncode < 0
