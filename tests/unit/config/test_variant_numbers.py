"""The numbers by which a policy sees the variant."""

from typing import Any

import pytest

from penstock.config import Config, build
from penstock.config.variant_numbers import numbers_of
from penstock.errors import ConfigurationError


@pytest.mark.parametrize(
    ("variants", "numbers"),
    [
        ([{"g": 9.8, "size": 2}, {"g": 3, "size": 2}], [(9.8,), (3.0,)]),
        ([{"b": True, "a": 2}, {"b": False, "a": 5}], [(2.0, 1.0), (5.0, 0.0)]),
        ([{"legs": [1, 2.5]}, {"legs": (3, 4)}], [(1.0, 2.5), (3.0, 4.0)]),
        ([{"legs": [1]}, {"legs": [1, 2]}, {"legs": [1]}], [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]),
        ([{"file": "a.xml"}, {"file": "b.xml"}, {"file": "a.xml"}], [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0)]),
        ([{}, {"g": 3.0}], [(1.0, 0.0), (0.0, 1.0)]),
        ([{"same": "x"}, {"same": "x"}], [(), ()]),
    ],
)
def test_arguments_in_which_variants_differ_become_numbers(
    variants: list[dict[str, Any]], numbers: list[tuple[float, ...]]
) -> None:
    assert [numbers_of(variant, variants) for variant in variants] == numbers


def test_training_may_have_other_numbers_but_no_other_values() -> None:
    config = build(
        {
            "environment": {
                "variants": [{"g": 1.0, "file": "a"}, {"g": 2.0, "file": "b"}],
                "training_kwargs": {"g": 5.0},
                "show_variant": True,
            }
        }
    ).environment
    assert [config.shown(arguments) for arguments in config.training_variants] == [(1.0, 0.0, 5.0), (0.0, 1.0, 5.0)]
    with pytest.raises(ConfigurationError, match="'c' is none of them"):
        config.shown({"g": 1.0, "file": "c"})


def test_the_variant_is_shown_only_if_there_are_variants() -> None:
    assert Config().environment.shown({}) == ()
    with pytest.raises(ConfigurationError, match=r"needs environment\.variants with different arguments"):
        build({"environment": {"show_variant": True}}).environment.shown({})


@pytest.mark.parametrize(
    ("given", "sizes"),
    [("24,6", (24, 6)), ([24, 6], (24, 6)), ("[24, 6]", (24, 6)), ("auto", "auto"), (None, None)],
)
def test_sizes_of_padding_are_two_numbers_or_auto(given: object, sizes: object) -> None:
    config = build({"environment": {"pad_spaces": given}})
    assert config.environment.pad_spaces == sizes
    assert build(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("given", ["24", "24,6,1", "large", "-1,2"])
def test_other_sizes_of_padding_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"environment\.pad_spaces must be auto, none, or the numbers"):
        build({"environment": {"pad_spaces": given}})
