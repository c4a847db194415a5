import pytest

from stress.ring_turnover import PriorityUpdates
from tests.support.tiers import gate_of


@pytest.mark.parametrize(
    ("rows", "batch", "window"), gate_of(1, [(4096, 512, 64), (1000, 256, 7), (50_000, 4096, 512)])
)
def test_a_priority_does_not_reach_a_segment_that_replaced_its_own(rows: int, batch: int, window: int) -> None:
    outcome = PriorityUpdates(rows=rows, batch=batch, window=window, seed=3).play(150_000)
    assert (outcome.wrong, outcome.miscounted) == (0, 0)
    assert outcome.applied + outcome.ignored == outcome.updates >= 150_000
    # A batch is in flight while half of the ring is overwritten, and with it half of the batch's segments.
    assert 0.2 < outcome.ignored / outcome.updates < 0.6
    assert outcome.root_error < 1e-9
