"""Screens become small grey pictures by the mean of areas, in which nothing is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.environments.emulators.pictures import Shrinker


def screen_of(grey: NDArray[np.int64]) -> NDArray[np.uint8]:
    return np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)


def test_a_pixel_is_the_mean_of_its_area() -> None:
    screen = screen_of(np.array([[0, 10, 40, 40], [20, 30, 40, 40], [1, 1, 0, 0], [1, 1, 0, 255]]))
    np.testing.assert_array_equal(Shrinker((4, 4), (2, 2))(screen), [[15, 40], [1, 64]])


def test_colours_are_weighted_as_in_televisions() -> None:
    screen = np.zeros((2, 2, 3), np.uint8)
    screen[0, 0, 0] = screen[0, 1, 1] = screen[1, 0, 2] = 200
    np.testing.assert_array_equal(Shrinker((2, 2), (2, 2))(screen), [[60, 117], [23, 0]])


@pytest.mark.parametrize("screen", [(224, 320), (224, 240), (210, 160), (144, 160), (480, 640), (60, 84)])
def test_a_white_screen_remains_white_at_every_size(screen: tuple[int, int]) -> None:
    picture = Shrinker(screen, (84, 84))(np.full((*screen, 3), 255, np.uint8))
    assert picture.dtype == np.uint8 and picture.shape == (84, 84) and (picture == 255).all()


@given(row=st.integers(0, 223), column=st.integers(0, 319))
def test_every_pixel_of_the_screen_is_seen_near_its_place(row: int, column: int) -> None:
    screen = np.zeros((224, 320, 3), np.uint8)
    screen[row, column] = 255
    picture = Shrinker((224, 320), (84, 84))(screen)
    found = np.argwhere(picture)
    assert len(found)
    assert (np.abs(found - [row * 84 / 224, column * 84 / 320]) < 1.5).all()


def test_a_view_of_a_screen_is_shrunk_like_its_copy() -> None:
    whole = np.random.default_rng(0).integers(0, 256, (100, 120, 3), np.uint8)
    shrinker, part = Shrinker((90, 100), (30, 30)), whole[5:95, 10:110]
    np.testing.assert_array_equal(shrinker(part), shrinker(part.copy()))
