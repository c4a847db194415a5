"""Copies of batches to the device while another batch trains."""

import torch

from penstock.learning.step.batches import BatchFeed, TrainingBatch, to_tensors
from penstock.learning.step.devices import payload_memory
from penstock.types.payloads import PayloadPool, allocate
from penstock.types.replay import Batch
from tests.support.training.training import CPU, collect_batch, make_learner


def assert_same(ours: TrainingBatch, batch: Batch) -> None:
    expected = to_tensors(batch, CPU).tensors
    assert all(each.is_cuda for each in ours.tensors)
    # What follows are the positions of the valid rows, which a CPU does not need.
    for one, other in zip(ours.tensors, expected, strict=False):
        assert torch.equal(one.cpu(), other)
    assert ours.rows is not None
    assert len(ours.tensors) == len(expected) + 3
    assert torch.equal(torch.stack(ours.rows.steps, 1), ours.valid.nonzero())


def test_batches_arrive_with_every_value_intact_whether_announced_or_not(cuda: torch.device) -> None:
    feed = BatchFeed(cuda)
    batches = [collect_batch(number=number, segments=2 + number) for number in range(5)]
    for batch in (batches[0], batches[1], batches[3]):
        feed.arrived(batch)
    # Batch 1 is never requested. Batches 2 and 4 are not announced.
    for number in (0, 2, 3, 4):
        assert_same(feed.tensors(batches[number]), batches[number])
    feed.close()


def test_a_copy_during_training_changes_neither_batch(cuda: torch.device) -> None:
    feed = BatchFeed(cuda)
    batches = [collect_batch(number=number, learner=make_learner(seed=number)) for number in range(12)]
    fed, alone = (make_learner(device=cuda, epochs=4, minibatches=4) for _ in range(2))
    feed.arrived(batches[0])
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        tensors = feed.tensors(batch)
        if following is not None:
            feed.arrived(following)
        fed.train(tensors, 0.0)
        del tensors
        alone.train(to_tensors(batch, cuda), 0.0)
    torch.testing.assert_close(fed.parameters, alone.parameters, rtol=1e-3, atol=2e-5)
    feed.close()


def test_columns_in_page_locked_memory_are_copied_from_there_and_kept_until_then(cuda: torch.device) -> None:
    pool, feed = PayloadPool(memory=payload_memory(cuda)), BatchFeed(cuda)
    for number in range(20):
        collected = collect_batch(number=number, segments=6)
        columns = allocate(collected.columns.schema, 6, pool)
        for array, values in zip(columns.arrays, collected.columns.arrays, strict=True):
            array[...] = values
        assert torch.from_numpy(columns.arrays[0]).is_pinned()
        batch = Batch(collected.head, columns)
        feed.arrived(batch)
        if number % 3 == 0:
            # The others are released, and their memory is reused by later ones.
            assert_same(feed.tensors(batch), collected)
        del batch, columns
    feed.close()
