"""Statistics of collection and training: the one declaration of each number that a run reports.

The status, the summary and the journal contain all fields by name. The metadata of a field declares its display and the
Prometheus metric that exports it, so that a new number needs its field here, its field in the contract, and the code
that measures it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from penstock.types.waits import Awaited, WaitReason

Mode = Literal["synchronous", "asynchronous", "chosen"]
"""Mode of collection; chosen: asynchronous, with a degree that the learner chooses."""


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
    unit: Literal["count", "seconds", "share", "number"] = "number"
    remark: str = ""
    fault: bool = False
    activity: str = ""


def declared(kind: type) -> dict[str, Declared]:
    """Returns the declarations of a record's fields by name, in their order."""
    return {each.name: each.metadata["declared"] for each in fields(kind)}


def _learning(label: str, unit: Literal["share", "number"] = "number", remark: str = "") -> Mapping[str, Declared]:
    return {"declared": Declared(label, "penstock_learner_statistic", unit, remark)}


def _time(label: str, metric: str, activity: str = "") -> Mapping[str, Declared]:
    return {"declared": Declared(label, metric, "seconds", activity=activity)}


def _collection(activity: str) -> Mapping[str, Declared]:
    return _time(activity, "penstock_actor_seconds", activity)


def _count(label: str, metric: str, *, fault: bool = False) -> Mapping[str, Declared]:
    return {"declared": Declared(label, metric, "count", fault=fault)}


@dataclass(slots=True)
class Timing:
    """Seconds that an actor spent on each activity.

    Attributes:
        environment_s: Seconds spent in the environments.
        policy_s: Seconds spent in the policy.
        building_s: Seconds spent building and sending segments.
        waiting_s: Seconds spent waiting for a grant or for new enough weights.
    """

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
    """Ages of trained segments in policy versions: the learner's version minus the one that acted.

    Attributes:
        last: Mean age in the last batch.
        mean: Mean age of the session's segments.
        maximum: Largest age in the session.
    """

    last: float
    mean: float
    maximum: int


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean times in seconds; None if nothing was timed yet.

    The times of collection are sums over the actors for the fresh steps of one batch.

    Attributes:
        collect_environment_s: Mean seconds spent in the environments.
        collect_policy_s: Mean seconds spent in the actors' policies.
        collect_build_s: Mean seconds spent building and sending segments.
        collect_wait_s: Mean seconds spent waiting for a grant or for new enough weights.
        batch_wait_s: Mean seconds the learner waited for a batch.
        batch_train_s: Mean seconds the learner trained on a batch.
        evaluation_s: Mean duration of an evaluation at the evaluator, in seconds.
    """

    collect_environment_s: float | None = field(default=None, metadata=_collection("environment"))
    collect_policy_s: float | None = field(default=None, metadata=_collection("policy"))
    collect_build_s: float | None = field(default=None, metadata=_collection("building"))
    collect_wait_s: float | None = field(default=None, metadata=_collection("waiting"))
    batch_wait_s: float | None = field(default=None, metadata=_time("wait", "penstock_learner_wait_seconds"))
    batch_train_s: float | None = field(default=None, metadata=_time("train", "penstock_learner_step_seconds"))
    evaluation_s: float | None = field(default=None, metadata=_time("evaluation", "penstock_evaluator_seconds"))

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
        return self.reason.awaited is Awaited.FRESH_SEGMENTS


@dataclass(frozen=True, slots=True)
class Drops:
    """Data that was collected or computed without being used.

    Attributes:
        late_segments: Segments that arrived too old for their batch, so were never trained as fresh; they may be
            replayed.
        refused_segments: Segments with unusable values, since the replay service started.
        refunded_segments: Segments returned untrained from leases and so fresh again, since the replay service started.
        overwritten_priorities: Priorities of segments that had been overwritten in the meantime.
        refused_steps: Gradient steps without a finite norm, which changed nothing.
        unsound_rows: Environment steps left out of training because a value in them or estimated from them was absurd.
        left_out_values: Absurd values excluded from the running normalisation.
    """

    late_segments: int = field(default=0, metadata=_count("segments late", "penstock_replay_late_segments"))
    refused_segments: int = field(default=0, metadata=_count("refused", "penstock_replay_refused_segments"))
    refunded_segments: int = field(default=0, metadata=_count("given back", "penstock_replay_refunded_segments"))
    overwritten_priorities: int = field(
        default=0, metadata=_count("priorities too late", "penstock_replay_ignored_priorities")
    )
    refused_steps: int = field(
        default=0,
        metadata=_count("gradient steps refused", "penstock_learner_refused_gradient_steps", fault=True),
    )
    unsound_rows: int = field(
        default=0, metadata=_count("steps left out of training", "penstock_learner_unsound_rows", fault=True)
    )
    left_out_values: int = field(
        default=0,
        metadata=_count("values excluded from normalisation", "penstock_learner_left_out_values", fault=True),
    )


@dataclass(frozen=True, slots=True)
class LearningNumbers:
    """Statistics of training on one batch, or means over several batches; None where not finite.

    Those of one batch are means over its minibatches or passes, without refused gradient steps.

    Attributes:
        effective_sample_share: Effective share of the steps, (sum w)^2 / (n sum w^2) of the behaviour weights; 1 on
            on-policy data.
        fresh_effective_share: Effective share of the steps of fresh segments, whose staleness follows from the
            off-policy degree; 1 if there are none.
        clipped_share: Share of the probability ratios outside the clip range.
        approximate_kl: KL divergence of the policy from the one before the batch, in nats.
        entropy: Entropy of the policy, in nats.
        explained_variance: Share of the targets' variance that the values explain before training: 1 at best, below 0
            if worse than a constant.
        gradient_norm: Norm of the gradients before they are scaled down.
    """

    effective_sample_share: float | None = field(
        default=None, metadata=_learning("effective sample share", "share", "effective sample size / samples")
    )
    fresh_effective_share: float | None = field(default=None, metadata=_learning("fresh effective share", "share"))
    clipped_share: float | None = field(default=None, metadata=_learning("clipped ratios", "share"))
    approximate_kl: float | None = field(default=None, metadata=_learning("approximate KL", remark="nats per batch"))
    entropy: float | None = field(default=None, metadata=_learning("entropy", remark="nats"))
    explained_variance: float | None = field(default=None, metadata=_learning("explained variance", remark="at most 1"))
    gradient_norm: float | None = field(default=None, metadata=_learning("gradient norm"))


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """Statistics of collection and training in this session of the learner; None where not known yet.

    Attributes:
        mode: Mode of collection.
        off_policy_degree: Batches that collection may currently run ahead of training.
        segments_collected: Fresh segments stored by the draw of the last batch, including those untrained at the start
            of the session.
        batches_collected: `segments_collected` in batches of fresh segments.
        segments_trained: Uses of segments, fresh and replayed.
        batches_trained: Batches trained in this session.
        evaluations: Evaluations completed in this session.
        lag: Ages of the fresh segments, which show how far collection ran ahead of training.
        staleness: Ages of all segments, replayed ones included.
        times: Mean times over the session.
        waits: Times that the learner waited, by reason, longest first.
        drops: Numbers of unused data, by reason.
        last: Statistics of the last batch.
        recent: Means over the last `recent_batches` batches.
        recent_batches: Number of batches in `recent`, at most 100.
        first_entropy: Entropy of the policy in the session's first batch, in nats.
    """

    mode: Mode
    off_policy_degree: int
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
