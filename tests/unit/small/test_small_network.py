"""The layers of a small network are those of the torch policy, by name and shape."""

from typing import get_args

import pytest
from torch import nn

from penstock.algo.activations import implementations_of
from penstock.algo.network import Network
from penstock.algo.published import Description
from penstock.small.network import SmallNetwork, obstacle
from penstock.types.spaces import ActivationName, BoxSpace, DiscreteSpace, EnvironmentSpec, Leaf, MultiBinarySpace, Tree
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy

PLANE = BoxSpace("float32", (3,), (-1.0,) * 3, (1.0,) * 3)
OBSERVATIONS = {
    "one leaf": Tree.of(PLANE),
    "several leaves": Tree((Leaf(("a",), PLANE), Leaf(("b",), DiscreteSpace(4)), Leaf(("c",), MultiBinarySpace((2,))))),
}


@pytest.mark.parametrize("observation", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("hidden_sizes", [(), (8,), (8, 16, 4)])
@pytest.mark.parametrize("trunk", ["separate", "shared"])
@pytest.mark.parametrize("activation", get_args(ActivationName))
def test_the_layers_are_those_of_the_policy(
    observation: Tree, hidden_sizes: tuple[int, ...], trunk: str, activation: ActivationName
) -> None:
    network = Network(hidden_sizes=hidden_sizes, trunk=trunk, activation=activation)  # type: ignore[arg-type]
    spec = EnvironmentSpec("Any-v0", observation, Tree.of(PLANE))
    found, policy = SmallNetwork.of(Description(spec, network)), fresh_policy(spec, network=network)
    assert found is not None
    layers = [*(layer for hidden in found.trunks for layer in hidden), found.actor, found.critic]
    shapes: dict[str, tuple[int, ...]] = {f"{layer.name}.weight": (layer.outputs, layer.inputs) for layer in layers}
    shapes.update({f"{layer.name}.bias": (layer.outputs,) for layer in layers})
    expected = {name: tuple(tensor.shape) for name, tensor in policy.named_parameters() if name != "log_std"}
    assert shapes == expected
    assert len(found.trunks) == (1 if trunk == "shared" else 2)
    assert found.of_actions == (*found.trunks[0], found.actor)
    activations = [each for each in policy.modules() if type(each) is type(implementations_of(activation).module())]
    assert len(activations) == len(found.trunks) * len(hidden_sizes)
    assert not any(isinstance(policy.get_submodule(layer.name), nn.Sequential) for layer in layers)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Network(memory="gru"), "policy.memory is 'gru'"),
        (Network(module="examples.residual_network:Residual"), "policy.module is 'examples.residual_network:Residual'"),
        (Network(moves="observation"), "policy.moves is 'observation'"),
        (Network(encoders={"observation": "embedding"}), "an observation has the encoder embedding"),
    ],
)
def test_a_policy_with_other_parts_has_no_such_layers(network: Network, reason: str) -> None:
    spec = EnvironmentSpec("Any-v0", Tree.of(DiscreteSpace(4)), Tree.of(DiscreteSpace(2)))
    description = Description(spec, network)
    assert SmallNetwork.of(description) is None
    assert obstacle(description) == reason


def test_a_policy_without_such_parts_has_no_obstacle() -> None:
    assert obstacle(Description(spec_of("CartPole-v1"), Network())) == ""


def test_each_activation_has_its_own_number_in_compiled_code() -> None:
    names = get_args(ActivationName)
    assert len({implementations_of(name).number for name in names}) == len(names)
