"""The processor cores of this machine."""

import os


def usable_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    # Not every system supports CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
