"""Statistics of collection and training: the one declaration of each number that a run reports.

The metadata of a field declares its display and the Prometheus metric that exports it, so that a new number needs its
field here, its field in the contract, and the code that measures it.
"""

import dataclasses
import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from penstock.types.waits import WaitReason

LEAST_EFFECTIVE_SHARE = 0.3
"""Effective sample share below which a few steps with large weights dominate a batch."""

Unit = Literal["count", "seconds", "share", "number"]
Mode = Literal["synchronous", "asynchronous"]
"""Mode of collection."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Declaration of a statistic.

    Attributes:
        label: Name for display.
        metric: Prometheus metric that exports the number.
        unit: Unit for display: a share is shown as a percentage.
        remark: Text for display after the number.
        fault: Whether a number above 0 is a fault, and is displayed only then.
        activity: Activity of actors whose time the statistic contains: the name of a field of `Timing` without `_s`.
    """

    label: str
    metric: str
    unit: Unit = "number"
    remark: str = ""
    fault: bool = False
    activity: str = ""


def declared(kind: type) -> dict[str, Declared]:
    """Returns the declarations of a record's fields by name, in their order."""
    return {each.name: each.metadata["declared"] for each in fields(kind)}


def _field(label: str, metric: str, **declaration: Any) -> Any:
    """Returns a field with a declaration; its default is 0 for a count, and None for others."""
    declared = Declared(label, metric, **declaration)
    return field(default=0 if declared.unit == "count" else None, metadata={"declared": declared})


def _learning(label: str, unit: str = "number", remark: str = "") -> Any:
    return _field(label, "penstock_learner_statistic", unit=unit, remark=remark)


def _time(label: str, metric: str) -> Any:
    return _field(label, metric, unit="seconds")


def _collection(activity: str) -> Any:
    return _field(activity, "penstock_actor_seconds", unit="seconds", activity=activity)


def _count(label: str, metric: str, *, fault: bool = False) -> Any:
    return _field(label, metric, unit="count", fault=fault)


