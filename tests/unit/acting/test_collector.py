from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import NextStepEnvironments, SameStepEnvironments
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.runners import runner_of
from penstock.acting.protocols import Runner
from penstock.acting.values.spaces import segment_schema
from penstock.types.run import Assignment
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, counting_vector, same_step_counting, spec_of
from tests.support.training.policies import decided_weights, fresh_weights

Rows = dict[str, NDArray[Any]]
COUNTING = spec_of("Counting-v0")


def start(env_id: str, place: Assignment, *, unroll_length: int = 8, **kwargs: object) -> Collector:
    environments = make_environments(env_id, len(place.environments), kwargs=kwargs)
    return Collector(environments, place, schema=segment_schema(environments.spec, unroll_length), discount=0.5)


def collect(collector: Collector, runner: Runner, windows: int = 1) -> Rows:
    """Returns the columns of consecutive windows, [N, windows * T, ...], with the observation after the last row."""
    parts = []
    for _ in range(windows):
        columns = collector.collect(runner).columns
        parts.append({column.name: columns.column(column.name).copy() for column in columns.schema.columns})
    rows = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0] if name != "observation"}
    last = parts[-1]["observation"][:, -1:]
    rows["observation"] = np.concatenate([*(part["observation"][:, :-1] for part in parts), last], axis=1)
    return rows


def cartpole_rows(places: Sequence[Assignment], windows: int = 4) -> Rows:
    """Returns the rows that actors with these assignments collect, concatenated by environment."""
    weights = decided_weights(spec_of("CartPole-v1"))
    parts = [collect(start("CartPole-v1", place), runner_of(weights), windows) for place in places]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def same_rows(some: Rows, others: Rows) -> bool:
    return all(np.array_equal(some[name], others[name]) for name in some)


def counting_runner(version: int = 0) -> PolicyRunner:
    return PolicyRunner(fresh_weights(COUNTING, version=version))


def adapted(length: int, unroll_length: int) -> Collector:
    schema = segment_schema(COUNTING, unroll_length)
    return Collector(same_step_counting(length), assignment(4), schema=schema, discount=0.5)


