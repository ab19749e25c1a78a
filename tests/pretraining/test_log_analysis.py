import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from luke.commands.analyze_logs import command
from luke.errors import UserError
from luke.pretraining.log_analysis import Analysis, analyze, conclusions, follow, read_log, read_logs

from .runs import luke


def line(step: int, **figures: float) -> str:
    usual = {
        "loss": 10 - step,
        "tokens_per_second": 100.0,
        "seconds_per_step": 2.0,
        "data_wait_share": 0.01,
        "memory_gib": 3.5,
    }
    words = " ".join(f"{name}={value:g}" for name, value in {"step": step, **usual, **figures}.items())
    return f"2026-12-01 10:00:{step:02d},000 {words}\n"


def write(folder: Path, rank: int, lines: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"worker_{rank}.log"
    path.write_text("".join(lines))
    return path


def test_other_lines_and_half_a_line_are_left_aside(tmp_path: Path) -> None:
    lines = [line(1), "2026-12-01 10:00:01,000 saved step=nowhere\n", "Traceback …\n", line(2), line(3)[:-20]]
    assert [record["step"] for record in read_log(write(tmp_path, 0, lines))] == [1, 2]


def test_steps_that_a_restart_did_again_count_once(tmp_path: Path) -> None:
    lines = [*(line(step) for step in range(1, 6)), line(3, loss=1.0), line(4, loss=2.0)]
    records = read_log(write(tmp_path, 0, lines))
    assert [(record["step"], record["loss"]) for record in records] == [(1, 9), (2, 8), (3, 1), (4, 2)]


def analysis_of(folder: Path) -> Analysis:
    return analyze(read_logs(folder))


def test_a_slow_worker_is_named(tmp_path: Path) -> None:
    for rank, own in enumerate((1.0, 1.05, 1.2, 1.0)):
        write(tmp_path, rank, [line(step, own_seconds_per_step=own) for step in range(1, 5)])
    found = analysis_of(tmp_path)
    assert found.stragglers == [2] and found.bound == "compute" and found.steps == 4
    assert found.workers[1]["own_seconds_per_step"] == pytest.approx(1.05)
    assert "by over 10 %: 2;" in conclusions(found)[1]


def test_figures(tmp_path: Path) -> None:
    write(tmp_path, 0, [line(step, tokens_per_second=100 * step) for step in range(1, 12)])
    figures = analysis_of(tmp_path).figures["tokens_per_second"]
    assert figures["mean"] == pytest.approx(650), "the first step is a warm-up"
    assert figures["p50"] == pytest.approx(650) and figures["p90"] == pytest.approx(1010) and figures["last"] == 1100


def test_a_run_that_waits_for_data_is_told_what_to_do(tmp_path: Path) -> None:
    write(tmp_path, 0, [line(step, own_data_wait_share=0.3) for step in range(1, 4)])
    found = analysis_of(tmp_path)
    assert found.bound == "data" and "num_workers" in conclusions(found)[0]


def test_a_live_run_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, 0, [line(1)])
    shown: list[int] = []

    def grow(_: float) -> None:
        path.write_text(path.read_text() + line(len(shown) + 1))

    monkeypatch.setattr("time.sleep", grow)
    follow(tmp_path, lambda analysis: shown.append(analysis.steps), polls=3)
    assert shown == [1, 2, 3]


def test_no_logs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no worker_<rank>\.log there"):
        read_logs(tmp_path)
    write(tmp_path, 0, ["nothing yet\n"])
    with pytest.raises(UserError, match="no step yet"):
        read_logs(tmp_path)


def test_the_logs_of_a_real_run(work: Path, tmp_path: Path) -> None:
    assert luke(work, work / "analysed", "--max-train-steps", 3).returncode == 0
    logs, picture = work / "analysed_logs", tmp_path / "run.png"
    result = CliRunner().invoke(command, [str(logs), "--json", "--plot", str(picture)], catch_exceptions=False)
    found = json.loads(result.output)
    assert found["steps"] == 3 and found["workers"]["0"]["own_seconds_per_step"] > 0
    assert found["figures"]["seconds_per_step"]["mean"] > found["workers"]["0"]["own_seconds_per_step"] * 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = CliRunner().invoke(command, [str(logs)], catch_exceptions=False).output
    assert "3 steps" in table and "Workers" in table
