"""Games of stable-retro: rewards, ends and pictures of a game whose program is known, and refusals in one line."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock.acting.environments.registry import find
from penstock.acting.environments.vectors import MadeOnce
from penstock.errors import ConfigurationError, UnknownEnvironment
from tests.support.environments.catching import GAME, LEFT, NOTHING, RIGHT, catching

pytest.importorskip("stable_retro")

from penstock.acting.environments.emulators.games import RetroGame, register_games
from tests.support.environments.made import make_environments

GAMES = Path(__file__).parents[5] / "examples" / "nes" / "games"
IMPORTS = [str(GAMES.parent / "catch_game.py")]
ARGUMENTS: dict[str, Any] = {"use_restricted_actions": "DISCRETE", "random_variable": "seed"}


@pytest.fixture(scope="module", autouse=True)
def _games() -> None:
    register_games(GAMES)


@pytest.fixture
def game() -> Iterator[RetroGame]:
    made = RetroGame("Catch-Nes-v0", most_noops=0, render_mode="rgb_array", **ARGUMENTS)
    with closing(made):
        yield made


def test_a_game_of_the_package_is_an_environment_by_its_name() -> None:
    assert find("retro/airstriker-genesis-v0") == "retro/Airstriker-Genesis-v0"
    with closing(gymnasium.make("retro/Airstriker-Genesis-v0")) as made:
        assert made.action_space == gymnasium.spaces.MultiBinary(12)
        observation, _ = made.reset(seed=1)
        assert observation.shape == (84, 84) and observation.dtype == np.uint8 and observation.any()
        assert made.spec is not None and made.spec.max_episode_steps == 4_500
        assert made.get_wrapper_attr("notices")[0].startswith("licence of its emulator Genesis Plus GX")


def test_the_score_is_the_reward_and_the_game_ends_after_twenty_pieces(game: RetroGame) -> None:
    _, info = game.reset(seed=1)
    total, ended, steps = 0.0, False, 0
    while not ended:
        _, reward, ended, truncated, info = game.step(catching(info))
        total, steps = total + reward, steps + 1
        assert not truncated
    assert (total, info["score"], info["left"], info["over"]) == (20.0, 20, 0, 1)
    assert 240 < steps < 280


def test_an_episode_begins_anew_after_the_last_one(game: RetroGame) -> None:
    begun = [game.reset(seed=3)[0] for _ in range(2)]
    np.testing.assert_array_equal(begun[0], begun[1])
    for _ in range(60):
        info = game.step(NOTHING)[-1]
    assert info["left"] < 20
    np.testing.assert_array_equal(game.reset(seed=3)[0], begun[0])


def test_episodes_follow_from_their_seed(game: RetroGame) -> None:
    def columns(seed: int) -> list[int]:
        game.reset(seed=seed)
        return [game.step(NOTHING)[-1]["fruit_x"] for _ in range(60)]

    assert columns(1) == columns(1) != columns(2)


def test_a_step_holds_its_buttons_for_four_frames(game: RetroGame) -> None:
    game.reset(seed=1)
    for _ in range(4):
        info = game.step(NOTHING)[-1]
    assert game.step(RIGHT)[-1]["basket"] == info["basket"] + 16
    assert game.step(LEFT)[-1]["basket"] == info["basket"]


def test_sticky_buttons_are_held_for_a_frame_of_the_next_step() -> None:
    with closing(RetroGame("Catch-Nes-v0", most_noops=0, sticky_probability=0.999, **ARGUMENTS)) as game:
        game.reset(seed=1)
        for _ in range(4):
            info = game.step(NOTHING)[-1]
        assert game.step(RIGHT)[-1]["basket"] == info["basket"] + 12
        assert game.step(NOTHING)[-1]["basket"] == info["basket"] + 16


def test_the_screen_is_rendered_in_colour_and_size_of_the_console(game: RetroGame) -> None:
    game.reset(seed=1)
    for _ in range(8):
        observation = game.step(NOTHING)[0]
    screen = game.render()
    assert screen is not None and screen.shape == (224, 240, 3)
    assert len(np.unique(screen.reshape(-1, 3), axis=0)) >= 5
    grey = screen @ [0.299, 0.587, 0.114]
    assert abs(float(observation.mean()) - float(grey.mean())) < 1.0
    assert game.metadata["render_fps"] == 15.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": "Level1"}, "there is no state 'Level1'; choose from: none"),
        ({"scenario": "scenaro"}, "there is no scenario 'scenaro'; did you mean scenario?"),
        ({"use_restricted_actions": "discret"}, "use_restricted_actions 'DISCRET'; did you mean DISCRETE?"),
        ({"random_variable": "sead"}, "there is no variable 'sead'; did you mean seed?"),
        ({"frame_skip": 0}, "got 0, 84, 30 and 0.0"),
        ({"sticky_probability": 1.0}, "got 4, 84, 30 and 1.0"),
    ],
)
def test_an_argument_that_a_game_does_not_take_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        RetroGame("Catch-Nes-v0", **arguments)
    # The refused game has left no emulator behind.
    RetroGame("Catch-Nes-v0").close()


def test_a_game_without_its_rom_names_the_import() -> None:
    with pytest.raises(ConfigurationError, match=r"1942-Nes-v0 has no ROM; .* python -m stable_retro.import FOLDER$"):
        make_environments("retro/1942-Nes-v0", 1, kwargs={})


def test_an_unknown_game_names_a_similar_one() -> None:
    with pytest.raises(UnknownEnvironment, match=r"did you mean retro/Airstriker-Genesis-v0\?"):
        make_environments("retro/Airstrike-Genesis-v0", 1, kwargs={})


def test_a_folder_without_games_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no game in .*; a game is a folder"):
        register_games(tmp_path)


def test_a_process_has_one_game_and_each_worker_process_has_its_own() -> None:
    with pytest.raises(MadeOnce, match="multiple emulator instances"):
        make_environments(GAME, 2, kwargs=ARGUMENTS, imports=IMPORTS)
    made = make_environments(
        GAME, 2, kwargs={**ARGUMENTS, "most_noops": 0}, imports=IMPORTS, vectorization="process", workers=2
    )
    with closing(made):
        made.reset([1, 2])
        rewards = [made.step((np.array([NOTHING, RIGHT]),)).reward.tolist() for _ in range(80)]
        assert made.observation[0].shape == (2, 84, 84)
        assert (made.observation[0][0] != made.observation[0][1]).any()
        assert np.min(rewards) >= 0.0 and np.sum(rewards) > 0.0 and made.timed
