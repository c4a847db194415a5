"""Each word of another library is accepted or answered, and none gets a wrong suggestion."""

import importlib.util
import inspect
import json
import re

import pytest
from library_words import LIBRARIES, Word, words

from penstock.cli.setting_options import SettingsParser, add_settings, expanded, option
from penstock.config.names import setting_of, spelled
from penstock.config.setting_types import read_scalar
from penstock.errors import ConfigurationError
from penstock.presets import configured

CASES = [(word, value) for word in words() for value in word.values]


def is_fitting(word: Word, value: object, spelling: str, message: str) -> bool:
    """Returns whether a message answers a word: it begins with the word, or with the setting that it stands for."""
    begins = message.startswith((f"{spelling}: ", f"{spelling} must be", f"{setting_of(word.name)} must be"))
    if isinstance(value, dict):
        # The answer is to a part of the value.
        begins = message.startswith(tuple(f"{name}: " for name in value)) or begins
    return begins and "did you mean" not in message and "unknown" not in message and "\n" not in message


@pytest.mark.nightly
def test_every_word_is_accepted_or_answered_in_python_and_as_an_option() -> None:
    unanswered = []
    for word, value in CASES:
        text = value if isinstance(value, str) else json.dumps(value)
        for spelling, given in ((word.name, read_scalar(value)), (option(spelled(word.name)), text)):
            try:
                configured({spelling: given})
            except ConfigurationError as error:
                if not is_fitting(word, value, spelling, str(error)):
                    unanswered.append(f"{word.library}, {spelling}={given}: {error}")
    assert not unanswered, "\n".join(unanswered)


def test_every_word_is_an_option() -> None:
    parser = SettingsParser(prog="penstock train")
    add_settings(parser, None)
    options = [option(spelled(word.name)) for word in words()]
    assert [each for each in options if each not in parser._option_string_actions] == []


def test_a_part_of_another_library_is_switched_off_as_there() -> None:
    flags = [option(spelled(word.name)) for word, value in CASES if value is False]
    assert expanded([each.replace("--", "--no-") for each in flags]) == [f"{each}=false" for each in flags]


def parameters(library: str, call: str) -> set[str]:
    return set(LIBRARIES[library]["words"][call])


def test_the_words_of_stable_baselines3_are_those_of_the_installed_one() -> None:
    if importlib.util.find_spec("stable_baselines3") is None:
        pytest.skip("Stable-Baselines3 is not installed; the list has the words of the version that it names")
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.policies import ActorCriticPolicy

    assert stable_baselines3.__version__ == LIBRARIES["sb3"]["version"]
    own = {
        "PPO(...)": set(inspect.signature(stable_baselines3.PPO.__init__).parameters) - {"self"},
        "learn(...)": set(inspect.signature(stable_baselines3.PPO.learn).parameters) - {"self"},
        "make_vec_env(...)": set(inspect.signature(make_vec_env).parameters) - {"seed"},
        "policy_kwargs": set(inspect.signature(ActorCriticPolicy.__init__).parameters)
        - {"self", "observation_space", "action_space", "lr_schedule"},
    }
    assert own == {call: parameters("sb3", call) for call in own}


def test_an_answer_names_no_object_by_its_address() -> None:
    for name in ("learning_rate", "clip_range", "n_steps", "policy", "callback"):
        with pytest.raises(ConfigurationError) as caught:
            configured({name: object() if name == "callback" else lambda left: left * 3e-4})
        assert not re.search(r" at 0x|\n", str(caught.value)), caught.value
