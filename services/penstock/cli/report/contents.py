"""What a report says about a run: its curves, its state, its result so far, its hints and its settings.

Everything is read from the run's folder. The learner of an active run is asked for the rest, which it writes at the
end.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.cli.screen.coordination import hints_of
from penstock.cli.screen.hints import Hint
from penstock.cli.screen.run_facts import hints_now, limit_text
from penstock.config.recorded import texts, texts_of
from penstock.errors import ConfigurationError, PenstockError
from penstock.local.learning_curves import Curve, read_curve
from penstock.runs.folder import LEARNER, RunFolder
from penstock.runs.metrics import return_text
from penstock.runs.summary import Summary
from penstock.types.statistics import CoordinatorStatistics
from penstock.types.status import RunStatus


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of numbers of training.

    Attributes:
        title: Its heading, with the unit of the values.
        lines: Labels in the legend by the names of the numbers.
        log: Whether its scale is logarithmic.
        share: Whether its values are percentages.
    """

    title: str
    lines: dict[str, str]
    log: bool = False
    share: bool = False


PANELS: dict[str, tuple[Panel, ...]] = {
    "Policy and losses": (
        # The first values are a hundred times the later ones.
        Panel("value loss", {"value_loss": "value loss"}, log=True),
        Panel("policy loss", {"policy_loss": "policy loss"}),
        Panel("KL per batch, nats", {"approximate_kl": "KL"}),
        Panel("entropy, nats", {"entropy": "entropy"}),
        Panel("explained variance", {"explained_variance": "explained variance"}),
        Panel("clipped ratios", {"clipped_share": "clipped ratios"}, share=True),
        Panel("gradient norm", {"gradient_norm": "gradient norm"}, log=True),
        Panel("learning rate", {"learning_rate": "learning rate"}),
    ),
    "Ages and priorities": (
        Panel(
            "age of data, versions",
            {"staleness_mean": "all", "fresh_lag_mean": "fresh", "replayed_age_90": "replayed, 90% within"},
        ),
        Panel(
            "effective sample share",
            {"effective_sample_share": "all", "fresh_effective_share": "fresh"},
            share=True,
        ),
        Panel("priority, relative to draws by age", {"drawn_priority": "priority"}),
        Panel("variance saved by priorities", {"priority_gain": "saved"}, share=True),
    ),
    "Speed and waits": (
        Panel("environment steps/s", {"env_steps_per_s": "steps/s"}),
        Panel("updates/s", {"updates_per_s": "updates/s"}),
        Panel("learner per batch, s", {"batch_train_s": "training", "batch_wait_s": "waiting"}),
        Panel(
            "actors per batch, s",
            {"collect_environment_s": "environment", "collect_policy_s": "policy", "collect_wait_s": "waiting"},
        ),
    ),
}
"""Charts below the returns, by the heading of their section."""

_FACTS = ("env_steps", "training_s", "episodes", "return_mean")
_NAMES = (*_FACTS, *(name for panels in PANELS.values() for panel in panels for name in panel.lines))
_MOST_TRAINING = 800
"""Records of training that are read: two for each point of the longest curve. Parsing all takes up to seconds."""

