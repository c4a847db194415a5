"""Updating priorities in Reverb at its fastest: `TFClient.update_priorities`, from NumPy arrays.

`reverb_replay.py` lists the slower alternatives.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import reverb
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.peers.reverb_sampling import DatasetSampling
from benchmarks.peers.reverb_table import FullTable, Rate, metered


@dataclass(frozen=True, slots=True)
class TensorUpdates:
    """Updates with `TFClient.update_priorities`.

    Attributes:
        batch: Updates per call.
        threads: Number of threads, each with its own client.
    """

    batch: int
    threads: int

    @property
    def label(self) -> str:
        """Description of the configuration."""
        return f"TFClient.update_priorities of {self.batch}, threads={self.threads}"

    def measure(self, table: FullTable, seconds: float) -> Rate:
        """Updates for this number of seconds, call by call, from NumPy keys and priorities as in a learner."""
        keys = _stored_keys(table)
        self._in_threads(table, keys, 0.3)
        rate = metered(table, lambda: self._in_threads(table, keys, seconds))
        _check_updates(table, keys)
        return rate

    def _in_threads(self, table: FullTable, keys: NDArray[np.uint64], seconds: float) -> int:
        # Clients are created here and named: threads that create nameless clients race for one kernel and lose its
        # client.
        clients = [reverb.TFClient(table.address, shared_name=f"updates_{number}") for number in range(self.threads)]
        rng = np.random.default_rng(1)
        batches = [(rng.choice(keys, self.batch), rng.random(self.batch) + 0.1) for _ in range(16)]

        def update(client: reverb.TFClient) -> int:
            updated, until = 0, time.perf_counter() + seconds
            while time.perf_counter() < until:
                chosen, priorities = batches[updated // self.batch % len(batches)]
                client.update_priorities(table.name, tf.constant(chosen), tf.constant(priorities))
                updated += self.batch
            return updated

        with ThreadPoolExecutor(self.threads) as executor:
            return sum(executor.map(update, clients))


def priorities_candidates() -> tuple[TensorUpdates, ...]:
    """Returns the fastest candidates."""
    return (TensorUpdates(10_000, 2), TensorUpdates(10_000, 1), TensorUpdates(4096, 1))


def _stored_keys(table: FullTable) -> NDArray[np.uint64]:
    """Returns most keys of the table. Writers don't return keys, so they are sampled."""
    batches = DatasetSampling(2, 64, 32, 1).batches(table)
    return np.unique(np.concatenate([next(batches).info.key for _ in range(table.kind.stored * 2 // 32)]))


def _check_updates(table: FullTable, keys: NDArray[np.uint64]) -> None:
    """Sets a distinct priority for all known keys, and checks that samples have it."""
    priorities = np.full(keys.size, 1000.0)
    reverb.TFClient(table.address).update_priorities(table.name, tf.constant(keys), tf.constant(priorities))
    found = [sample[0].info.priority for sample in reverb.Client(table.address).sample(table.name, 32)]
    if found.count(1000.0) < 16:
        raise RuntimeError(f"priorities were set to 1000, but samples have {found}")
