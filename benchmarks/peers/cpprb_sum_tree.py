"""cpprb's side of the sum tree benchmark: runs in cpprb's environment and prints its timings as JSON.

cpprb runs in its fastest configuration: one float32 column, float32 priorities, and leaves as the unsigned integers
that it returns, without conversion. Its two trees, of sums and of minima, are float32.
"""

import dataclasses
import json
import sys
from typing import Any

import cpprb
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.sum_tree_workload import ALPHA, BETA, EPSILON, run


class _Cpprb:
    dtype: type[np.floating[Any]] = np.float32

    def __init__(self, priorities: NDArray[np.float64]) -> None:
        size = priorities.size
        self._buffer = cpprb.PrioritizedReplayBuffer(size, {"x": {"dtype": np.float32}}, alpha=ALPHA, eps=EPSILON)
        self._buffer.add(x=np.arange(size, dtype=np.float32), priorities=priorities.astype(np.float32))

    def draw(self, batch: int) -> NDArray[Any]:
        sample = self._buffer.sample(batch, BETA)
        leaves: NDArray[Any] = sample["indexes"]
        return leaves

    def update(self, leaves: NDArray[Any], priorities: NDArray[Any]) -> None:
        self._buffer.update_priorities(leaves, priorities)


json.dump([dataclasses.asdict(timing) for timing in run(_Cpprb, seed=int(sys.argv[1]))], sys.stdout)
