"""Display of a run's state in a panel and in lines."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.cli.screen import display
from penstock.cli.screen.display import LineDisplay, PanelDisplay, sparkline
from penstock.cli.screen.run_facts import replay_lines, status_line
from penstock.types.evaluation import EvaluationSummary
from penstock.types.extents import RunLimit
from penstock.types.statistics import CoordinatorStatistics, Drops, LearningNumbers, Replayed
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
    assert f"waiting for {status.waiting_for}" in shown.getvalue()


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
    assert f"{LIMITS[limit].replace(' | ', ' · ')}0:00 of training · ETA 1:15" in shown.getvalue()


def test_a_panel_shows_no_number_before_there_is_one() -> None:
    title, line, _ = panel_of(RunStatus(environment_id="A-v0", waiting_for="the learner"), 80)
    assert title.startswith("─ penstock A-v0 · waiting · 0:00 ──") and line.strip("│ ") == "waiting for the learner"


def test_a_stopping_run_is_shown_in_one_short_line() -> None:
    stopping = next(status for status in WAITS if status.phase == "stopping")
    assert status_line(stopping) == WAITS[stopping]


EVALUATION = EvaluationSummary(version=9, env_steps=9, episodes=20, return_mean=-1234.5, return_std=345.6)
REPLAYING = RunStatus(
    phase="training",
    env_steps=9,
    env_steps_per_s=123_456.0,
    return_mean=-1234.5,
    last_evaluation=EVALUATION,
    best_evaluation=EVALUATION,
    replay_stored=50_000,
    replay_capacity=50_000,
    samples_per_insert=8.2,
    coordinator=CoordinatorStatistics(
        "asynchronous",
        1,
        last=LearningNumbers(priority_gain=0.12),
        recent=LearningNumbers(effective_sample_share=0.93, policy_loss=-0.01234, value_loss=0.4567),
        replayed=Replayed(13.1, 49.0, 11.8),
    ),
)


def panel_of(status: RunStatus, width: int, *, verbose: bool = True) -> list[str]:
    """Returns the lines of a panel, without control sequences."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=width, color_system=None)
    with PanelDisplay(console, verbose=verbose) as panel:
        panel(status, [])
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown.getvalue()).split("╭")[-1].splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_the_panel_of_a_run_that_replays_shows_every_figure(width: int) -> None:
    lines = panel_of(REPLAYING, width)
    assert [" ".join(line.strip("│ ").split()) for line in lines[2:12]] == [
        "return, last 100 -1234.5 steps/s 123,456",
        "evaluation of 20 -1234.5 ± 345.6 updates/s 0",
        "best evaluation -1234.5 ± 345.6 actors 0",
        "episodes 0 version 0",
        "policy loss -0.0123 buffer 100% of 50,000",
        "value loss 0.457 lag, age 0.0, 0.0 versions",
        "entropy - uses 8.2, 93% effective",
        "KL per batch - replay age, 90% 13.1, 49.0 versions",
        "explained variance - priority 11.8 x",
        "grad. variance -12%",
    ]
    assert not any("…" in line for line in lines)
    assert {len(line) for line in lines[1:]} == {width}


def test_a_panel_explains_replay_on_request_only() -> None:
    short = "\n".join(panel_of(REPLAYING, 80, verbose=False))
    assert "buffer" in short
    assert not any(label in short for label in ("lag", "uses", "age", "priority", "variance   -"))


@pytest.mark.parametrize("width", [80, 120])
def test_the_columns_of_the_panel_do_not_move_when_its_numbers_change(width: int) -> None:
    unknown = CoordinatorStatistics("asynchronous", 1, replayed=Replayed(1.0, 1.0))
    for label in ("lag, age", "updates/s", "uses", "replay age, 90%", "priority", "grad. variance"):
        places = {
            line.find(f"  {label} ")
            for status in (REPLAYING, RunStatus(phase="training", env_steps=9, coordinator=unknown))
            for line in (line.replace("│ ", "  ") for line in panel_of(status, width))
            if f"  {label} " in line
        }
        assert len(places) == 1, label


