"""Facts about an active run, as labels and values and in lines."""

from penstock.cli.screen.hints import Hint, hints
from penstock.cli.screen.replay_figures import replay_figures
from penstock.runs.metrics import return_text
from penstock.types.evaluation import EvaluationSummary, VariantReturns
from penstock.types.extents import RunLimit
from penstock.types.statistics import LearningNumbers
from penstock.types.status import RunStatus, VariantStatus

_UNKNOWN = "-"


def status_line(status: RunStatus, *, verbose: bool = False) -> str:
    """Returns the status in one line, with the ages of the data if it is to be verbose."""
    if not is_under_way(status) or status.phase == "stopping":
        return state(status)
    parts = [
        *progress_parts(status.env_steps, status.limit),
        f"{status.env_steps_per_s:,.0f} steps/s",
        f"return {_number(status.return_mean)} (last 100)",
        f"evaluation {_evaluation(status.last_evaluation)}",
        *(f"{label} {value}" for label, value in info_facts(status)),
        *([f"lag {status.lag_mean:.1f}", f"staleness {status.staleness_mean:.1f}"] if verbose else []),
        f"buffer {_share(status):.0%}",
        f"{status.updates_per_s:,.0f} updates/s",
        f"ETA {duration(status.remaining_s)}",
    ]
    if (phase := state(status)) != "training":
        parts.append(phase)
    return " | ".join(parts)


def replay_lines(status: RunStatus) -> list[str]:
    """Returns one line about replay; none if the run has replayed nothing yet, or is stopping."""
    figures = replay_figures(status.samples_per_insert, status.coordinator)
    return [f"replay: {figures.line}"] if figures and status.phase != "stopping" else []


def hints_now(status: RunStatus) -> list[Hint]:
    """Returns the hints on an active run; none while it is stopping."""
    if status.coordinator is None or status.phase == "stopping":
        return []
    return hints(status.coordinator, status.limit.share if status.limit else 0.0)


def progress_parts(env_steps: int, limit: RunLimit | None) -> list[str]:
    """Returns the environment steps trained, and the progress towards the limit of the run that is in force."""
    if limit is None:
        return [f"{env_steps:,} steps"]
    progress = limit_text(limit)
    return [progress] if limit.unit == "steps" else [f"{env_steps:,} steps", progress]


def limit_text(limit: RunLimit) -> str:
    """Returns the progress towards a limit, with its unit."""
    digits = 0 if limit.unit != "minutes" else 1 if limit.total >= 10.0 else 2
    return f"{limit.done:,.{digits}f}/{limit.total:,.{digits}f} {limit.unit}"


def is_start(status: RunStatus) -> bool:
    """Returns whether a command shows how it starts the run."""
    return status.phase in ("checking", "starting")


def is_under_way(status: RunStatus) -> bool:
    """Returns whether there are numbers to show."""
    return status.env_steps > 0 and not is_start(status)


def phase(status: RunStatus) -> str:
    """Returns the phase in words."""
    return "checking the environment" if status.phase == "checking" else status.phase


def state(status: RunStatus) -> str:
    """Returns the phase, and the reason for waiting if there is one, or the states of the services."""
    if is_start(status):
        return f"{phase(status)}: {status.waiting_for}"
    if not status.waiting_for:
        return phase(status)
    return waits(status) if status.phase in ("waiting", "training") else f"{phase(status)}, {waits(status)}"


def waits(status: RunStatus) -> str:
    """Returns the reason for waiting; empty if there is none."""
    return f"waiting for {status.waiting_for}" if status.waiting_for else ""


def variant_lines(status: RunStatus) -> list[str]:
    """Returns one line for each of the run's environment variants."""
    evaluated = {each.number: each for each in (status.last_evaluation.variants if status.last_evaluation else ())}
    return [
        f"variant {variant.number} ({variant.arguments}): return {_number(variant.return_mean)}"
        f" | evaluation {_evaluation(evaluated.get(variant.number))} | {variant.episodes:,} episodes{_shares(variant)}"
        for variant in status.variants
    ]


def info_facts(status: RunStatus) -> list[tuple[str, str]]:
    """Returns labels and values of the numbers of the infos: over the last training episodes, and in evaluations."""
    evaluation = status.last_evaluation
    evaluated = {each.name: each for each in (evaluation.info_metrics if evaluation else ())}
    return [
        (
            each.name,
            f"{_small(each.mean)}, evaluation {_small(evaluated.get(each.name, each).mean)}"
            if each.name in evaluated
            else _small(each.mean),
        )
        for each in status.info_metrics
    ]


