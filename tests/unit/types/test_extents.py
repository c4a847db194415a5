import pytest

from penstock.types.extents import Amounts, Extent, RunLimit

HALFWAY = Extent(steps=500, updates=20, episodes=3, minutes=1.5)


@pytest.mark.parametrize(
    ("limits", "unit"),
    [
        (Amounts(steps=501), None),
        (Amounts(steps=500), "steps"),
        (Amounts(updates=20, steps=900), "updates"),
        (Amounts(episodes=3, minutes=2.0), "episodes"),
        (Amounts(minutes=1.5), "minutes"),
        (Amounts(minutes=1.6, steps=501, updates=21, episodes=4), None),
    ],
)
def test_the_first_limit_that_is_reached_counts(limits: Amounts, unit: str | None) -> None:
    assert limits.reached(HALFWAY) == unit


def test_the_nearest_limit_is_the_one_with_the_largest_share() -> None:
    limits = Amounts(steps=1000, updates=25, minutes=100.0)
    assert limits.nearest(HALFWAY) == RunLimit("updates", 20, 25)
    assert limits.nearest(HALFWAY).share == 0.8
    assert Amounts(steps=1000, minutes=2.0).nearest(HALFWAY) == RunLimit("minutes", 1.5, 2.0)


def test_a_limit_that_is_exceeded_is_done() -> None:
    assert Amounts(steps=400).nearest(HALFWAY).share == 1.0


def test_the_remaining_time_is_that_of_the_limit_which_is_reached_first() -> None:
    rates = {"steps": 100.0, "updates": 1.0, "minutes": 1.0 / 60.0, "episodes": 0.0}
    assert Amounts(steps=1500, updates=25).remaining_s(HALFWAY, rates.__getitem__) == 5.0
    assert Amounts(steps=1500, minutes=1.6).remaining_s(HALFWAY, rates.__getitem__) == pytest.approx(6.0)
    assert Amounts(steps=100).remaining_s(HALFWAY, rates.__getitem__) == 0.0


def test_the_remaining_time_is_not_known_without_a_rate() -> None:
    assert Amounts(episodes=10).remaining_s(HALFWAY, lambda unit: 0.0) is None


def test_intervals_begin_at_what_was_done() -> None:
    assert Amounts(steps=100, minutes=0.5).after(HALFWAY) == Amounts(steps=600, minutes=2.0)
    assert Amounts(steps=100, episodes=10).share_of(0.5) == Amounts(steps=50.0, episodes=5.0)
