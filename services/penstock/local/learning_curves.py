"""Learning curves: read from the folders of runs and drawn into a file. Runs that differ only by seed share a curve."""

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.config import read_settings
from penstock.config.recorded import OF_ONE_RUN, texts
from penstock.errors import ConfigurationError
from penstock.machine import extras
from penstock.machine.files import READABLE_FILE, write_atomically
from penstock.machine.library_variables import hidden
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import INFO_METRIC, Columns, load_metrics

_GRID_POINTS = 200
_MAX_DIFFERENCES = 3
"""Most settings in a label; more would not fit beside a curve."""
_COLOURS = ("#1f6feb", "#d1681a", "#2da44e", "#8250df", "#bf3989", "#57606a")


_DETAILS = {
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "explained_variance": "explained variance",
    "approximate_kl": "KL per batch",
    "entropy": "entropy, nats",
    "clipped_share": "clipped ratios",
    "effective_sample_share": "effective share",
    "gradient_norm": "gradient norm",
    "fresh_lag_mean": "lag, versions",
    "staleness_mean": "staleness, versions",
    "samples_per_insert": "uses per segment",
    "env_steps_per_s": "steps/s",
}
"""Numbers of training that are drawn below the returns, with their labels."""

_COLUMNS = 4
"""Details in a row."""

_MARGINS = {"left": 0.11, "right": 0.98, "top": 0.955, "bottom": 0.04, "hspace": 0.42, "wspace": 0.5}
"""Fixed margins and distances: computed ones take half a second at the end of every run."""

X_AXES = {"steps": "environment steps", "seconds": "seconds of training"}
"""Quantities over which curves can be drawn, with their labels."""

_MOST_MARKERS = 60
"""Most points of a curve that are marked. A curve with one point is invisible without a marker."""

Points = NDArray[np.float64]
"""<float64>[N, 2] environment steps, or seconds, and values."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's curves over one of `X_AXES`: mean returns of training episodes and of evaluations, and details.

    Runs that agree in `settings`, which are all settings except the seed and the folder, share a curve. `details` are
    the curves of numbers of training, by name.
    """

    environment_id: str
    settings: tuple[tuple[str, str], ...]
    seed: int
    threshold: float | None
    training: Points
    evaluation: Points
    details: Mapping[str, Points]


def read_curve(
    folder: RunFolder,
    x: str = "steps",
    smooth: int = 1,
    details: Iterable[str] = _DETAILS,
    most_training: int | None = None,
) -> Curve:
    """Reads a run's curves over `x`. Those of training are means over the last `smooth` records.

    `details` are the names of the numbers of training to read, beside those of the infos, and `most_training` is passed
    to `load_metrics`.

    Raises `ConfigurationError` if the folder contains no run, or no metrics yet.
    """
    if not folder.config.exists() or not folder.metrics.exists():
        raise ConfigurationError(
            f"{folder.root} contains no run with metrics; choose the folder of a run that has begun"
        )
    metrics = load_metrics(folder.root, most_training)
    read = read_settings(folder.config, "environment.id", "run.seed", "evaluation.threshold")
    details = [*details, *(name for name in metrics.training if name.startswith(INFO_METRIC))]
    # Runs of earlier releases have no returns of the episodes since the previous record.
    training = "episode_return_mean" if "episode_return_mean" in metrics.training else "return_mean"
    return Curve(
        environment_id=read.environment.short_name,
        settings=tuple((name, text) for name, text in texts(folder.config).items() if name not in OF_ONE_RUN),
        seed=read.run.seed,
        threshold=read.evaluation.threshold,
        training=_points(metrics.training, training, x, smooth),
        evaluation=_points(metrics.evaluation, "return_mean", x),
        details={name: _points(metrics.training, name, x, smooth) for name in details},
    )


def _points(columns: Columns, name: str, x: str, smooth: int = 1) -> Points:
    over = {"steps": "env_steps", "seconds": "training_s"}[x]
    if name not in columns or over not in columns:
        return np.empty((0, 2))
    known = np.isfinite(columns[name]) & np.isfinite(columns[over])
    return np.stack([columns[over][known], _smoothed(columns[name][known], smooth)], 1)


