"""The data that the parts of Penstock exchange: schemas, segments, batches, grants, weights, records.

All are frozen, slotted dataclasses, and this module imports nothing else of Penstock. The receiver owns the arrays in
them, which are not written to afterwards.
"""

import enum
import functools
import hashlib
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

DATA_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
"""NumPy names of the element types of columns, in the order of their numbers in the contract, from 1."""

COLUMN_ALIGNMENT = 8
"""Alignment of the columns in a payload, in bytes. It keeps every element aligned."""

MAX_SLOTS = 4096
"""Number of actor slots in a store, fixed by its format."""


LARGEST_VERSION_JUMP = 1_000_000
"""Versions that a learner skips above the newest checkpoint if it can't determine which were used.

A learner that trains a batch in a millisecond uses this many in a quarter of an hour, and checkpoints are closer
together."""


_INCARNATIONS_AHEAD = 2**24
"""Largest lead of incarnations over the clock's seconds.

A learner that can't determine which incarnations were used begins at the clock's seconds. Each unclean end of a learner
skips 1,000 more, so that a run reaches this lead only after 16,000 unclean ends at less than 1,000 s intervals."""


def largest_incarnation(unix_s: float) -> int:
    """Returns the largest incarnation that an actor can have now. It grows with time, so that none is the last one.

    Args:
        unix_s: Current time, in seconds since the Unix epoch.
    """
    return min(int(unix_s) + _INCARNATIONS_AHEAD, 2**32 - 1)


class Extent(enum.IntEnum):
    """Rows of a column in one segment of T steps; the numbers are those of the contract."""

    STEP = 1
    """T rows."""
    STEP_AND_NEXT = 2
    """T + 1 rows: one per step, and one after the last step."""
    SEGMENT = 3
    """One row."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed array that every segment has.

    Attributes:
        name: Name of the column, unique in its schema.
        dtype: Element type, one of `DATA_TYPES`.
        shape: Shape of one row; empty for a scalar.
        extent: Number of rows in a segment.
        lead: Rows before the first step, in addition to the extent.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    extent: Extent = Extent.STEP
    lead: int = 0

    def segment_shape(self, unroll_length: int) -> tuple[int, ...]:
        """Returns the shape of this column in one segment: (rows, *shape)."""
        rows = {Extent.STEP: unroll_length, Extent.STEP_AND_NEXT: unroll_length + 1, Extent.SEGMENT: 1}[self.extent]
        return (rows + self.lead, *self.shape)

    def segment_bytes(self, unroll_length: int) -> int:
        """Returns the size of this column in one segment, in bytes."""
        return math.prod(self.segment_shape(unroll_length)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of every segment of a run, and the steps in a segment, T."""

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
        """A 64-bit hash that identifies this schema, as defined in proto/penstock/v1/block.proto."""
        return _schema_hash(self)

    def index(self, name: str) -> int:
        """Returns the position of the column with this name. Raises `KeyError` if there is none."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        raise KeyError(name)

    def empty(self, segments: int) -> "Columns":
        """Returns zeroed columns for this many segments."""
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
    """Segments, stored column by column.

    Attributes:
        schema: Names, types and extents of the columns.
        arrays: One C-ordered array per column, [segments, rows, *shape].
    """

    schema: Schema
    arrays: tuple[NDArray[np.generic], ...]

    @property
    def segments(self) -> int:
        """Number of segments in these columns."""
        return len(self.arrays[0])

    def column(self, name: str) -> NDArray[np.generic]:
        """Returns the array of the column with this name."""
        return self.arrays[self.schema.index(name)]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A received piece of the bytes of one column of a window.

    Attributes:
        column: Position of the column in the schema.
        offset: Offset of the piece in the column's bytes, which are in C order over [segments, rows, *shape].
        data: <uint8>[...] bytes of the piece.
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
        """Number of segments in the window."""
        return self.environments.size

    @property
    def last_sequence(self) -> int:
        """Number of the last segment."""
        return self.first_sequence + self.segments - 1


@dataclass(frozen=True, slots=True)
class Window:
    """The segments that an actor collected at the same time, one per environment.

    Attributes:
        slot: Place of the actor in the run.
        incarnation: Stay of the actor in its slot, numbered from 1.
        first_sequence: Number of the first segment within (slot, incarnation), from 1.
        version: Policy version that acted.
        environments: <uint32>[N] run-wide numbers of the environments.
        columns: Columns of the N segments.
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
    """Permission to collect one window for `batch`, with weights of `minimum_version` or newer."""

    batch: int
    minimum_version: int


