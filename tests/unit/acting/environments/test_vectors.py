import itertools
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Sequence
from gymnasium.wrappers import PassiveEnvChecker
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments, NextStepEnvironments, SameStepEnvironments
from penstock.errors import ConfigurationError
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import Counting, same_step_counting, spec_of


@dataclass
class Rows:
    """Rows that one environment recorded, one per step."""

    observation: list[list[float]] = field(default_factory=list)
    seen: list[list[float]] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    end: list[str] = field(default_factory=list)
    valid: list[bool] = field(default_factory=list)


def take_rows(environments: Environments, count: int, environment: int = 0) -> Rows:
    environments.reset(list(range(environments.count)))
    rows = Rows()
    for _ in range(count):
        rows.observation.append(environments.observation[0][environment].tolist())
        rows.seen.append(environments.acting_observation[0][environment].tolist())
        outcome = environments.step((np.zeros(environments.count, np.int64),))
        rows.reward.append(outcome.reward[environment].item())
        ends = {(False, False): "", (True, False): "terminated", (False, True): "truncated"}
        rows.end.append(ends[outcome.terminated[environment].item(), outcome.truncated[environment].item()])
        rows.valid.append(outcome.valid[environment].item())
    return rows


def counting(count: int = 2, length: int = 2) -> Environments:
    return make_environments("Counting-v0", count, kwargs={"length": length})


def test_the_row_after_an_end_holds_the_final_observation_and_only_resets() -> None:
    environments = counting()
    assert isinstance(environments, SingleEnvironments)
    rows = take_rows(environments, 7, environment=1)
    assert rows.observation == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    assert rows.reward == [1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0]
    assert rows.end == ["", "terminated", "", "", "truncated", "", ""]
    assert rows.valid == [True, True, False, True, True, False, True]
    assert rows.seen == rows.observation


def test_episodes_end_independently() -> None:
    environments = make_environments("Counting-v0", 8, kwargs={"length": 1, "spread": 1})
    environments.reset(list(range(8)))
    outcome = environments.step((np.zeros(8, np.int64),))
    assert 0 < outcome.terminated.sum() < 8
    following = environments.step((np.zeros(8, np.int64),))
    assert following.valid.tolist() == (~outcome.terminated).tolist()


def test_every_row_after_a_reset_is_valid() -> None:
    environments = counting(length=1)
    take_rows(environments, 1)
    assert take_rows(environments, 1).valid == [True]


def test_each_environment_is_reset_with_a_separate_seed() -> None:
    environments = make_environments("CartPole-v1", 2, kwargs={})
    environments.reset([1, 2])
    first = environments.observation[0].copy()
    environments.reset([2, 1])
    assert np.array_equal(environments.observation[0][::-1], first)
    assert not np.array_equal(first[0], first[1])


