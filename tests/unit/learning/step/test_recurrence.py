import pytest

from penstock.types.extents import Amounts, Extent, Recurrence

BEGIN = Extent(steps=1000, updates=100, episodes=10, minutes=5.0)


@pytest.mark.parametrize(
    ("intervals", "before", "due"),
    [
        (Amounts(steps=100), Extent(1099, 200, 90, 99.0), Extent(1100, 101, 10, 5.1)),
        (Amounts(updates=7), Extent(9000, 106, 90, 99.0), Extent(1001, 107, 10, 5.1)),
        (Amounts(episodes=3), Extent(9000, 900, 12, 99.0), Extent(1001, 101, 13, 5.1)),
        (Amounts(minutes=0.5), Extent(9000, 900, 90, 5.4), Extent(1001, 101, 10, 5.5)),
    ],
)
def test_a_task_is_due_after_an_interval_in_any_unit(intervals: Amounts, before: Extent, due: Extent) -> None:
    task = Recurrence(intervals, BEGIN)
    assert not task.is_due(BEGIN)
    assert not task.is_due(before)
    assert task.is_due(due)
    task.restart(due)
    assert not task.is_due(due)


def test_the_first_of_several_intervals_makes_a_task_due_and_all_begin_again() -> None:
    task = Recurrence(Amounts(steps=100, minutes=1.0), BEGIN)
    assert task.is_due(Extent(1010, 101, 10, 6.0))
    task.restart(Extent(1010, 101, 10, 6.0))
    assert not task.is_due(Extent(1109, 110, 10, 6.9))
    assert task.is_due(Extent(1110, 110, 10, 6.9))


def test_a_task_is_not_due_again_before_anything_was_trained() -> None:
    task = Recurrence(Amounts(minutes=1.0), BEGIN)
    assert not task.is_due(Extent(1000, 100, 10, 60.0))
    assert task.is_due(Extent(1000, 101, 10, 60.0))