def _smoothed(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Returns the mean of each value <float64>[N] and of those before it, `window` in all; fewer at the beginning."""
    if window == 1:
        return values
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def gather_by_settings(curves: Sequence[Curve]) -> list[tuple[str, list[Curve]]]:
    """Groups curves of one environment that differ only by seed; labels each group with its distinctive settings."""
    groups: dict[tuple[tuple[str, str], ...], list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.settings, []).append(curve)
    shared = set(curves[0].settings).intersection(*groups)
    return [(_label(settings, shared), group) for settings, group in groups.items()]


def _label(settings: tuple[tuple[str, str], ...], shared: set[tuple[str, str]]) -> str:
    apart = [f"{name} {value}" for name, value in settings if (name, value) not in shared]
    hidden = [f"and {len(apart) - _MAX_DIFFERENCES} more"] if len(apart) > _MAX_DIFFERENCES else []
    return ", ".join([*apart[:_MAX_DIFFERENCES], *hidden])


def gathered(
    curves: Sequence[Points],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns steps, and the mean, minimum and maximum of at least one curve, <float64>[N] each.

    None of the curves is empty. A shorter curve keeps its last value.
    """
    if len(curves) == 1:
        return curves[0][:, 0], curves[0][:, 1], curves[0][:, 1], curves[0][:, 1]
    start, end = max(curve[0, 0] for curve in curves), max(curve[-1, 0] for curve in curves)
    steps = np.linspace(start, end, _GRID_POINTS)
    values = np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
    return steps, values.mean(0), values.min(0), values.max(0)


def why_not_drawn() -> str:
    """Returns one line that explains why the curves of runs can't be drawn; empty if they can."""
    if not extras.missing("matplotlib"):
        return ""
    return f"the learning curve will not be drawn, because it needs matplotlib; {extras.installation('matplotlib')}"


def draw(folders: Sequence[RunFolder], output: Path, x: str = "steps", smooth: int = 1) -> None:
    """Draws the curves of runs into a file: PNG, SVG, PDF or another kind, by the end of its name, or else PNG.

    `x` and `smooth` are passed to `read_curve`.

    Raises `ConfigurationError` if an argument, a run or the file can't be used, or if matplotlib is missing.
    """
    if x not in X_AXES:
        raise ConfigurationError(f"x must be one of: {', '.join(X_AXES)}; got {x!r}")
    if smooth < 1:
        raise ConfigurationError(f"smooth must be a number of records from 1; got {smooth}")
    extras.require("matplotlib", "penstock plot")
    # An unknown name would be refused, and so are names of older versions.
    with hidden("MPLBACKEND"):
        import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    curves = [read_curve(folder, x, smooth) for folder in folders]
    environments = list(dict.fromkeys(curve.environment_id for curve in curves))
    figure = pyplot.figure(figsize=(7.2, 7.9 * len(environments)), dpi=144)
    for part, environment in zip(figure.subfigures(len(environments), squeeze=False)[:, 0], environments, strict=True):
        names = list(_DETAILS)
        rows = [names[first : first + _COLUMNS] for first in range(0, len(names), _COLUMNS)]
        axes = part.subplot_mosaic(
            [["returns"] * _COLUMNS, *rows], height_ratios=[3, *[1] * len(rows)], gridspec_kw=_MARGINS
        )
        _draw_environment(axes, environment, [each for each in curves if each.environment_id == environment], x)
    drawing = io.BytesIO()
    try:
        figure.savefig(drawing, format=output.suffix.removeprefix(".") or "png")
        # matplotlib would follow a link.
        write_atomically(output, drawing.getvalue(), READABLE_FILE)
    except OSError as error:
        reason = in_words(error, output, "choose another --output")
        raise ConfigurationError(f"can't write {output}: {reason}") from None
    except ValueError:
        known = ", ".join(f".{suffix}" for suffix in sorted(figure.canvas.get_supported_filetypes()))
        raise ConfigurationError(
            f"can't write {output}, because its kind is not known; end its name with one of: {known}"
        ) from None
    finally:
        pyplot.close(figure)


def _draw_environment(axes: Mapping[str, Any], environment_id: str, curves: list[Curve], x: str) -> None:
    groups = gather_by_settings(curves)
    returns = axes["returns"]
    for colour, (label, group) in zip(itertools.cycle(_COLOURS), groups, strict=False):
        seeds = f"{len(group)} seeds, mean and range" if len(group) > 1 else f"seed {group[0].seed}"
        suffix = f"{label}, {seeds}" if label else seeds
        sampled, likeliest = f"training, sampled actions ({suffix})", f"evaluations, likeliest actions ({suffix})"
        _draw_curve(returns, [each.training for each in group], colour, 0.45, sampled)
        _draw_curve(returns, [each.evaluation for each in group], colour, 1.0, likeliest)
        for name in _DETAILS:
            _draw_curve(axes[name], [each.details[name] for each in group], colour, 1.0)
    threshold = curves[0].threshold
    if threshold is not None:
        returns.axhline(threshold, color="#57606a", linestyle=":", linewidth=1.0, label=f"threshold {threshold:g}")
    returns.set_title(environment_id, loc="left", fontsize=10)
    returns.set_xlabel(X_AXES[x])
    returns.set_ylabel("episode return")
    # matplotlib warns of a legend without entries, which a run has before its first episode ends.
    if returns.get_legend_handles_labels()[0]:
        returns.legend(frameon=False, loc="best", fontsize=8)
    for name, label in _DETAILS.items():
        axes[name].set_title(label, loc="left", fontsize=8)
        axes[name].tick_params(labelsize=7)
    # The first values are a hundred times the later ones.
    axes["value_loss"].set_yscale("log")
    for each in axes.values():
        each.set_xlim(left=0)
        if x == "steps":
            each.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
        each.grid(alpha=0.25, linewidth=0.6)
        each.spines[["top", "right"]].set_visible(False)


def _draw_curve(axes: Any, curves: list[Points], colour: str, opacity: float, label: str = "") -> None:
    """Draws one curve with markers, or the mean and the range of several."""
    drawn = [points for points in curves if len(points)]
    if not drawn:
        return
    steps, mean, low, high = gathered(drawn)
    marker = "." if len(drawn) == 1 and len(steps) <= _MOST_MARKERS else ""
    axes.plot(steps, mean, color=colour, alpha=opacity, linewidth=1.4, marker=marker, label=label or None)
    if len(drawn) > 1:
        axes.fill_between(steps, low, high, color=colour, alpha=0.18 * opacity, linewidth=0)
