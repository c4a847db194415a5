"""`penstock plot`: learning curves, runs of one environment and one setting gathered over their seeds."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cli.options import OneLineParser
from penstock.config import build, load_toml
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder

_GRID_POINTS = 200
_COLOURS = ("#1f6feb", "#d1681a", "#2da44e", "#8250df", "#bf3989", "#57606a")


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's returns over environment steps.

    Attributes:
        label: What runs of other seeds share with this one.
        seed: The run's.
        threshold: Return that counts as solved, if there is one.
        training: <float64>[N, 2] environment steps, mean return of recent training episodes.
        evaluation: <float64>[M, 2] environment steps, mean return of an evaluation.
    """

    label: str
    seed: int
    threshold: float | None
    training: NDArray[np.float64]
    evaluation: NDArray[np.float64]


def command(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    parser = OneLineParser(prog="penstock plot", description="Draw the learning curves of runs.")
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folders of runs; those that differ by seed alone share a curve",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PNG",
        help="where to draw (default: learning_curve.png in the only run, or here)",
    )
    named = parser.parse_args(list(arguments))
    default = named.runs[0] / "learning_curve.png" if len(named.runs) == 1 else Path("learning_curve.png")
    output = named.output or default
    draw([RunFolder(run) for run in named.runs], output)
    print(output)
    return 0


def read_curve(folder: RunFolder) -> Curve:
    """A run's curve. Raises `ConfigurationError` if the folder holds no run, or nothing was noted yet."""
    if not folder.config.exists() or not folder.metrics.exists():
        raise ConfigurationError(f"{folder.root} holds no run with metrics; name a folder that `penstock train` made")
    config = build(load_toml(folder.config))
    records: list[dict[str, Any]] = []
    for line in folder.metrics.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # The last line of a run that goes on, or was killed, may be cut short.
    training = [
        (record["env_steps"], record["return_mean"])
        for record in records
        if record["kind"] == "training" and record["return_mean"] is not None
    ]
    evaluation = [(record["env_steps"], record["return_mean"]) for record in records if record["kind"] == "evaluation"]
    return Curve(
        label=config.environment.id,
        seed=config.run.seed,
        threshold=config.evaluation.threshold,
        training=np.array(training, np.float64).reshape(-1, 2),
        evaluation=np.array(evaluation, np.float64).reshape(-1, 2),
    )


def draw(folders: Sequence[RunFolder], output: Path) -> None:
    """Draws the curves of these runs into a PNG. Raises `ConfigurationError` if a run or the file can't be used."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    groups: dict[str, list[Curve]] = {}
    for folder in folders:
        curve = read_curve(folder)
        groups.setdefault(curve.label, []).append(curve)
    figure, axes = pyplot.subplots(figsize=(7.2, 4.0), dpi=144, layout="constrained")
    for colour, (label, curves) in zip(_COLOURS * len(groups), groups.items(), strict=False):
        _draw_group(axes, label, curves, colour)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize=8)
    try:
        figure.savefig(output)
    except OSError as error:
        raise ConfigurationError(f"can't write {output}: {error.strerror}; choose another --output") from None
    except ValueError as error:
        raise ConfigurationError(f"can't draw {output}: {error}") from None
    finally:
        pyplot.close(figure)


def _draw_group(axes: Any, label: str, curves: list[Curve], colour: str) -> None:
    many = len(curves) > 1
    suffix = f" ({len(curves)} seeds, mean and range)" if many else f" (seed {curves[0].seed})"
    trained = [curve.training for curve in curves if len(curve.training)]
    evaluated = [curve.evaluation for curve in curves if len(curve.evaluation)]
    if trained:
        steps, mean, low, high = _gather(trained)
        axes.plot(steps, mean, color=colour, alpha=0.45, linewidth=1.2, label=f"{label}, training{suffix}")
        if many:
            axes.fill_between(steps, low, high, color=colour, alpha=0.08, linewidth=0)
    if evaluated:
        steps, mean, low, high = _gather(evaluated)
        marker = "o" if len(steps) < 60 and not many else None
        axes.plot(
            steps,
            mean,
            color=colour,
            linewidth=2.0,
            marker=marker,
            markersize=3.5,
            label=f"{label}, evaluation{suffix}",
        )
        if many:
            axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    if curves[0].threshold is not None:
        axes.axhline(curves[0].threshold, color=colour, linestyle=":", linewidth=1.0, alpha=0.8)


def _gather(
    curves: list[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Steps, and the mean, least and greatest of some curves where all of them go; one curve stays as it is."""
    if len(curves) == 1:
        return curves[0][:, 0], curves[0][:, 1], curves[0][:, 1], curves[0][:, 1]
    start, end = max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves)
    steps = np.linspace(start, max(start, end), _GRID_POINTS)
    values = np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
    return steps, values.mean(0), values.min(0), values.max(0)
