"""A small network of hidden layers on its flat parameters, as `direct_gradients` reads it."""

import itertools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.algo import direct_gradients
from penstock.algo.policies import Policy
from penstock.algo.sgemm import sgemm_address

Floats = NDArray[np.float32]


class FlatNetwork:
    """Hidden layers and outputs of a policy and its value, on a CPU in float32.

    Attributes:
        layout: The parameters and their positions, the argument `network` of `direct_gradients`.
        size: Number of the flat parameters.
        outputs: Number of the policy's outputs.
    """

    def __init__(self, policy: Policy, parameters: nn.Parameter) -> None:
        """Finds the layers in the flat parameters. `applies_to` must be true of the policy."""
        self._policy = policy
        trunks, sgemm = _hidden_layers(policy), sgemm_address()
        assert trunks is not None and sgemm is not None
        layers = [_positions([trunk[depth] for trunk in trunks]) for depth in range(len(trunks[0]))]
        ends = [
            (*_position(list(head.children())[-1]), trunk)
            for head, trunk in ((policy.actor, 0), (policy.critic, len(trunks) - 1))
        ]
        self.layout = (
            parameters.detach().numpy(),
            np.array(layers, np.int64).reshape(-1, 5),
            np.array([(outputs, weight, bias, trunk) for _, outputs, weight, bias, trunk in ends], np.int64),
            len(trunks),
            int(policy.network.activation == "relu"),
            sgemm,
        )
        self.size, self.outputs = parameters.numel(), ends[0][1]

    @staticmethod
    def applies_to(policy: Policy) -> bool:
        """Returns whether a policy consists of hidden layers alone, after encoders without parameters.

        False for all if the BLAS with which NumPy is linked is unknown.
        """
        return _hidden_layers(policy) is not None and sgemm_address() is not None

    def features(self, observation: tuple[Tensor, ...]) -> Tensor:
        """Returns the inputs of the hidden layers, <float32>[..., F], for raw observations."""
        prepared = self._policy.observer.prepare(observation, self._policy.observation_moments)
        return torch.cat(prepared, -1) if len(prepared) > 1 else prepared[0]

    def room(self) -> Floats:
        """Returns memory for one thread's calls of `direct_gradients`."""
        return np.zeros(direct_gradients.room_of(self.layout), np.float32)


def _positions(linears: list[nn.Linear]) -> tuple[int, int, int, int, int]:
    """Returns inputs, outputs, the positions of the first weight and bias, and the distance to those of the next."""
    inputs, outputs, weight, bias = _position(linears[0])
    spacings = {
        (_position(after)[2] - _position(before)[2], _position(after)[3] - _position(before)[3])
        for before, after in itertools.pairwise(linears)
    }
    assert len(spacings) <= 1 and all(of_weight == of_bias for of_weight, of_bias in spacings)
    return inputs, outputs, weight, bias, next(iter(spacings), (0, 0))[0]


def _position(linear: nn.Module) -> tuple[int, int, int, int]:
    """Returns inputs, outputs, and the positions of weight and bias among the flat parameters."""
    assert isinstance(linear, nn.Linear)
    weight, bias = (int(values.storage_offset()) for values in (linear.weight, linear.bias))
    return linear.in_features, linear.out_features, weight, bias


def _hidden_layers(policy: Policy) -> list[list[nn.Linear]] | None:
    """Returns the hidden layers of each trunk; None if the network has further parts with parameters."""
    network = policy.network
    if network.memory is not None or network.module is not None or network.moves is not None:
        return None
    bodies = [policy.trunk] if network.trunk == "shared" else [_body(policy.actor), _body(policy.critic)]
    trunks: list[list[nn.Linear]] = []
    for body in bodies:
        trunks.append([])
        for part in body:
            if isinstance(part, nn.Linear):
                trunks[-1].append(part)
            elif any(True for _ in part.parameters()):
                return None
    return trunks


def _body(head: nn.Module) -> list[nn.Module]:
    """Returns all parts but the last, which is the output."""
    return list(head.children())[:-1]
