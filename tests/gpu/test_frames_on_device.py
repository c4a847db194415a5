"""A convolutional policy on a CUDA device, whose frames are scaled in one pass, compared with one on a CPU."""

import pytest
import torch
from torch import Tensor

from penstock.algo.network import Network
from penstock.algo.policies import Inputs, Policy
from penstock.config import Precision
from penstock.learning.step.devices import autocast, use_precision
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree

SPEC = EnvironmentSpec("pixels", Tree.of(BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,))), Tree.of(DiscreteSpace(6)))
NETWORK = Network(hidden_sizes=(64,), trunk="shared", activation="relu", normalise_observations=False)


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-5), ("tf32", 1e-2), ("bfloat16", 1e-1)])
def test_values_of_frames_on_a_gpu_are_those_on_a_cpu(cuda: torch.device, precision: Precision, error: float) -> None:
    torch.manual_seed(0)
    policy, frames = Policy(SPEC, NETWORK), torch.randint(256, (3, 5, 4, 84, 84), dtype=torch.uint8)
    use_precision(cuda, precision)

    def values(device: torch.device, precision: Precision) -> Tensor:
        with torch.no_grad(), autocast(device, precision):
            return policy.to(device).evaluate(Inputs((frames.to(device),)))[1].cpu()

    expected = values(torch.device("cpu"), "float32")
    torch.testing.assert_close(values(cuda, precision), expected, rtol=error, atol=error)