@dataclass(slots=True)
class Timing:
    """Seconds that an actor spent on each activity, with the fields of the contract's ActorReport."""

    environment_s: float = 0.0
    policy_s: float = 0.0
    building_s: float = 0.0
    waiting_s: float = 0.0

    def by_activity(self) -> dict[str, float]:
        """Returns the seconds by activity, the name of a field without its unit."""
        return {name.removesuffix("_s"): seconds for name, seconds in dataclasses.asdict(self).items()}

    def combined(self, other: "Timing", sign: float = 1.0) -> "Timing":
        """Returns the sum with another timing, or the difference for a `sign` of -1."""
        return Timing(*(getattr(self, name) + sign * getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Ages:
    """Ages of trained segments in policy versions, with the fields of the contract's Ages."""

    last: float
    mean: float
    maximum: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """Replayed segments of the last 100 batches that had some, with the fields of the contract's Replayed.

    Attributes:
        age_mean: Mean age in versions.
        age_90: Mean over the batches of the 90th percentile of the ages, in versions.
        drawn_priority: Mean priority at the draw, as a multiple of its estimate for draws by age alone; None if
            unknown.
    """

    age_mean: float
    age_90: float
    drawn_priority: float | None = None


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean times in seconds; None if nothing was timed yet. It has the fields of the contract's MeanTimes."""

    collect_environment_s: float | None = _collection("environment")
    collect_policy_s: float | None = _collection("policy")
    collect_build_s: float | None = _collection("building")
    collect_wait_s: float | None = _collection("waiting")
    batch_wait_s: float | None = _time("wait", "penstock_learner_wait_seconds")
    batch_train_s: float | None = _time("train", "penstock_learner_step_seconds")
    evaluation_s: float | None = _time("evaluation", "penstock_evaluator_seconds")
    batch_callbacks_s: float | None = _time("callbacks", "penstock_learner_callback_seconds")

    @property
    def collect_work(self) -> dict[str, float | None]:
        """Mean seconds of the actors' activities for the fresh steps of a batch, without waiting, by label."""
        collection = {each.label: getattr(self, name) for name, each in declared(MeanTimes).items() if each.activity}
        return {label: seconds for label, seconds in collection.items() if label != "waiting"}

    @property
    def collect_busy_s(self) -> float:
        """Mean seconds the actors worked for the fresh steps of a batch, without waiting."""
        return sum(filter(None, self.collect_work.values()))


@dataclass(frozen=True, slots=True)
class Wait:
    """Time that the learner waited for one reason in a session: the seconds, and their share of the session's time."""

    reason: WaitReason
    seconds: float
    share: float

    @property
    def for_actors(self) -> bool:
        """Whether the learner waited for fresh segments."""
        return self.reason.for_actors


@dataclass(frozen=True, slots=True)
class Drops:
    """Numbers of unused results, by reason, with the fields of the contract's Drops."""

    late_segments: int = _count("segments late", "penstock_replay_late_segments")
    refused_segments: int = _count("refused", "penstock_replay_refused_segments")
    refunded_segments: int = _count("given back", "penstock_replay_refunded_segments")
    overwritten_priorities: int = _count("priorities too late", "penstock_replay_ignored_priorities")
    refused_steps: int = _count("gradient steps refused", "penstock_learner_refused_gradient_steps", fault=True)
    unsound_rows: int = _count("steps left out of training", "penstock_learner_unsound_rows", fault=True)
    left_out_values: int = _count("values excluded from normalisation", "penstock_learner_left_out_values", fault=True)


@dataclass(frozen=True, slots=True)
class LearningNumbers:
    """Statistics of training on one batch, or means over several batches; None where not finite.

    It has the fields of the contract's LearningNumbers. The numbers of one batch are means over its minibatches or
    passes, without refused gradient steps.
    """

    effective_sample_share: float | None = _learning(
        "effective sample share", "share", "effective sample size / samples"
    )
    fresh_effective_share: float | None = _learning("fresh effective share", "share")
    clipped_share: float | None = _learning("clipped ratios", "share")
    approximate_kl: float | None = _learning("approximate KL", remark="nats per batch")
    entropy: float | None = _learning("entropy", remark="nats")
    explained_variance: float | None = _learning("explained variance", remark="at most 1")
    gradient_norm: float | None = _learning("gradient norm")
    priority_gain: float | None = _learning("gradient variance saved", "share", "by priorities")
    policy_loss: float | None = _learning("policy loss")
    value_loss: float | None = _learning("value loss", remark="of returns in units of the values")
    actions_at_bound: float | None = _learning("actions at a bound", "share", "of the element with the most")


@dataclass(frozen=True, slots=True)
class Returns:
    """Returns of a number of episodes, at least one, with the fields of the contract's Returns."""

    episodes: int
    mean: float
    std: float

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(self.episodes)

    def combined(self, other: "Returns") -> "Returns":
        """Returns the statistics of both samples together (Chan, Golub & LeVeque 1979)."""
        episodes = self.episodes + other.episodes
        share, delta = other.episodes / episodes, other.mean - self.mean
        variance = (1.0 - share) * (self.std * self.std + share * delta * delta) + share * other.std * other.std
        return Returns(episodes, self.mean + share * delta, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """An evaluation and the last training episodes at its end, with the fields of the contract's CurvePoint.

    Attributes:
        env_steps: Environment steps that the evaluated policy had trained.
        evaluation: Returns of the evaluation's episodes.
        unfinished: Number of these episodes that were cut.
        training: Returns of the last 100 training episodes; None if none had ended.
    """

    env_steps: int
    evaluation: Returns
    unfinished: int = 0
    training: Returns | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """Returns over a session, with the fields of the contract's Curve. None where not known yet.

    Attributes:
        points: Last 10 evaluations, oldest first.
        best: Evaluation with the highest mean.
        worst: Evaluation with the lowest mean.
        first: First training episodes of the run, at most a tenth of the session's episodes; None in a resumed run.
        newest: The same number of the last ones, or up to three times as many.
        low: Lowest return of a training episode.
        high: Highest return of a training episode.
        comparable: Whether evaluations differ from training in that they take the most likely action, and in nothing
            else.
    """

    points: tuple[CurvePoint, ...] = ()
    best: Returns | None = None
    worst: Returns | None = None
    first: Returns | None = None
    newest: Returns | None = None
    low: float | None = None
    high: float | None = None
    comparable: bool = False


@dataclass(frozen=True, slots=True)
class Features:
    """Numbers of an observation that are standardised, with the fields of the contract's Features.

    Attributes:
        count: Number of features.
        constant: Number of features that have not varied.
        coarse: Number of features whose standard deviation is less than 100 steps of float32 at their mean.
    """

    count: int
    constant: int
    coarse: int


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """Statistics of collection and training in this session of the learner; None where not known yet.

    It has the fields of the contract's CoordinatorStatistics.
    """

    mode: Mode
    off_policy_degree: int
    alpha: float = 0.0
    segments_collected: int = 0
    batches_collected: float = 0.0
    segments_trained: int = 0
    batches_trained: int = 0
    evaluations: int = 0
    lag: Ages | None = None
    staleness: Ages | None = None
    times: MeanTimes = MeanTimes()
    waits: tuple[Wait, ...] = ()
    drops: Drops = Drops()
    last: LearningNumbers | None = None
    recent: LearningNumbers | None = None
    recent_batches: int = 0
    first_entropy: float | None = None
    replayed: Replayed | None = None
    curve: Curve = Curve()
    features: Features | None = None
