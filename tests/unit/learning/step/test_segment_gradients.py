import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from penstock.algo.network import Network
from tests.support.training.training import SMALL, make_batch, make_learner, parameters_of

NETWORKS = pytest.mark.parametrize(
    "network",
    [SMALL, dataclasses.replace(SMALL, trunk="shared"), dataclasses.replace(SMALL, memory="gru", memory_size=8)],
    ids=["separate", "shared", "memory"],
)


@NETWORKS
def test_the_gradient_of_a_segment_is_that_of_a_batch_with_nothing_else(network: Network) -> None:
    # The normaliser of returns would learn from different batches.
    network = dataclasses.replace(network, normalise_returns=False)
    settings: dict[str, Any] = {"network": network, "normalise_advantages": False, "epochs": 1, "minibatches": 1}
    learner = make_learner(**settings)
    batch = make_batch(network=network)
    squared = learner.squared_gradients(batch, 0.0)
    assert squared.shape == (batch.valid.shape[0], 1 if network.trunk == "shared" else 2)
    for segment, found in enumerate(squared):
        alone = torch.arange(batch.valid.shape[0]) == segment
        outcome = make_learner(**settings).train(dataclasses.replace(batch, valid=batch.valid & alone[:, None]), 0.0)
        # The norm of a mean over the valid rows alone, not over all.
        share = float(batch.valid[segment].float().mean())
        norm = outcome.statistics.learning.gradient_norm
        assert norm is not None and np.sqrt(found.sum()) == pytest.approx(share * norm, rel=1e-4)


@NETWORKS
def test_the_learner_is_left_as_it_was(network: Network) -> None:
    learner = make_learner(network=network)
    before = parameters_of(learner)
    learner.squared_gradients(make_batch(network=network), 0.0)
    assert all(torch.equal(before[name], after) for name, after in parameters_of(learner).items())
    assert learner.parameters.grad is not None and not learner.parameters.grad.any()
    assert not learner.optimizer.state["step"]


def test_importance_weights_count_only_in_the_moments_of_advantages() -> None:
    learner, batch = make_learner(normalise_advantages=False), make_batch(fresh=2)
    skewed = dataclasses.replace(batch, probabilities=torch.tensor([1.0, 1.0, 0.9, 0.1, 0.1, 0.1]).double())
    expected = learner.squared_gradients(batch, 0.0)
    np.testing.assert_allclose(learner.squared_gradients(skewed, 0.0), expected, rtol=1e-5)


def test_advantages_are_standardised_over_all_segments() -> None:
    batch = make_batch()
    larger = dataclasses.replace(batch, reward=batch.reward * 10.0)
    of_policy = [
        make_learner(normalise_advantages=normalise, value_coefficient=0.0).squared_gradients(each, 0.0)[:, 0]
        for normalise in (True, False)
        for each in (batch, larger)
    ]
    assert of_policy[1].sum() < 4.0 * of_policy[0].sum()
    assert of_policy[3].sum() > 20.0 * of_policy[2].sum()


def test_a_segment_without_usable_rows_has_no_gradient() -> None:
    batch = make_batch()
    valid = batch.valid.clone()
    valid[2] = False
    squared = make_learner().squared_gradients(dataclasses.replace(batch, valid=valid), 0.0)
    assert not squared[2].any() and squared[[0, 1, 3]].all()


def test_nothing_is_compiled_for_the_number_of_rows_of_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a compiled step would be compiled again for each number of rows")

    monkeypatch.setattr(torch, "compile", lambda function, **_: refuse)
    batch = make_batch()
    found = make_learner(execution="compiled").squared_gradients(batch, 0.0)
    np.testing.assert_allclose(found, make_learner(execution="eager").squared_gradients(batch, 0.0))
