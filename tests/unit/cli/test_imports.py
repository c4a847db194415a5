import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock.cli.imports import uncollected


class Ring:
    """Refers to itself, so that it is freed by the collector alone."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_made_meanwhile_is_never_looked_through_and_what_is_made_later_is() -> None:
    with uncollected():
        assert not gc.isenabled()
        kept = weakref.ref(Ring())
    later = weakref.ref(Ring())
    gc.collect()
    assert kept() is not None
    assert later() is None


def test_the_collector_is_on_again_after_a_failed_import() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError("no such module")
    assert gc.isenabled()
