"""What the tests of training runs share: made once, since a run takes seconds."""

from pathlib import Path

import pytest

from .runs import luke, make_work


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny base, a dataset and a DeepSpeed file."""
    folder = tmp_path_factory.mktemp("training")
    make_work(folder)
    return folder


@pytest.fixture(scope="session")
def reference(work: Path) -> Path:
    """Twelve steps (one pass over the data), straight through, in one process."""
    output = work / "reference"
    done = luke(work, output, "--save-interval-steps", 5)
    assert done.returncode == 0, done.stderr
    return output
