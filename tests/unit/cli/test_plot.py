import numpy as np

from penstock.cli.plot import Curve, gather_by_settings

NOTHING = np.zeros((0, 2))


def curve(seed: int, **settings: int) -> Curve:
    return Curve("E-v0", tuple((name, str(value)) for name, value in settings.items()), seed, None, NOTHING, NOTHING)


def test_curves_that_differ_by_seed_alone_are_gathered_and_the_others_named_by_what_sets_them_apart() -> None:
    groups = gather_by_settings([curve(0, a=1, b=1), curve(1, a=1, b=1), curve(0, a=1, b=2)])
    assert [(label, [member.seed for member in group]) for label, group in groups] == [("b 1", [0, 1]), ("b 2", [0])]


def test_curves_whose_difference_a_label_has_no_room_for_stay_apart() -> None:
    first, second, third = curve(0, a=1, b=1, c=1, d=1), curve(0, a=2, b=2, c=2, d=2), curve(0, a=2, b=2, c=2, d=3)
    assert [group for _, group in gather_by_settings([first, second, third])] == [[first], [second], [third]]


def test_a_single_setting_needs_no_label() -> None:
    assert [label for label, _ in gather_by_settings([curve(0, a=1), curve(1, a=1)])] == [""]
