"""The variants of a run: changes, numbers, shares, and what a restarted learner reads from their file."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigurationError
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.population import MOST, Population

CONFIGURED: list[dict[str, Any]] = [{"g": 8.0}, {"g": 10.0}]


def population(folder: Path, configured: list[dict[str, Any]] = CONFIGURED, notices: list[str] | None = None) -> Any:
    def check(arguments: Any) -> None:
        if "unknown" in arguments:
            raise ConfigurationError("no argument unknown")

    notices = [] if notices is None else notices
    return Population(
        folder / "variants.json",
        configured,
        check=check,
        least_share=0.2,
        writes=RetriedWrites(notices.append),
        notice=notices.append,
    )


def numbers(found: Population) -> list[int]:
    return [each.number for each in found.active]


def test_it_begins_with_the_configured_variants_and_writes_nothing(tmp_path: Path) -> None:
    found = population(tmp_path)
    assert [(each.number, each.arguments, each.share) for each in found.active] == [
        (0, {"g": 8.0}, 1.0),
        (1, {"g": 10.0}, 1.0),
    ]
    assert [each.name for each in found.variants] == ["g=8.0", "g=10.0"]
    assert not (tmp_path / "variants.json").exists()


def test_variants_are_added_and_retired_in_one_change_and_numbers_are_never_used_again(tmp_path: Path) -> None:
    found, changes = population(tmp_path), []
    found.changed = lambda: changes.append(numbers(found))
    assert found.change(add=[{"g": 12.0}, {}], retire=[0]) == (2, 3)
    assert found.change(retire=[2, 3]) == ()
    assert found.change(add=[{"g": 9.0}]) == (4,)
    assert changes == [[1, 2, 3], [1], [1, 4]]
    assert [each.number for each in found.variants if each.retired] == [0, 2, 3]
    assert [json.loads(each.arguments) for each in found.played] == [{"g": 10.0}, {"g": 9.0}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"add": [{"g": 1.0}, {"unknown": 1}]}, "no argument unknown"),
        ({"add": [{"g": 1.0}], "retire": [2]}, "variant 2 is not played"),
        ({"retire": [0, 0]}, "variant 0 is not played; `penstock variants` lists"),
        ({"retire": [0, 1]}, "no variant would be left"),
        ({"add": [{}] * (MOST - 1)}, "can have 10,000 variants, and this one has had 2"),
    ],
)
def test_a_change_that_can_not_be_made_changes_nothing(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    found = population(tmp_path)
    found.changed = lambda: pytest.fail("it has changed")
    with pytest.raises(ConfigurationError, match=reason):
        found.change(**change)
    assert numbers(found) == [0, 1] and len(found.variants) == 2


def test_the_last_variants_may_be_replaced_in_one_change(tmp_path: Path) -> None:
    found = population(tmp_path)
    found.change(add=[{"g": 1.0}], retire=[0, 1])
    assert numbers(found) == [2]


def test_shares_follow_weights_with_a_floor_and_have_mean_1(tmp_path: Path) -> None:
    found = population(tmp_path)
    found.change(add=[{"g": 12.0}, {"g": 14.0}], retire=[1])
    found.weigh({0: 0.0, 2: 2.0, 3: 1.0})
    shares = {each.number: each.share for each in found.active}
    assert shares == pytest.approx({0: 0.2, 2: 2.8 * 2 / 3, 3: 2.8 / 3})
    # One that has come since keeps its share until it is weighed.
    found.change(add=[{"g": 16.0}])
    found.weigh({0: 1.0, 2: 1.0, 3: 1.0})
    assert {each.share for each in found.active} == {1.0}


def test_a_restarted_learner_has_the_same_variants(tmp_path: Path) -> None:
    population(tmp_path).change(add=[{"g": 12.0, "lengths": [1.0, 2.0]}], retire=[1])
    again = population(tmp_path)
    assert [(each.number, each.arguments, each.retired) for each in again.variants] == [
        (0, {"g": 8.0}, False),
        (1, {"g": 10.0}, True),
        (2, {"g": 12.0, "lengths": [1.0, 2.0]}, False),
    ]
    assert again.change(add=[{}]) == (3,)


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"arguments": 1, "retired": false}]', "[" * 100, '[{"arguments": {"unknown": 1}}]']
)
def test_a_damaged_file_is_said_and_the_configured_variants_are_played(tmp_path: Path, text: str) -> None:
    (tmp_path / "variants.json").write_text(text)
    notices: list[str] = []
    assert numbers(population(tmp_path, notices=notices)) == [0, 1]
    assert len(notices) == 1 and "environment.variants" in notices[0] and "variants.json" in notices[0]


def test_other_configured_variants_begin_anew_and_say_so(tmp_path: Path) -> None:
    population(tmp_path).change(add=[{"g": 12.0}])
    notices: list[str] = []
    found = population(tmp_path, [{"g": 7.0}], notices)
    assert [each.arguments for each in found.variants] == [{"g": 7.0}]
    assert len(notices) == 1 and "differ" in notices[0]


def test_a_full_disk_does_not_prevent_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(28, "No space left on device")

    notices: list[str] = []
    found = population(tmp_path, notices=notices)
    monkeypatch.setattr("penstock.learning.members.population.write_variants", full)
    assert found.change(add=[{"g": 1.0}]) == (2,)
    assert numbers(found) == [0, 1, 2]
    assert notices
