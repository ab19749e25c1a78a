"""Running the real `luke` command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def run_luke(*arguments: object) -> subprocess.CompletedProcess[str]:
    """``luke ARGUMENTS``, its output captured."""
    command = [sys.executable, "-m", "luke.cli", *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def refused(*arguments: object, leaving: Path) -> str:
    """Runs a command that must fail as a user's mistake does: one line (returned), status 2, nothing new at ``leaving``."""
    before = leaving.exists()
    result = run_luke(*arguments)
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1 and lines[0].startswith("luke: error: "), result.stderr
    assert leaving.exists() == before
    leftovers = [path.name for path in leaving.parent.glob(f"*{leaving.name}*") if path != leaving]
    assert before or not leftovers, leftovers
    return lines[0]
