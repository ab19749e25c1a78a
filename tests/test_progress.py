"""What long work prints where no terminal is."""

import pytest

from luke import progress as module
from luke.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by the test."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == "", "the output is for results"
    return captured.err.splitlines()


def test_a_line_now_and_then_and_one_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("pages", total=100, unit="pages") as progress:
        for _ in range(60):
            clock[0] += 1
            progress.advance()
        during = lines(capsys)
    assert during == [
        "pages: 15 of 100, 1.0 pages/s, 85 s left",
        "pages: 30 of 100, 1.0 pages/s, 70 s left",
        "pages: 45 of 100, 1.0 pages/s, 55 s left",
        "pages: 60 of 100, 1.0 pages/s, 40 s left",
    ]
    assert lines(capsys) == ["pages: 60 of 100, 1.0 pages/s, 40 s left, done"]


def test_work_of_an_earlier_run_counts_but_not_for_the_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("shards", total=1100, unit="shards", done=1000) as progress:
        clock[0] += 20
        progress.advance(40, note="loss 2.5")
        assert lines(capsys) == ["shards: 1,040 of 1,100, 2.0 shards/s, 30 s left, loss 2.5"]


def test_an_unknown_total(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("pages", unit="pages") as progress:
        clock[0] += 4
        progress.advance(2000)
    assert lines(capsys) == ["pages: 2,000, 500.0 pages/s, done"]


def test_failed_work_is_not_called_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), Progress("pages"):
        raise KeyError
    assert lines(capsys) == []


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    with Progress("pages", total=3, unit="pages") as progress:
        progress.advance(3)
    shown = capsys.readouterr().err
    assert "pages" in shown and "3/3" in shown and "done" not in shown
