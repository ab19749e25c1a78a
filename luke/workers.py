"""Work spread over processes, results in the order of the tasks."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, TypeVar

from luke.errors import InterruptedWorkError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Tasks in flight a worker: enough that none waits, few enough that memory stays flat.
_IN_FLIGHT = 2


def default_workers() -> int:
    """The number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def map_ordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Iterator[Result]:
    """Yields ``function(task)`` for each task, in order, computed by ``workers`` processes (one: in this process).

    ``tasks`` is read lazily, so memory holds a few tasks a worker, whatever their number.

    Raises:
        InterruptedWorkError: a worker died (killed, or out of memory).
    """
    if workers <= 1:
        if initializer:
            initializer(*initargs)
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("forkserver")
    setup = (initializer, initargs)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=setup) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                pending.append(pool.submit(function, task))
                if len(pending) >= _IN_FLIGHT * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise InterruptedWorkError(
                "a worker process died (out of memory? then use fewer --workers); run the same command again to continue"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    # Ctrl-C reaches the whole process group; only the first process answers it, in one line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer:
        initializer(*initargs)


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone: a pool's workers would wait for its tasks for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
