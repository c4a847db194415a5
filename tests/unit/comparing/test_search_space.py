"""Search spaces: what is refused before the first trial, and what the default space contains."""

from pathlib import Path

import pytest

from penstock.cli.named import settings_named
from penstock.comparing.search_space import DEFAULT_SPACE, Choice, Range, default_space, read_space, values_in
from penstock.config import Config, parse_toml
from penstock.errors import ConfigurationError
from penstock.presets import preset_names


def space_of(text: str, base: Config | None = None) -> dict[str, Range | Choice]:
    return dict(read_space(parse_toml(text), base or Config(), "space.toml"))


def test_ranges_and_choices_are_read_under_the_names_of_options() -> None:
    found = space_of(
        "gamma = [0.9, 0.99]\n[ppo]\nlearning_rate = { low = 1e-4, high = 1e-2, log = true }\n"
        "epochs = { low = 2, high = 8, step = 2 }\n[policy]\nhidden_sizes = [[64], [64, 64]]\n"
    )
    assert found == {
        "ppo.discount": Choice(("0.9", "0.99")),
        "ppo.learning_rate": Range(1e-4, 1e-2, log=True),
        "ppo.epochs": Range(2, 8, step=2),
        "policy.hidden_sizes": Choice(("[64]", "[64, 64]")),
    }
    epochs = found["ppo.epochs"]
    assert isinstance(epochs, Range)
    assert [epochs.contains(value) for value in (2, 3, 8, 10, True)] == [True, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no settings"),
        ("[ppo]\nlearning_rat = [1e-3, 1e-4]", "unknown setting ppo.learning_rat; did you mean ppo.learning_rate"),
        ("[pppo]\nepochs = [1, 2]", "unknown setting pppo"),
        ("learning_rat = [1e-3]", "unknown setting learning_rat; did you mean ppo.learning_rate"),
        ("[ppo]\nepochs = { low = 8, high = 2 }", "ppo.epochs from 8 to 2; low must be below high"),
        ("[ppo]\nepochs = { low = 0, high = 2 }", "ppo.epochs = 0: ppo.epochs"),
        ("[ppo]\nepochs = { low = 0.5, high = 2 }", "ppo.epochs = 0.5: ppo.epochs"),
        ("[ppo]\nepochs = { low = 2, high = 7, step = 2 }", "step = 2 for ppo.epochs; a step is a whole number that"),
        ("[ppo]\nlearning_rate = { low = 0, high = 0.1, log = true }", "raise low above 0, or remove log"),
        ("[ppo]\nlearning_rate = { low = 0.1, high = 2.0 }", "ppo.learning_rate = 2.0: ppo.learning_rate"),
        ("[ppo]\nlearning_rate = { low = 0.1 }", "write a list of choices, or { low"),
        ("[ppo]\nlearning_rate = { low = 0.1, high = inf }", "ends of ppo.learning_rate that are not numbers"),
        ("[ppo]\nlearning_rate = 0.1", "write a list of choices, or { low"),
        ("[ppo]\nentropy_schedule = ['linear', 'square']", 'ppo.entropy_schedule = "square": ppo.entropy_schedule'),
        ("[ppo]\nepochs = [2, 2]", "repeats a choice of ppo.epochs"),
        ("[run]\ntotal_steps = [1000, 2000]", "can't be compared"),
        ("[evaluation]\nepisodes = [1, 2]", "can't be compared"),
    ],
)
def test_a_wrong_space_is_refused_with_the_name_of_the_setting(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        space_of(text)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("preset", preset_names())
def test_the_default_space_fits_each_preset(preset: str) -> None:
    base = settings_named(preset).repeatable()
    space = default_space(base)
    assert space.keys() >= {"ppo.learning_rate"}
    assert ("ppo.discount" in space) == (base.ppo.discount > 0.0)


def test_the_values_to_start_from_are_those_that_the_space_contains() -> None:
    space = space_of("[ppo]\nlearning_rate = { low = 1e-4, high = 1e-2 }\ndiscount = [0.9]\ntarget_kl = [0.1, 'none']")
    base = Config(ppo={"learning_rate": 1e-3, "discount": 0.99, "target_kl": None})
    assert values_in(base, space) == {"ppo.learning_rate": 1e-3, "ppo.target_kl": "none"}


def test_the_documentation_has_the_default_space() -> None:
    page = Path(__file__).parents[3] / "docs" / "tuning.md"
    assert DEFAULT_SPACE.partition("\n")[2] in page.read_text()
