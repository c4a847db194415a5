"""Games of OpenSpiel for one or two players have masks, exact returns and seeds; other games are refused."""

from typing import Any

import numpy as np
import pytest

from penstock.acting.environments.registry import find, make
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from tests.support.environments.made import make_environments

pyspiel = pytest.importorskip("pyspiel")


def played(name: str, seed: int, kwargs: dict[str, Any], steps: int) -> tuple[list[Any], float]:
    """Returns the observations of one environment whose policy takes the first legal action, and its return."""
    environments = make_environments(name, 1, kwargs=kwargs)
    environments.reset([seed])
    observations, total = [], 0.0
    for _ in range(steps):
        assert environments.action_mask is not None
        outcome = environments.step((environments.action_mask.argmax(1),))
        total += float(outcome.reward[0])
        observations.append(environments.observation[0].tolist())
        if outcome.terminated[0]:
            break
    return observations, total


def test_an_episode_is_a_game_and_its_rewards_add_up_to_the_players_return() -> None:
    state: Any = pyspiel.load_game("2048").new_initial_state()
    generator = np.random.default_rng(3)
    while not state.is_terminal():
        outcomes = state.chance_outcomes() if state.is_chance_node() else [(state.legal_actions()[0], 1.0)]
        state.apply_action(int(generator.choice([each for each, _ in outcomes], p=[share for _, share in outcomes])))
    observations, total = played("open_spiel:2048", 1, {}, 10_000)
    assert len(observations) > 10 and total > 0.0 and total == np.array(observations[-1]).dtype.type(total)
    # Merged tiles are the return, so the board's largest tile bounds it from below.
    assert total >= np.max(observations[-1])
    assert played("open_spiel:2048", 1, {}, 10_000) == (observations, total)
    assert played("open_spiel:2048", 2, {}, 10_000) != (observations, total)


def test_the_arguments_are_the_parameters_of_the_game() -> None:
    made = make_environments("open_spiel:catch", 1, kwargs={"rows": 4, "columns": 3})
    assert made.observation[0].shape == (1, 4, 3) and made.spec.mask_bits == 3
    (_, total) = played("open_spiel:catch", 1, {"rows": 4, "columns": 1}, 10)
    # The only column is where the ball falls.
    assert total == 1.0


def test_a_simultaneous_game_of_one_player_is_played_by_turns() -> None:
    observations, _ = played("open_spiel:pathfinding", 1, {}, 3)
    assert len(observations) == 3


def test_an_illegal_move_is_an_exception_of_the_environment() -> None:
    env = make(find("open_spiel:2048"), {})
    env.reset(seed=1)
    while (legal := env.get_wrapper_attr("action_masks")()).all():
        env.step(0)
    with pytest.raises(ValueError, match=r"is illegal; environment\.action_masks must be true"):
        env.step(int(np.flatnonzero(~legal)[0]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "open_spiel:connect_four",
            "is for 2 players, so its argument opponent must be self, random, search, not None",
        ),
        ("open_spiel:hearts", "is for 4 players, and a policy plays alone or in a zero-sum game of two"),
        ("open_spiel:mfg_crowd_modelling", "is for a population, and a policy plays alone"),
        ("open_spiel:morpion_solitaire", "has no observations as numbers; choose another game"),
        ("open_spiel:catchh", "OpenSpiel has no game 'catchh'; did you mean catch?"),
        ("open_spiel:zzzz", "`pyspiel.registered_games()` lists the games"),
    ],
)
def test_a_game_that_can_not_be_trained_is_refused_in_one_line(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments(name, 1, kwargs={})
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, UnknownEnvironment) == ("OpenSpiel has no game" in str(caught.value))


def test_an_unknown_parameter_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown parameter 'row'\. Available parameters are: columns, rows"):
        make_environments("open_spiel:catch", 1, kwargs={"row": 3})


@pytest.mark.parametrize(
    ("name", "opponent", "text"),
    [
        ("open_spiel:connect_four", "me", "opponent must be self, random, search, not 'me'"),
        ("open_spiel:backgammon", "search", "search can't play open_spiel:backgammon, which has chance; use random"),
        ("open_spiel:oshi_zumo", "self", "has no turns"),
        ("open_spiel:catch", "self", "is for one player, and has no opponent"),
    ],
)
def test_an_opponent_that_can_not_play_is_refused_in_one_line(name: str, opponent: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments(name, 1, kwargs={"opponent": opponent})
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_against_itself_a_reward_is_that_of_the_player_who_moves() -> None:
    environments = make_environments("open_spiel:tic_tac_toe", 1, kwargs={"opponent": "self"})
    environments.reset([0])
    state, turns = pyspiel.load_game("tic_tac_toe").new_initial_state(), []
    # The first player has the left column after the fifth move.
    for move in (0, 1, 3, 4, 6):
        player = state.current_player()
        seen = environments.observation[0][0].tolist()
        assert seen == [*state.observation_tensor(player), player == 0, player == 1]
        assert environments.action_mask is not None
        assert environments.action_mask[0].tolist() == [bool(each) for each in state.legal_actions_mask(player)]
        outcome = environments.step((np.array([move]),))
        state.apply_action(move)
        turns.append((player, float(outcome.reward[0]), bool(outcome.terminated[0])))
    assert turns == [(0, 0.0, False), (1, 0.0, False), (0, 0.0, False), (1, 0.0, False), (0, 1.0, True)]


def rewards_against(opponent: str, seed: int, games: int) -> tuple[list[float], set[int]]:
    """Returns the rewards of random legal moves, and the seats of the policy."""
    environments = make_environments("open_spiel:connect_four", 1, kwargs={"opponent": opponent})
    environments.reset([seed])
    random, rewards, seats = np.random.default_rng(seed), list[float](), set[int]()
    while len(rewards) < games:
        seats.add(int(environments.observation[0][0][-1]))
        assert environments.action_mask is not None
        outcome = environments.step((np.argmax(environments.action_mask * random.random((1, 7)), 1),))
        if outcome.terminated[0]:
            rewards.append(float(outcome.reward[0]))
    return rewards, seats


def test_random_moves_are_level_with_random_ones_and_lose_against_a_search() -> None:
    rewards, seats = rewards_against("random", 1, 400)
    # Three standard errors of 400 games that are won or lost.
    assert abs(np.mean(rewards)) < 0.15 and seats == {0, 1}
    assert rewards_against("random", 1, 20)[0] == rewards[:20]
    assert np.mean(rewards_against("search", 1, 60)[0]) < -0.7


def test_a_player_who_moves_twice_is_refused_against_itself() -> None:
    environments = make_environments("open_spiel:dots_and_boxes", 1, kwargs={"opponent": "self"})
    environments.reset([0])
    with pytest.raises(EnvironmentFailed, match="moves twice, and a policy against itself needs turns"):
        while True:
            assert environments.action_mask is not None
            environments.step((environments.action_mask.argmax(1),))
