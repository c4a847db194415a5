"""Estimates on a CUDA device, which scans where a CPU recurs, compared with those on a CPU."""

import pytest
import torch

from penstock.learning.step.batches import to_tensors
from tests.support.training.training import CPU, collect_batch, make_learner


@pytest.mark.parametrize("unroll_length", [2, 32, 50])
def test_estimates_on_a_gpu_are_those_on_a_cpu(cuda: torch.device, unroll_length: int) -> None:
    batch = collect_batch(fresh=4, unroll_length=unroll_length)
    ours, theirs = (
        make_learner(device=device, execution="eager").estimate(to_tensors(batch, device), 0.0)
        for device in (cuda, CPU)
    )
    for name in ("usable", "correction", "priority", "error"):
        one, other = getattr(ours, name).cpu(), getattr(theirs, name)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    for one, other in zip(ours.steps.columns, theirs.steps.columns, strict=False):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-4)
