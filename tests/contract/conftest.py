"""Fixtures of every contract test."""

from collections.abc import Iterator

import pytest

from tests.support.machine.timing import longest_of
from tests.support.services.servers import Loopback


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Servers and clients of one test, closed after it."""
    with Loopback() as loopback:
        yield loopback


@pytest.fixture
def first_answer_s(loopback: Loopback) -> float:
    """Seconds from the start of a service to its first answer to a new client: the baseline of bounds on durations."""
    return longest_of(lambda: loopback.replay_status(loopback.replay()))
