"""An automatic degree is as low as keeps the learner from waiting."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.learning.members.wanted_actors import Work
from penstock.learning.run.degree import AutomaticDegree

FIRST_BATCHES, BATCHES = 3, 8
"""Numbers of batches before the first review and between reviews."""


class Session:
    """A session of which each batch takes a second."""

    def __init__(self, least: int, first_wait_s: float = 0.0) -> None:
        """Trains the first batch, which says nothing about the degree."""
        self.degree, self._work, self.reviewed = AutomaticDegree(least), Work(), False
        assert not self.train(first_wait_s, 0.0, 8)

    def train(self, waited_s: float, effective_share: float, most: int) -> bool:
        """Trains a batch, and returns whether the degree has changed."""
        self._work = replace(
            self._work, elapsed_s=self._work.elapsed_s + 1.0, starved_s=self._work.starved_s + waited_s
        )
        return self.degree.observe(effective_share, lambda: self._work, lambda: most)


def play(
    session: Session,
    reviews: int,
    waiting: Callable[[int], float],
    effective: Callable[[int], float] = lambda degree: 0.9,
    most: int = 8,
) -> list[int]:
    """Returns the degree after each review; the shares of waiting and of effective data are functions of the degree."""
    degree, degrees = session.degree, []
    for _ in range(reviews):
        batches = BATCHES if session.reviewed else FIRST_BATCHES
        changes = [session.train(waiting(degree.degree), effective(degree.degree), most) for _ in range(batches)]
        session.reviewed = True
        assert not any(changes[:-1]), "a change between two reviews"
        degrees.append(degree.degree)
    return degrees


def test_a_busy_learner_keeps_the_least_degree() -> None:
    assert set(play(Session(1), 20, lambda degree: 0.0)) == {1}


def test_a_learner_that_waits_for_actors_soon_has_the_largest_degree() -> None:
    assert play(Session(1), 2, lambda degree: 0.9) == [8, 8]
    assert play(Session(1), 2, lambda degree: 1.0) == [8, 8]
    assert play(Session(2), 3, lambda degree: 0.5) == [5, 8, 8]


def test_the_degree_rises_to_the_one_at_which_the_waits_would_end() -> None:
    # Segments for a busy learner need the windows of 4 batches in collection. Sums of these shares are exact.
    assert play(Session(1), 3, lambda degree: 1.0 - min(1.0, (degree + 1) / 4)) == [3, 2, 3]


def test_the_degree_is_bounded_by_the_actors_and_the_store_but_admits_a_window() -> None:
    session = Session(2)
    assert play(session, 2, lambda degree: 0.9, most=6) == [6, 6]
    assert play(session, 2, lambda degree: 0.9, most=4) == [4, 4]
    assert play(session, 2, lambda degree: 0.9, most=1) == [2, 2]


def test_the_degree_falls_to_the_lowest_one_without_waits_and_stays_there() -> None:
    degrees = play(Session(1), 40, lambda degree: 0.2 if degree < 3 else 0.0)
    assert degrees[:5] == [2, 3, 2, 3, 3]
    # The degree with which the learner waited is tried again after 16 reviews.
    assert [review for review, degree in enumerate(degrees) if degree == 2] == [0, 2, 19, 36]


@pytest.mark.parametrize("waiting", [0.011, 0.049])
def test_a_degree_at_which_the_learner_waits_a_little_is_kept(waiting: float) -> None:
    assert play(Session(1), 10, lambda degree: 0.5 if degree < 3 else waiting) == [3] * 10


def test_data_that_is_too_old_lowers_the_degree_and_keeps_it_low() -> None:
    # The effective share is 0.4 at degree 4, and below 0.3 from 5 on.
    degrees = play(Session(1), 60, lambda degree: 0.5, lambda degree: 1.0 - 0.15 * degree)
    assert degrees[:6] == [3, 7, 6, 5, 4, 4]
    assert set(degrees[4:19]) == {4}


def test_a_review_covers_all_batches_since_the_one_before() -> None:
    session = Session(1, first_wait_s=100.0)
    for batches, waited_s, degree in [(FIRST_BATCHES, 0.0, 1), (BATCHES, 0.05, 2)]:
        for _ in range(batches - 1):
            assert not session.train(waited_s, 1.0, 8)
        assert session.train(waited_s + 0.01, 0.0, 8) == (degree == 2)
        assert session.degree.degree == degree
