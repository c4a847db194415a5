"""A small network on its flat parameters, as `small.compiled.gradients` reads it, and the BLAS that multiplies them."""

import ctypes
import importlib
import itertools

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algo.activations import implementations_of
from penstock.algo.policies import Policy
from penstock.algo.published import Description
from penstock.small.compiled import gradients
from penstock.small.compiled.gradients import FlatLayout, Floats
from penstock.small.layers import Layer
from penstock.small.network import SmallNetwork

_SGEMM = (
    "scipy_cblas_sgemm64_",
    "cblas_sgemm64_",
    "scipy_cblas_sgemm",
    "cblas_sgemm",
    "cblas_sgemm$NEWLAPACK$ILP64",
)
"""Names of the BLAS product of float32 matrices: in NumPy's own wheels, in distributions, and on macOS."""


class FlatNetwork:
    """Hidden layers and outputs of a policy and its value, on a CPU in float32.

    Attributes:
        layout: The parameters and their positions.
        size: Number of the flat parameters.
        outputs: Number of the policy's outputs.
    """

    def __init__(self, policy: Policy, parameters: nn.Parameter, network: SmallNetwork, sgemm: int) -> None:
        """Finds the layers of this network in the flat parameters. `sgemm` is the address of the product."""
        self._policy = policy
        tensors = dict(policy.named_parameters())

        def position(layer: Layer) -> tuple[int, int]:
            """Returns the positions of weight and bias among the flat parameters."""
            weight, bias = tensors.pop(f"{layer.name}.weight"), tensors.pop(f"{layer.name}.bias")
            assert weight.shape == (layer.outputs, layer.inputs), (layer, weight.shape)
            return int(weight.storage_offset()), int(bias.storage_offset())

        layers = [
            (depth[0].inputs, depth[0].outputs, *_with_spacing([position(layer) for layer in depth]))
            for depth in zip(*network.trunks, strict=True)
        ]
        ends = [
            (layer.outputs, *position(layer), trunk)
            for layer, trunk in ((network.actor, 0), (network.critic, len(network.trunks) - 1))
        ]
        # Another parameter would have no gradient.
        assert tensors.keys() <= {"log_std"}, tensors.keys()
        self.layout = FlatLayout(
            parameters=parameters.detach().numpy(),
            layers=np.array(layers, np.int64).reshape(-1, 5),
            ends=np.array(ends, np.int64),
            trunks=len(network.trunks),
            activation=implementations_of(network.activation).number,
            sgemm=sgemm,
        )
        self.size, self.outputs = parameters.numel(), network.actor.outputs

    @classmethod
    def of(cls, policy: Policy, parameters: nn.Parameter) -> "FlatNetwork | None":
        """Returns the network of a policy with these flat parameters.

        None if it is not small (`SmallNetwork`), or if the BLAS with which NumPy is linked is unknown.
        """
        network, sgemm = SmallNetwork.of(Description(policy.spec, policy.network)), sgemm_address()
        return None if network is None or sgemm is None else cls(policy, parameters, network, sgemm)

    def features(self, observation: tuple[Tensor, ...]) -> Tensor:
        """Returns the inputs of the hidden layers, <float32>[..., F], for raw observations."""
        prepared = self._policy.observer.prepare(observation, self._policy.observation_moments)
        return torch.cat(prepared, -1) if len(prepared) > 1 else prepared[0]

    def room(self) -> Floats:
        """Returns memory for one thread's calls of `small.compiled.gradients`."""
        return np.zeros(gradients.room_of(tuple(self.layout)), np.float32)


def sgemm_address() -> int | None:
    """Returns the address of `cblas_sgemm` in the library with which NumPy is linked; None if it has no known name.

    numba's own products need SciPy, which takes 113 MB for this one function.
    """
    # NumPy 1.26 has stand-ins in Python in a module of the later name.
    core = "core" if np.__version__.startswith("1.") else "_core"
    library = ctypes.CDLL(importlib.import_module(f"numpy.{core}._multiarray_umath").__file__)
    for name in _SGEMM:
        if hasattr(library, name):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None


def _with_spacing(positions: list[tuple[int, int]]) -> tuple[int, int, int]:
    """Returns the first positions of weight and bias, and the distance to the next trunk; 0 if there is none.

    The trunks have the same layers, so that all distances are the same.
    """
    spacings = {
        after - before for pair in itertools.pairwise(positions) for before, after in zip(*pair, strict=True)
    } or {0}
    (spacing,) = spacings
    return *positions[0], spacing
