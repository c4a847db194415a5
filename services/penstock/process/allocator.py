"""Sets up the C library's allocator to keep freed memory.

gRPC and Python allocate and free memory for every message. By default, glibc returns blocks of that size to the
kernel, which clears new pages for the next message. This took more than a third of the time for moving 3 MiB messages.
"""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameter numbers of mallopt, from glibc's malloc.h."""

_KEPT_BYTES = 128 * 2**20
"""Free bytes at the end of the heap above which memory is returned to the kernel: room for dozens of messages."""

_MAPPED_FROM_BYTES = 32 * 2**20
"""Size in bytes from which a block is mapped by itself: the largest value that glibc allows."""


def keep_freed_memory() -> None:
    """Sets the thresholds of glibc's malloc; does nothing with another C library. Call it before starting threads."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        # One arena: a thread can't reuse blocks in the arena of another thread.
        mallopt(_M_ARENA_MAX, 1)
