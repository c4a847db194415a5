"""A fault of an environment has one message: the check before a run and an actor in training give the same one."""

import re
import signal
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from penstock.acting.collector import Collector
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.errors import ConfigurationError, EnvironmentFailed
from tests.support.environments.failing import FAULTS, Failing
from tests.support.environments.made import checked, make_environments
from tests.support.environments.odd import KINDS, Where, env_id
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_weights

# Gymnasium warns about the faults, which are intended.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")

PLAIN: Mapping[str, object] = MappingProxyType({})
LARGEST = 1e15
LATER = 12
"""Step at which an environment fails in training."""

OF_SETTINGS = {"action_bounds_beyond_every_number", "action_bounds_far_below_0"}
"""Kinds of odd environments that a run refuses, and that could be stepped."""

ODD = [
    name
    for name, kind in KINDS.items()
    if kind.where is Where.REFUSED and not kind.alone and not kind.hangs and name not in OF_SETTINGS
]


def failing_vector(num_envs: int, **kwargs: object) -> "SyncVectorEnv[object, object]":
    return SyncVectorEnv(
        [lambda: Failing(**kwargs)] * num_envs,  # type: ignore[arg-type]
        copy=False,
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )


gymnasium.register("FailingVector-v0", f"{__name__}:Failing", vector_entry_point=f"{__name__}:failing_vector")


@pytest.fixture(autouse=True)
def in_a_service() -> Iterator[None]:
    """Handles SIGINT as services and the check do, so that only an environment can raise KeyboardInterrupt."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


def collected(name: str, kwargs: Mapping[str, object] = PLAIN, vectorization: str = "sync") -> Collector:
    """Collects some windows as an actor does that knows that there are no masks."""
    made = make_environments(name, 2, kwargs=kwargs, vectorization=vectorization, use_masks=False)
    schema = segment_schema(made.spec, 8)
    collector = Collector(made, assignment(40, 41), schema=schema, discount=0.9, largest_magnitude=LARGEST)
    runner = PolicyRunner(fresh_weights(made.spec))
    for _ in range(3):
        collector.collect(runner)
    return collector


def message_of(name: str, kwargs: Mapping[str, object] = PLAIN, vectorization: str = "sync") -> str:
    """Returns the message of an actor without the environment's number."""
    try:
        collected(name, kwargs, vectorization)
    except EnvironmentFailed as failed:
        return failed.what.removeprefix("one of environments 40 to 41: ")
    except ConfigurationError as error:
        return str(error)
    return ""


def anywhere(message: str) -> str:
    """Returns a message without the step in which the fault occurred."""
    return re.sub(r" in (step \d+ of its episode|its first steps|its last window) \(", " somewhere (", message)


@pytest.mark.parametrize("vectorization", ["sync", "native"])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_has_the_same_message_before_a_run_and_in_training(kind: str, vectorization: str) -> None:
    name = "Failing-v0" if vectorization == "sync" else "FailingVector-v0"
    in_training = message_of(name, {"kind": kind, "at": 0 if kind.startswith("reset") else LATER}, vectorization)
    with pytest.raises(ConfigurationError) as refused:
        checked(name, [{"kind": kind, "at": 0}], vectorization=vectorization, largest_magnitude=LARGEST)
    assert anywhere(str(refused.value)) == anywhere(in_training)
    assert re.search(rf" \({name}\); .", in_training)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_environment_has_the_same_message_before_a_run_and_in_training(kind: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        checked(env_id(kind), [PLAIN], largest_magnitude=LARGEST)
    assert anywhere(str(refused.value)) == anywhere(message_of(env_id(kind)))


def test_a_value_outside_of_its_bounds_has_the_same_warning_before_a_run_and_in_training() -> None:
    (before,) = checked("Failing-v0", [{"kind": "observation outside", "at": 0}], largest_magnitude=LARGEST).warnings
    in_training = collected("Failing-v0", {"kind": "observation outside", "at": LATER}).take_warning()
    assert before.removeprefix("Failing-v0: ") == in_training.removeprefix("environment 40: ").removesuffix(
        " (Failing-v0)"
    )


class Once(gymnasium.Env[Any, Any]):
    """Has episodes of one step, and can't be reset after one."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._steps:
            raise RuntimeError("simulator lost at the second reset")
        return 0, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return 0, 1.0, True, False, {}


def test_an_environment_that_fails_at_its_second_reset_is_refused_before_a_run() -> None:
    gymnasium.register("Once-v0", lambda **kwargs: Once())
    with pytest.raises(ConfigurationError, match=r"^RuntimeError: simulator lost at the second reset .* in reset "):
        checked("Once-v0", [PLAIN], largest_magnitude=LARGEST)
