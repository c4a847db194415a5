"""Data of the replay service: windows, grants, sampling plans and batches."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Columns
from penstock.types.codecs import Forms
from penstock.types.run import place_token

MAX_SLOTS = 4096
"""Number of actor slots in a store, fixed by its format."""

MAX_ROUND_TRIP_WINDOWS = 64
"""Largest number of windows per round trip for which an actor is granted more. Windows of 2 ms over 100 ms need 50."""

MAX_BATCH_SEGMENTS = 2**16
"""Segments in the largest batch. A head takes 32 bytes per segment, so a plan can't request more memory than a service
has."""


def relative_shares(weights: Sequence[float], least: float) -> list[float]:
    """Returns the share of each of N actors, relative to an equal share 1 / N. The mean is 1.

    Shares are proportional to the weights, except that those below `least` are raised to it at the expense of the
    others: share_i = max(least, c weight_i), with the c for which the mean is 1. If all weights are equal, all shares
    are exactly 1.

    Args:
        weights: Weights of at least one actor, not negative.
        least: Smallest share, above 0 and at most 1.
    """
    if min(weights) == max(weights):
        return [1.0] * len(weights)
    rest, factor = sum(weights), 0.0
    # If the k smallest shares are raised, the others sum to N - k least, which gives c. The number k is the smallest
    # for which none of the others is below `least`.
    for raised, weight in enumerate(sorted(weights)):
        if rest <= 0.0:
            break
        factor = (len(weights) - raised * least) / rest
        if factor * weight >= least:
            break
        rest -= weight
    return [max(least, factor * weight) for weight in weights]


@dataclass(frozen=True, slots=True)
class WindowHead:
    """A window without its columns.

    Attributes:
        slot: Place of the actor in the run.
        incarnation: Stay of the actor in its slot, numbered from 1.
        first_sequence: Number of the first segment within (slot, incarnation), from 1.
        version: Policy version that acted.
        environments: <uint32>[N] run-wide numbers of the environments.
        forms: Forms of the columns; None if all are raw.
    """

    slot: int
    incarnation: int
    first_sequence: int
    version: int
    environments: NDArray[np.uint32]
    forms: Forms | None = None

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
    """The segments that an actor collected at the same time, one per environment."""

    head: WindowHead
    columns: Columns


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to collect one window for `batch`, with weights of `minimum_version` or newer."""

    batch: int
    minimum_version: int


@dataclass(frozen=True, slots=True)
class StagingOffer:
    """A file in which a client on the service's host may place its windows, in slots of `slot_bytes` bytes each."""

    path: str
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """The learner's plan for drawing batches, with the fields of the contract's SamplingPlan.

    F, d and p are its `fresh_segments`, `off_policy_degree` and `publish_interval`.
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
    # Actors need not reconnect after a change of their shares.
    slot_weights: tuple[float, ...] = field(default=(), compare=False)
    least_share: float = 1.0
    run: int = 0
    actor_key: bytes = field(default=b"", repr=False)
    largest_magnitude: float = 0.0

    def admits(self, slot: int, incarnation: int, token: bytes) -> bool:
        """Returns whether a token belongs to an assignment of the run. Without `actor_key`, every token does."""
        if not self.actor_key:
            return True
        return hmac.compare_digest(token, place_token(self.actor_key, self.run, slot, incarnation))

    @property
    def replay_segments(self) -> int:
        """Replayed segments in a full batch."""
        return self.batch_segments - self.fresh_segments

    def relative_shares(self, slots: Sequence[int]) -> list[float]:
        """Returns the shares of collection of the actors in these slots, relative to an equal share (`types.replay`).

        They are exactly 1 without weights, with degree 0, and if nothing limits collection.
        """
        if not self.slot_weights or not slots or self.off_policy_degree == 0 or self.fresh_segments == 0:
            return [1.0] * len(slots)
        weights = [self.slot_weights[slot % len(self.slot_weights)] for slot in slots]
        return relative_shares(weights, self.least_share)

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
    """The sum of a store's masses: total * 2^(reference / half_life), with the reference in versions."""

    total: float = 0.0
    reference: int = 0


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Numbers of segments in a store, with the fields of the contract's StoreCounts."""

    capacity: int = 0
    stored: int = 0
    unseen: int = 0
    leased: int = 0
    granted: int = 0
    inserted: int = 0
    late: int = 0
    refused: int = 0
    refunded: int = 0

    @property
    def seen(self) -> int:
        """Segments that are neither fresh nor leased as fresh."""
        return self.stored - self.unseen - self.leased


@dataclass(frozen=True, slots=True)
class BatchHead:
    """A leased training batch of B segments without their columns.

    The fresh segments come first, ordered by (environment, time), then the others.

    Attributes:
        number: Number of the batch, equal to the version that trains on it.
        fresh_segments: Number of fresh segments.
        keys: <uint64>[B] keys of the segments in the store.
        versions: <int64>[B] policy versions that acted.
        priorities: <float64>[B] raw priorities; 0 where fresh.
        probabilities: <float64>[B] mass over total mass at the draw; 1 where fresh.
        counts: Numbers of segments in the store at the draw.
        mass: Sum of the store's masses at the draw.
        environments: <uint32>[fresh_segments] run-wide numbers of the fresh segments' environments; empty if unknown.
        slots: <uint32>[fresh_segments] slots of the actors that collected the fresh segments; empty if unknown.
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
    mass: Mass = Mass()
    environments: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    slots: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    skipped: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def ages(self) -> NDArray[np.int64]:
        """<int64>[B] versions between the policy that acted and the batch, without those that were skipped."""
        ages = self.number - self.versions
        return ages - self.skipped if self.skipped.size else ages


@dataclass(frozen=True, slots=True)
class Batch:
    """A leased training batch of B segments. The properties are those fields of the head that training reads."""

    head: BatchHead
    columns: Columns

    @property
    def number(self) -> int:
        """Number of the batch."""
        return self.head.number

    @property
    def fresh_segments(self) -> int:
        """Number of fresh segments."""
        return self.head.fresh_segments

    @property
    def keys(self) -> NDArray[np.uint64]:
        """<uint64>[B] keys of the segments in the store."""
        return self.head.keys

    @property
    def priorities(self) -> NDArray[np.float64]:
        """<float64>[B] raw priorities."""
        return self.head.priorities

    @property
    def counts(self) -> StoreCounts:
        """Numbers of segments in the store."""
        return self.head.counts

    @property
    def ages(self) -> NDArray[np.int64]:
        """<int64>[B] ages of the segments, as in `BatchHead.ages`."""
        return self.head.ages


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
