"""Work over processes: order, memory, errors, deaths."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from luke.errors import InterruptedWorkError, UserError
from luke.workers import default_workers, map_ordered

_offset = 0


def set_offset(offset: int) -> None:
    global _offset
    _offset = offset


def add_offset(number: int) -> int:
    return number + _offset


def slow_first(number: int) -> int:
    time.sleep(0.3 if number == 0 else 0)
    return number


def refuse(number: int) -> int:
    if number == 3:
        raise UserError("number 3 is bad")
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def parent_of(number: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_and_every_process_is_initialized(workers: int) -> None:
    assert list(map_ordered(add_offset, range(20), workers, set_offset, (100,))) == list(range(100, 120))


def test_a_slow_task_does_not_change_the_order() -> None:
    assert list(map_ordered(slow_first, range(6), 2)) == list(range(6))


def test_one_worker_is_this_process_and_two_are_others() -> None:
    assert set(map_ordered(parent_of, range(3), 1)) == {os.getpid()}
    assert os.getpid() not in set(map_ordered(parent_of, range(3), 2))


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_are_read_as_they_are_needed(workers: int) -> None:
    read = 0

    def tasks() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield number

    results = map_ordered(add_offset, tasks(), workers, set_offset, (0,))
    for _ in range(10):
        next(results)
    assert read <= 10 + 2 * workers
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_users_mistake_in_a_worker_arrives_as_it_is(workers: int) -> None:
    results = map_ordered(refuse, range(10), workers)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match="number 3 is bad"):
        next(results)


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_tasks_are_reported_as_they_are(workers: int) -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise UserError("the dump is torn")

    with pytest.raises(UserError, match="torn"):
        list(map_ordered(add_offset, tasks(), workers, set_offset, (0,)))


def test_a_dead_worker_is_one_line_and_nothing_is_thrown_away() -> None:
    with pytest.raises(InterruptedWorkError, match="run the same command again"):
        list(map_ordered(die, range(4), 2))


def test_no_process_outlives_its_work() -> None:
    pids = set(map_ordered(parent_of, range(8), 2))
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_default_is_a_worker_a_cpu() -> None:
    assert default_workers() == len(os.sched_getaffinity(0))
