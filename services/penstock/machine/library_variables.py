"""Environment variables of the libraries that Penstock uses, most of which a process inherits from its user.

Libraries read them when they are imported, or later; a few values would keep a run from working.
"""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

_LOADING = ("PYTHONHOME", "PYTHONPATH", "LD_", "NUMBA_", "PROTOCOL_BUFFERS_", "PYTORCH_", "TORCH_")
"""Beginnings of the names of variables that can keep a library from being imported."""

_PINNING = ("GOMP_CPU_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables that pin threads of OpenMP to processors."""


def prepare(variables: MutableMapping[str, str]) -> None:
    """Changes the variables of a process of Penstock's own, before it imports a library.

    NumPy has one thread, unless the variables choose another number. Processes share the cores, and a small product
    takes longer on several threads. OpenBLAS also starts its threads and takes their memory when it is loaded. Direct
    gradient steps use the same library. Products of torch on a CPU have threads of their own (`learner.threads`).

    Numba always compiles: the replay service and the learner have code for raw memory, which Python can't run.

    OpenMP pins no threads. When torch is imported, OpenMP would pin the thread that imports it to the first processor.
    All services are forked from that thread or do the same, so one processor would do the work of the whole run.
    """
    variables.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("NUMBA_DISABLE_JIT", *_PINNING):
        variables.pop(name, None)


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Hides variables from a library that is imported in the block. Processes of the user may need them afterwards."""
    inherited = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(inherited)


def suspects(variables: Mapping[str, str]) -> list[str]:
    """Returns the names of the variables, of those that are set, that can keep a library from being imported."""
    return sorted(name for name, value in variables.items() if value and name.startswith(_LOADING))
