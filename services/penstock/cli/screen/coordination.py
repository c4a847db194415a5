"""Text output of a run's statistics and summary, for `penstock status` and the end of `penstock train`."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.screen.hints import ENOUGH_BATCHES, Hint, actors_waiting_share, hints
from penstock.cli.screen.lines import Line, named, show, show_command
from penstock.cli.screen.replay_figures import effect_of_priorities, replay_figures
from penstock.cli.screen.run_facts import limit_text
from penstock.runs.summary import CLOSING_LABEL, Summary
from penstock.types.statistics import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Unit, declared
from penstock.types.status import AT_A_LIMIT

_SHOWN_WAITS = 3
_SMALLEST_SHARE = 0.005
"""Smallest share of the learner's time at which a wait is shown; less rounds to 0%."""


def sections(statistics: CoordinatorStatistics, share_done: float = 0.0) -> RenderableType:
    """Returns all statistics: counts, ages and times, then training statistics, then hints.

    `share_done` is the share of the run's limit that is done.
    """
    times = statistics.times
    rows = [
        ("mode", in_words(statistics)),
        (
            "batches",
            f"{statistics.batches_collected:,.1f} collected, {statistics.batches_trained:,} trained,"
            f" {statistics.evaluations:,} evaluations",
        ),
        ("draw", _draw(statistics)),
        ("lag", _ages(statistics.lag)),
        ("staleness", _ages(statistics.staleness)),
        ("collect", _collect(statistics)),
        ("wait", f"{_text(times.batch_wait_s, 'seconds')} per batch{_waits(statistics)}"),
        ("train", f"{_text(times.batch_train_s, 'seconds')} per batch{_callbacks(times)}"),
        ("evaluation", _text(times.evaluation_s, "seconds")),
        ("drops", _drops(statistics.drops)),
    ]
    facts = [named(name, line) for name, line in rows]
    learning = [_learning(statistics)] if statistics.last else []
    return Group(*facts, *learning, *_advice(hints(statistics, share_done)))


def _advice(found: list[Hint]) -> list[Line]:
    return [named("hint", hint.text, "yellow") for hint in found]


def in_words(statistics: CoordinatorStatistics) -> str:
    """Returns a description of how the run is coordinated."""
    degree = statistics.off_policy_degree
    ahead = f"up to {degree} {'batch' if degree == 1 else 'batches'} ahead of training"
    match statistics.mode:
        case "synchronous":
            return "synchronous: collection and training alternate"
        case "asynchronous":
            return f"asynchronous: collection {ahead}"


def in_short(statistics: CoordinatorStatistics) -> list[Line]:
    """Returns the most important statistics of an ended run, in at most two lines."""
    rows = []
    if recent := statistics.recent:
        at_bound = recent.actions_at_bound
        rows.append(
            named(
                "learning",
                f"effective sample share {_text(recent.effective_sample_share, 'share')}, clipped ratios"
                f" {_text(recent.clipped_share, 'share')}, KL {_text(recent.approximate_kl)}, entropy"
                f" {_text(recent.entropy)}, explained variance {_text(recent.explained_variance)}"
                + ("" if at_bound is None else f", actions at a bound {_text(at_bound, 'share')}"),
            )
        )
    if statistics.lag and statistics.staleness:
        times = statistics.times
        rows.append(
            named(
                "pace",
                f"{statistics.mode}, lag {statistics.lag.mean:.1f}, staleness {statistics.staleness.mean:.1f} versions;"
                f" per batch {_text(times.batch_wait_s, 'seconds')} waiting, {_text(times.batch_train_s, 'seconds')}"
                " training",
            )
        )
    return rows


def summary_lines(summary: Summary) -> list[Line]:
    """Returns everything about the result of a run as labelled lines, below the verdict."""
    statistics, lines = summary.statistics, [_verdict(summary)]
    lines += [named(*line) for line in summary.returns]
    lines.append(named("environment", f"{summary.env_id}, seed {summary.seed}"))
    speed = f"({summary.env_steps_per_s:,.0f}/s)"
    lines.append(named("steps", f"{summary.env_steps:,} {speed}, ended by {summary.stopped}"))
    if summary.limit is not None:
        lines.append(named("progress", f"{summary.limit.share:.0%}: {limit_text(summary.limit)}"))
    if figures := replay_figures(summary.samples_per_insert, statistics):
        lines.append(named("replay", figures.line))
    if statistics is not None:
        lines += [*in_short(statistics), *(_advice(hints_of(summary)) or _usual(summary))]
    wall = f"{summary.wall_s:.1f} s, from the command to the end"
    return [*lines, named("wall time", wall), named("run", summary.run_dir)]


