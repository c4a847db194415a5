"""Final returns of learning curves."""

from tests.support.training.curves import final_return


def test_a_final_return_is_the_mean_of_the_evaluations_in_the_last_fifth() -> None:
    assert final_return([(500, 1.0), (800, 2.0), (801, 4.0), (1_000, 6.0)], 1_000) == 5.0


def test_a_final_return_without_late_evaluations_is_that_of_the_last() -> None:
    assert final_return([(100, 1.0), (200, 3.0)], 1_000) == 3.0
