"""Screens of a run with fixed data, as terminals of 80 and 120 columns show them, in screens.txt.

`python -m tests.unit.cli.screens` writes the file again; look at the difference before you commit it.
"""

import io
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from penstock.cli.screen.batch_line import batch_line, steps_line
from penstock.cli.screen.coordination import show_end
from penstock.cli.screen.display import PanelDisplay
from penstock.cli.screen.lines import show
from penstock.presets import configured
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary
from penstock.types.evaluation import EvaluationSummary
from penstock.types.extents import RunLimit
from penstock.types.statistics import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Replayed
from penstock.types.status import RunStatus

FILE = Path(__file__).with_suffix(".txt")
WIDTHS = (80, 120)

_ID = "CartPole-v1"
_LONG_ID = "ALE/MontezumaRevenge-v5"
_STATISTICS = CoordinatorStatistics(
    "asynchronous",
    1,
    alpha=0.6,
    batches_trained=59,
    lag=Ages(1.0, 1.0, 1),
    staleness=Ages(5.3, 5.3, 40),
    times=MeanTimes(0.08, 0.03, 0.01, 0.00615, 0.0491, 1.5),
    last=LearningNumbers(priority_gain=0.27),
    recent=LearningNumbers(0.95, 0.97, 0.13, 0.00184, 0.361, 0.789, 0.5, policy_loss=-0.0386, value_loss=0.0309),
    recent_batches=59,
    replayed=Replayed(6.7, 12.0, 1.3),
)
_FAULTY = replace(_STATISTICS, drops=Drops(refused_steps=2, refused_segments=1))
_EVALUATIONS = [EvaluationSummary(10 * n, 512 * n, 20, 50.0 * n, 12.5) for n in range(1, 11)]
_TRAINING = RunStatus(
    phase="training",
    environment_id=_ID,
    version=59,
    env_steps=12_162,
    elapsed_s=4.0,
    env_steps_per_s=7_064.0,
    updates_per_s=442.0,
    episodes=138,
    return_mean=214.5,
    last_evaluation=_EVALUATIONS[-1],
    best_evaluation=_EVALUATIONS[-1],
    lag_mean=1.0,
    staleness_mean=5.3,
    replay_stored=944,
    replay_capacity=50_506,
    actors=2,
    remaining_s=6.0,
    samples_per_insert=3.7,
    coordinator=_STATISTICS,
    limit=RunLimit("steps", 12_162, 30_000),
)
_STARTING = RunStatus("starting", _ID)
STATUSES = {
    "checking the environment": replace(
        _STARTING, phase="checking", waiting_for="replay loading · learner waiting · actors 0/2 · evaluator waiting"
    ),
    "compiling": replace(
        _STARTING, waiting_for="replay loaded · learner compiling, once · actors 0/2 · evaluator waiting"
    ),
    "starting": replace(
        _STARTING, waiting_for="replay ready · learner waiting for its policy · actors 2/2 · evaluator ready"
    ),
    "starting with several replay services": replace(
        _STARTING,
        environment_id=_LONG_ID,
        waiting_for="replay 11/12 · learner training its first batch · actors 128/128 · evaluator starting",
    ),
    "in a queue": RunStatus(environment_id=_ID, waiting_for="job 4711, which is PENDING (Priority)"),
    "training": _TRAINING,
    "evaluating": replace(
        _TRAINING, phase="evaluating", waiting_for="the running evaluation, at most 54 s more", environment_id=_LONG_ID
    ),
    "stopping": replace(
        _TRAINING, phase="stopping", waiting_for="the learner, 4 s of at most 600 s (Ctrl-C again to kill)"
    ),
    "with hints": replace(_TRAINING, coordinator=_FAULTY),
}
"""Statuses by the names of their screens."""

_OUTCOME = EvaluationOutcome(20, 500.0, 0.0)
_SOLVED = Summary(
    *(f"runs/{_ID}-20261128-211137", _ID, 0, 30_062, 27.6, 7_571.0, _OUTCOME, 6_047, 0.7, 59, 5.3, 3.7, "total_steps"),
    statistics=_STATISTICS,
    best_evaluation=_OUTCOME,
    minutes=4.0 / 60.0,
    limit=RunLimit("steps", 30_062, 30_000),
    threshold=475.0,
)
_FAILED = replace(
    _SOLVED,
    evaluation=EvaluationOutcome(20, 120.3, 44.1),
    best_evaluation=EvaluationOutcome(20, 151.0, 40.0),
    env_steps_to_threshold=None,
    learn_wall_s_to_threshold=None,
    statistics=_FAULTY,
)
SUMMARIES = {
    "solved": _SOLVED,
    "not solved": _FAILED,
    "no longer solved": replace(_FAILED, env_steps_to_threshold=6_047, learn_wall_s_to_threshold=0.7),
    "without a threshold": replace(_FAILED, threshold=None, statistics=_STATISTICS),
    "without an evaluation": replace(_FAILED, evaluation=None, best_evaluation=None, stopped="interrupted"),
}
"""Results by the names of their screens."""


def screens(width: int) -> dict[str, str]:
    """Returns the screens in this number of columns, by name; the folder of the run has a report."""
    draws: dict[str, Callable[[Console], None]] = {
        "opening": _opening,
        **{name: partial(_show_panel, status=status) for name, status in STATUSES.items()},
        "training, verbose": partial(_show_panel, status=_TRAINING, verbose=True),
        **{name: partial(show_end, summary=summary, penstock="penstock") for name, summary in SUMMARIES.items()},
        "solved, by a command in a folder": partial(show_end, summary=_SOLVED, penstock=".venv/bin/penstock"),
        "solved, verbose": partial(show_end, summary=_SOLVED, penstock="penstock", verbose=True),
    }
    with tempfile.TemporaryDirectory() as place, chdir(place):
        report = RunFolder(Path(_SOLVED.run_dir)).report
        report.parent.mkdir(parents=True)
        report.touch()
        return {name: _drawn(width, draw) for name, draw in draws.items()}


def text() -> str:
    """Returns the content of the file."""
    return "\n".join(
        f"=== {name}, {width} columns\n{screen}" for width in WIDTHS for name, screen in screens(width).items()
    )


def _drawn(width: int, draw: Callable[[Console], None]) -> str:
    file = io.StringIO()
    draw(Console(file=file, force_terminal=True, width=width, color_system=None, highlight=False))
    return file.getvalue()


def _opening(console: Console) -> None:
    config = configured({"environment": {"id": _ID}}).config
    show(console, batch_line(config, resumed=False), steps_line(config))


def _show_panel(console: Console, status: RunStatus, *, verbose: bool = False) -> None:
    now = iter((0.0, *[7.0] * len(_EVALUATIONS)))
    panel = PanelDisplay(console, verbose=verbose, clock=lambda: next(now))
    if status.last_evaluation is not None:
        for evaluation in _EVALUATIONS:
            panel.panel(replace(status, last_evaluation=evaluation), console.width)
    console.print(panel.panel(status, console.width))


if __name__ == "__main__":
    FILE.write_text(text())
