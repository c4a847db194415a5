"""Charts as inline SVG: lines with bands over environment steps, as HTML that is complete without scripts.

The drawing is stretched to the width of its box, while labels are HTML beside it and keep their size on a phone.
`page` has the style sheet.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from penstock.local.learning_curves import Points, gathered

Values = NDArray[np.float64]

_WIDTH, _HEIGHT = 1000, 500
"""Units of a drawing. Whole units are finer than the pixels of any screen, and short as text."""

_LARGEST = 1e300
"""Magnitude to which values are limited, so that no sum or difference overflows."""

_MOST_DOTS = 30
"""Most points of a line that are marked."""

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LEAST_PREFIXED = 1e4
_MOST_LOG_TICKS = 6
_LAST_EXPONENT = 300


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart, <float64>[N] with N > 0 each: environment steps, and mean, minimum and maximum there.

    Attributes:
        label: Text of the legend; not escaped.
        colour: Number of its color, from 0.
        dash: Number of its pattern, from 0: solid, dashed, dotted.
        faint: Whether another line of the chart matters more.
        marked: Whether its points are marked. A line with one point is invisible without a mark.
    """

    label: str
    steps: Values
    mean: Values
    low: Values
    high: Values
    colour: int = 0
    dash: int = 0
    faint: bool = False
    marked: bool = False


def line_of(
    label: str, curves: Sequence[Points], most: int, *, colour: int = 0, dash: int = 0, faint: bool = False
) -> Line | None:
    """Returns the line of one curve, or of the mean and the range of several; None if all are empty.

    It has at most `most` points, each for the mean and the range of its part of a longer curve.
    """
    drawn = [np.clip(points, -_LARGEST, _LARGEST) for points in curves if len(points)]
    if not drawn:
        return None
    steps, mean, low, high = gathered(drawn)
    marked = len(drawn) == 1 and len(steps) <= _MOST_DOTS
    if len(steps) > most:
        begins = np.linspace(0, len(steps), most, endpoint=False).astype(int)
        sizes = np.diff([*begins, len(steps)])
        steps, mean = np.add.reduceat(steps, begins) / sizes, np.add.reduceat(mean, begins) / sizes
        low, high = np.minimum.reduceat(low, begins), np.maximum.reduceat(high, begins)
    return Line(label, steps, mean, low, high, colour, dash, faint, marked)


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    level: float | None = None,
    log: bool = False,
    share: bool = False,
    large: bool = False,
    legend: Sequence[Line] | None = None,
) -> str:
    """Returns a chart as HTML; empty if it has no lines.

    Args:
        title: Its heading, with the unit of the values.
        lines: Its lines, of which later ones are drawn above earlier ones.
        level: Value of the threshold, which is drawn as a horizontal line; None: no line.
        log: Whether the scale is logarithmic, if all values are positive.
        share: Whether values are labelled as percentages.
        large: Whether it takes the whole width of the page.
        legend: Lines in its legend; None: all.
    """
    if not lines:
        return ""
    ends = [*(float(line.low.min()) for line in lines), *(float(line.high.max()) for line in lines)]
    ends += [] if level is None else [level]
    values = _Scale.of(min(ends), max(ends), log=log and min(ends) > 0.0)
    across = _Scale(0.0, max(1.0, *(float(line.steps.max()) for line in lines)))
    up = [(values.place(tick), text) for tick, text in values.ticks(share=share)]
    right = [(across.place(tick), text) for tick, text in across.ticks()]
    rules = "".join(f"M0 {_y(place)}h{_WIDTH}" for place, _ in up)
    drawing = [f'<path class="grid" d="{rules}"/>', *(_drawn(line, across, values) for line in lines)]
    if level is not None:
        drawing.append(f'<path class="level" d="M0 {_y(values.place(level))}h{_WIDTH}"/>')
    labels = [f'<i class="v" style="bottom:{100.0 * place:.1f}%">{text}</i>' for place, text in up]
    labels += [f'<i class="h" style="left:{100.0 * place:.1f}%">{text}</i>' for place, text in right]
    name, keys = escape(title), _legend(lines if legend is None else legend, level)
    return (
        f'<figure class="chart{" large" if large else ""}"><figcaption>{name}{keys}</figcaption>'
        f'<div class="plot"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="{name}">{"".join(drawing)}</svg>{"".join(labels)}</div></figure>'
    )