_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run in a report.

    Attributes:
        folder: Its folder.
        curve: Its curves over environment steps, including the lines of `PANELS`.
        settings: Texts of its settings that differ from the defaults, by name.
        summary: Its result; None if it has not ended, or was killed.
        status: Status of an active run; None if it is not active, or its learner does not answer.
        fault: Why the learner of an active run can't be asked; empty if it can.
    """

    folder: RunFolder
    curve: Curve
    settings: dict[str, str]
    summary: Summary | None
    status: RunStatus | None
    fault: str = ""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.root.absolute().name

    @property
    def statistics(self) -> CoordinatorStatistics | None:
        """Statistics of its last session; None if they are not known."""
        return self.summary.statistics if self.summary else self.status.coordinator if self.status else None

    @property
    def uses(self) -> float:
        """Uses per collected segment; 0 if they are not known."""
        found = self.summary or self.status
        return found.samples_per_insert if found else 0.0

    @property
    def state(self) -> str:
        """Whether the run is active, or how it ended."""
        if self.summary is not None:
            return f"ended by {self.summary.stopped}"
        if self.status is None:
            return self.fault or "interrupted before it could write its result"
        limit = self.status.limit
        return f"{self.status.phase}, {limit_text(limit)}" if limit else self.status.phase

    @property
    def verdict(self) -> str:
        """Its result, or its best evaluation so far, in one line."""
        if self.summary is not None:
            return self.summary.verdict
        threshold = "" if self.curve.threshold is None else f" (threshold {self.curve.threshold:g})"
        best = self.best_evaluation
        found = "no evaluation yet" if best is None else f"best evaluation so far {return_text(best)}{threshold}"
        return f"{found}: {self.env_steps:,} steps, {self.training_s:.1f} s of training"

    @property
    def best_evaluation(self) -> float | None:
        """Highest mean return of an evaluation; None if there was none."""
        points = self.curve.evaluation
        return float(points[:, 1].max()) if len(points) else None

    @property
    def env_steps(self) -> int:
        """Environment steps trained."""
        return self.summary.env_steps if self.summary else int(self._last("env_steps"))

    @property
    def training_s(self) -> float:
        """Seconds of training."""
        # Results of earlier releases lack the minutes.
        return (60.0 * self.summary.minutes if self.summary else 0.0) or self._last("training_s")

    @property
    def env_steps_per_s(self) -> float:
        """Speed over the whole run, in environment steps per second of training."""
        return self.env_steps / self.training_s if self.training_s > 0.0 else 0.0

    @property
    def hints(self) -> list[Hint]:
        """Hints on settings to change, the most important first."""
        if self.summary is not None:
            return hints_of(self.summary)
        return hints_now(self.status) if self.status else []

    @property
    def figures(self) -> list[tuple[str, str, str]]:
        """Key figures: labels, values and remarks, without those that are not known."""
        found, curve = self.summary, self.curve
        figures = []
        if found is not None and (outcome := found.evaluation) is not None:
            value = return_text(outcome.return_mean, outcome.return_std)
            figures.append(("return", value, f"best checkpoint, {outcome.episodes} new episodes"))
        if self.best_evaluation is not None:
            threshold = "" if curve.threshold is None else f"threshold {curve.threshold:g}"
            figures.append(("best evaluation", return_text(self.best_evaluation), threshold))
        if len(curve.details["return_mean"]):
            figures.append(("training return", return_text(self._last("return_mean")), "last 100 episodes"))
        episodes = (found.episodes if found else 0) or int(self._last("episodes"))
        figures.append(("environment steps", f"{self.env_steps:,}", f"{episodes:,} episodes"))
        if found is not None and found.env_steps_to_threshold is not None:
            figures.append(("steps to the threshold", f"{found.env_steps_to_threshold:,}", ""))
        figures.append(("training", f"{self.training_s:,.1f} s", f"{self.env_steps_per_s:,.0f} steps/s"))
        if found is not None:
            sessions = f"{found.sessions} sessions" if found.sessions > 1 else "with the start of all processes"
            figures.append(("wall time", f"{found.total_wall_s or found.wall_s:,.1f} s", sessions))
            figures.append(("age of data", f"{found.staleness_mean:.1f} versions", f"{self.uses:.1f} uses per segment"))
        return figures

    def _last(self, name: str) -> float:
        points = self.curve.details[name]
        return float(points[-1, 1]) if len(points) else 0.0


def read_runs(folders: Sequence[RunFolder]) -> list[ReportedRun]:
    """Reads what a report says about runs. Raises `ConfigurationError` if one has no metrics, or can't be read."""
    defaults = texts_of({})
    return [_read(folder, defaults) for folder in folders]


def _read(folder: RunFolder, defaults: dict[str, str]) -> ReportedRun:
    curve = read_curve(folder, details=_NAMES, most_training=_MOST_TRAINING)
    settings = {name: text for name, text in texts(folder.config).items() if name != "run.dir"}
    changed = {name: text for name, text in settings.items() if text != defaults.get(name)}
    if folder.services.exists():
        return ReportedRun(folder, curve, changed, None, *_status(folder))
    return ReportedRun(folder, curve, changed, _summary(folder, curve), None)


def _summary(folder: RunFolder, curve: Curve) -> Summary | None:
    """Returns the result of a run; None if its last session left none, or it can't be read."""
    with contextlib.suppress(ConfigurationError):
        summary, trained = Summary.read(folder.summary), curve.details["env_steps"]
        # A session that was killed leaves the result of the one before.
        if not len(trained) or trained[-1, 0] <= summary.env_steps:
            return summary
    return None


def _status(folder: RunFolder) -> tuple[RunStatus | None, str]:
    """Returns the status of an active run; or None and the reason, if its learner can't be asked."""
    # It imports gRPC, which a report of ended runs does not need.
    from penstock.cli.operator import asking, operator_of

    try:
        with asking(folder.places()[LEARNER], operator_of(folder)) as client:
            return client.get(_ANSWER_S), ""
    except (OSError, ValueError, PenstockError) as error:
        return None, f"its learner does not answer: {error}"
