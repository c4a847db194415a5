"""The data that parts of Penstock hand to one another: schemas, segments, batches, grants, weights, records.

Frozen, slotted dataclasses that import nothing of ours. Arrays in them are owned by whoever receives them and not
written to afterwards.
"""

import enum
import functools
import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

DATA_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
"""Element types that a column may have, by their NumPy names, in the order of the contract's numbers from 1."""

COLUMN_ALIGNMENT = 8
"""Columns in a payload begin at multiples of this many bytes, so that every element is aligned."""

MAX_SLOTS = 4096
"""Actor slots that a store keeps apart; part of its format."""


LARGEST_VERSION_JUMP = 1_000_000
"""Versions left out above the newest checkpoint's by a learner that can't tell which were used. One that takes a
millisecond a batch uses as many in a quarter of an hour, and checkpoints are closer together than that."""


_INCARNATIONS_AHEAD = 2**24
"""A learner that can't tell which incarnations were used begins at the clock's seconds. Each end of a learner that was
not clean leaves out 1,000 more, so that a run reaches this by 16,000 of them, faster than one in 1,000 s."""


def largest_incarnation(unix_s: float) -> int:
    """The largest incarnation that an actor can have at this time. It grows with time, so that none is the last one.

    Args:
        unix_s: Seconds since the Unix epoch.
    """
    return min(int(unix_s) + _INCARNATIONS_AHEAD, 2**32 - 1)


