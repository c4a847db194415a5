import re
from typing import Any

import pytest

from penstock.config import Config, build, merge, parse_toml
from penstock.errors import ConfigurationError
from penstock.presets import configured
from penstock.types.extents import Amounts, StoreSize

DEFAULT = Config()


def test_defaults_are_in_steps_and_bytes_and_checkpoints_also_in_minutes() -> None:
    assert DEFAULT.run.limits == Amounts(steps=1_000_000)
    assert DEFAULT.evaluation.intervals == Amounts(steps=10_000)
    assert DEFAULT.checkpoint.intervals == Amounts(steps=50_000, minutes=1.0)
    assert DEFAULT.replay.store_size == StoreSize(64 * 2**20)


@pytest.mark.parametrize("value", [5, "5"])
@pytest.mark.parametrize("unit", ["updates", "episodes", "minutes"])
def test_another_unit_replaces_the_default_number_of_steps(unit: str, value: object) -> None:
    config = build(
        {
            "run": {f"total_{unit}": value},
            "evaluation": {f"interval_{unit}": value},
            "checkpoint": {f"save_interval_{unit}": value},
        }
    )
    assert config.run.limits == config.evaluation.intervals == config.checkpoint.intervals == Amounts(**{unit: 5})


@pytest.mark.parametrize(("unit", "amount"), [("segments", 500), ("steps", 5_000)])
def test_the_store_has_a_size_in_segments_or_steps(unit: Any, amount: int) -> None:
    assert build({"replay": {f"capacity_{unit}": amount}}).replay.store_size == StoreSize(amount, unit)


def test_limits_of_one_source_apply_together() -> None:
    assert build({"run": {"total_steps": 10, "total_minutes": 2}}).run.limits == Amounts(steps=10, minutes=2.0)


def test_a_source_replaces_the_limits_of_sources_below_it() -> None:
    file: dict[str, object] = {"run": {"total_steps": 10, "total_updates": 3, "seed": 1}}
    replaced = merge(file, {"run": {"total_minutes": "2"}})
    assert replaced == {"run": {"seed": 1, "total_minutes": "2"}}
    kept = merge(file, {"run": {"total_steps": "none"}})
    assert build(kept).run.limits == Amounts(updates=3)
    sized = merge({"replay": {"capacity_bytes": 2**20}}, {"replay": {"capacity_segments": 99}})
    assert build(sized).replay.store_size == StoreSize(99, "segments")


def test_a_limit_in_minutes_replaces_the_steps_of_a_preset() -> None:
    values: dict[str, object] = {"run": {"total_minutes": 3}, "evaluation": {"interval_minutes": 1}}
    config = configured(values, preset="cartpole").config
    assert (config.run.limits, config.evaluation.intervals) == (Amounts(minutes=3.0), Amounts(minutes=1.0))


def test_names_in_the_arguments_of_an_environment_are_not_limits() -> None:
    below: dict[str, object] = {"environment": {"kwargs": {"total_steps": 3}}}
    assert merge(below, {"environment": {"kwargs": {"total_minutes": 4}}}) == {
        "environment": {"kwargs": {"total_steps": 3, "total_minutes": 4}}
    }


@pytest.mark.parametrize(
    "values",
    [
        {"run": {"total_minutes": 3}},
        {"run": {"total_minutes": 3, "total_steps": 9}},
        {"evaluation": {"interval_episodes": 9}},
        {"replay": {"capacity_segments": 900}},
    ],
)
def test_the_file_of_a_run_keeps_the_units(values: dict[str, object]) -> None:
    config = build(values)
    assert build(parse_toml(config.to_toml())) == config


