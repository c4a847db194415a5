"""Imports without garbage collections."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Excludes the objects that the block creates from all garbage collections.

    Collections take a fifth of the time of torch's imports, and as much again when the process ends. They also write to
    the memory pages that forked services share.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
