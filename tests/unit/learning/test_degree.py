"""The chosen degree converges where one more batch ahead no longer reduces waits or makes the data too old."""

from collections.abc import Callable

import pytest

from penstock.learning.degree import LARGEST, LEAST, ChosenDegree, least_degree
from penstock.sharding.allotment import Allotment
from penstock.types.replay import SamplingPlan

BATCHES = 32
"""Number of batches between reviews."""


def play(
    chosen: ChosenDegree, reviews: int, waiting: Callable[[int], float], effective: Callable[[int], float]
) -> list[int]:
    """Returns the degree after each review; shares of waiting and of effective data are functions of the degree."""
    degrees = []
    for _ in range(reviews):
        for _ in range(BATCHES):
            now = chosen.degree
            chosen.observe(waited_s=0.01 * waiting(now), elapsed_s=0.01, effective_share=effective(now))
        degrees.append(chosen.degree)
    return degrees


def test_a_busy_learner_keeps_the_first_degree() -> None:
    assert set(play(ChosenDegree(LEAST), 20, lambda degree: 0.02, lambda degree: 0.95)) == {LEAST}


def test_the_degree_rises_while_waits_fall_and_returns_otherwise() -> None:
    # Three batches ahead are enough to absorb the actors' bursts.
    degrees = play(ChosenDegree(LEAST), 12, lambda degree: {1: 0.4, 2: 0.2}.get(degree, 0.01), lambda degree: 0.9)
    assert degrees == [2, 3] + [3] * 10


def test_a_degree_that_does_not_help_is_retried_rarely() -> None:
    # Collection is the bottleneck at every degree.
    degrees = play(ChosenDegree(LEAST), 60, lambda degree: 0.5, lambda degree: 0.9)
    assert set(degrees) == {1, 2}
    # One review shows that degree 2 does not help, and the next attempt follows 16 reviews later.
    assert [review for review, degree in enumerate(degrees) if degree == 2] == [0, 17, 34, 51]


@pytest.mark.parametrize(("waiting", "degrees"), [(0.46, [2, 1]), (0.44, [2, 3])])
def test_a_degree_helps_if_waits_fall_by_a_tenth(waiting: float, degrees: list[int]) -> None:
    assert play(ChosenDegree(LEAST), 2, lambda degree: {1: 0.5}.get(degree, waiting), lambda degree: 0.9) == degrees


def test_the_degree_does_not_rise_while_the_effective_share_is_too_small() -> None:
    assert set(play(ChosenDegree(LEAST), 5, lambda degree: 0.5, lambda degree: 0.5)) == {LEAST}


def test_a_review_covers_all_batches_since_the_previous_review() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(BATCHES - 1):
        chosen.observe(waited_s=0.5, elapsed_s=1.0, effective_share=0.9)
    chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1)
    assert chosen.degree == 2


def test_the_degree_falls_while_the_effective_share_is_too_small() -> None:
    chosen = ChosenDegree(LEAST)
    play(chosen, 5, lambda degree: 0.5 / degree**2, lambda degree: 0.9)
    high = chosen.degree
    assert high > 2
    # The policy moves faster now.
    degrees = play(chosen, 8, lambda degree: 0.5 / degree**2, lambda degree: 1.0 - 0.15 * degree)
    assert degrees[0] < high
    # The effective share is 0.7 at degree 2 and 0.55 at degree 3.
    assert degrees[-1] == 2


def test_the_capacity_of_the_store_bounds_the_degree() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(20 * BATCHES):
        chosen.observe(waited_s=0.5**chosen.degree, elapsed_s=1.0, effective_share=1.0, largest=4)
    assert chosen.degree == 4 < LARGEST


def test_the_degree_falls_at_once_to_the_bound_of_the_store() -> None:
    chosen = ChosenDegree(6)
    for _ in range(BATCHES):
        chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=1.0, largest=4)
    assert chosen.degree == 4


def test_a_change_is_reported_once() -> None:
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


def test_the_degree_never_falls_below_the_need_of_the_largest_window() -> None:
    smallest = least_degree(largest_window=20, fresh_segments=8)
    chosen = ChosenDegree(4)
    for _ in range(10 * BATCHES):
        # The effective share is so small that the degree would fall to 1.
        chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1, smallest=smallest)
    assert chosen.degree == smallest == 3


def test_the_degree_rises_at_once_to_the_need_of_a_larger_window() -> None:
    chosen = ChosenDegree(LEAST)
    for _ in range(3):
        for _ in range(BATCHES):
            chosen.observe(waited_s=0.0, elapsed_s=1.0, effective_share=0.1, smallest=3, largest=2)
        assert chosen.degree == 3


@pytest.mark.parametrize(("window", "fresh", "shards"), [(20, 8, 1), (8, 8, 1), (1, 8, 1), (20, 16, 3), (5, 3, 3)])
def test_the_least_degree_is_the_smallest_that_admits_the_window_on_every_shard(
    window: int, fresh: int, shards: int
) -> None:
    def admits(degree: int) -> bool:
        parts = Allotment(plan_of(degree, fresh), shards, window).fresh_segments
        return sum(parts) <= fresh and all(window <= degree * part for part in parts)

    least = least_degree(window, fresh, shards)
    assert admits(least)
    assert least == LEAST or not admits(least - 1)
