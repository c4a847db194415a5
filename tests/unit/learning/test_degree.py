"""The chosen degree settles where one more batch ahead stops helping, or makes the data too old."""

from collections.abc import Callable

import pytest

from penstock.learning.degree import LARGEST, LEAST, ChosenDegree, least_degree
from penstock.sharding.allotment import Allotment
from penstock.types import SamplingPlan

BATCHES = 32
"""Between reviews."""


def play(
    chosen: ChosenDegree, reviews: int, waiting: Callable[[int], float], effective: Callable[[int], float]
) -> list[int]:
    """The degree after each review; shares of waiting and of effective data are functions of the degree."""
    degrees = []
    for _ in range(reviews):
        for _ in range(BATCHES):
            now = chosen.degree
            chosen.observe(waited_s=0.01 * waiting(now), elapsed_s=0.01, effective_share=effective(now))
        degrees.append(chosen.degree)
    return degrees


def test_a_learner_that_is_kept_busy_stays_at_the_first_degree() -> None:
    assert set(play(ChosenDegree(LEAST), 20, lambda degree: 0.02, lambda degree: 0.95)) == {LEAST}


def test_it_rises_while_that_helps_and_goes_back_when_it_does_not() -> None:
    # Three batches ahead are enough to ride out the actors' bursts.
    degrees = play(ChosenDegree(LEAST), 12, lambda degree: {1: 0.4, 2: 0.2}.get(degree, 0.01), lambda degree: 0.9)
    assert degrees == [2, 3] + [3] * 10


def test_a_degree_that_does_not_help_is_left_and_seldom_tried_again() -> None:
    # Collection is the bottleneck, however far it may run ahead.
    degrees = play(ChosenDegree(LEAST), 60, lambda degree: 0.5, lambda degree: 0.9)
    assert set(degrees) == {1, 2}
    # One review shows that it does not help, and 16 more have to pass.
    assert [review for review, degree in enumerate(degrees) if degree == 2] == [0, 17, 34, 51]


@pytest.mark.parametrize(("waiting", "degrees"), [(0.46, [2, 1]), (0.44, [2, 3])])
def test_a_degree_helps_that_brings_the_waiting_down_by_a_tenth(waiting: float, degrees: list[int]) -> None:
    assert play(ChosenDegree(LEAST), 2, lambda degree: {1: 0.5}.get(degree, waiting), lambda degree: 0.9) == degrees


def test_a_learner_that_starves_on_data_of_which_too_little_counts_gets_no_older_data() -> None:
    assert set(play(ChosenDegree(LEAST), 5, lambda degree: 0.5, lambda degree: 0.5)) == {LEAST}


def test_a_review_judges_all_batches_since_the_last_and_not_the_newest_alone() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(BATCHES - 1):
        chosen.observe(waited_s=0.5, elapsed_s=1.0, effective_share=0.9)
    chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1)
    assert chosen.degree == 2


def test_it_falls_while_too_little_of_the_data_counts() -> None:
    chosen = ChosenDegree(LEAST)
    play(chosen, 5, lambda degree: 0.5 / degree**2, lambda degree: 0.9)
    high = chosen.degree
    assert high > 2
    # The policy moves faster now.
    degrees = play(chosen, 8, lambda degree: 0.5 / degree**2, lambda degree: 1.0 - 0.15 * degree)
    assert degrees[0] < high
    # At two, 0.7 of it counts; at three 0.55.
    assert degrees[-1] == 2


def test_it_is_bounded_by_what_the_store_has_room_for() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(20 * BATCHES):
        chosen.observe(waited_s=0.5**chosen.degree, elapsed_s=1.0, effective_share=1.0, largest=4)
    assert chosen.degree == 4 < LARGEST


def test_it_falls_at_once_to_what_the_store_has_room_for() -> None:
    chosen = ChosenDegree(6)
    for _ in range(BATCHES):
        chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=1.0, largest=4)
    assert chosen.degree == 4


def test_a_change_is_told_once() -> None:
    chosen = ChosenDegree(LEAST)
    changes = [chosen.observe(waited_s=0.5, elapsed_s=1.0, effective_share=1.0) for _ in range(BATCHES)]
    assert changes == [False] * (BATCHES - 1) + [True]


def plan_of(degree: int, fresh: int) -> SamplingPlan:
    return SamplingPlan(
        session=1,
        next_batch=0,
        batch_segments=fresh,
        fresh_segments=fresh,
        off_policy_degree=degree,
        publish_interval=1,
        alpha=0.6,
        epsilon=1e-3,
        half_life=2.0,
        max_staleness=64,
        min_replay_segments=0,
    )


def test_it_never_falls_below_what_the_largest_window_needs() -> None:
    smallest = least_degree(largest_window=20, fresh_segments=8)
    chosen = ChosenDegree(4)
    for _ in range(10 * BATCHES):
        # Nothing of the data counts, so that the degree would fall to 1.
        chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1, smallest=smallest)
    assert chosen.degree == smallest == 3


def test_it_rises_at_once_to_what_a_larger_window_needs() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(3):
        for _ in range(BATCHES):
            chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1, smallest=3, largest=2)
        assert chosen.degree == 3


@pytest.mark.parametrize(("window", "fresh", "shards"), [(20, 8, 1), (8, 8, 1), (1, 8, 1), (20, 16, 3), (5, 3, 3)])
def test_the_least_degree_is_the_smallest_at_which_every_shards_part_lets_the_window_in(
    window: int, fresh: int, shards: int
) -> None:
    def lets_in(degree: int) -> bool:
        parts = Allotment(plan_of(degree, fresh), shards, window).fresh_segments
        return sum(parts) <= fresh and all(window <= degree * part for part in parts)

    least = least_degree(window, fresh, shards)
    assert lets_in(least)
    assert least == LEAST or not lets_in(least - 1)
