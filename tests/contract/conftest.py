"""What every contract test starts with."""

from collections.abc import Iterator

import pytest

from helpers.servers import Loopback


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    """Servers and clients of one test, ended after it."""
    with Loopback() as loopback:
        yield loopback
