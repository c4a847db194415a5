"""Text lines of a run's summary, for the end of `penstock train` and for `penstock status` of an ended run."""

from rich.text import Text

from penstock.cli.coordination import advice, in_short, named
from penstock.summary import EvaluationOutcome, Summary


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


def _spread(outcome: EvaluationOutcome) -> str:
    return f" ± {outcome.return_std:.1f} over {outcome.episodes} episodes"
