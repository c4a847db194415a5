import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock.machine.module_imports import uncollected


class Ring:
    """An object that refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_only_objects_created_inside_the_block_are_excluded_from_collections() -> None:
    with uncollected():
        assert not gc.isenabled()
        kept = weakref.ref(Ring())
    later = weakref.ref(Ring())
    gc.collect()
    assert kept() is not None
    assert later() is None


def test_the_garbage_collector_is_enabled_after_a_failed_import() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError("no such module")
    assert gc.isenabled()
