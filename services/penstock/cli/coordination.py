"""Text output of a run's statistics and summary, for `penstock status` and the end of `penstock train`."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.hints import actors_waiting_share, hints
from penstock.summary import EvaluationOutcome, Summary
from penstock.types.statistics import Ages, CoordinatorStatistics, Declared, Drops, LearningNumbers, declared

_SHOWN_WAITS = 3
_SMALLEST_SHARE = 0.005
"""Smallest share of the learner's time at which a wait is shown; less rounds to 0%."""


def sections(statistics: CoordinatorStatistics) -> RenderableType:
    """Returns all statistics: counts, ages and times, then training statistics, then hints."""
    times = statistics.times
    rows = [
        ("mode", in_words(statistics)),
        (
            "batches",
            f"{statistics.batches_collected:,.1f} collected, {statistics.batches_trained:,} trained,"
            f" {statistics.evaluations:,} evaluations",
        ),
        ("lag", _ages(statistics.lag)),
        ("staleness", _ages(statistics.staleness)),
        ("collect", _collect(statistics)),
        ("wait", f"{_seconds(times.batch_wait_s)} per batch{_waits(statistics)}"),
        ("train", f"{_seconds(times.batch_train_s)} per batch"),
        ("evaluation", _seconds(times.evaluation_s)),
        ("drops", _drops(statistics.drops)),
    ]
    facts = [named(name, line) for name, line in rows]
    learning = [_learning(statistics)] if statistics.last else []
    return Group(*facts, *learning, *advice(statistics))


def named(name: str, line: str | Text, style: str = "") -> Text:
    """Returns a labelled line. A table would fold or cut a line that is wider than the terminal."""
    return Text.assemble((f"{name:<13}", "dim"), line if isinstance(line, Text) else (line, style))


def advice(statistics: CoordinatorStatistics) -> list[Text]:
    """Returns one line for each hint."""
    return [named("hint", line, "yellow") for line in hints(statistics)]


def in_words(statistics: CoordinatorStatistics) -> str:
    """Returns a description of how the run is coordinated."""
    degree = statistics.off_policy_degree
    ahead = f"up to {degree} {'batch' if degree == 1 else 'batches'} ahead of training"
    match statistics.mode:
        case "synchronous":
            return "synchronous: collection and training alternate"
        case "asynchronous":
            return f"asynchronous: collection {ahead}"
        case "chosen":
            return f"adjusted during training: collection currently {ahead}"


def in_short(statistics: CoordinatorStatistics) -> list[Text]:
    """Returns the most important statistics of an ended run, in at most two lines."""
    rows = []
    if recent := statistics.recent:
        rows.append(
            named(
                "learning",
                f"effective sample share {_share(recent.effective_sample_share)}, clipped ratios"
                f" {_share(recent.clipped_share)}, KL {_plain(recent.approximate_kl)}, entropy"
                f" {_plain(recent.entropy)}, explained variance {_plain(recent.explained_variance)}",
            )
        )
    if statistics.lag and statistics.staleness:
        times = statistics.times
        rows.append(
            named(
                "pace",
                f"{statistics.mode}, lag {statistics.lag.mean:.1f}, staleness {statistics.staleness.mean:.1f} versions;"
                f" per batch {_seconds(times.batch_wait_s)} waiting, {_seconds(times.batch_train_s)} training",
            )
        )
    return rows


def summary_lines(summary: Summary) -> list[Text]:
    """Returns the result of a run as labelled lines."""
    statistics, lines = summary.statistics, []
    if summary.evaluation:
        mean = (f"{summary.evaluation.return_mean:.1f}", "bold")
        lines.append(named("return", Text.assemble(mean, _spread(summary.evaluation))))
    for number, variant in enumerate(summary.variants):
        outcome = variant.evaluation
        shown = f"{outcome.return_mean:.1f}{_spread(outcome)}" if outcome else "-"
        lines.append(named(f"variant {number}", f"{shown}, {variant.arguments}"))
    lines.append(named("environment", f"{summary.env_id}, seed {summary.seed}"))
    speed = f"({summary.env_steps_per_s:,.0f}/s)"
    lines.append(named("steps", f"{summary.env_steps:,} {speed}, ended by {summary.stopped}"))
    if summary.env_steps_to_threshold is not None and summary.learn_wall_s_to_threshold is not None:
        reached = f"after {summary.env_steps_to_threshold:,} steps, {summary.learn_wall_s_to_threshold:.1f} s"
        lines.append(named("threshold", reached))
    if statistics is not None:
        lines += in_short(statistics)
        # A run that reached its threshold has learnt and needs no hints.
        lines += advice(statistics) if summary.env_steps_to_threshold is None else []
    return [*lines, named("wall time", f"{summary.wall_s:.1f} s"), named("run", summary.run_dir)]


def _learning(statistics: CoordinatorStatistics) -> Table:
    last, recent = statistics.last or LearningNumbers(), statistics.recent or LearningNumbers()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("training", style="dim", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column(f"mean of {statistics.recent_batches}", justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    for name, each in declared(LearningNumbers).items():
        first = getattr(statistics, f"first_{name}", None)
        remark = each.remark if first is None else f"{each.remark}; {_shown(each, first)} at the start"
        table.add_row(each.label, _shown(each, getattr(last, name)), _shown(each, getattr(recent, name)), remark)
    return table


def _ages(ages: Ages | None) -> str:
    if ages is None:
        return "-"
    return f"{ages.last:.1f} versions now, {ages.mean:.1f} on average, {ages.maximum:,} at most"


def _collect(statistics: CoordinatorStatistics) -> str:
    times = statistics.times
    if times.collect_environment_s is None or times.collect_policy_s is None:
        return "-"
    activities = ", ".join(f"{label} {_seconds(seconds)}" for label, seconds in times.collect_work.items())
    return (
        f"{_seconds(times.collect_busy_s)} of actor time per batch ({activities}); actors wait"
        f" {actors_waiting_share(statistics):.0%} of the time"
    )


def _waits(statistics: CoordinatorStatistics) -> str:
    shown = [wait for wait in statistics.waits[:_SHOWN_WAITS] if wait.share >= _SMALLEST_SHARE]
    reasons = ", ".join(f"{wait.reason} {wait.share:.0%}" for wait in shown)
    return f"; of the learner's time: {reasons}" if reasons else ""


def _drops(drops: Drops) -> str:
    # A healthy run has no faults, so they are shown only where they occurred.
    counts = [(getattr(drops, name), each) for name, each in declared(Drops).items()]
    return ", ".join(f"{_shown(each, count)} {each.label}" for count, each in counts if count or not each.fault)


def _shown(each: Declared, value: float | None) -> str:
    """Returns a value in the unit of its declaration; a dash if it is not known."""
    match each.unit:
        case "count":
            return "-" if value is None else f"{value:,}"
        case "seconds":
            return _seconds(value)
        case "share":
            return _share(value)
        case "number":
            return _plain(value)


def _spread(outcome: EvaluationOutcome) -> str:
    return f" ± {outcome.return_std:.1f} over {outcome.episodes} episodes"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
