import numpy as np

from penstock.local.learning_curves import Curve, gather_by_settings

NOTHING = np.zeros((0, 2))


def curve(seed: int, **settings: int) -> Curve:
    return Curve("E-v0", tuple((name, str(value)) for name, value in settings.items()), seed, None, NOTHING, NOTHING)


def test_curves_are_grouped_by_settings_and_labelled_by_their_differences() -> None:
    groups = gather_by_settings([curve(0, a=1, b=1), curve(1, a=1, b=1), curve(0, a=1, b=2)])
    assert [(label, [member.seed for member in group]) for label, group in groups] == [("b 1", [0, 1]), ("b 2", [0])]


def test_curves_that_differ_in_an_unlabelled_setting_remain_separate() -> None:
    first, second, third = curve(0, a=1, b=1, c=1, d=1), curve(0, a=2, b=2, c=2, d=2), curve(0, a=2, b=2, c=2, d=3)
    assert [group for _, group in gather_by_settings([first, second, third])] == [[first], [second], [third]]


def test_a_single_setting_needs_no_label() -> None:
    assert [label for label, _ in gather_by_settings([curve(0, a=1), curve(1, a=1)])] == [""]
