"""glibc's allocator, told to keep memory: a third of a training loop's CPU time on a CPU is otherwise page faults.

glibc gives large blocks back to the kernel when they are freed, and the next step's tensors fault their pages in again.
"""

import ctypes
import os

# malloc.h
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_KEEP = 2**31 - 1
_GROW_BY = 256 << 20


def keep_freed_memory() -> bool:
    """Makes malloc reuse freed memory instead of returning it, for this process from now on.

    Leaves alone an allocator that the user has set up (``MALLOC_*`` or ``LD_PRELOAD``), and other C libraries.

    Returns:
        Whether it was set up.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(parameter, value) == 1
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _KEEP), (_M_TOP_PAD, _GROW_BY))
    )
