"""The work whose pace bounds that of a pipeline."""

import numpy as np
import pytest
import torch

from benchmarks.peers.equal_work import ENVIRONMENTS
from benchmarks.pipeline_bound import _Network, _weights, collecting, per_cpu_s, training


def test_the_gradient_is_that_of_autograd() -> None:
    random = np.random.default_rng(0)
    rows = torch.from_numpy(random.standard_normal((32, 4), np.float32))
    network = _Network(_weights((4, 64, 64, 2), random), rows, random)
    network.gradient()
    weights = [weight.clone().requires_grad_() for weight in network._weights]
    biases = [torch.zeros(weight.shape[1], requires_grad=True) for weight in weights]
    hidden = rows
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden = torch.tanh(hidden @ weight + bias)
    output = hidden @ weights[-1] + biases[-1]
    expected = torch.autograd.grad(output, [*weights, *biases], network._errors[-1].clone())
    for mine, gradient in zip([*network._gradients, *network._bias_gradients], expected, strict=True):
        torch.testing.assert_close(mine.clone(), gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_both_parts_do_the_work_of_a_task_again_and_again(env_id: str) -> None:
    collect, train = collecting(env_id), training(env_id, 256)
    assert [collect() for _ in range(250)] == [ENVIRONMENTS] * 250
    assert [train() for _ in range(3)] == [256] * 3


def test_a_pace_is_what_was_done_after_the_warm_up_over_its_cpu_time() -> None:
    done = []

    def step() -> int:
        done.append(sum(range(20_000)))
        return 2

    pace = per_cpu_s(step, 0.2)
    # The warm-up is a quarter of the measured time, and its steps do not count.
    assert 0.0 < pace * 0.2 < 2 * len(done)
