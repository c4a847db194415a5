"""Small networks: policies of linear layers alone, after encoders without parameters.

NumPy computes them for actors, and compiled code trains them. This module does not import torch.
"""

from dataclasses import dataclass

from penstock.algo.published import Description
from penstock.algo.spaces import encoders_of
from penstock.small.actions import Actions
from penstock.small.inputs import Inputs
from penstock.small.layers import Layer
from penstock.types.spaces import PLAIN_ENCODERS, ActivationName


@dataclass(frozen=True, slots=True)
class SmallNetwork:
    """Layers of a small policy and its value.

    Attributes:
        trunks: Hidden layers: one trunk that policy and value share, or the policy's trunk and the value's.
        actor: Layer after the first trunk, which has the outputs of the policy.
        critic: Layer after the last trunk, whose output is the value.
        activation: Activation after each hidden layer.
    """

    trunks: tuple[tuple[Layer, ...], ...]
    actor: Layer
    critic: Layer
    activation: ActivationName

    @classmethod
    def of(cls, description: Description) -> "SmallNetwork | None":
        """Returns the layers of a policy; None if it has parts other than linear layers (`obstacle`)."""
        if obstacle(description):
            return None
        spec, network = description.spec, description.network
        # `Policy` puts a module that concatenates several leaves first, and an activation after each hidden layer.
        first, count = int(len(spec.observation.leaves) > 1), len(network.hidden_sizes)
        widths, shared = (Inputs(spec, network).width, *network.hidden_sizes), network.trunk == "shared"
        trunks = tuple(
            tuple(Layer(f"{body}.{first + 2 * depth}", *widths[depth : depth + 2]) for depth in range(count))
            for body in (("trunk",) if shared else ("actor", "critic"))
        )
        last, outputs = 0 if shared else first + 2 * count, Actions(spec.action, network, temperature=1.0).outputs
        actor, critic = (Layer(f"{end}.{last}", widths[-1], n) for end, n in (("actor", outputs), ("critic", 1)))
        return cls(trunks, actor, critic, network.activation)

    @property
    def of_actions(self) -> tuple[Layer, ...]:
        """The layers of the policy, from the first hidden layer to the outputs."""
        return (*self.trunks[0], self.actor)


def obstacle(description: Description) -> str:
    """Returns which part of a policy is not a linear layer; empty if there is none."""
    network = description.network
    for setting, value in ("memory", network.memory), ("module", network.module), ("moves", network.moves):
        if value is not None:
            return f"policy.{setting} is {value!r}"
    for encoder in encoders_of(description.spec, network.encoders):
        if encoder not in PLAIN_ENCODERS:
            return f"an observation has the encoder {encoder}"
    return ""
