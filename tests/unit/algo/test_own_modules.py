"""A user's module takes the place of the encoders. What would train wrongly is refused when the module is made."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import penstock
from examples.residual_network import Residual
from penstock.algo import weights
from penstock.algo.network import Network
from penstock.errors import ConfigurationError, ForeignCode
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy, remembering_policy, weights_of
from tests.support.training.training import make_batch, make_learner, parameters_of
from tests.unit.algo.test_weights import NESTED

RESIDUAL = "examples.residual_network:Residual"
HERE = __name__


class Same(nn.Module):
    """What the encoders of flat parts compute."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        assert all(len(shape) == 1 for shape in shapes)

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, -1)


class Dropping(Same):
    def forward(self, *parts: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(*parts))


class Mixing(Same):
    def forward(self, *parts: Tensor) -> Tensor:
        return super().forward(*parts) - parts[0].mean(0)


class WithoutRows(Same):
    def forward(self, *parts: Tensor) -> Tensor:
        return super().forward(*parts)[0]


class Failing(Same):
    def forward(self, *parts: Tensor) -> Tensor:
        raise ValueError(f"{len(parts)} part is too few")


def not_a_module() -> None: ...


@pytest.mark.parametrize("network", [Network(), Network(trunk="shared"), Network(memory="gru", memory_size=8)], ids=str)
def test_a_module_that_computes_what_encoders_do_trains_the_same_policy(network: Network) -> None:
    own = Network(trunk=network.trunk, memory=network.memory, memory_size=network.memory_size, module=f"{HERE}:Same")
    batch = make_batch("Pendulum-v1", fresh=4, network=network)
    # A module of the user has no direct steps, which round differently.
    learners = [make_learner("Pendulum-v1", network=each, execution="eager") for each in (network, own)]
    for learner in learners:
        learner.train(batch, 0.0)
    # The names differ, because a module that learns nothing is a layer, too.
    ours, theirs = (list(parameters_of(learner).values()) for learner in learners)
    assert len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(("trunk", "modules"), [("separate", 2), ("shared", 1)])
def test_the_parameters_of_a_module_are_trained(trunk: str, modules: int) -> None:
    network = Network(hidden_sizes=(), trunk="shared" if trunk == "shared" else "separate", module=RESIDUAL)
    learner = make_learner("Pendulum-v1", network=network)
    assert sum(isinstance(module, Residual) for module in learner.policy.modules()) == modules
    before = parameters_of(learner)
    learner.train(make_batch("Pendulum-v1", network=network), 0.0)
    after = parameters_of(learner)
    names = [name for name in before if "blocks" in name]
    assert len(names) == 8 * modules and all(not torch.equal(before[name], after[name]) for name in names)


def test_a_module_takes_the_place_of_the_encoders_before_memory() -> None:
    policy = fresh_policy(spec_of("Pendulum-v1"), network=Network(memory="gru", memory_size=8, module=RESIDUAL))
    assert policy.memory is not None and policy.memory.inputs.in_features == 64
    assert remembering_policy(spec_of("Pendulum-v1"), "gru").memory is not None


def test_weights_restore_a_module_by_its_name() -> None:
    policy = fresh_policy(NESTED, network=Network(hidden_sizes=(8,), module=RESIDUAL))
    with pytest.raises(ForeignCode, match=RESIDUAL):
        weights.load(weights_of(policy, 3))
    restored = weights.load(weights_of(policy, 3), RESIDUAL)
    assert restored.network.module == RESIDUAL
    ours, theirs = policy.state_dict(), restored.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Residual", "has no module or no class; write it as my_package.my_module:MyNet or file.py:MyNet"),
        ("no_such_package:Net", "No module named 'no_such_package'"),
        ("nowhere.py:Net", "there is no file nowhere.py"),
        (f"{HERE}:Nothing", f"names no class of {HERE}; correct the part after the colon"),
        (f"{HERE}:not_a_module", "is not a subclass of torch.nn.Module"),
        ("os:abort", "is not a subclass of torch.nn.Module"),
        (f"{HERE}:Failing", r"failed for a part of the shape \(3,\): ValueError: 1 part is too few"),
        (f"{HERE}:Dropping", "other features for the same row from call to call; leave out dropout"),
        (f"{HERE}:Mixing", "other features for the same row with the other rows; leave out dropout"),
        (f"{HERE}:WithoutRows", r"returned \[3\] for 3 rows; return a tensor of floats, \[3, features\]"),
    ],
)
def test_what_cannot_be_trained_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_learner("Pendulum-v1", network=Network(module=name))


def test_a_class_is_a_value_of_the_setting(tmp_path: Path) -> None:
    # Modules beside the script that runs have the name of their file.
    name = penstock.Config(policy={"module": Residual}).policy.module
    assert name in (RESIDUAL, f"{Path(__file__).parents[3] / 'examples' / 'residual_network.py'}:Residual")
    with pytest.raises(ConfigurationError, match=r"an object of Residual can't be used as the network"):
        penstock.Config(policy={"module": Residual((3,))})
