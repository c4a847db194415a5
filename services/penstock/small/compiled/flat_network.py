"""A small network on its flat parameters, as `small.compiled.passes` reads it, and the BLAS that multiplies them."""

import ctypes
import importlib

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algo.activations import implementations_of
from penstock.algo.policies import Policy
from penstock.algo.published import Description
from penstock.small.compiled import passes
from penstock.small.compiled.passes import LAYER, FlatLayout, Floats, block_of
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
        layers = [layer for trunk in network.trunks for layer in trunk]
        block = block_of(max((layer.inputs * layer.outputs for layer in layers), default=0))
        tensors, end, weights = dict(policy.named_parameters()), 0, 0

        def placed(layer: Layer, *, hidden: bool = True) -> tuple[int, ...]:
            """Returns a `LAYER`, whose results and slopes get the next places in the memory."""
            nonlocal end, weights
            weight, bias = tensors.pop(f"{layer.name}.weight"), tensors.pop(f"{layer.name}.bias")
            assert weight.shape == (layer.outputs, layer.inputs), (layer, weight.shape)
            results, slopes = end, end + block * layer.outputs
            end = slopes + block * layer.outputs
            positions = int(weight.storage_offset()), int(bias.storage_offset()), weights
            weights += layer.inputs * layer.outputs if hidden else 0
            return layer.inputs, layer.outputs, *positions, results, slopes

        hidden = np.array([[placed(layer) for layer in trunk] for trunk in network.trunks], LAYER)
        ends = np.array([placed(layer, hidden=False) for layer in (network.actor, network.critic)], LAYER)
        self.layout = FlatLayout(
            parameters=parameters.detach().numpy(),
            transposed=np.zeros(weights, np.float32),
            hidden=hidden,
            ends=ends,
            block=block,
            scratch=end,
            activation=implementations_of(network.activation).number,
            sgemm=sgemm,
        )
        # Another parameter would have no gradient.
        assert tensors.keys() <= {"log_std"}, tensors.keys()
        widening = hidden[hidden["inputs"] < hidden["outputs"]]
        self._room = end + int(np.max(widening["inputs"] * widening["outputs"], initial=0))
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

    def transpose(self) -> None:
        """Reads the weights as they are now, for the functions of `passes` and `gradients`."""
        passes.transpose(tuple(self.layout))

    def room(self) -> Floats:
        """Returns the memory for one block, which a thread passes to the functions of `passes` and `gradients`.

        It holds the results of all layers, their slopes, and the transposed gradient of a weight with more outputs than
        inputs.
        """
        return np.zeros(self._room, np.float32)


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
