"""Each agent of a game is a row, whose steps count only while the agent is in the game."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from penstock.acting.collector import Collector
from penstock.acting.environments.interfaces.parallel_agents import ParallelAgents, UnevenRows
from penstock.acting.environments.vectors import Environments, agents_of
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from penstock.machine import extras
from penstock.types.evaluation import EvaluationTask
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_weights

relay = pytest.importorskip("tests.support.environments.relay")
RELAY = "tests.support.environments.relay:Relay"
NUMBERS = spaces.Box(-100.0, 100.0, (3,), np.float32)


def made(count: int, env_id: str = RELAY, **arguments: Any) -> Environments:
    return make_environments(env_id, count, kwargs={}, vectorization="auto", **arguments)


def of(spaces_of: dict[str, tuple[Any, Any]], **arguments: Any) -> ParallelAgents:
    """Returns a game whose agents have these spaces."""
    return ParallelAgents("Relay", partial(relay.Relay, spaces_of=spaces_of), 3, **arguments)


def test_a_row_counts_only_while_its_agent_is_in_the_game() -> None:
    environments = made(6)
    assert agents_of(environments) == 3
    environments.reset([10, 0, 0, 20, 0, 0])
    rows = []
    for _ in range(15):
        seen = environments.observation[0].copy()
        rows.append((seen, environments.step((np.ones(6, np.int64),))))
    # The game takes 6 steps and a reset, twice.
    present = [[start <= step % 7 < end for start, end in relay.PRESENT.values()] for step in range(15)]
    for step, (seen, outcome) in enumerate(rows):
        acted = np.tile([was and step % 7 < 6 for was in present[step]], 2)
        np.testing.assert_array_equal(outcome.valid, acted)
        np.testing.assert_array_equal(outcome.reward, np.where(acted, [1, 2, 3, 1, 2, 3], 0.0))
        np.testing.assert_array_equal(outcome.terminated, np.tile([step % 7 == 2, False, step % 7 == 5], 2))
        np.testing.assert_array_equal(outcome.truncated, np.tile([False, step % 7 == 5, False], 2))
        np.testing.assert_array_equal(outcome.begun, np.tile([step % 7 == 6, step % 7 == 1, step % 7 == 6], 2))
        game = step // 7
        for row in np.flatnonzero(acted):
            identity = np.eye(3)[row % 3]
            assert seen[row].tolist() == [10 + 10 * (row // 3) + game, step % 7, row % 3, *identity]
    # The row after a truncation holds the final observation, and that of an absent agent is zero.
    assert rows[6][0][1].tolist() == [10, 6, 1, 0, 1, 0]
    assert not rows[1][0][1].any() and not rows[4][0][0].any()


def test_windows_hold_the_steps_of_agents_alone_and_their_returns() -> None:
    environments = made(6)
    schema = segment_schema(environments.spec, 70)
    collector = Collector(environments, assignment(*range(6)), schema=schema, discount=0.99)
    window = collector.collect(runner_of(fresh_weights(environments.spec)))
    valid, reward = window.columns.column("valid"), window.columns.column("reward")
    # Ten games: the agents are in 3, 4 and 6 steps of each.
    assert valid.sum(1).tolist() == [30, 40, 60] * 2
    assert reward.sum(1).tolist() == [30.0, 80.0, 180.0] * 2
    assert not reward[valid == 0].any()
    episodes, _ = collector.take_episodes()
    found = Counter((each.environment % 3, each.steps, each.episode_return) for each in episodes)
    assert found == {(0, 3, 3.0): 20, (1, 4, 8.0): 20, (2, 6, 18.0): 20}


def test_an_evaluation_plays_the_first_episode_of_each_agent() -> None:
    environments = made(6)
    task = EvaluationTask(0, fresh_weights(environments.spec), 6, True, 1)
    result = evaluate(task, environments, lambda: False)
    assert result is not None
    assert (result.returns, result.steps) == ((3.0, 8.0, 18.0) * 2, (3, 4, 6) * 2)


def test_the_identity_of_an_agent_may_be_left_out() -> None:
    assert [space.observation_array[1] for space in made(3).spec.observation.spaces] == [(6,)]
    same = dict.fromkeys(relay.PRESENT, (NUMBERS, spaces.Discrete(2)))
    assert of(same, agent_identity=False).single_observation_space == NUMBERS
    board = dict.fromkeys(relay.PRESENT, (spaces.MultiDiscrete([3, 3]), spaces.Discrete(2)))
    nested = of(board).single_observation_space
    assert isinstance(nested, spaces.Dict) and nested["agent"] == spaces.Discrete(3)


def test_the_state_of_the_game_is_a_part_of_each_row() -> None:
    environments = make_environments(RELAY, 6, kwargs={"state": True}, vectorization="auto")
    assert [leaf.name for leaf in environments.spec.observation.leaves] == ["observation", "state"]
    environments.reset([10, 0, 0, 20, 0, 0])
    for step in range(8):
        own, state = environments.observation
        games = np.array([10, 20]) + step // 7
        np.testing.assert_array_equal(state, np.repeat(np.stack([games, [step % 7] * 2], 1), 3, axis=0))
        assert own.shape == (6, 6)
        environments.step((np.ones(6, np.int64),))


def test_a_state_that_a_game_has_not_is_refused() -> None:
    def stateless() -> Any:
        game = relay.Relay()
        del game.state_space
        return game

    same = dict.fromkeys(relay.PRESENT, (spaces.Dict({"state": NUMBERS}), spaces.Discrete(2)))
    with pytest.raises(
        ConfigurationError, match="Relay has a part 'state', the name of the state of the game; set its"
    ):
        of(same, state=True)
    with pytest.raises(
        ConfigurationError, match=r"Relay has no state\(\) with a Box as its state_space; remove its arg"
    ):
        ParallelAgents("Relay", stateless, 3, state=True)


def test_shorter_observations_and_fewer_actions_are_padded() -> None:
    shorter = spaces.Box(-5.0, 5.0, (2,), np.float32)
    agents = of(
        {
            "first": (shorter, spaces.Discrete(2)),
            "second": (NUMBERS, spaces.Discrete(4)),
            "third": (NUMBERS, spaces.Discrete(4)),
        }
    )
    observation, infos = agents.reset(seed=[7, 0, 0])
    assert observation.tolist() == [[7, 0, 0, 1, 0, 0], [0] * 6, [7, 0, 2, 0, 0, 1]]
    assert infos["action_mask"].tolist() == [[True, True, False, False], [True] * 4, [True] * 4]
    assert agents.single_action_space == spaces.Discrete(4)
    assert agents.notices == [
        "observations of 2 and 3 numbers are padded with zeros to 3",
        "2 and 4 actions are padded to 4 by action masks",
    ]


def test_longer_actions_are_cut_for_agents_with_fewer_numbers() -> None:
    def box(width: int) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (width,), np.float32)

    agents = of({"first": (NUMBERS, box(1)), "second": (NUMBERS, box(3)), "third": (NUMBERS, box(2))})
    agents.reset(seed=[1, 0, 0])
    agents.step(np.arange(9.0, dtype=np.float32).reshape(3, 3))
    (game,) = agents._envs
    assert {agent: action.tolist() for agent, action in game.actions[0].items()} == {"first": [0], "third": [6, 7]}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ((spaces.MultiDiscrete([3, 3]), spaces.Discrete(2)), "have different observations, Box.* and MultiDiscrete"),
        ((NUMBERS, spaces.MultiDiscrete([2, 2])), r"have different actions, Discrete\(2\) \(first\) and MultiDiscrete"),
        ((NUMBERS, spaces.Discrete(2, start=1)), "have different actions"),
    ],
)
def test_agents_that_can_not_share_a_policy_are_refused_in_one_line(other: tuple[Any, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        of({"first": (NUMBERS, spaces.Discrete(2)), "second": other, "third": other})
    assert "\n" not in str(refused.value)


def test_a_number_of_rows_that_games_do_not_fill_is_refused_with_one_that_they_do() -> None:
    with pytest.raises(UnevenRows, match=r"has 3 agents, .* a multiple of 3; .* 9 in place of 8") as refused:
        made(8)
    assert refused.value.agents == 3


@pytest.mark.parametrize(
    ("game", "reason"),
    [
        ("Silent", "first left without being terminated or truncated"),
        ("Blind", "there is no observation of third"),
        ("Cut", "second was truncated without a last observation"),
        ("Crowded", "fourth is not among the possible_agents"),
    ],
)
def test_a_game_that_leaves_out_what_an_agent_needs_is_named(game: str, reason: str) -> None:
    environments = made(3, f"tests.support.environments.relay:{game}")
    environments.reset([1, 2, 3])
    with pytest.raises(EnvironmentFailed, match=reason):
        for _ in range(7):
            environments.step((np.zeros(3, np.int64),))


def test_an_agent_that_stays_after_its_end_begins_another_episode() -> None:
    environments = made(3, "tests.support.environments.relay:Enduring")
    environments.reset([1, 2, 3])
    outcomes = [environments.step((np.zeros(3, np.int64),)) for _ in range(4)]
    assert [bool(outcome.terminated[2]) for outcome in outcomes] == [False, True, False, False]
    assert [bool(outcome.begun[2]) for outcome in outcomes] == [False, True, False, False]
    assert all(outcome.valid[2] for outcome in outcomes)


def test_a_module_without_a_parallel_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"'pettingzoo:json'.* name a module with a function parallel_env"):
        made(3, "pettingzoo:json")
    monkeypatch.setattr(extras, "missing", lambda module: module == "pettingzoo")
    with pytest.raises(UnknownEnvironment, match=r"needs pettingzoo; .*penstock\[agents\]"):
        made(3, "pettingzoo:mpe2.simple_spread_v3")


def test_particles_of_mpe2_have_rows_that_equal_pettingzoos() -> None:
    module = pytest.importorskip("mpe2.simple_tag_v3")
    environments = made(8, "pettingzoo:mpe2.simple_tag_v3")
    environments.reset([5, 0, 0, 0, 6, 0, 0, 0])
    original = module.parallel_env()
    observations, _ = original.reset(seed=6)
    random = np.random.default_rng(0)
    for _ in range(20):
        for row, agent in enumerate(original.possible_agents):
            own = observations[agent]
            np.testing.assert_array_equal(environments.observation[0][4 + row][: len(own)], own)
        actions = random.integers(0, 5, 8)
        outcome = environments.step((actions,))
        chosen = {agent: int(actions[4 + row]) for row, agent in enumerate(original.possible_agents)}
        observations, rewards, *_ = original.step(chosen)
        expected = [np.float32(rewards[agent]) for agent in original.possible_agents]
        assert outcome.reward[4:].tolist() == expected