def learning_facts(status: RunStatus) -> list[tuple[str, str]]:
    """Returns labels and values about the returns and the training of a run."""
    evaluation = status.last_evaluation
    recent = (status.coordinator.recent if status.coordinator else None) or LearningNumbers()
    return [
        ("return, last 100", _number(status.return_mean)),
        (f"evaluation of {evaluation.episodes}" if evaluation else "evaluation", _evaluation(evaluation)),
        ("best evaluation", _evaluation(status.best_evaluation)),
        ("episodes", f"{status.episodes:,}"),
        *info_facts(status),
        ("policy loss", _small(recent.policy_loss)),
        ("value loss", _small(recent.value_loss)),
        ("entropy", _small(recent.entropy)),
        ("KL per batch", _small(recent.approximate_kl)),
        ("explained variance", _small(recent.explained_variance)),
    ]


def data_facts(status: RunStatus) -> list[tuple[str, str]]:
    """Returns labels and values about the speed of a run and its amount of data."""
    return [
        ("steps/s", f"{status.env_steps_per_s:,.0f}"),
        ("updates/s", f"{status.updates_per_s:,.0f}"),
        ("actors", _actors(status)),
        ("version", f"{status.version:,}"),
        ("buffer", f"{_share(status):.0%} of {status.replay_capacity:,}"),
    ]


def replay_facts(status: RunStatus) -> list[tuple[str, str]]:
    """Returns labels and values about the ages and priorities of the data that a run trains on."""
    facts = [("lag, age", f"{status.lag_mean:.1f}, {status.staleness_mean:.1f} versions")]
    if figures := replay_figures(status.samples_per_insert, status.coordinator):
        facts += [
            ("uses", f"{figures.uses}, {figures.effective} effective"),
            ("replay age, 90%", f"{figures.age}, {figures.age_90} versions"),
            ("priority", figures.priority),
            ("grad. variance", figures.variance),
        ]
    return facts


def _actors(status: RunStatus) -> str:
    is_wanted = status.wanted_actors in (None, status.actors)
    return f"{status.actors}" if is_wanted else f"{status.actors} ({status.wanted_actors} wanted)"


def fact_lines(status: RunStatus) -> list[tuple[str, str]]:
    """Returns the labelled lines of a panel."""
    if not is_under_way(status):
        return [("state", state(status))]
    returns, data = learning_facts(status)[:3], dict(data_facts(status))
    progress = [*progress_parts(status.env_steps, status.limit), *clock(status)]
    lines = [
        ("state", state(status)),
        ("progress", " | ".join(progress)),
        ("returns", " | ".join(f"{label}: {value}" for label, value in returns)),
        ("speed", f"{data['steps/s']} steps/s | {data['updates/s']} updates/s | actors: {data['actors']}"),
        ("buffer", data["buffer"]),
    ]
    if info := info_facts(status):
        lines.insert(3, ("info", " | ".join(f"{label}: {value}" for label, value in info)))
    figures = replay_figures(status.samples_per_insert, status.coordinator)
    return [*lines, ("replay", figures.line)] if figures else lines


def clock(status: RunStatus) -> list[str]:
    """Returns the time of training, and the time that is left."""
    return [f"{duration(status.elapsed_s)} of training", f"ETA {duration(status.remaining_s)}"]


def _share(status: RunStatus) -> float:
    return status.replay_stored / status.replay_capacity if status.replay_capacity else 0.0


def _shares(variant: VariantStatus) -> str:
    if variant.planned_share is None or variant.fresh_share is None:
        return ""
    return f" | {variant.fresh_share:.0%} of collection, {variant.planned_share:.0%} by plan"


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else return_text(value)


def _small(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.3g}"


def _evaluation(evaluation: EvaluationSummary | VariantReturns | None) -> str:
    return _UNKNOWN if evaluation is None else return_text(evaluation.return_mean, evaluation.return_std)


def duration(seconds: float | None) -> str:
    """Returns a duration as minutes:seconds, or hours:minutes:seconds."""
    if seconds is None:
        return _UNKNOWN
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
