import threading
from dataclasses import replace

import numpy as np

from penstock.learning.step.batches import BatchFeed
from penstock.types.replay import Batch
from tests.support.training.training import CPU, collect_batch


def test_a_batch_on_a_cpu_is_neither_copied_nor_passed_to_another_thread() -> None:
    feed, batch, before = BatchFeed(CPU), collect_batch(), threading.active_count()
    feed.arrived(batch)
    tensors = feed.tensors(batch)
    assert threading.active_count() == before
    shared = {"observation": tensors.observation[0], "action": tensors.action[0]}
    shared |= {"reward": tensors.reward, "valid": tensors.valid}
    for name, tensor in shared.items():
        assert tensor.data_ptr() == batch.columns.column(name).ctypes.data
    feed.close()


def test_skipped_versions_do_not_add_to_the_age_of_a_segment() -> None:
    batch = collect_batch()
    skipped = np.arange(batch.keys.size, dtype=np.int64)
    aged = Batch(replace(batch.head, number=100, versions=100 - 10 - skipped, skipped=skipped), batch.columns)
    assert BatchFeed(CPU).tensors(aged).staleness.tolist() == [10] * skipped.size