class OldGenerator(Counting):
    """Takes only seeds of 32 bits, as NumPy's older generator does."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        _, info = super().reset(seed=seed)
        self.generator = np.random.RandomState(seed)
        return self.generator.random(2).astype(np.float32), info


def test_an_environment_that_takes_only_small_seeds_gets_small_ones() -> None:
    def first(seeds: list[int]) -> NDArray[np.generic]:
        environments = SingleEnvironments([PassiveEnvChecker(OldGenerator()) for _ in seeds], spec_of("Counting-v0"))
        environments.reset(seeds)
        begun = environments.observation[0].copy()
        environments.step((np.zeros(len(seeds), np.int64),))
        return begun

    assert len(np.unique(first([2**61 + 1, 2**61 + 2, 2**62 - 1]))) == 6
    assert np.array_equal(first([2**61 + 1, 5, 6]), first([1, 5, 6]))
    # Seeds that it takes are unchanged.
    assert not np.array_equal(first([2**32 - 1, 5, 6]), first([2**31 - 1, 5, 6]))


def test_same_step_environments_record_the_final_observation_of_a_truncated_episode() -> None:
    rows = take_rows(same_step_counting(length=3), 9)
    assert rows.observation == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2]]
    assert rows.valid == [True, True, True, True, True, True, False, True, True]
    assert rows.end == ["", "", "terminated", "", "", "truncated", "", "", "terminated"]
    # The hidden step after a truncation is the first one of an episode, and its reward is not lost.
    assert rows.reward == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]


def test_the_policy_acts_on_the_first_observation_of_a_same_step_environment() -> None:
    rows = take_rows(same_step_counting(length=3), 8)
    assert rows.seen == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1]]


def test_a_hidden_episode_of_one_step_leaves_the_next_episode_complete() -> None:
    rows = take_rows(same_step_counting(length=1), 4)
    assert rows.observation == [[0, 0], [1, 0], [1, 1], [3, 0]]
    assert rows.seen == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert rows.valid == [True, True, False, True]
    assert rows.end == ["terminated", "truncated", "terminated", "truncated"]


def test_a_native_vector_is_used_in_its_autoreset_mode() -> None:
    native = make_environments("ResetsAtOnce-v0", 3, kwargs={"length": 2}, vectorization="native")
    assert isinstance(native, SameStepEnvironments)
    assert native.count == 3
    assert take_rows(native, 5, environment=2).observation == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]]
    assert isinstance(make_environments("CartPole-v1", 2, kwargs={}, vectorization="native"), NextStepEnvironments)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("NoSuchThing-v0", {}),
        ("CartPole-v99", {}),
        ("no_such_package:Thing-v0", {}),
        ("not an id at all", {}),
        ("CartPole-v1", {"no_such_argument": 1}),
        ("Counting-v0", {"length": 0}),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_in_one_line(env_id: str, kwargs: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments(env_id, 1, kwargs=kwargs)
    assert env_id in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "spaces",
    [
        {"observation_space": Dict(a=Sequence(Box(0, 1, (2,)))), "action_space": Discrete(2)},
        {"observation_space": Box(0, 1, (2,)), "action_space": Dict(a=Sequence(Discrete(2)))},
    ],
    ids=["observation", "action"],
)
def test_spaces_that_are_not_supported_are_refused_in_one_line(spaces: dict[str, object]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Still-v0 has Sequence at a of its (observation|action) space; [^\n]*$"
    ):
        make_environments("Still-v0", 1, kwargs=spaces)


def test_a_vector_that_does_not_reset_automatically_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^NeverResets-v0 does not reset automatically[^\n]*$"):
        make_environments("NeverResets-v0", 1, kwargs={}, vectorization="native")


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no_such_module"):
        make_environments("CartPole-v1", 1, kwargs={}, imports=["no_such_module"])


def test_a_module_that_registers_environments_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import gymnasium; gymnasium.register('Imported-v0', 'tests.support.environments.tiny:Counting')"
    (tmp_path / "registering_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert make_environments("Imported-v0", 2, kwargs={}, imports=["registering_module"]).count == 2


def random_actions() -> Iterator[NDArray[np.int64]]:
    generator = np.random.default_rng(0)
    while True:
        yield generator.integers(0, 2, 6)


def test_a_native_vector_of_cart_poles_steps_like_single_environments() -> None:
    single, native = (make_environments("CartPole-v1", 6, kwargs={}, vectorization=each) for each in ("sync", "native"))
    ended = 0
    for environments in (single, native):
        environments.reset([11, 12, 13, 14, 15, 16])
    for action in itertools.islice(random_actions(), 200):
        ours, theirs = (environments.observation[0].astype(np.float64) for environments in (native, single))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        outcomes = [environments.step((action,)) for environments in (single, native)]
        np.testing.assert_array_equal(outcomes[0].terminated, outcomes[1].terminated)
        np.testing.assert_array_equal(outcomes[0].valid, outcomes[1].valid)
        np.testing.assert_array_equal(outcomes[0].reward, outcomes[1].reward)
        ended += int(outcomes[0].terminated.sum())
    assert ended > 20


def test_native_atari_games_have_separate_seeds() -> None:
    kwargs = {"stack_num": 1, "num_threads": 1}
    few, many = (
        make_environments("ALE/Pong-v5", count, kwargs=kwargs, imports=["ale_py"], vectorization="native")
        for count in (2, 3)
    )
    few.reset([2**61 + 5, 7])
    many.reset([7, 2**61 + 5, 8])
    for action in np.random.default_rng(0).integers(0, 6, (60, 2)):
        np.testing.assert_array_equal(few.observation[0][[1, 0]], many.observation[0][:2])
        few.step((action,))
        many.step((np.append(action[::-1], 0),))
    assert not np.array_equal(many.observation[0][0], many.observation[0][2])


def test_a_native_cart_pole_starts_the_same_episodes_in_any_vector() -> None:
    few, many = (make_environments("CartPole-v1", count, kwargs={}, vectorization="native") for count in (2, 6))
    few.reset([14, 15])
    many.reset([11, 12, 13, 14, 15, 16])
    for action in itertools.islice(random_actions(), 200):
        np.testing.assert_array_equal(few.observation[0], many.observation[0][3:5])
        few.step((action[3:5],))
        many.step((action,))


class KeepsStderr(Counting):
    """Environment whose constructor writes to stderr, uses its descriptor, and keeps it for its log."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        print("a hint", file=sys.stderr)
        os.write(sys.stderr.fileno(), b"of a simulator\n")
        self.handler = logging.StreamHandler()


def test_a_constructor_may_use_the_descriptor_of_stderr_and_keep_it(capfd: pytest.CaptureFixture[str]) -> None:
    made: list[KeepsStderr] = []

    def make(**kwargs: Any) -> KeepsStderr:
        made.append(KeepsStderr(**kwargs))
        return made[-1]

    gymnasium.register("KeepsStderr-v0", make)
    try:
        make_environments("KeepsStderr-v0", 1, kwargs={})
    finally:
        del gymnasium.registry["KeepsStderr-v0"]
    made[0].handler.handle(logging.makeLogRecord({"msg": "a line of its log"}))
    assert capfd.readouterr().err == "of a simulator\na line of its log\n"
