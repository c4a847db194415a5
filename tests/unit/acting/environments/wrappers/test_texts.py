"""Texts of observations become rows of tokens, which a policy reads without a vocabulary."""

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from examples.text_game import COMMANDS, House
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.wrappers.texts import WORDS, TextTokens, readable, word_number
from penstock.algo.spaces import encoders_of_new
from penstock.errors import ConfigurationError
from tests.support.environments.made import make_environments

HOUSE = "examples/text_game.py:House"
LETTERS = "abc "


class Told(gymnasium.Env[Any, Any]):
    """An environment with these spaces that always shows the same observation."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any], shown: Any) -> None:
        self.observation_space, self._shown = space, shown

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._shown, {}


def shown(env: gymnasium.Env[Any, Any]) -> Any:
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    return observation


def test_words_have_the_numbers_of_their_hashes_in_their_order() -> None:
    row = shown(TextTokens(Told(spaces.Text(99), "Take the LAMP, take it!"), length=8))
    assert row.tolist() == [*map(word_number, ["take", "the", "lamp", "take", "it"]), 0, 0, 0]
    assert row.min() == 0 and row[:5].min() > 0 and row.max() < WORDS


def test_the_number_of_a_word_is_the_same_in_every_process() -> None:
    code = "from penstock.acting.environments.wrappers.texts import word_number; print(word_number('Schlüssel'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) == word_number("schlüssel")


def test_characters_have_the_numbers_of_their_places_in_the_space() -> None:
    space = spaces.Text(9, charset=LETTERS)
    row = shown(TextTokens(Told(space, "cab a"), "characters", length=7))
    expected = [1 + space.character_list.index(each) for each in "cab a"]
    assert row.tolist() == [*expected, 0, 0]


def test_a_longer_text_is_cut_and_a_text_without_words_is_empty() -> None:
    assert shown(TextTokens(Told(spaces.Text(99), "one two three"), length=2)).tolist() == [
        word_number("one"),
        word_number("two"),
    ]
    assert not shown(TextTokens(Told(spaces.Text(99), "..."))).any()


def test_texts_are_found_in_nested_spaces_and_the_rest_is_unchanged() -> None:
    space = spaces.Dict({"view": spaces.Box(0, 1, (2,)), "said": spaces.Tuple((spaces.Text(9), spaces.Discrete(3)))})
    observation = shown(TextTokens(Told(space, {"view": np.ones(2, np.float32), "said": ("hello", 2)}), length=3))
    assert observation["view"].tolist() == [1, 1] and observation["said"][1] == 2
    assert observation["said"][0].tolist() == [word_number("hello"), 0, 0]


@pytest.mark.parametrize(
    ("space", "form", "text"),
    [
        (spaces.Discrete(3), "words", "found no text in the observation space Discrete"),
        (spaces.Text(9), "sentences", "reads words or characters, not 'sentences'"),
    ],
)
def test_what_can_not_be_read_is_refused(space: gymnasium.Space[Any], form: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        TextTokens(Told(space, 0), form)


def test_an_observation_that_is_a_text_alone_is_read_without_a_wrapper() -> None:
    made = make_environments(HOUSE, 2, kwargs={})
    assert isinstance(made, SingleEnvironments)
    made.reset([1, 2])
    rows = made.observation[0]
    assert rows.shape == (2, 64) and word_number("find") == rows[0, 0]
    assert encoders_of_new(made.spec) == {"observation": "token_mean"}
    assert made.notices == ["the policy reads the first 64 words of a text"]
    outcome = made.step((np.array([COMMANDS.index("take lamp")] * 2),))
    assert outcome.valid.all()
    numbers = Told(spaces.Discrete(2), 1)
    assert readable(numbers) is numbers


def test_the_game_can_be_won_and_gives_its_rewards_once() -> None:
    game = House()
    check_env(House(), skip_render_check=True)
    game.reset(seed=3)
    paths = {"hall": "north", "library": "west", "pantry": "west", "garden": "east"}
    routes = {"garden": "west", "library": "east", "pantry": "east", "hall": "", "kitchen": "north"}
    total, text = 0.0, ""

    def do(*commands: str) -> None:
        nonlocal total, text
        for command in commands:
            text, reward, *_ = game.step(COMMANDS.index(command))
            total += reward

    while game._room != "hall":
        do("go south" if game._room == "kitchen" else f"go {paths[game._room]}")
    for thing, room in game._places.items():
        if room == "pantry":
            do("go north", "go east", f"take {thing}", "go west", "go south")
        elif room == "hall":
            do(f"take {thing}")
        else:
            back = {"west": "east", "east": "west", "north": "south"}[routes[room]]
            do(f"go {routes[room]}", f"take {thing}", f"take {thing}", f"go {back}")
    do("go north", "open door", "open door", "go north")
    assert "treasure" in text and total == 3.0
    do("take treasure")
    assert total == 5.0


def test_the_wrapper_has_a_name_in_settings() -> None:
    made = make_environments(HOUSE, 1, kwargs={}, wrappers=[{"name": "TextTokens", "length": 5}])
    assert made.spec.observation.spaces[0].observation_array == ("int32", (5,))
