"""The C library's allocator, told to keep what is freed.

gRPC and Python allocate and free every message. By default glibc gives pieces of that size back to the kernel, which
clears new pages for the next ones: that took more than a third of the time that moving 3 MiB messages takes. Called
before threads are started.
"""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Numbers of mallopt's parameters, from glibc's malloc.h."""

_KEPT_BYTES = 128 * 2**20
"""Some dozens of messages; more than this at the end of the heap is given back."""

_MAPPED_FROM_BYTES = 32 * 2**20
"""The largest that glibc allows."""


def keep_freed_memory() -> None:
    """Sets the thresholds of glibc's malloc; does nothing with another C library."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        # Pieces that lie in the arena of another thread can't be used again.
        mallopt(_M_ARENA_MAX, 1)
