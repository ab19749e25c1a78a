"""The commands of docs/entity_disambiguation.md, as they stand there, on tiny files of the same forms."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from luke.entity_disambiguation.documents import Document

from .test_convert import write_public_model
from .test_readers import candidate_line
from .tiny_disambiguators import make_disambiguator, random_document

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SETS = {
    "aida_train.csv": "aida_train.txt",
    "aida_testB.csv": "testa_testb_aggregate_original",
    "wned-msnbc.csv": "msnbc.conll",
    "wned-aquaint.csv": "aquaint.conll",
    "wned-ace2004.csv": "ace2004.conll",
    "wned-clueweb.csv": "clueweb.conll",
    "wned-wikipedia.csv": "wikipedia.conll",
}


def write_mulrel(folder: Path, name: str, documents: list[Document]) -> None:
    """A benchmark in the mulrel-nel form."""
    candidates, words = "", ""
    for document in documents:
        words += f"-DOCSTART- ({document.id}\n"
        place = 0
        for mention in document.mentions:
            words += "".join(f"{word}\n" for word in document.text[place : mention.start].split())
            first, *others = document.mention_text(mention).split()
            words += f"{first}\tB\tx\tx\tx\tx\n" + "".join(f"{word}\tI\tx\tx\tx\tx\n" for word in others)
            place = mention.end
            listed = [f"{number},{c.prior},{c.title}" for number, c in enumerate(mention.candidates)]
            candidates += candidate_line(document.id, document.mention_text(mention), listed, f"0,1,0.5,{mention.title}")
        words += "".join(f"{word}\n" for word in document.text[place:].split())
    (folder / name).write_text(candidates)
    (folder / SETS[name]).write_text(words)


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """What a user has downloaded."""
    model, data = tmp_path / "luke_ed_large", tmp_path / "entity_disambiguation"
    model.mkdir()
    data.mkdir()
    write_public_model(model, make_disambiguator(model), old=False)
    for path in (model / "tokenizer").iterdir():
        path.rename(model / path.name)
    for number, name in enumerate(SETS):
        rng = np.random.default_rng(number)
        size = 20 if name == "aida_train.csv" else 3
        write_mulrel(data, name, [random_document(rng, 16, 5, f"{n}x") for n in range(size)])
    (data / "persons.txt").write_text("Entity 3\n")
    (data / "enwiki_20181220_titles.txt").write_text("".join(f"Entity {number}\n" for number in range(50)))
    (data / "enwiki_20181220_redirects.tsv").write_text("Entity 99\tEntity 3\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.slow
def test_the_papers_table(downloads: Path) -> None:
    text = (ROOT / "docs" / "entity_disambiguation.md").read_text(encoding="utf-8")
    section = text[text.index("## The paper's table") : text.index("What the paper reports")]
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).replace("\\\n", " ").splitlines()
    lines = [line for line in lines if line]
    assert len(lines) == 4
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    for line in lines:
        words = shlex.split(line)
        if words[0] == "deepspeed":
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                words.insert(1, f"--master_port={server.getsockname()[1]}")
            words += ["--override", "train_batch_size=4", "--max-seq-length", "64"]
        done = subprocess.run(words, cwd=downloads, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert (downloads / "fine_tuned.json").exists() and (downloads / "zero_shot.html").exists()
    assert "15 documents" not in done.stdout and "3 documents, 15 mentions" in done.stdout
