import threading
from dataclasses import replace

import numpy as np

from helpers.training import CPU, collect_batch
from penstock.learning.batches import BatchFeed


def test_on_a_cpu_a_batch_is_neither_copied_nor_handed_to_another_thread() -> None:
    feed, batch, before = BatchFeed(CPU), collect_batch(), threading.active_count()
    feed.arrived(batch)
    tensors = feed.tensors(batch)
    assert threading.active_count() == before
    for name in ("observation", "action", "reward", "valid"):
        assert getattr(tensors, name).data_ptr() == batch.columns.column(name).ctypes.data
    feed.close()


def test_versions_that_no_batch_had_make_no_segment_older() -> None:
    batch = collect_batch()
    skipped = np.arange(batch.keys.size, dtype=np.int64)
    aged = replace(batch, number=100, versions=100 - 10 - skipped, skipped=skipped)
    assert BatchFeed(CPU).tensors(aged).staleness.tolist() == [10] * skipped.size
