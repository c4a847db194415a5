"""Imports without garbage collections."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Leaves what is made meanwhile out of all garbage collections, which would find next to nothing.

    They take a fifth of the time of the imports of torch, and as much again when the process ends; and they write to
    the pages of every object, which forked services share until then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