def test_a_run_without_replay_shows_nothing_about_it() -> None:
    plain = replace(REPLAYING, coordinator=CoordinatorStatistics("asynchronous", 1))
    assert replay_lines(plain) == []
    assert not any("replay" in line or "priority" in line for line in panel_of(plain, 80))


def test_lines_about_replay_follow_the_status_until_the_run_stops() -> None:
    shown = io.StringIO()
    LineDisplay(Console(file=shown, width=40), verbose=True)(REPLAYING, [])
    first, second = shown.getvalue().splitlines()
    assert first == status_line(REPLAYING, verbose=True) and " | lag 0.0 | staleness 0.0 | " in first
    assert " | lag" not in status_line(REPLAYING)
    assert [second] == replay_lines(REPLAYING)
    assert second.startswith("replay: 8.2 uses per segment | age 13.1, 90% within 49.0 versions")
    assert replay_lines(replace(REPLAYING, phase="stopping")) == []


def test_news_is_shown_immediately_and_unchanged() -> None:
    shown = io.StringIO()
    display = LineDisplay(Console(file=shown, width=40))
    for number in range(3):
        display(RunStatus(), [f"actor-{number} ended with exit code 1: ValueError: [bold] and a long line of text"])
    assert shown.getvalue().count("ValueError: [bold] and a long line of text\n") == 3
    assert shown.getvalue().count("waiting\n") == 1


def test_a_line_is_printed_only_when_the_state_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_LINE_INTERVAL_S", 0.0)
    shown = io.StringIO()
    lines = LineDisplay(Console(file=shown, width=40))
    states = ["replay loading", "replay loading", "replay ready"]
    for status in [*(RunStatus(phase="starting", waiting_for=each) for each in states), REPLAYING, REPLAYING]:
        lines(status, [])
    expected = ["starting: replay loading", "starting: replay ready", status_line(REPLAYING)]
    assert shown.getvalue().splitlines() == expected


def test_each_state_of_a_start_is_printed_at_once() -> None:
    shown = io.StringIO()
    lines = LineDisplay(Console(file=shown, width=40))
    for state in ("replay loading", "replay ready"):
        lines(RunStatus(phase="checking", waiting_for=state), [])
    assert shown.getvalue().splitlines()[-1] == "checking the environment: replay ready"


FAULTY = replace(REPLAYING, coordinator=CoordinatorStatistics("asynchronous", 1, drops=Drops(refused_steps=2)))


def test_lines_show_each_hint_once_even_if_its_numbers_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_LINE_INTERVAL_S", 0.0)
    shown = io.StringIO()
    lines = LineDisplay(Console(file=shown, width=40))
    worse = CoordinatorStatistics("asynchronous", 1, drops=Drops(refused_steps=9, refused_segments=1))
    for coordinator in (REPLAYING.coordinator, FAULTY.coordinator, worse, worse):
        lines(replace(REPLAYING, coordinator=coordinator), [])
    found = [line for line in shown.getvalue().splitlines() if line.startswith("hint: ")]
    assert [line.split()[1:4] for line in found] == [["2", "gradient", "steps"], ["1", "segments", "were"]]


def test_the_bars_show_differences_between_policies_and_not_between_episodes() -> None:
    def bars(*means: float, std: float) -> str:
        return sparkline([EvaluationSummary(0, 0, 16, mean, std) for mean in means])

    assert bars(0.0, 100.0, 50.0, std=20.0) == "▁█▅"
    assert bars(99.0, 100.0, 99.5, std=20.0) == "▁▁▁"
    assert bars(99.0, 100.0, std=0.0) == "▁█" and bars(7.0, std=0.0) == "▁" and bars(std=0.0) == ""


def test_the_panel_shows_hints_below_its_curve_until_the_run_stops() -> None:
    text = " ".join(" ".join(panel_of(FAULTY, 80)).replace("│", "").split())
    assert "hint: 2 gradient steps were refused" in text and "rewards ╰" in text
    assert not any(
        "hint" in line for status in (REPLAYING, replace(FAULTY, phase="stopping")) for line in panel_of(status, 80)
    )
