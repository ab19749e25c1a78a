"""What a training process does when the launcher that started it is gone: save and stop, as if told to.

The ``deepspeed`` command is a chain of processes. When one of them is killed those below it live on: they would keep the
devices, and train into a folder in which the run may already have been started again.
"""

import os
import signal
import threading
import time
from pathlib import Path

_LAUNCHER_MODULE = b"deepspeed.launcher.launch"
_SECONDS_BETWEEN_LOOKS = 1.0
# For saving; a process that waits for a dead one inside a collective operation cannot save, and is ended.
_GRACE_SECONDS = 300.0


def stop_with_launcher() -> None:
    """From now on, SIGTERM reaches this process when DeepSpeed's launcher, or what started it, has died.

    Does nothing in a process that DeepSpeed's launcher did not start, or without Linux's ``/proc``.
    """
    parent = os.getppid()
    try:
        command = Path(f"/proc/{parent}/cmdline").read_bytes()
    except OSError:
        return
    if _LAUNCHER_MODULE not in command and b"deepspeed/launcher/launch.py" not in command:
        return
    chain = parent, _parent_of(parent)
    threading.Thread(target=_watch, args=(chain,), daemon=True, name="launcher-watch").start()


def _parent_of(process: int) -> int | None:
    try:
        # "pid (name) state ppid …"; the name may hold spaces and parentheses.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _watch(chain: tuple[int, int | None]) -> None:
    while (os.getppid(), _parent_of(os.getppid())) == chain:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)
