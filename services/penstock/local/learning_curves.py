"""Learning curves: read from the folders of runs and drawn into a file. Runs that differ only by seed share a curve."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import extras
from penstock.config import build, load_toml
from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder

_GRID_POINTS = 200
_MAX_DIFFERENCES = 3
"""Most settings in a label; more would not fit beside a curve."""
_COLOURS = ("#1f6feb", "#d1681a", "#2da44e", "#8250df", "#bf3989", "#57606a")


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's returns over environment steps: <float64>[N, 2] steps and mean returns of each kind.

    Runs that agree in `settings`, which are all settings except the seed and the folder, share a curve.
    """

    environment_id: str
    settings: tuple[tuple[str, str], ...]
    seed: int
    threshold: float | None
    training: NDArray[np.float64]
    evaluation: NDArray[np.float64]


def read_curve(folder: RunFolder) -> Curve:
    """Reads a run's curve. Raises `ConfigurationError` if the folder contains no run, or no metrics yet."""
    if not folder.config.exists() or not folder.metrics.exists():
        raise ConfigurationError(
            f"{folder.root} contains no run with metrics; choose a folder that `penstock train` created"
        )
    config = build(load_toml(folder.config))
    points: dict[str, list[tuple[float, float]]] = {"training": [], "evaluation": []}
    for line in folder.metrics.read_text().splitlines():
        # The last line of an active or killed run may be incomplete.
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if record["kind"] in points and record["return_mean"] is not None:
                points[record["kind"]].append((record["env_steps"], record["return_mean"]))
    sections = config.model_dump(exclude={"run": {"seed", "dir"}}).items()
    return Curve(
        environment_id=config.environment.short_name,
        settings=tuple((f"{name}.{key}", str(value)) for name, values in sections for key, value in values.items()),
        seed=config.run.seed,
        threshold=config.evaluation.threshold,
        training=np.array(points["training"], np.float64).reshape(-1, 2),
        evaluation=np.array(points["evaluation"], np.float64).reshape(-1, 2),
    )


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


def why_not_drawn() -> str:
    """Returns one line that explains why the curves of runs can't be drawn; empty if they can."""
    if not extras.missing("matplotlib"):
        return ""
    return f"the learning curve will not be drawn, because it needs matplotlib; {extras.installation('matplotlib')}"


def draw(folders: Sequence[RunFolder], output: Path) -> None:
    """Draws the curves of runs into a PNG file.

    Raises `ConfigurationError` if a run or the file can't be used, or if matplotlib is missing.
    """
    extras.require("matplotlib", "penstock plot")
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    curves = [read_curve(folder) for folder in folders]
    environments = list(dict.fromkeys(curve.environment_id for curve in curves))
    figure, rows = pyplot.subplots(
        len(environments), figsize=(7.2, 4.0 * len(environments)), dpi=144, layout="constrained", squeeze=False
    )
    for axes, environment in zip(rows[:, 0], environments, strict=True):
        _draw_environment(axes, environment, [curve for curve in curves if curve.environment_id == environment])
    try:
        figure.savefig(output)
    except OSError as error:
        raise ConfigurationError(f"can't write {output}: {error.strerror}; choose another --output") from None
    finally:
        pyplot.close(figure)


def _draw_environment(axes: Any, environment_id: str, curves: list[Curve]) -> None:
    groups = gather_by_settings(curves)
    for colour, (label, group) in zip(_COLOURS * len(groups), groups, strict=False):
        _draw_group(axes, group, label=label, colour=colour)
    threshold = curves[0].threshold
    if threshold is not None:
        axes.axhline(threshold, color="#57606a", linestyle=":", linewidth=1.0, label=f"threshold {threshold:g}")
    axes.set_title(environment_id, loc="left", fontsize=10)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize=8)


def _draw_group(axes: Any, curves: list[Curve], *, label: str, colour: str) -> None:
    """Draws evaluations as a thick line, training episodes as a thin one; several seeds as mean and range."""
    seeds = f"{len(curves)} seeds, mean and range" if len(curves) > 1 else f"seed {curves[0].seed}"
    suffix = f"{label}, {seeds}" if label else seeds
    kinds = (("training", 0.45, 1.2, 0.08), ("evaluation", 1.0, 2.0, 0.18))
    for kind, opacity, width, shade in kinds:
        drawn = [values for curve in curves if len(values := getattr(curve, kind))]
        if not drawn:
            continue
        steps, mean, low, high = _gather(drawn)
        axes.plot(steps, mean, color=colour, alpha=opacity, linewidth=width, label=f"{kind} ({suffix})")
        if len(drawn) > 1:
            axes.fill_between(steps, low, high, color=colour, alpha=shade, linewidth=0)


def _gather(
    curves: list[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Returns steps, and the mean, minimum and maximum of the curves; a shorter curve keeps its last value."""
    if len(curves) == 1:
        return curves[0][:, 0], curves[0][:, 1], curves[0][:, 1], curves[0][:, 1]
    start, end = max(curve[0, 0] for curve in curves), max(curve[-1, 0] for curve in curves)
    steps = np.linspace(start, end, _GRID_POINTS)
    values = np.stack([np.interp(steps, curve[:, 0], curve[:, 1]) for curve in curves])
    return steps, values.mean(0), values.min(0), values.max(0)