class Extent(enum.IntEnum):
    """How many rows of a column one segment of T steps holds; numbers as in the contract."""

    STEP = 1
    """T rows."""
    STEP_AND_NEXT = 2
    """T + 1 rows: the steps and what follows the last one."""
    SEGMENT = 3
    """One row."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed part of every segment.

    Attributes:
        name: Unique in its schema.
        dtype: One of `DATA_TYPES`.
        shape: The shape of one row; empty for a scalar.
        extent: How many rows a segment has.
        lead: Rows before the first step, on top of the extent.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    extent: Extent = Extent.STEP
    lead: int = 0

    def segment_shape(self, unroll_length: int) -> tuple[int, ...]:
        """The shape of this column in one segment: (rows, *shape)."""
        rows = {Extent.STEP: unroll_length, Extent.STEP_AND_NEXT: unroll_length + 1, Extent.SEGMENT: 1}[self.extent]
        return (rows + self.lead, *self.shape)

    def segment_bytes(self, unroll_length: int) -> int:
        """The size of this column in one segment, in bytes."""
        return math.prod(self.segment_shape(unroll_length)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of every segment of a run, and T, its steps."""

    unroll_length: int
    columns: tuple[Column, ...]

    @property
    def segment_bytes(self) -> int:
        """The size of one segment's columns, in bytes."""
        return sum(self.column_bytes)

    @property
    def column_bytes(self) -> tuple[int, ...]:
        """The size of each column in one segment, in bytes."""
        return _column_bytes(self)

    @property
    def hash(self) -> int:
        """64 bits that name this schema, computed as proto/penstock/v1/block.proto says."""
        return _schema_hash(self)

    def index(self, name: str) -> int:
        """The position of the column of this name. Raises `KeyError` if there is none."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        raise KeyError(name)

    def empty(self, segments: int) -> "Columns":
        """Zeroed columns for this many segments."""
        shapes = [(segments, *column.segment_shape(self.unroll_length)) for column in self.columns]
        arrays = tuple(np.zeros(shape, column.dtype) for shape, column in zip(shapes, self.columns, strict=True))
        return Columns(self, arrays)


@functools.lru_cache(maxsize=64)
def _column_bytes(schema: Schema) -> tuple[int, ...]:
    return tuple(column.segment_bytes(schema.unroll_length) for column in schema.columns)


@functools.lru_cache(maxsize=64)
def _schema_hash(schema: Schema) -> int:
    lines = ["penstock.v1", str(schema.unroll_length)]
    for column in schema.columns:
        shape = ",".join(map(str, column.shape))
        lines.append(f"{column.name} {DATA_TYPES.index(column.dtype) + 1} {shape} {int(column.extent)} {column.lead}")
    digest = hashlib.sha256(("\n".join(lines) + "\n").encode()).digest()
    return int.from_bytes(digest[:8], "big")


@dataclass(frozen=True, slots=True)
class Columns:
    """Segments, column by column.

    Attributes:
        schema: Names, types and extents.
        arrays: One C-ordered array a column, [segments, rows, *shape].
    """

    schema: Schema
    arrays: tuple[NDArray[np.generic], ...]

    @property
    def segments(self) -> int:
        """How many segments these columns hold."""
        return len(self.arrays[0])

    def column(self, name: str) -> NDArray[np.generic]:
        """The array of the column of this name."""
        return self.arrays[self.schema.index(name)]


@dataclass(frozen=True, slots=True)
class Fragment:
    """Some bytes of one column of a window, as they came.

    Attributes:
        column: Position in the schema.
        offset: Where they begin in the column's bytes, which are C order over [segments, rows, *shape].
        data: <uint8>[...].
    """

    column: int
    offset: int
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WindowHead:
    """A window without its columns; the fields are those of `Window`."""

    slot: int
    incarnation: int
    first_sequence: int
    version: int
    environments: NDArray[np.uint32]

    @property
    def segments(self) -> int:
        """How many segments the window has."""
        return self.environments.size

    @property
    def last_sequence(self) -> int:
        """The number of the last segment."""
        return self.first_sequence + self.segments - 1


@dataclass(frozen=True, slots=True)
class Window:
    """The segments of one actor that began and ended together, one an environment.

    Attributes:
        slot: The actor's place in the run.
        incarnation: Which stay of an actor in the run this is.
        first_sequence: Number of the first segment within (slot, incarnation), from 1.
        version: The policy version that acted.
        environments: <uint32>[N] run-wide numbers of the environments.
        columns: N segments.
    """

    slot: int
    incarnation: int
    first_sequence: int
    version: int
    environments: NDArray[np.uint32]
    columns: Columns

    @property
    def head(self) -> WindowHead:
        """The window without its columns."""
        return WindowHead(self.slot, self.incarnation, self.first_sequence, self.version, self.environments)


@dataclass(frozen=True, slots=True)
class Grant:
    """Leave to collect one window for `batch`, with weights of `minimum_version` or newer."""

    batch: int
    minimum_version: int


@dataclass(frozen=True, slots=True)
class StagingOffer:
    """Where a client on the service's host may lay its windows: a file of equal slots, and the bytes of each."""

    path: str
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """How the learner wants its batches; the fields are those of the contract's SamplingPlan.

    Attributes:
        session: Names the learner's process; leases of another session are given back.
        next_batch: Number of the first batch this stream will ask for. Says nothing of how batches are made.
        batch_segments: Segments in a batch once replay has begun.
        fresh_segments: How many of them are fresh (F). 0: segments are replayed as soon as they are stored, at the
            largest priority present, and collection runs as fast as it can.
        off_policy_degree: Batches that collection may run ahead of training (d).
        publish_interval: Every so many versions are published (p).
        alpha: Exponent of the priority.
        epsilon: Added to every priority.
        half_life: Age in versions that halves the prioritized mass before `alpha`.
        max_staleness: Age in versions past which a replayed segment has no mass.
        min_replay_segments: Segments that must have been trained before any is replayed.
        seed: With a batch's number, keys that batch's draws.
        hurried_below: Batches below this number go out with the fresh segments that there are.
    """

    session: int
    next_batch: int = field(compare=False)
    batch_segments: int
    fresh_segments: int
    off_policy_degree: int
    publish_interval: int
    alpha: float
    epsilon: float
    half_life: float
    max_staleness: int
    min_replay_segments: int
    seed: int = 0
    hurried_below: int = field(default=0, compare=False)

    @property
    def replay_segments(self) -> int:
        """Replayed segments in a full batch."""
        return self.batch_segments - self.fresh_segments

    @property
    def outstanding_limit(self) -> int:
        """What granted, unseen and leased segments together never exceed: (d + 1) F."""
        return (self.off_policy_degree + 1) * self.fresh_segments

    def minimum_version(self, batch: int) -> int:
        """The oldest version that may collect for `batch`: p * floor(max(0, batch - d) / p)."""
        return self.publish_interval * (max(0, batch - self.off_policy_degree) // self.publish_interval)

    @property
    def largest_lag(self) -> int:
        """The age in versions up to which data counts as fresh: d + p - 1."""
        return self.off_policy_degree + self.publish_interval - 1


@dataclass(frozen=True, slots=True)
class Mass:
    """The sum of a store's masses: total * 2^(alpha * reference / half_life), with the reference in versions."""

    total: float = 0.0
    reference: int = 0


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Numbers of segments: what the store can hold, holds, has promised, has taken in, and found late; and since its
    service started, what it refused for its values, and what came back from leases untrained.
    """

    capacity: int = 0
    stored: int = 0
    unseen: int = 0
    leased: int = 0
    granted: int = 0
    inserted: int = 0
    late: int = 0
    refused: int = 0
    refunded: int = 0


@dataclass(frozen=True, slots=True)
class BatchHead:
    """A leased training batch without its columns; the fields are those of `Batch`."""

    number: int
    fresh_segments: int
    keys: NDArray[np.uint64]
    versions: NDArray[np.int64]
    priorities: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    counts: StoreCounts
    mass: Mass
    environments: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    skipped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def ages(self) -> NDArray[np.int64]:
        """<int64>[B] as `Batch.ages`."""
        return _ages(self.number, self.versions, self.skipped)

    def with_columns(self, columns: Columns) -> "Batch":
        """The batch."""
        return Batch(
            self.number,
            self.fresh_segments,
            self.keys,
            self.versions,
            self.priorities,
            self.probabilities,
            self.counts,
            columns,
            self.mass,
            self.environments,
            self.skipped,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A leased training batch of B segments, the fresh ones first, those ordered by (environment, time).

    Attributes:
        number: The batch's number, which is the version that trains on it.
        fresh_segments: How many are fresh.
        keys: <uint64>[B] names of the segments in the store.
        versions: <int64>[B] policy versions that acted.
        priorities: <float64>[B] raw priorities; 0 where fresh.
        probabilities: <float64>[B] mass over total mass at the draw; 1 where fresh.
        counts: The store's numbers at the draw.
        columns: The segments.
        mass: The sum of the store's masses at the draw.
        environments: <uint32>[fresh_segments] run-wide numbers of the fresh segments' environments; empty if unknown.
        skipped: <int64>[B] how many of the numbers from a segment's version to the batch's are of no batch, since a
            learner was replaced in between; empty: none.
    """

    number: int
    fresh_segments: int
    keys: NDArray[np.uint64]
    versions: NDArray[np.int64]
    priorities: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    counts: StoreCounts
    columns: Columns
    mass: Mass = Mass()
    environments: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    skipped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def ages(self) -> NDArray[np.int64]:
        """<int64>[B] versions between the batch and the policy that acted, without those that were skipped."""
        return _ages(self.number, self.versions, self.skipped)


def _ages(number: int, versions: NDArray[np.int64], skipped: NDArray[np.int64]) -> NDArray[np.int64]:
    ages = number - versions
    return ages - skipped if skipped.size else ages


@dataclass(frozen=True, slots=True)
class MappedStore:
    """Where a store's file lies: the absolute path of its folder, and a number that stands in it."""

    folder: str
    identity: int


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What a commit did: priorities stored, priorities of overwritten segments, and whether it had been made before."""

    updated: int
    overwritten: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """Real vectors; `low` and `high` have one value an element, in C order, or one for all; they may be infinite."""

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DiscreteSpace:
    """The integers start, ..., start + n - 1."""

    n: int
    start: int = 0


Space = BoxSpace | DiscreteSpace


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What a policy needs to know of an environment.

    Attributes:
        id: Its name, for people.
        observation: What the policy acts on.
        action: What it answers with.
        frames: How many frames, one a step and the oldest first, are stacked along the first axis of an observation.
            Segments hold each frame once.
    """

    id: str
    observation: Space
    action: Space
    frames: int = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """An actor's place in the run; the fields are those of the contract's Assignment."""

    slot: int
    incarnation: int
    environments: tuple[int, ...]
    token: bytes
    seed: int
    replay_address: str
    variant: int = 0
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Weights:
    """A published policy: a safetensors file with version, spaces and architecture in its metadata.

    Attributes:
        version: Counts training batches.
        data: The file.
        sha256: Its digest.
    """

    version: int
    data: bytes
    sha256: bytes

    @classmethod
    def of(cls, version: int, data: bytes) -> "Weights":
        """Weights with the digest of `data`."""
        return cls(version, data, hashlib.sha256(data).digest())


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished training episode: the sum of raw rewards, and its length in steps."""

    episode_return: float
    steps: int
    environment: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class ActorReport:
    """What happened at an actor since its last report.

    Attributes:
        env_steps: Valid environment steps.
        first_step_at_s: When the actor's first step was taken, Unix time.
        episodes: Finished episodes.
        environment_s: Seconds in the environments.
        policy_s: Seconds in the policy.
        waiting_s: Seconds without a grant or without weights new enough.
        building_s: Seconds in which segments were put together and handed over.
        segments: Segments handed over to the replay service.
    """

    env_steps: int
    first_step_at_s: float
    episodes: tuple[Episode, ...]
    environment_s: float
    policy_s: float
    waiting_s: float
    building_s: float
    segments: int = 0


@dataclass(frozen=True, slots=True)
class ActorProgress:
    """How far an actor is.

    Attributes:
        steps: Environment steps taken since its process began.
        doing: What it waits for an environment to do: make, reset or step; empty while it waits for something else.
        environment: Run-wide number of that environment; None where several are stepped in one call.
        window_step: Steps that the window in progress has.
        window_steps: Steps that it is to have.
    """

    steps: int = 0
    doing: str = ""
    environment: int | None = None
    window_step: int = 0
    window_steps: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentFault:
    """What is wrong with an environment.

    Attributes:
        text: One line: the environment's number, what it did, and its id.
        dropped: Whether the window in collection was dropped; if not, this is a warning.
    """

    text: str
    dropped: bool


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """What an evaluator is asked to do.

    Attributes:
        id: Names the task; no other learner process uses the same number.
        weights: The policy.
        episodes: To play.
        deterministic: Take the most likely actions.
        seed: Keys streams that no training environment shares.
        variants: Episode i is played in variant i modulo this; at least 1.
        max_episode_steps: Steps after which an episode that has not ended is cut.
        max_seconds: Seconds after which all episodes that have not ended are cut.
    """

    id: int
    weights: Weights
    episodes: int
    deterministic: bool
    seed: int
    variants: int = 1
    max_episode_steps: int = 2**31
    max_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class VariantReturns:
    """Returns over the episodes of an evaluation that were played in one environment variant."""

    episodes: int
    return_mean: float
    return_std: float


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What came of one evaluation task.

    Attributes:
        id: Of the task.
        version: Of its policy.
        returns: One an episode, in their order; of an episode that was cut, the return until then. Empty after a
            failure.
        steps: The episodes' lengths.
        seconds: That it took.
        unfinished: Episodes that were cut.
        out_of_time: Whether they were cut by the clock, so that their returns depend on the speed of a machine.
        failure: Why nothing was played, in one line; empty if something was.
    """

    id: int
    version: int
    returns: tuple[float, ...]
    steps: tuple[int, ...]
    seconds: float
    unfinished: int = 0
    out_of_time: bool = False
    failure: str = ""

    @property
    def return_mean(self) -> float:
        """Mean return over the episodes."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the return over the episodes."""
        return float(np.std(self.returns))

    def by_variant(self, variants: int) -> tuple[VariantReturns, ...]:
        """Returns in each of the variants that took turns; those past the last episode are left out."""
        parts = (self.returns[variant::variants] for variant in range(min(variants, len(self.returns))))
        return tuple(VariantReturns(len(part), float(np.mean(part)), float(np.std(part))) for part in parts)


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """One evaluation in numbers: of which version, after how many environment steps, over how many episodes; over all
    of them, and for each of the run's environment variants, if it has any. `unfinished` episodes did not end within the
    bounds of an evaluation; they count with their returns until then.
    """

    version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    variants: tuple[VariantReturns, ...] = ()
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """How training goes in one environment variant.

    Attributes:
        arguments: What sets it apart, for people.
        episodes: Training episodes that ended in it.
        return_mean: Mean over the last 100 of them; None before the first.
    """

    arguments: str
    episodes: int = 0
    return_mean: float | None = None


@dataclass(frozen=True, slots=True)
class Ages:
    """Ages of trained segments in policy versions, the learner's minus the one that acted.

    Attributes:
        last: Mean over the last batch.
        mean: Mean over the session's segments.
        maximum: The oldest of the session.
    """

    last: float
    mean: float
    maximum: int


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean seconds; None where nothing was timed yet.

    Attributes:
        collect_environment_s: In the environments, for the fresh steps of a batch, summed over the actors.
        collect_policy_s: The same in the actors' policies.
        collect_build_s: The same in putting segments together and handing them over.
        collect_wait_s: The same without a grant or without weights new enough.
        batch_wait_s: That the learner waited for a batch.
        batch_train_s: That it trained on one.
        evaluation_s: Of an evaluation, at the evaluator.
    """

    collect_environment_s: float | None = None
    collect_policy_s: float | None = None
    collect_build_s: float | None = None
    collect_wait_s: float | None = None
    batch_wait_s: float | None = None
    batch_train_s: float | None = None
    evaluation_s: float | None = None

    @property
    def collect_busy_s(self) -> float:
        """What the actors did for the fresh steps of a batch, all in all, without waiting."""
        return sum(filter(None, (self.collect_environment_s, self.collect_policy_s, self.collect_build_s)))


@dataclass(frozen=True, slots=True)
class Wait:
    """What the learner waited for in a session: the reason, seconds, and their share of the session's time."""

    reason: str
    seconds: float
    share: float

    @property
    def for_actors(self) -> bool:
        """Whether it was for fresh segments; with several replay services the reason ends in which one."""
        return self.reason.startswith("fresh segments")


@dataclass(frozen=True, slots=True)
class Drops:
    """What was collected or computed and came to nothing.

    Attributes:
        late_segments: Too old for their batch when they arrived, so never trained as fresh; they may be replayed.
        refused_segments: With values that no learner could use; since the replay service started.
        refunded_segments: Leased and given back untrained, so fresh again; since the replay service started.
        overwritten_priorities: Computed for segments that had been overwritten meanwhile.
        refused_steps: Gradient steps without a finite norm, which changed nothing.
        unsound_rows: Environment steps left out of training, since a number in them or estimated from them was absurd.
        left_out_values: Absurd numbers kept from the running normalisation.
    """

    late_segments: int = 0
    refused_segments: int = 0
    refunded_segments: int = 0
    overwritten_priorities: int = 0
    refused_steps: int = 0
    unsound_rows: int = 0
    left_out_values: int = 0


@dataclass(frozen=True, slots=True)
class LearningNumbers:
    """What training on a batch looked like, or on average over some; None where that is no finite number.

    Attributes:
        effective_sample_share: Share of the steps that counts, (sum w)^2 / (n sum w^2) of the behaviour weights.
        fresh_effective_share: The same of the fresh segments.
        clipped_share: Share of the probability ratios that left the clip range.
        approximate_kl: Of the policy from the one before the batch, in nats.
        entropy: Of the policy, in nats.
        explained_variance: Share of the targets' variance that the values explain; 1 at best, below 0 where they are
            worse than a constant.
        gradient_norm: Before it is scaled down.
    """

    effective_sample_share: float | None = None
    fresh_effective_share: float | None = None
    clipped_share: float | None = None
    approximate_kl: float | None = None
    entropy: float | None = None
    explained_variance: float | None = None
    gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """How collecting and training get along in this session of the learner; None is a value that is not known yet.

    Attributes:
        mode: synchronous, asynchronous, or chosen: asynchronous, as far as the learner finds good.
        off_policy_degree: Batches that collection may run ahead of training, now.
        segments_collected: Fresh segments that had come when the last batch was drawn, those included that were there
            and untrained at the beginning.
        batches_collected: The same in batches, by the fresh segments of one.
        segments_trained: Uses of segments, fresh and replayed.
        batches_trained: Batches.
        evaluations: That came back while it trained.
        lag: Ages of the fresh segments: how far collection ran ahead of training.
        staleness: Ages of all segments, replayed ones included.
        times: Means over the session.
        waits: What the learner waited for, longest first.
        drops: By reason.
        last: Of the last batch.
        recent: Means over the last `recent_batches`.
        recent_batches: At most 100.
        first_entropy: Of the session's first batch, in nats.
    """

    mode: str
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


@dataclass(frozen=True, slots=True)
class Notice:
    """One event that a user should know of, in one line.

    Attributes:
        number: Increases with every notice, also when the learner restarts on the same host.
        text: The line.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ActorState:
    """One actor, as the learner knows it. A process that takes the place of one of the same name goes on with its
    counts.

    Attributes:
        name: What people call it.
        slot: Its place in the run.
        connected: Whether its stream to the learner is open.
        steps: Environment steps of its process.
        segments: Segments handed over to the replay service.
        stuck_s: Seconds since it last took a step, or had nothing to do; 0 while it is not connected.
        failures: Failures of its environments since it last handed segments over.
        dropped_windows: Windows dropped, since the learner started.
        doing: What it waits for an environment to do, for people; empty while it waits for something else.
    """

    name: str
    slot: int = 0
    connected: bool = True
    steps: int = 0
    segments: int = 0
    stuck_s: float = 0.0
    failures: int = 0
    dropped_windows: int = 0
    doing: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run goes; the fields are those of the contract's GetRunStatusResponse, and None is a value that is not
    known yet.
    """

    phase: str = "waiting"
    environment_id: str = ""
    version: int = 0
    env_steps: int = 0
    total_steps: int = 0
    elapsed_s: float = 0.0
    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    episodes: int = 0
    return_mean: float | None = None
    last_evaluation: EvaluationSummary | None = None
    best_evaluation: EvaluationSummary | None = None
    lag_mean: float = 0.0
    staleness_mean: float = 0.0
    replay_stored: int = 0
    replay_capacity: int = 0
    actors: int = 0
    remaining_s: float | None = None
    waiting_for: str = ""
    samples_per_insert: float = 0.0
    variants: tuple[VariantStatus, ...] = ()
    coordinator: CoordinatorStatistics | None = None
    notices: tuple[Notice, ...] = ()
    actor_states: tuple[ActorState, ...] = ()
    env_steps_taken: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One complete snapshot of a replay store.

    Attributes:
        name: By which it is restored.
        folder: Where it lies, as the service sees it.
        taken_unix_s: When it was complete.
        segments: In it.
        absent: Segments that were overwritten before they could be copied.
        damaged: Segments whose bytes in the store were not those that had been stored; left out.
        written_bytes: That were written for it.
        shared_bytes: That it has in common with the snapshot before, on disk once.
        seconds: How long it took.
        version: Policy version that the store was trained to.
        automatic: Taken on an interval; only these are removed by a later one.
    """

    name: str
    folder: str
    taken_unix_s: float
    segments: int
    absent: int
    damaged: int
    written_bytes: int
    shared_bytes: int
    seconds: float
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The snapshot that a store is asked for.

    Attributes:
        name: By which it is restored.
        version: Version of the policy that belongs to it; the store is frozen once it was trained to this version.
        automatic: Taken on an interval; an older one of these is removed for it.
    """

    name: str
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One complete snapshot of a run.

    Attributes:
        name: By which it is restored.
        version: Policy version, of the policy and of each store.
        env_steps: Environment steps trained.
        stores: One a replay service, in the order of `learner.replay_addresses`.
    """

    name: str
    version: int
    env_steps: int
    stores: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far a snapshot is: segments and their bytes that were looked after, of how many."""

    segments: int = 0
    total_segments: int = 0
    bytes: int = 0
    total_bytes: int = 0
