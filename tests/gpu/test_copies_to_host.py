"""Weights and checkpoints from a CUDA device, and the waits for them."""

import contextlib
from pathlib import Path

import pytest
import torch

from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.run.publication import Publication
from penstock.learning.step.host_copies import HostCopy
from penstock.runs.folder import RunFolder
from penstock.types.run import Weights
from tests.support.training.policies import weights_of
from tests.support.training.training import make_batch, make_learner


class Sink:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.published: list[Weights] = []

    def publish(self, weights: Weights) -> None:
        self.published.append(weights)


def test_versions_are_published_as_they_were_while_training_continues(cuda: torch.device) -> None:
    learner, batch, sink, expected = make_learner(device=cuda), make_batch(device=cuda), Sink(), []
    with contextlib.closing(Publication(learner, sink)) as publication:
        for version in range(6):
            learner.train(batch, 0.0)
            expected.append(weights_of(learner.policy, version))
            publication.publish(version)
        publication.finish()
    assert sink.published == expected


def test_a_copy_does_not_wait_before_its_end(cuda: torch.device) -> None:
    learner = make_learner(device=cuda)
    state = {name: tensor.detach() for name, tensor in learner.policy.state_dict().items()}
    HostCopy(state).wait()  # allocates page-locked memory, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        copy = HostCopy(state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(tensor, state[name].cpu()) for name, tensor in copy.wait().items())


@pytest.mark.parametrize(("saved_on", "read_on"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_checkpoint_moves_between_cpu_and_gpu(
    cuda: torch.device, saved_on: str, read_on: str, tmp_path: Path
) -> None:
    devices = {"cuda": cuda, "cpu": torch.device("cpu")}
    learner, resumed = (make_learner(device=devices[name]) for name in (saved_on, read_on))
    learner.train(make_batch(device=devices[saved_on]), 0.0)
    folder = RunFolder(tmp_path)
    folder.create()
    path = checkpoints.save(folder, checkpoints.take(learner, RunProgress(env_steps=1)), keep=1)
    checkpoints.restore(resumed, path)
    assert torch.equal(resumed.parameters.cpu(), learner.parameters.cpu())
    for name, tensor in resumed.optimizer.state.items():
        assert torch.equal(tensor.cpu(), learner.optimizer.state[name].cpu()), name
