"""Display of a run's state in a panel and in lines."""

import io

import pytest
from rich.console import Console

from penstock.cli.display import LineDisplay, PanelDisplay, status_line
from penstock.types.extents import RunLimit
from penstock.types.status import RunStatus

WAITS = {
    RunStatus(waiting_for="the learner service to start"): "waiting for the learner service to start",
    RunStatus(
        phase="evaluating", env_steps=9, limit=RunLimit("steps", 9, 9), waiting_for="the last evaluation, at most 54 s"
    ): ("evaluating, waiting for the last evaluation, at most 54 s"),
    RunStatus(
        phase="stopping", env_steps=9, limit=RunLimit("steps", 9, 99), waiting_for="the learner, 4 s [of] 600 s"
    ): ("stopping, waiting for the learner, 4 s [of] 600 s"),
    RunStatus(
        phase="training", env_steps=9, limit=RunLimit("steps", 9, 99), waiting_for="fresh segments"
    ): "waiting for fresh segments",
}


@pytest.mark.parametrize("status", WAITS, ids=lambda status: status.phase)
def test_lines_and_panel_show_the_reason_for_waiting(status: RunStatus) -> None:
    shown = io.StringIO()
    with PanelDisplay(Console(file=shown, force_terminal=True, width=150)) as panel:
        panel(status, [])
    assert status_line(status).endswith(WAITS[status])
    assert WAITS[status] in shown.getvalue()


LIMITS = {
    RunLimit("steps", 9, 1_000): "9/1,000 steps | ",
    RunLimit("updates", 80, 2_000): "9 steps | 80/2,000 updates | ",
    RunLimit("episodes", 3, 50): "9 steps | 3/50 episodes | ",
    RunLimit("minutes", 0.0123, 0.05): "9 steps | 0.01/0.05 minutes | ",
    RunLimit("minutes", 12.34, 60.0): "9 steps | 12.3/60.0 minutes | ",
}


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_lines_and_panel_show_the_progress_towards_the_limit_in_force(limit: RunLimit) -> None:
    status, shown = RunStatus(phase="training", env_steps=9, limit=limit, remaining_s=75.0), io.StringIO()
    with PanelDisplay(Console(file=shown, force_terminal=True, width=150)) as panel:
        panel(status, [])
    assert status_line(status).startswith(LIMITS[limit])
    assert status_line(status).endswith("ETA 1:15")
    assert f"{LIMITS[limit].replace(' | ', ' · ')}ETA 1:15" in shown.getvalue()


def test_a_stopping_run_is_shown_in_one_short_line() -> None:
    stopping = next(status for status in WAITS if status.phase == "stopping")
    assert status_line(stopping) == WAITS[stopping]


def test_news_is_shown_immediately_and_unchanged() -> None:
    shown = io.StringIO()
    display = LineDisplay(Console(file=shown, width=40))
    for number in range(3):
        display(RunStatus(), [f"actor-{number} ended with exit code 1: ValueError: [bold] and a long line of text"])
    assert shown.getvalue().count("ValueError: [bold] and a long line of text\n") == 3
    assert shown.getvalue().count("waiting\n") == 1
