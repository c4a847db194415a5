"""Windows that are collected with tensors are those that are collected on the host, and do not wait for the device."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import device_of
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.runners import runner_of
from penstock.acting.tensor_collector import TensorCollector
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.errors import EnvironmentFailed
from penstock.types.run import Weights
from penstock.types.spaces import MemoryKind
from tests.support.environments import tensor_pendulum
from tests.support.environments.made import make_environments
from tests.support.environments.tensor_pendulum import FAR
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_policy, weights_of

PENDULUM = f"{tensor_pendulum.__name__}:TensorPendulum"
COUNT, WINDOW = 208, 48
"""Environments, of which some end an episode in most steps, and steps of a window."""

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


class Collected:
    """A collector of one kind, and the policy that acts for it."""

    def __init__(
        self, kind: type[Collector], weights: Weights | None = None, memory: MemoryKind | None = None, **kwargs: Any
    ) -> None:
        environments = make_environments(PENDULUM, COUNT, kwargs=kwargs, vectorization="native")
        offsets = (FAR,) * 3 if kwargs.get("far") else ()
        network = Network(hidden_sizes=(16,), memory=memory, memory_size=8, observation_offsets=offsets)
        policy = fresh_policy(environments.spec, network=network)
        shape = policy.memory_shape
        self.schema = segment_schema(environments.spec, WINDOW, memory=shape, burn_in=4 if memory else 0)
        self.collector = kind(environments, assignment(*range(COUNT)), schema=self.schema, discount=0.9)
        device = device_of(environments) if kind is TensorCollector else None
        self.runner = runner_of(weights_of(policy, 0), inference="torch", device=device)

    def windows(self, number: int) -> list[dict[str, NDArray[Any]]]:
        windows = []
        for _ in range(number):
            columns = self.collector.collect(self.runner).columns
            windows.append({each.name: columns.column(each.name).copy() for each in self.schema.columns})
        return windows


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"nested": True},
        {"next_step": True},
        {"far": True},
        # Of a wrapper that converts the tensors.
        {"fault": "arrays"},
        {"memory": "gru"},
        {"memory": "lstm", "next_step": True},
    ],
    ids=str,
)
def test_windows_of_tensors_are_those_of_the_host(given: dict[str, Any]) -> None:
    host, device = Collected(Collector, **given), Collected(TensorCollector, **given)
    for expected, found in zip(host.windows(5), device.windows(5), strict=True):
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)
    expected_episodes, steps = host.collector.take_episodes()
    assert device.collector.take_episodes() == (expected_episodes, steps) and len(expected_episodes) > COUNT
    assert steps < 5 * COUNT * WINDOW


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_device_are_those_of_the_cpu(device: str) -> None:
    host, other = Collected(Collector), Collected(TensorCollector, device=device)
    assert isinstance(other.runner, PolicyRunner) and other.runner.policy.return_offset.device.type == device
    (expected,), (found,) = host.windows(1), other.windows(1)
    # Generators of a GPU draw other episodes, but an episode is truncated at the same step.
    np.testing.assert_array_equal(found["truncated"], expected["truncated"])
    assert np.isfinite(found["observation"]).all() and found["observation"].std() > 0.5


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations for which the host waits for a device: reads of a value, and shapes that depend on values."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in str(func) for name in self.WAITING):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_step_waits_for_the_device() -> None:
    collected = Collected(TensorCollector)
    with Waits() as waits:
        collected.windows(1)
    assert not waits.found
    # A read of one value is found.
    with Waits() as waits:
        bool(torch.ones(1)[0])
    assert waits.found


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"final": False}, r"a truncated episode without its last observation in info\["),
        ({"fault": "array"}, r"observations of type ndarray in step .*; an environment with the attribute device must"),
        ({"fault": "narrow"}, r"observations of shape \(208, 2\), not \(208, 3\) in step"),
        ({"fault": "rewards"}, r"rewards of shape \(208, 2\) in step .*; return rewards of shape \(208,\)"),
        ({"fault": "nan"}, r"environment 99: an observation with nan at \[0\] in step"),
    ],
    ids=str,
)
def test_what_can_not_be_trained_on_is_a_failure_after_which_a_new_window_begins(
    given: dict[str, Any], fault: str
) -> None:
    collected = Collected(TensorCollector, **given)
    with pytest.raises(EnvironmentFailed, match=fault):
        collected.windows(1)
    similar = make_environments(PENDULUM, COUNT, kwargs={}, vectorization="native")
    collected.collector.begin_again(similar)
    (window,) = collected.windows(1)
    assert window["truncated"].sum() >= WINDOW


def test_environments_without_tensors_and_with_masks_are_collected_on_the_host() -> None:
    assert device_of(make_environments("CartPole-v1", 2, kwargs={}, vectorization="native")) is None
    assert device_of(make_environments("CartPole-v1", 2, kwargs={})) is None
    assert device_of(make_environments(PENDULUM, 2, kwargs={}, vectorization="auto")) == torch.device("cpu")
