"""Threads of NumPy's matrix products, which are chosen when NumPy is first imported."""

from collections.abc import MutableMapping

_VARIABLE = "OPENBLAS_NUM_THREADS"


def use_one_thread(variables: MutableMapping[str, str]) -> None:
    """Limits NumPy to one thread in a process with these variables, unless they choose another number.

    Processes share the cores, and a small product takes longer on several threads. OpenBLAS also starts its threads and
    takes their memory when it is loaded. Direct gradient steps use the same library. Products of torch on a CPU have
    threads of their own (`learner.threads`).
    """
    variables.setdefault(_VARIABLE, "1")
