"""The whole buffer as a side of the sum tree benchmark."""

import numpy as np

from benchmarks.peers.sum_tree_workload import ALPHA, EPSILON
from benchmarks.penstock_buffer import WINDOW, Buffer


def test_draws_are_by_priority_and_updates_change_them() -> None:
    priorities = np.full(2 * WINDOW, 1e-9)
    priorities[[5, 7_000]] = 1e6
    buffer = Buffer(priorities)
    keys = buffer.draw(256)
    # The two large priorities have nearly all of the mass: 2 (1e6)^0.6 of 8,190 (1e-4)^0.6 more.
    share = 2 * (1e6 + EPSILON) ** ALPHA / (2 * (1e6 + EPSILON) ** ALPHA + 8_190 * EPSILON**ALPHA)
    assert np.isin(keys % (2 * WINDOW), [5, 7_000]).mean() >= share - 0.05
    buffer.update(keys, np.zeros(256))
    buffer.update(keys, np.full(256, 1e9))  # The batch is committed already.
    after = buffer.draw(256)
    assert np.unique(after).size > 100


def test_the_size_of_batches_may_change() -> None:
    buffer = Buffer(np.ones(WINDOW))
    for size in (256, 1_024, 256):
        keys = buffer.draw(size)
        assert keys.size == size
        buffer.update(keys, np.ones(size))
