"""Text output of a coordinator's statistics: sections for `penstock status`, two lines for `penstock train`."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.hints import actors_waiting_share, hints
from penstock.types import Ages, CoordinatorStatistics, Drops, LearningNumbers

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
        ("wait", f"{_seconds(times.batch_wait_s)} a batch{_waits(statistics)}"),
        ("train", f"{_seconds(times.batch_train_s)} a batch"),
        ("evaluation", _seconds(times.evaluation_s)),
        ("drops", _drops(statistics.drops)),
    ]
    facts = [named(name, line) for name, line in rows]
    learning = [_learning(statistics)] if statistics.last else []
    return Group(*facts, *learning, *advice(statistics))


def named(name: str, line: str | Text, style: str = "") -> Text:
    """Returns a labelled line. A table would fold or cut lines wider than the terminal; this line stays whole."""
    return Text.assemble((f"{name:<13}", "dim"), line if isinstance(line, Text) else (line, style))


def advice(statistics: CoordinatorStatistics) -> list[Text]:
    """Returns one line for each hint."""
    return [named("hint", line, "yellow") for line in hints(statistics)]


def in_words(statistics: CoordinatorStatistics) -> str:
    """Returns a description of how the run is coordinated."""
    degree = statistics.off_policy_degree
    ahead = f"collection up to {degree} {'batch' if degree == 1 else 'batches'} ahead of training"
    return {
        "synchronous": "synchronous: collecting and training take turns",
        "asynchronous": f"asynchronous: {ahead}",
        "chosen": f"chosen while it runs: {ahead} now",
    }.get(statistics.mode, statistics.mode)


def in_short(statistics: CoordinatorStatistics) -> list[Text]:
    """Returns the most important statistics of an ended run, in at most two lines."""
    rows = []
    if recent := statistics.recent:
        rows.append(
            named(
                "learning",
                f"{_share(recent.effective_sample_share)} of the data counts, {_share(recent.clipped_share)} of the"
                f" ratios clipped, KL {_plain(recent.approximate_kl)}, entropy {_plain(recent.entropy)}, explained"
                f" variance {_plain(recent.explained_variance)}",
            )
        )
    if statistics.lag and statistics.staleness:
        times = statistics.times
        rows.append(
            named(
                "pace",
                f"{statistics.mode}, lag {statistics.lag.mean:.1f}, staleness {statistics.staleness.mean:.1f} versions;"
                f" a batch waits {_seconds(times.batch_wait_s)} and trains {_seconds(times.batch_train_s)}",
            )
        )
    return rows


def _learning(statistics: CoordinatorStatistics) -> Table:
    last, recent = statistics.last or LearningNumbers(), statistics.recent or LearningNumbers()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("training", style="dim", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column(f"mean of {statistics.recent_batches}", justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    rows: list[tuple[str, str, Callable[[float | None], str], str]] = [
        ("data that counts", "effective_sample_share", _share, "effective sample size"),
        ("fresh data that counts", "fresh_effective_share", _share, ""),
        ("clipped ratios", "clipped_share", _share, ""),
        ("approximate KL", "approximate_kl", _plain, "nats a batch"),
        ("entropy", "entropy", _plain, f"nats; {_plain(statistics.first_entropy)} at first"),
        ("explained variance", "explained_variance", _plain, "1 at best"),
        ("gradient norm", "gradient_norm", _plain, ""),
    ]
    for label, name, shown, remark in rows:
        table.add_row(label, shown(getattr(last, name)), shown(getattr(recent, name)), remark)
    return table


def _ages(ages: Ages | None) -> str:
    if ages is None:
        return "-"
    return f"{ages.last:.1f} versions now, {ages.mean:.1f} on average, {ages.maximum:,} at most"


def _collect(statistics: CoordinatorStatistics) -> str:
    times = statistics.times
    if times.collect_environment_s is None or times.collect_policy_s is None:
        return "-"
    whole = _seconds(times.collect_busy_s)
    parts = (
        f"environment {_seconds(times.collect_environment_s)}, policy {_seconds(times.collect_policy_s)}, building"
        f" {_seconds(times.collect_build_s)}"
    )
    return f"{whole} of actors' time a batch ({parts}); they wait {actors_waiting_share(statistics):.0%} of the time"


def _waits(statistics: CoordinatorStatistics) -> str:
    told = [wait for wait in statistics.waits[:_SHOWN_WAITS] if wait.share >= _SMALLEST_SHARE]
    reasons = ", ".join(f"{wait.reason} {wait.share:.0%}" for wait in told)
    return f"; of the learner's time: {reasons}" if reasons else ""


def _drops(drops: Drops) -> str:
    counts = {
        "segments late": drops.late_segments,
        "refused": drops.refused_segments,
        "given back": drops.refunded_segments,
        "priorities too late": drops.overwritten_priorities,
    }
    # A healthy run has no faults, so they are shown only where they occurred.
    faults = {
        "gradient steps refused": drops.refused_steps,
        "steps left out of training": drops.unsound_rows,
        "values kept from normalisation": drops.left_out_values,
    }
    counts |= {name: count for name, count in faults.items() if count}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
