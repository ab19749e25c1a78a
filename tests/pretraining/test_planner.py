import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from luke.commands.plan import command
from luke.errors import UserError
from luke.pretraining.memory import GIB
from luke.pretraining.planner import named_config, parse_memory
from luke.pretraining.train import _is_out_of_memory

from .runs import ROOT, luke

LARGE = ROOT / "pretraining_config" / "luke_large_stage1.json"


@pytest.mark.parametrize(
    ("text", "size"), [("24GB", 24 * GIB), ("24 GiB", 24 * GIB), ("0.5g", GIB // 2), ("80MB", 80 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "24", "GB", "-3GB", "0GB", "24 bananas"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(UserError, match="such as 24GB"):
        parse_memory(text)


def test_published_sizes_agree_with_a_folder_that_says_the_same(tmp_path: Path) -> None:
    published = named_config("roberta-base", 1000, 256)
    values = {
        "model_type": "roberta",
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        "type_vocab_size": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    read = named_config(str(tmp_path), 1000, 256)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "entity_vocab_size"):
        assert getattr(published, name) == getattr(read, name)


def printed(*options: str) -> str:
    result = CliRunner().invoke(command, ["--config", str(LARGE), *options], catch_exceptions=False, standalone_mode=False)
    return result.output


def plan(*options: str) -> dict[str, object]:
    result: dict[str, object] = json.loads(printed("--model", "roberta-large", *options, "--json"))
    return result


def largest(result: dict[str, object], stage: int = 0, checkpointing: bool = False) -> int:
    rows = [r for r in result["rows"] if (r["zero_stage"], r["gradient_checkpointing"]) == (stage, checkpointing)]  # type: ignore[attr-defined]
    return int(rows[0]["largest_micro_batch"])


def test_the_guides_gpus() -> None:
    """The guide says 2 to 4 in 12 GB, 4 to 8 in 24 GB, 8 to 16 in 48 GB: all fit in fp32 on one GPU without ZeRO."""
    assert 2 <= largest(plan("--gpu-memory", "12GB")) <= 4
    assert largest(plan("--gpu-memory", "24GB")) >= 8
    assert largest(plan("--gpu-memory", "48GB")) >= 16


def test_every_option_changes_the_plan() -> None:
    usual = plan("--gpu-memory", "24GB")
    more_gpus = plan("--gpu-memory", "24GB", "--gpus", "8")
    assert largest(more_gpus, 2) > largest(usual, 2)
    assert largest(plan("--gpu-memory", "24GB", "--override", "bf16.enabled=true"), 1) > largest(usual, 1)
    assert largest(plan("--gpu-memory", "24GB", "--max-seq-length", "128")) > 3 * largest(usual)
    assert largest(plan("--gpu-memory", "24GB", "--entity-vocab-size", "1000")) > largest(usual)
    assert largest(plan("--gpu-memory", "24GB", "--entity-emb-size", "1024")) < largest(usual)
    assert largest(plan("--gpu-memory", "24GB", "--fix-bert-weights")) > largest(usual)
    assert "does not fit" in str(plan("--gpu-memory", "9GB")["advice"])


def test_a_table_for_people_and_bad_input() -> None:
    assert "entity table 128M" in " ".join(printed("--model", "roberta-large", "--gpu-memory", "12GB").split())
    for options, message in (
        (("--model", "nowhere/nothing", "--gpu-memory", "12GB"), "no such folder here"),
        (("--model", "roberta-large", "--gpu-memory", "much"), "such as 24GB"),
        (("--model", "roberta-large", "--gpu-memory", "12GB", "--gpus", "0"), "--gpus 0: must be positive"),
    ):
        with pytest.raises(UserError, match=message):
            printed(*options)


def test_an_auto_micro_batch_is_planned(work: Path) -> None:
    options = ("--dry-run", "--override", "train_micro_batch_size_per_gpu=auto", "--override", "train_batch_size=24")
    done = luke(work, work / "auto", *options)
    assert done.returncode == 0, done.stderr
    found = re.search(r'"train_micro_batch_size_per_gpu": (\d+)', done.stdout)
    assert found is not None and int(found[1]) == 12, "the largest divisor of 24 up to 16, a CPU's largest"


def test_running_out_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 56)
    assert _is_out_of_memory(caught.value) and not _is_out_of_memory(RuntimeError("shapes do not fit"))