def number(value: float, step: float | None = None) -> str:
    """Returns a value as a short text, such as 12.5k; with the digits that tell it from another by `step`."""
    size = max(abs(value), abs(step or 0.0))
    if not math.isfinite(value) or (size and not 1e-4 <= size < 1e15):
        return f"{value:.3g}"
    factor, prefix = next(((f, p) for f, p in _PREFIXES if size >= max(f, _LEAST_PREFIXED)), (1.0, ""))
    least = (step or size / 1000.0) / factor
    digits = min(9, max(0, -math.floor(math.log10(least) + 1e-9))) if least else 0
    text = f"{value / factor:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("0", "-0") else f"{text}{prefix}"


@dataclass(frozen=True, slots=True)
class _Scale:
    """The values between both ends of an axis; their logarithms to base 10 on a logarithmic scale."""

    least: float
    most: float
    log: bool = False

    @classmethod
    def of(cls, least: float, most: float, *, log: bool) -> "_Scale":
        """Returns a scale that contains these values, with some room."""
        if log:
            least, most = math.log10(least), math.log10(most)
        room = 0.04 * (most - least) or 0.1 * abs(most) or 0.5
        return cls(least - room, most + room, log)

    def place(self, value: float) -> float:
        """Returns the share of the axis that is below a value."""
        return ((math.log10(value) if self.log else value) - self.least) / (self.most - self.least)

    def places(self, values: Values) -> Values:
        """Returns the shares of the axis that are below values <float64>[N]."""
        shares: Values = ((np.log10(values) if self.log else values) - self.least) / (self.most - self.least)
        return shares

    def ticks(self, *, share: bool = False) -> Iterator[tuple[float, str]]:
        """Yields values to label, with their texts."""
        if self.log and (powers := self._powers()):
            yield from ((value, number(value)) for value in powers)
            return
        least, most = (10.0**self.least, 10.0**self.most) if self.log else (self.least, self.most)
        size = 10.0 ** math.floor(math.log10(most - least))
        step = next(each * size for each in (0.2, 0.5, 1.0, 2.0, 5.0) if (most - least) / (each * size) <= 5.0)
        for index in range(math.ceil(least / step), math.floor(most / step) + 1):
            value = index * step
            yield value, f"{number(100.0 * value, 100.0 * step)}%" if share else number(value, step)

    def _powers(self) -> list[float]:
        """Returns the powers of ten on the axis, or every few of them; none if it has fewer than two."""
        exponents = range(max(-_LAST_EXPONENT, math.ceil(self.least)), min(_LAST_EXPONENT, math.floor(self.most)) + 1)
        apart = math.ceil(len(exponents) / _MOST_LOG_TICKS)
        return [10.0**exponent for exponent in exponents[::apart]] if len(exponents) > 1 else []


def _y(place: float) -> int:
    return round(_HEIGHT * (1.0 - place))


def _drawn(line: Line, across: _Scale, values: _Scale) -> str:
    x = np.rint(_WIDTH * across.places(line.steps)).astype(int)
    mean, low, high = (
        np.rint(_HEIGHT * (1.0 - values.places(each))).astype(int) for each in (line.mean, line.low, line.high)
    )
    parts = []
    if (low != high).any():
        outline = _path(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
        parts.append(f'<path class="band c{line.colour}" d="{outline}Z"/>')
    kind = f"c{line.colour}{f' d{line.dash}' if line.dash else ''}{' faint' if line.faint else ''}"
    parts.append(f'<path class="line {kind}" d="{_path(x, mean)}"><title>{escape(line.label)}</title></path>')
    if line.marked:
        dots = "".join(f"M{left} {top}h0" for left, top in zip(x.tolist(), mean.tolist(), strict=True))
        parts.append(f'<path class="dots {kind}" d="{dots}"/>')
    return "".join(parts)


def _path(x: NDArray[np.int64], y: NDArray[np.int64]) -> str:
    """Returns a path through points, <int64>[N] each, in relative steps, which are shorter than positions."""
    moves = zip(np.diff(x).tolist(), np.diff(y).tolist(), strict=True)
    steps = " ".join(f"{right} {down}" for right, down in moves if right or down)
    return f"M{x[0]} {y[0]}{f'l{steps}' if steps else ''}"


def _legend(lines: Sequence[Line], level: float | None) -> str:
    if len(lines) < 2 and level is None:
        return ""
    keys = [
        f'<span class="key c{line.colour}{f" d{line.dash}" if line.dash else ""}{" faint" if line.faint else ""}">'
        f"{escape(line.label)}</span>"
        for line in lines
    ]
    keys += [] if level is None else [f'<span class="key level">threshold {number(level)}</span>']
    return f'<span class="legend">{"".join(keys)}</span>'