REFUSED: list[tuple[str, str, object, str]] = [
    ("run", "total_steps", 0, "run.total_steps must be a whole number above 0, such as 1000 or 1e6, or none; got 0"),
    (
        "run",
        "total_updates",
        -1,
        "run.total_updates must be a whole number above 0, such as 1000 or 1e6, or none; got -1",
    ),
    (
        "run",
        "total_episodes",
        1.5,
        "run.total_episodes must be a whole number above 0, such as 1000 or 1e6, or none; got 1.5",
    ),
    ("run", "total_minutes", 0, "run.total_minutes must be a number of minutes above 0, such as 30, or none; got 0"),
    (
        "run",
        "total_minutes",
        "nan",
        "run.total_minutes must be a number of minutes above 0, such as 30, or none; got 'nan'",
    ),
    (
        "run",
        "total_minutes",
        "inf",
        "run.total_minutes must be a number of minutes above 0, such as 30, or none; got 'inf'",
    ),
    ("run", "total_updates", True, "run.total_updates must be a number, not true or false; got True"),
    (
        "run",
        "total_steps",
        "none",
        "run.total_steps is none, and its other units are not set; set it, such as to 1000000, or set total_updates,"
        " total_episodes or total_minutes",
    ),
    ("evaluation", "interval_minutes", -2, "evaluation.interval_minutes must be a number of minutes above 0"),
    ("evaluation", "interval_steps", None, "evaluation.interval_steps is none, and its other units are not set"),
    ("checkpoint", "save_interval_updates", 0, "checkpoint.save_interval_updates must be a whole number above 0"),
    (
        "replay",
        "capacity_segments",
        0,
        "replay.capacity_segments must be a whole number above 0, such as 1000 or 1e6, or none; got 0",
    ),
]


@pytest.mark.parametrize(("section", "key", "value", "error"), REFUSED)
def test_a_wrong_amount_is_refused_with_one_that_works(section: str, key: str, value: object, error: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(error)}[^\n]*$"):
        build({section: {key: value}})


def test_no_interval_between_checkpoints_is_refused_with_one_that_works() -> None:
    error = "checkpoint.save_interval is none, and its other units are not set; set it, such as to 50000, or set save_"
    with pytest.raises(ConfigurationError, match=error):
        build({"checkpoint": {"save_interval": "none", "save_interval_minutes": "none"}})


@pytest.mark.parametrize(
    ("checkpoint", "intervals"),
    [
        ({"save_interval": 7}, Amounts(steps=7)),
        ({"save_interval_minutes": 7}, Amounts(minutes=7.0)),
        ({"save_interval": 7, "save_interval_minutes": 7}, Amounts(steps=7, minutes=7.0)),
        ({"save_interval_updates": 7}, Amounts(updates=7)),
        ({"save_interval_minutes": "none"}, Amounts(steps=50_000)),
        ({"save_interval": "none"}, Amounts(minutes=1.0)),
    ],
)
def test_one_interval_between_checkpoints_replaces_both_defaults_and_none_removes_one(
    checkpoint: dict[str, object], intervals: Amounts
) -> None:
    config = build({"checkpoint": checkpoint})
    assert config.checkpoint.intervals == intervals
    assert build(parse_toml(config.to_toml())) == config
    assert config.changed({"run": {"seed": 3}}).checkpoint == config.checkpoint


def test_two_sizes_of_the_store_are_refused() -> None:
    error = "replay.capacity_bytes and replay.capacity_steps give the same size in different units; set all but one to"
    with pytest.raises(ConfigurationError, match=error):
        build({"replay": {"capacity_bytes": "1MB", "capacity_steps": 5_000}})


@pytest.mark.parametrize(("unit", "small", "works"), [("segments", 95, 96), ("steps", 3_040, 3_072)])
def test_a_store_that_is_too_small_for_the_gate_is_refused_with_a_size_that_works(
    unit: str, small: int, works: int
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^replay\.capacity_{unit} {small} .* set it to {works} or more"):
        build({"replay": {f"capacity_{unit}": small}})
    build({"replay": {f"capacity_{unit}": works}})


@pytest.mark.parametrize(
    ("section", "key"),
    [("run", "total_episodes"), ("evaluation", "interval_episodes"), ("checkpoint", "save_interval_episodes")],
)
def test_episodes_are_refused_where_no_segment_is_fresh(section: str, key: str) -> None:
    policy = {"normalise_observations": False, "normalise_returns": False}
    with pytest.raises(ConfigurationError, match=rf"{section}\.{key} 5 needs fresh segments"):
        build({section: {key: 5}, "sampling": {"fresh_fraction": 0.0}, "policy": policy})