@dataclass(frozen=True, slots=True)
class StagingOffer:
    """A file in which a client on the service's host may place its windows, each in one of its equal slots.

    Attributes:
        path: Path of the file.
        slot_bytes: Size of a slot in bytes.
    """

    path: str
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The learner's plan for drawing batches; the fields are those of the contract's SamplingPlan.

    Attributes:
        session: Identifier of the learner's process. A new session ends the leases of the one before.
        next_batch: Number of the first batch that this stream will request. It does not affect how batches are drawn.
        batch_segments: Segments in a batch once replay has begun.
        fresh_segments: Fresh segments in a batch (F). 0: segments are replayed as soon as they are stored, at the
            largest priority present, and collection is not limited.
        off_policy_degree: Batches that collection may run ahead of training (d).
        publish_interval: Versions from one publication of the weights to the next (p).
        alpha: Exponent of the priority.
        epsilon: Constant added to every priority.
        half_life: Age in versions that halves the prioritized mass before `alpha`.
        max_staleness: Age in versions above which a replayed segment has no mass.
        min_replay_segments: Segments that must have been trained before any is replayed.
        seed: Key of the random draws, together with a batch's number.
        hurried_below: Number below which batches are sent with the fresh segments present, without waiting for more.
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
        """Upper bound on granted, unseen and leased segments together: (d + 1) F."""
        return (self.off_policy_degree + 1) * self.fresh_segments

    def minimum_version(self, batch: int) -> int:
        """Returns the oldest version that may collect for `batch`: p * floor(max(0, batch - d) / p)."""
        return self.publish_interval * (max(0, batch - self.off_policy_degree) // self.publish_interval)

    @property
    def largest_lag(self) -> int:
        """Largest age in versions at which a segment counts as fresh: d + p - 1."""
        return self.off_policy_degree + self.publish_interval - 1


@dataclass(frozen=True, slots=True)
class Mass:
    """The sum of a store's masses: total * 2^(alpha * reference / half_life), with the reference in versions."""

    total: float = 0.0
    reference: int = 0


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Numbers of segments in a store.

    Attributes:
        capacity: Segments that the store can hold.
        stored: Segments that it holds.
        unseen: Fresh segments that no batch has leased.
        leased: Fresh segments leased to batches.
        granted: Segments that actors have permission to collect.
        inserted: Segments stored since the store was created.
        late: Segments that arrived too late to be trained as fresh, since the store was created.
        refused: Segments refused for their values, since the service started.
        refunded: Segments returned untrained from leases, since the service started.
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
        """<int64>[B] ages of the segments, as in `Batch.ages`."""
        return _ages(self.number, self.versions, self.skipped)

    def with_columns(self, columns: Columns) -> "Batch":
        """Returns the batch with these columns."""
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
    """A leased training batch of B segments: first the fresh ones, ordered by (environment, time), then the others.

    Attributes:
        number: Number of the batch, equal to the version that trains on it.
        fresh_segments: Number of fresh segments.
        keys: <uint64>[B] keys of the segments in the store.
        versions: <int64>[B] policy versions that acted.
        priorities: <float64>[B] raw priorities; 0 where fresh.
        probabilities: <float64>[B] mass over total mass at the draw; 1 where fresh.
        counts: Numbers of segments in the store at the draw.
        columns: Columns of the segments.
        mass: Sum of the store's masses at the draw.
        environments: <uint32>[fresh_segments] run-wide numbers of the fresh segments' environments; empty if unknown.
        skipped: <int64>[B] versions between a segment's and the batch's that trained no batch, because a learner was
            replaced; empty if there are none.
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
        """<int64>[B] versions between the policy that acted and the batch, without those that were skipped."""
        return _ages(self.number, self.versions, self.skipped)


def _ages(number: int, versions: NDArray[np.int64], skipped: NDArray[np.int64]) -> NDArray[np.int64]:
    ages = number - versions
    return ages - skipped if skipped.size else ages


@dataclass(frozen=True, slots=True)
class MappedStore:
    """Location of a store's file: the absolute path of its folder, and the identity number stored in the file."""

    folder: str
    identity: int


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """Outcome of a commit: priorities stored, priorities of overwritten segments, and whether it was a repetition."""

    updated: int
    overwritten: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """Arrays of numbers with bounds. `low` and `high` hold one value per element, in C order, or one value for all
    elements. They may be infinite.
    """

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
    """The properties of an environment that a policy depends on.

    Attributes:
        id: Name of the environment, for display.
        observation: Space of the policy's observations.
        action: Space of the policy's actions.
        frames: Frames stacked along the first axis of an observation, one per step, oldest first. Segments hold each
            frame once.
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
        version: Policy version, which counts training batches.
        data: Bytes of the file.
        sha256: SHA-256 of `data`.
    """

    version: int
    data: bytes
    sha256: bytes

    @classmethod
    def of(cls, version: int, data: bytes) -> "Weights":
        """Returns weights with the digest of `data`."""
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
    """The activity of an actor since its last report.

    Attributes:
        env_steps: Valid environment steps.
        first_step_at_s: Unix time of the actor's first step, in seconds.
        episodes: Finished episodes.
        environment_s: Seconds spent in the environments.
        policy_s: Seconds spent in the policy.
        waiting_s: Seconds spent waiting for a grant or for new enough weights.
        building_s: Seconds spent building and sending segments.
        segments: Segments sent to the replay service.
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
    """The progress of an actor.

    Attributes:
        steps: Environment calls that have returned since the process started.
        doing: Environment call in progress: make, reset or step; empty if there is none.
        environment: Run-wide number of that environment; None if several are stepped in one call.
        window_step: Steps already taken in the window in collection.
        window_steps: Steps of a complete window.
    """

    steps: int = 0
    doing: str = ""
    environment: int | None = None
    window_step: int = 0
    window_steps: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentFault:
    """A fault of an environment.

    Attributes:
        text: One line with the environment's number, its fault and its id.
        dropped: Whether the window in collection was dropped; False for a warning.
    """

    text: str
    dropped: bool


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """A task for an evaluator.

    Attributes:
        id: Number of the task; no other learner process uses the same number.
        weights: Weights of the policy.
        episodes: Number of episodes to play.
        deterministic: Whether to take the most likely actions.
        seed: Key of random streams that no training environment shares.
        variants: Number of variants, at least 1; episode i is played in variant i modulo this number.
        max_episode_steps: Steps after which an unfinished episode is cut.
        max_seconds: Seconds after which all unfinished episodes are cut.
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
    """Statistics of the returns of an evaluation's episodes in one environment variant."""

    episodes: int
    return_mean: float
    return_std: float


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluation task.

    Attributes:
        id: Number of the task.
        version: Version of its policy.
        returns: Return of each episode, in their order; that of a cut episode is its return until then. Unusable or
            empty after a failure.
        steps: Length of each episode, in steps.
        seconds: Duration of the evaluation.
        unfinished: Number of cut episodes.
        out_of_time: Whether episodes were cut by the time limit, so that returns depend on the machine's speed.
        failure: Reason why the returns can't be used, in one line; empty if they can.
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
        """Returns statistics for each of the `variants` between which episodes alternate, if it has an episode."""
        parts = (self.returns[variant::variants] for variant in range(min(variants, len(self.returns))))
        return tuple(VariantReturns(len(part), float(np.mean(part)), float(np.std(part))) for part in parts)


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Statistics of one evaluation.

    Attributes:
        version: Version of the evaluated policy.
        env_steps: Environment steps trained at that version.
        episodes: Number of episodes.
        return_mean: Mean return over all episodes.
        return_std: Standard deviation of the return over all episodes.
        variants: Statistics in each environment variant; empty if the run has none.
        unfinished: Number of episodes that exceeded the bounds of an evaluation; their returns until then count.
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
    """Training in one environment variant.

    Attributes:
        arguments: Arguments that distinguish the variant, as text for display.
        episodes: Training episodes that ended in the variant.
        return_mean: Mean return of the last 100 of these episodes; None before the first.
    """

    arguments: str
    episodes: int = 0
    return_mean: float | None = None


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

    collect_environment_s: float | None = None
    collect_policy_s: float | None = None
    collect_build_s: float | None = None
    collect_wait_s: float | None = None
    batch_wait_s: float | None = None
    batch_train_s: float | None = None
    evaluation_s: float | None = None

    @property
    def collect_busy_s(self) -> float:
        """Mean seconds the actors worked for the fresh steps of a batch, without waiting."""
        return sum(filter(None, (self.collect_environment_s, self.collect_policy_s, self.collect_build_s)))


@dataclass(frozen=True, slots=True)
class Wait:
    """Time that the learner waited for one reason in a session: the seconds, and their share of the session's time."""

    reason: str
    seconds: float
    share: float

    @property
    def for_actors(self) -> bool:
        """Whether the learner waited for fresh segments; with several replay services, the reason ends with which."""
        return self.reason.startswith("fresh segments")


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

    late_segments: int = 0
    refused_segments: int = 0
    refunded_segments: int = 0
    overwritten_priorities: int = 0
    refused_steps: int = 0
    unsound_rows: int = 0
    left_out_values: int = 0


@dataclass(frozen=True, slots=True)
class LearningNumbers:
    """Statistics of training on one batch, or means over several batches; None where not finite.

    Attributes:
        effective_sample_share: Effective share of the steps, (sum w)^2 / (n sum w^2) of the behaviour weights.
        fresh_effective_share: Effective share of the steps of fresh segments.
        clipped_share: Share of the probability ratios outside the clip range.
        approximate_kl: KL divergence of the policy from the one before the batch, in nats.
        entropy: Entropy of the policy, in nats.
        explained_variance: Share of the targets' variance that the values explain: 1 at best, below 0 if worse than a
            constant.
        gradient_norm: Norm of the gradients before they are scaled down.
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
    """Statistics of collection and training in this session of the learner; None where not known yet.

    Attributes:
        mode: synchronous, asynchronous, or chosen: asynchronous with a degree that the learner chooses.
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
    """An event that is reported to the user.

    Attributes:
        number: Number that increases with every notice, also when the learner restarts on the same host.
        text: Description of the event in one line.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ActorState:
    """The state of an actor at the learner. A process that replaces one of the same name continues its counts.

    Attributes:
        name: Name of the actor, for display.
        slot: Place of the actor in the run.
        connected: Whether the actor's stream to the learner is open.
        steps: Environment calls that have returned since the actor's process started.
        segments: Segments sent to the replay service.
        stuck_s: Seconds since the actor last took a step or had nothing to do; 0 while it is not connected.
        failures: Failures of its environments since it last sent segments.
        dropped_windows: Windows dropped since the learner started.
        doing: Environment call in progress, as text for display; empty if there is none.
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
    """The status of a run. The fields are those of the contract's GetRunStatusResponse; None where not known yet."""

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
        name: Name by which the snapshot is restored.
        folder: Folder of the snapshot, as the service sees it.
        taken_unix_s: Unix time of completion, in seconds.
        segments: Segments in the snapshot.
        absent: Segments that were overwritten before they could be copied.
        damaged: Segments left out because their bytes differed from those that had been stored.
        written_bytes: Bytes written for the snapshot.
        shared_bytes: Bytes shared on disk with the previous snapshot.
        seconds: Duration of the snapshot.
        version: Policy version that the store was trained to.
        automatic: Whether it was taken on an interval; a later snapshot removes only these.
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
    """A request to a store for a snapshot.

    Attributes:
        name: Name by which the snapshot is restored.
        version: Version of its policy; the store is frozen once it was trained to this version.
        automatic: Whether it is taken on an interval; it then replaces an older one of these.
    """

    name: str
    version: int
    automatic: bool


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One complete snapshot of a run.

    Attributes:
        name: Name by which the snapshot is restored.
        version: Version of the policy and of each store.
        env_steps: Environment steps trained.
        stores: Snapshot of each replay service, in the order of `learner.replay_addresses`.
    """

    name: str
    version: int
    env_steps: int
    stores: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Progress of a snapshot: segments and bytes already processed, and their totals."""

    segments: int = 0
    total_segments: int = 0
    bytes: int = 0
    total_bytes: int = 0