class Reusing(VectorWrapper):
    """A vector environment whose next step overwrites the arrays that it returned."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._returned: tuple[NDArray[Any], ...] = ()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        found = (observation, np.asarray(reward, np.float32), terminated, truncated)
        self._returned = self._returned or tuple(np.empty_like(each) for each in found)
        for mine, new in zip(self._returned, found, strict=True):
            mine[...] = new
        return (*self._returned, info)  # type: ignore[return-value]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vectorised_environment_may_reuse_its_arrays(mode: AutoresetMode) -> None:
    adapter = NextStepEnvironments if mode == AutoresetMode.NEXT_STEP else SameStepEnvironments
    kinds: list[Callable[[VectorEnv[Any, Any, Any]], VectorEnv[Any, Any, Any]]] = [lambda env: env, Reusing]
    rows = []
    for kind in kinds:
        environments = adapter(kind(counting_vector(mode, 3)), COUNTING)
        place = assignment(0, 1, 2)
        collector = Collector(environments, place, schema=segment_schema(COUNTING, 8), discount=0.5)
        rows.append(collect(collector, counting_runner(), 3))
        assert {each.episode_return for each in collector.take_episodes()[0]} == {6.0}
    assert same_rows(*rows)


def test_columns_are_aligned_and_the_last_observation_follows_the_last_row() -> None:
    rows = collect(start("Counting-v0", assignment(0), length=3), counting_runner())
    assert rows["observation"][0].tolist() == [
        *([0, 0], [0, 1], [0, 2], [0, 3]),
        *([1, 0], [1, 1], [1, 2], [1, 3]),
        [2, 0],
    ]
    assert rows["reward"][0].tolist() == [1, 2, 3, 0, 1, 2, 3, 0]
    assert np.flatnonzero(rows["terminated"][0]).tolist() == [2]
    assert np.flatnonzero(rows["truncated"][0]).tolist() == [6]


def test_the_row_that_only_resets_is_not_valid() -> None:
    rows = collect(start("Counting-v0", assignment(0), length=3), counting_runner())
    assert np.flatnonzero(~rows["valid"][0]).tolist() == [3, 7]


def test_environment_steps_are_the_valid_rows() -> None:
    collector = start("Counting-v0", assignment(0, 1), length=3)
    rows = collect(collector, counting_runner(), windows=3)
    assert collector.take_episodes()[1] == rows["valid"].sum() == 2 * 18
    assert collector.take_episodes() == ((), 0)


def test_discounted_returns_restart_with_each_episode() -> None:
    rows = collect(start("Counting-v0", assignment(0), length=3), counting_runner())
    assert rows["discounted_return"][0].tolist() == [1.0, 2.5, 4.25, 0.0, 1.0, 2.5, 4.25, 0.0]


@pytest.mark.parametrize("unroll_length", [1, 3, 7])
def test_windows_are_consecutive(unroll_length: int) -> None:
    whole_rows = collect(start("Counting-v0", assignment(0, 1), unroll_length=21, length=3), counting_runner())
    windows = 21 // unroll_length
    rows = collect(
        start("Counting-v0", assignment(0, 1), unroll_length=unroll_length, length=3), counting_runner(), windows
    )
    assert same_rows(rows, whole_rows)


def test_the_last_observation_of_a_window_is_the_first_of_the_next() -> None:
    collector, runner = start("CartPole-v1", assignment(0, 1)), PolicyRunner(fresh_weights(spec_of("CartPole-v1")))
    last = collector.collect(runner).columns.column("observation")[:, -1].copy()
    assert np.array_equal(collector.collect(runner).columns.column("observation")[:, 0], last)


def test_episodes_have_the_return_and_length_of_their_raw_rewards() -> None:
    collector = start("Counting-v0", assignment(5, 9), length=3)
    collect(collector, counting_runner(), windows=2)
    episodes, _ = collector.take_episodes()
    assert [episode.environment for episode in episodes] == [5, 9] * 4
    assert {(episode.episode_return, episode.steps) for episode in episodes} == {(6.0, 3)}
    assert [episode.truncated for episode in episodes] == [False, False, True, True] * 2


def test_an_episode_may_span_windows() -> None:
    collector = start("Counting-v0", assignment(0), unroll_length=4, length=10)
    collect(collector, counting_runner(), windows=2)
    assert collector.take_episodes()[0] == ()
    collect(collector, counting_runner())
    (episode,), _ = collector.take_episodes()
    assert (episode.episode_return, episode.steps) == (55.0, 10)


def test_a_window_contains_its_actor_and_its_policy_version() -> None:
    collector = start("Counting-v0", assignment(2, 3, slot=6, incarnation=4), length=3)
    first, second = collector.collect(counting_runner(version=11)), collector.collect(counting_runner(version=12))
    assert (first.head.slot, first.head.incarnation, first.head.environments.tolist()) == (6, 4, [2, 3])
    assert (first.head.version, second.head.version) == (11, 12)
    assert (first.head.first_sequence, second.head.first_sequence) == (1, 3)


def test_recorded_log_probabilities_are_those_of_the_recorded_actions() -> None:
    spec = spec_of("Pendulum-v1")
    runner = PolicyRunner(fresh_weights(spec))
    rows = collect(start("Pendulum-v1", assignment(0, 1)), runner)
    observation, action = (torch.from_numpy(rows[name]) for name in ("observation", "action"))
    distribution, _ = runner.policy.act((observation[:, :-1],), None, None, None)
    log_prob = distribution.log_prob((action,))
    np.testing.assert_allclose(rows["behaviour_log_prob"], log_prob.detach(), atol=1e-5)


def test_continuous_actions_are_recorded_unclipped_and_executed_within_the_bounds() -> None:
    rows = collect(
        start("Echo-v0", assignment(0, 1, 2, 3), length=100), PolicyRunner(fresh_weights(spec_of("Echo-v0")))
    )
    assert np.abs(rows["action"]).max() > 1.5
    taken = np.clip(1.0 + 2.0 * rows["action"], -1.0, 3.0).sum(-1)
    np.testing.assert_allclose(rows["reward"], taken, atol=1e-5)


def test_two_actors_collect_the_same_rows_as_one_with_all_their_environments() -> None:
    together = cartpole_rows([assignment(0, 1, 2, 3)])
    apart = cartpole_rows([assignment(0, 1), assignment(2, 3, slot=1)])
    assert together["terminated"].any()
    assert same_rows(together, apart)


def test_an_environment_collects_the_same_rows_alone_and_among_others() -> None:
    together = cartpole_rows([assignment(0, 1, 2)])
    assert same_rows(together, cartpole_rows([assignment(0), assignment(1), assignment(2)]))


def test_the_same_assignment_collects_the_same_rows_again() -> None:
    assert same_rows(cartpole_rows([assignment(0, 1)]), cartpole_rows([assignment(0, 1)]))


@pytest.mark.parametrize(
    "other",
    [assignment(0, 1, incarnation=2), assignment(0, 1, seed=8), assignment(2, 3)],
    ids=["incarnation", "seed", "environments"],
)
def test_another_assignment_collects_other_rows(other: Assignment) -> None:
    here, there = cartpole_rows([assignment(0, 1)]), cartpole_rows([other])
    assert not np.isin(here["observation"][:, 0], there["observation"][:, 0]).any()
    assert not np.array_equal(here["action"], there["action"])


def test_adapted_environments_record_final_observations_in_rows_that_are_not_valid() -> None:
    rows = collect(adapted(length=3, unroll_length=7), counting_runner())
    assert rows["observation"][0].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [1, 3], [2, 1]]
    assert rows["valid"][0].tolist() == [True, True, True, True, True, True, False]


def test_the_policy_acts_on_the_current_observation_of_an_adapted_environment() -> None:
    runner = PolicyRunner(decided_weights(COUNTING))
    rows = collect(adapted(length=3, unroll_length=7), runner)
    # Row 6 records the final observation, [1, 3], while the next episode already shows [2, 0].
    shown, _ = runner.policy.act((torch.tensor([2.0, 0.0]),), None, None, None)
    log_prob = shown.log_prob((torch.tensor(rows["action"][0, 6]),))
    assert rows["behaviour_log_prob"][0, 6] == pytest.approx(log_prob.item(), abs=1e-5)


def test_an_adapted_episodes_return_counts_its_hidden_step() -> None:
    collector = adapted(length=3, unroll_length=9)
    rows = collect(collector, counting_runner())
    episodes, steps = collector.take_episodes()
    assert [(episode.episode_return, episode.steps) for episode in episodes] == [(6.0, 3), (6.0, 3), (6.0, 2)]
    assert steps == 8
    assert rows["discounted_return"][0].tolist() == [1.0, 2.5, 4.25] * 3


def test_an_adapted_episode_without_a_recorded_row_is_still_counted() -> None:
    collector = adapted(length=1, unroll_length=4)
    collect(collector, counting_runner())
    episodes, steps = collector.take_episodes()
    assert [episode.episode_return for episode in episodes] == [1.0] * 4
    assert steps == 3
