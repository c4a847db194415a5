"""Charts: lines are reduced without losing their extremes, and any finite values give a drawing and labels."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.report.charts import chart, line_of, number
from penstock.local.learning_curves import Points

FLAT = np.array([[10.0, 5.0]])


def test_a_long_curve_has_fewer_points_with_their_means_and_extremes() -> None:
    points = np.stack([np.arange(1000.0), np.zeros(1000)], 1)
    points[500, 1], points[700, 1] = 8.0, -4.0
    line = line_of("a", [points], 100)
    assert line is not None
    assert [len(each) for each in (line.steps, line.mean, line.low, line.high)] == [100] * 4
    assert (line.high.max(), line.low.min()) == (8.0, -4.0)
    assert (line.mean[50], line.mean[70], line.steps[0]) == (0.8, -0.4, 4.5)


def test_curves_of_several_runs_have_their_mean_and_range() -> None:
    curves = [np.array([[0.0, value], [10.0, value]]) for value in (1.0, 2.0, 6.0)]
    line = line_of("a", [*curves, np.empty((0, 2))], 400)
    assert line is not None
    assert (line.low[0], line.mean[0], line.high[0]) == (1.0, 3.0, 6.0)


def test_without_points_there_is_no_line_and_no_chart() -> None:
    assert line_of("a", [np.empty((0, 2))], 9) is None
    assert chart("nothing", []) == ""


def test_a_single_point_is_marked() -> None:
    line = line_of("a", [FLAT], 9)
    assert line is not None and 'class="dots c0" d="M1000 250h0"' in chart("one", [line])


def test_a_threshold_is_within_the_drawing_and_in_the_legend() -> None:
    line = line_of("a", [FLAT], 9)
    assert line is not None
    drawn = chart("return", [line], level=475.0)
    (height,) = re.findall(r'class="level" d="M0 (\d+)h1000"', drawn)
    assert 0 <= int(height) < 50 and ">threshold 475<" in drawn


def test_texts_are_escaped() -> None:
    line, other = line_of("</svg><b>&", [FLAT], 9), line_of("b", [FLAT], 9)
    assert line is not None and other is not None
    drawn = chart('"<i>', [line, other])
    assert "<b>" not in drawn and '"<i>' not in drawn and drawn.count("&lt;/svg&gt;&lt;b&gt;&amp;") == 2


def test_a_logarithmic_scale_has_powers_of_ten() -> None:
    line = line_of("a", [np.array([[0.0, 0.001], [1.0, 100.0]])], 9)
    assert line is not None
    assert re.findall(r'class="v"[^>]*>([^<]*)<', chart("loss", [line], log=True)) == [
        "0.001", "0.01", "0.1", "1", "10", "100"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0.0, 5000.0, "0"),
        (-0.0001, 0.5, "0"),
        (12_500.0, 500.0, "12.5k"),
        (3e6, 1e6, "3M"),
        (0.25, 0.05, "0.25"),
        (0.1 + 0.2, 0.1, "0.3"),
        (-250.0, 50.0, "-250"),
        (475.0, None, "475"),
        (479.25, None, "479.2"),
        (1e20, None, "1e+20"),
        (3e-7, None, "3e-07"),
    ],
)
def test_a_number_is_short_and_has_the_digits_that_its_neighbours_need(
    value: float, step: float | None, text: str
) -> None:
    assert number(value, step) == text


CURVE = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5)


@given(curve=CURVE, log=st.booleans(), share=st.booleans())
def test_any_finite_values_have_a_drawing_with_a_label(curve: list[float], log: bool, share: bool) -> None:
    points: Points = np.stack([np.arange(float(len(curve))), np.array(curve)], 1)
    line = line_of("a", [points], 3)
    assert line is not None
    drawn = chart("title", [line], log=log, share=share)
    numbers = [int(each) for data in re.findall(r' d="([^"]*)"', drawn) for each in re.findall(r"-?\d+", data)]
    assert max(map(abs, numbers)) <= 1000
    assert "nan" not in drawn and "inf" not in drawn
    assert 1 <= len(re.findall(r'class="v"', drawn)) <= 7
