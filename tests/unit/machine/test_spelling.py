"""A name is suggested only if it is close to what was given."""

import pytest

from penstock.machine.spelling import question, similar

COMMANDS = ("train", "evaluate", "evaluator", "plot", "status", "replay", "doctor")
PRESETS = ("half_cheetah", "lunar_lander", "pong", "taxi")


@pytest.mark.parametrize(
    ("given", "names", "meant"),
    [
        ("trian", COMMANDS, "train"),
        ("TRAIN", COMMANDS, "train"),
        ("evalu", COMMANDS, "evaluate"),
        ("Pongg", PRESETS, "pong"),
        ("LunarLander", PRESETS, "lunar_lander"),
        ("cheetah", PRESETS, "half_cheetah"),
        ("--learnin-rate", ("--learning-rate", "--learner.device"), "--learning-rate"),
    ],
)
def test_a_mistyped_a_shortened_and_a_differently_separated_name_are_recognised(
    given: str, names: tuple[str, ...], meant: str
) -> None:
    assert similar(given, names) == meant


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("atari", PRESETS),
        ("export", COMMANDS),
        ("deploy", COMMANDS),
        ("monitor", COMMANDS),
        ("tr", COMMANDS),
        ("", COMMANDS),
    ],
)
def test_a_name_that_shares_a_few_letters_is_not(given: str, names: tuple[str, ...]) -> None:
    assert similar(given, names) is None


def test_without_a_name_there_is_no_question() -> None:
    assert question(None) == "" and question("train") == "did you mean train?"