def hints_of(summary: Summary) -> list[Hint]:
    """Returns hints on a run; none on one that has reached its threshold, which has learnt."""
    if summary.statistics is None or summary.env_steps_to_threshold is not None:
        return []
    done, ended = summary.limit.share if summary.limit else 0.0, summary.stopped in AT_A_LIMIT.values()
    return hints(summary.statistics, done, ended=ended)


def show_end(console: Console, summary: Summary, *, penstock: str, verbose: bool = False) -> None:
    """Prints the result of a run that has ended, its folder, and commands for it.

    Args:
        console: Where to print.
        summary: The result.
        penstock: Command that starts Penstock from here.
        verbose: Whether to print everything that `penstock status` shows.
    """
    lines = [*summary.results, *(("hint", hint.text) for hint in hints_of(summary)), *summary.places]
    short = [_verdict(summary), *(named(*line, width=CLOSING_LABEL) for line in lines)]
    show(console, *(summary_lines(summary) if verbose else short))
    for label, command in summary.commands(penstock):
        show_command(console, f"{label:<{CLOSING_LABEL}}", command)


def _verdict(summary: Summary) -> Line:
    return Line(Text(summary.verdict, "bold"))


def _usual(summary: Summary) -> list[Line]:
    batches = summary.statistics.recent_batches if summary.statistics else 0
    usual = summary.env_steps_to_threshold is None and batches >= ENOUGH_BATCHES
    return [named("", "no value of these is unusual")] if usual else []


def _learning(statistics: CoordinatorStatistics) -> Table:
    last, recent = statistics.last or LearningNumbers(), statistics.recent or LearningNumbers()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("training", style="dim", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column(f"mean of {statistics.recent_batches}", justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    for name, each in declared(LearningNumbers).items():
        first = getattr(statistics, f"first_{name}", None)
        remark = each.remark if first is None else f"{each.remark}; {_text(first, each.unit)} at the start"
        table.add_row(each.label, *(_text(getattr(numbers, name), each.unit) for numbers in (last, recent)), remark)
    return table


def _ages(ages: Ages | None) -> str:
    if ages is None:
        return "-"
    return f"{ages.last:.1f} versions now, {ages.mean:.1f} on average, {ages.maximum:,} at most"


def _draw(statistics: CoordinatorStatistics) -> str:
    by = f"by priority (alpha {statistics.alpha:g}) and age" if statistics.alpha else "by age alone"
    effect = effect_of_priorities(statistics.last.priority_gain if statistics.last else None)
    return f"{by}; {effect}" if effect else by


def _collect(statistics: CoordinatorStatistics) -> str:
    times = statistics.times
    if times.collect_environment_s is None or times.collect_policy_s is None:
        return "-"
    activities = ", ".join(f"{label} {_text(seconds, 'seconds')}" for label, seconds in times.collect_work.items())
    return (
        f"{_text(times.collect_busy_s, 'seconds')} of actor time per batch ({activities}); actors wait"
        f" {actors_waiting_share(statistics):.0%} of the time"
    )


def _callbacks(times: MeanTimes) -> str:
    spent_s = times.batch_callbacks_s
    return "" if spent_s is None else f", and {_text(spent_s, 'seconds')} in learner.callbacks"


def _waits(statistics: CoordinatorStatistics) -> str:
    shown = [wait for wait in statistics.waits[:_SHOWN_WAITS] if wait.share >= _SMALLEST_SHARE]
    reasons = ", ".join(f"{wait.reason} {wait.share:.0%}" for wait in shown)
    return f"; of the learner's time: {reasons}" if reasons else ""


def _drops(drops: Drops) -> str:
    # A healthy run has no faults, so they are shown only where they occurred.
    counts = [(getattr(drops, name), each) for name, each in declared(Drops).items()]
    return ", ".join(f"{_text(count, each.unit)} {each.label}" for count, each in counts if count or not each.fault)


def _text(value: float | None, unit: Unit = "number") -> str:
    """Returns a value in its unit; a dash if it is not known."""
    if value is None:
        return "-"
    match unit:
        case "count":
            return f"{value:,}"
        case "seconds":
            return f"{value:.2f} s" if value >= 1.0 else f"{1e3 * value:.3g} ms"
        case "share":
            return f"{value:.0%}"
        case "number":
            return f"{value:.3g}"
