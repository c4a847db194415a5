"""Environments whose episodes are of several variants, which may change between steps."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.support.environments.tiny
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.varied import KEY, Turns, Variation
from penstock.acting.environments.vectors import Environments
from penstock.errors import ConfigurationError
from tests.support.environments.made import make_environments

TINY = tests.support.environments.tiny.__name__


def variations(lengths: Iterable[int], first: int = 0) -> list[Variation]:
    """Returns variants of the counting environment, whose episodes have these lengths."""
    return [Variation(first + place, {"length": length}) for place, length in enumerate(lengths)]


def made(turns: Turns, count: int = 2, env_id: str = "Counting-v0", **settings: Any) -> Environments:
    return make_environments(env_id, count, kwargs={}, turns=turns, info_metrics=[KEY], imports=[TINY], **settings)


def steps_by_variant(environments: Environments, steps: int) -> Counter[int]:
    """Returns the steps of the finished episodes by variant, as the infos name it."""
    found, taken = Counter[int](), np.zeros(environments.count, np.int64)
    for _ in range(steps):
        outcome = environments.step((np.zeros(environments.count, np.int64),))
        assert outcome.info is not None
        taken += outcome.valid
        for row in np.flatnonzero(outcome.terminated | outcome.truncated):
            found[int(outcome.info[row, 0])] += int(taken[row])
            taken[row] = 0
    return found


def played(turns: Turns, episodes: int, lengths: Sequence[int]) -> Counter[int]:
    """Plays episodes of these lengths by number one after another, and returns their steps."""
    found = Counter[int]()
    for _ in range(episodes):
        variation, expected = turns.begin()
        turns.end(variation, expected, lengths[variation.number])
        found[variation.number] += lengths[variation.number]
    return found


@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_variants_get_equal_steps_whatever_the_length_of_their_episodes(lengths: list[int]) -> None:
    found = played(Turns(variations(lengths)), 100 * len(lengths), lengths)
    assert max(found.values()) - min(found[number] for number in range(len(lengths))) <= 2 * max(lengths)


def test_variants_get_steps_in_proportion_to_their_shares() -> None:
    lengths = [10, 40, 20]
    turns = Turns(
        [Variation(number, {}, share=share) for number, share in enumerate((0.5, 1.0, 2.0))],
    )
    found = played(turns, 3_000, lengths)
    assert [found[number] / found.total() for number in range(3)] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.01)


def test_a_variant_that_comes_later_neither_waits_nor_catches_up() -> None:
    turns = Turns(variations([10, 10]))
    played(turns, 1_000, [10, 10])
    turns.change(variations([10, 10, 10]))
    found = played(turns, 30, [10, 10, 10])
    assert [found[number] for number in range(3)] == [100, 100, 100]


def test_fifty_additions_and_retirements_starve_no_variant() -> None:
    generator, lengths = np.random.default_rng(0), [20] * 60
    active = variations(lengths[:4])
    turns = Turns(active)
    for number in range(4, 54):
        # Another one comes, and one of the others goes.
        active = [*active, Variation(number, {})]
        del active[generator.integers(len(active) - 1)]
        turns.change(active)
        found = played(turns, 40, lengths)
        assert sorted(found) == [each.number for each in active]
        assert set(found.values()) <= {180, 200, 220}


def test_actors_begin_with_different_variants() -> None:
    first = []
    for seed in range(6):
        turns = Turns(variations([3] * 3))
        turns.start_at(seed)
        first.append(turns.begin()[0].number)
    assert first == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "workers": 2}])
def test_episodes_play_all_variants_and_name_them(settings: dict[str, Any]) -> None:
    environments = made(Turns(variations([2, 3, 4])), **settings)
    environments.reset([1, 2])
    found = steps_by_variant(environments, 600)
    assert sorted(found) == [0, 1, 2]
    assert max(found.values()) - min(found.values()) <= 16
    environments.close()


@pytest.mark.parametrize("settings", [{}, {"vectorization": "process", "workers": 2}])
def test_changed_variants_are_played_from_the_next_episodes_on(settings: dict[str, Any]) -> None:
    turns = Turns(variations([2, 3]))
    environments = made(turns, **settings)
    environments.reset([1, 2])
    assert sorted(steps_by_variant(environments, 100)) == [0, 1]
    turns.change([*variations([3], first=1), *variations([5], first=2)])
    # The episodes in progress end.
    steps_by_variant(environments, 10)
    found = steps_by_variant(environments, 300)
    assert sorted(found) == [1, 2]
    assert abs(found[1] - found[2]) <= 20
    environments.close()


def test_a_variant_that_can_not_be_made_is_left_out_with_one_line() -> None:
    turns, progress = Turns(variations([2, 3])), Progress()
    environments = made(turns, progress=progress)
    environments.reset([1, 2])
    turns.change([*turns.variations, Variation(2, {"length": -1})])
    assert sorted(steps_by_variant(environments, 100)) == [0, 1]
    (line,) = progress.notices
    assert line.startswith("variant 2 is left out: ") and "has at least one step" in line


def test_a_variant_with_other_spaces_is_left_out_with_both_spaces() -> None:
    turns, progress = Turns([Variation(0, {})]), Progress()
    environments = made(turns, env_id="CartPole-v1", progress=progress)
    environments.reset([1, 2])
    turns.change([Variation(0, {}), Variation(1, {}, wrappers=[{"name": "FrameStackObservation", "stack_size": 2}])])
    assert sorted(steps_by_variant(environments, 100)) == [0]
    (line,) = progress.notices
    assert line.startswith("variant 1 is left out: its spaces are Box(") and "pad_spaces" in line


def test_the_only_variant_that_fails_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"has at least one step"):
        made(Turns([Variation(0, {"length": -1})]))


def test_equal_seeds_give_equal_episodes_in_every_process() -> None:
    def rewards(**settings: Any) -> np.ndarray[Any, Any]:
        turns = Turns([Variation(number, {"g": 5.0 + number}) for number in range(3)])
        environments = make_environments("Pendulum-v1", 1, kwargs={}, turns=turns, info_metrics=[KEY], **settings)
        environments.reset([7])
        found = np.array([environments.step((np.ones((1, 1), np.float32),)).reward[0] for _ in range(900)])
        environments.close()
        return found

    first = rewards()
    assert np.array_equal(first, rewards())
    assert np.array_equal(first, rewards(vectorization="process", workers=1))
