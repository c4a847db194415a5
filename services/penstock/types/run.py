"""Data of a run: its identity, places of actors, weights and actors' reports."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from penstock.types.block import Schema
from penstock.types.location import UNKNOWN, Location, Place
from penstock.types.spaces import EnvironmentSpec
from penstock.types.statistics import Timing

LARGEST_VERSION_JUMP = 1_000_000
"""Versions that a learner skips above the newest checkpoint if it can't determine which were used.

A learner that trains a batch in a millisecond uses this many in a quarter of an hour, and checkpoints are closer
together."""


_INCARNATIONS_AHEAD = 2**24
"""Largest lead of incarnations over the clock's seconds.

A learner that can't determine which incarnations were used begins at the clock's seconds. Each unclean end of a learner
skips 1,000 more, so that a run reaches this lead only after 16,000 unclean ends at less than 1,000 s intervals."""


def largest_incarnation(unix_s: float) -> int:
    """Returns the largest incarnation that an actor can have at this Unix time. It grows, so none is the last one."""
    return min(int(unix_s) + _INCARNATIONS_AHEAD, 2**32 - 1)


MOST_INFO_METRICS = 16
"""Most keys of the infos whose values environments report."""

KEY_BYTES = 32
"""Bytes of a run's key, as many as SHA-256 has."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Identity of a run, and the key by which its replay services recognise its learner and its actors.

    The number prevents mistakes and is known to all peers. The key is known to the learner and to the run's user alone.

    Attributes:
        number: Random number that is kept over the run's life; 0: the learner has no run, as in a benchmark.
        key: Random key with which the learner signs its calls (`security.run_key`); empty: there are neither proofs nor
            tokens.
    """

    number: int = 0
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def draw(cls) -> "RunIdentity":
        """Returns the identity of a new run."""
        return cls(secrets.randbits(63) | 1, secrets.token_bytes(KEY_BYTES))

    @property
    def actor_key(self) -> bytes:
        """Key of the actors' tokens, which the replay services know. The run's key does not follow from it."""
        return hmac.digest(self.key, b"actors", "sha256") if self.key else b""

    def token(self, slot: int, incarnation: int) -> bytes:
        """Returns the token of an assignment; empty without a key."""
        return place_token(self.actor_key, self.number, slot, incarnation) if self.key else b""


NO_IDENTITY = RunIdentity()
"""Identity of a run whose peers are not verified, such as a study in one process."""


def place_token(actor_key: bytes, run: int, slot: int, incarnation: int) -> bytes:
    """Returns the token of an assignment, as the contract defines `replay_token`."""
    place = run.to_bytes(8, "little") + slot.to_bytes(4, "little") + incarnation.to_bytes(4, "little")
    return hmac.digest(actor_key, place, "sha256")


@dataclass(frozen=True, slots=True)
class PlayedVariant:
    """A variant that actors play in turn, with the fields of the contract's PlayedVariant."""

    number: int
    arguments: str
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """An actor's place in the run, with the fields of the contract's Assignment.

    The replay service may move under the same assignment, so it does not count when assignments are compared. Nor does
    the token for it, which changes with the run's key, nor do the variants, which change during the run.
    """

    slot: int
    incarnation: int
    environments: tuple[int, ...]
    token: bytes
    seed: int
    replay: Place = field(default=Place(), compare=False)
    variant: int = 0
    temperature: float = 1.0
    run: int = 0
    replay_token: bytes = field(default=b"", compare=False, repr=False)
    variants: tuple[PlayedVariant, ...] = field(default=(), compare=False)


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
    """One finished training episode: the sum of raw rewards, and its length in steps.

    `info` has a value for each of the report's `info_metrics`, NaN where the episode had none. `variant` is the number
    of its variant, if actors play several in turn.
    """

    episode_return: float
    steps: int
    environment: int
    truncated: bool
    info: tuple[float, ...] = ()
    variant: int | None = None


@dataclass(frozen=True, slots=True)
class ActorReport:
    """The activity of an actor since its last report, with the fields of the contract's ActorReport."""

    env_steps: int
    first_step_at_s: float
    episodes: tuple[Episode, ...]
    timing: Timing
    segments: int = 0
    late_steps: int = 0
    info_metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActorProgress:
    """The progress of an actor, with the fields of the contract's ActorProgress."""

    steps: int = 0
    doing: str = ""
    environment: int | None = None
    window_step: int = 0
    window_steps: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentFault:
    """A fault of an environment, with the fields of the contract's EnvironmentFault."""

    text: str
    dropped: bool


@dataclass(frozen=True, slots=True)
class LostPlace:
    """A slot that an actor gave up, whose newer incarnation `taken_by` the replay service has; as in the contract."""

    slot: int
    taken_by: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The introduction of an actor to the learner, with the fields of the contract's Hello.

    `spec` is the `environment` there. Without an earlier assignment, `token` is empty, `lost` is None and `run` is 0.
    """

    schema: Schema
    spec: EnvironmentSpec
    environments: int
    name: str = ""
    token: bytes = b""
    lost: LostPlace | None = None
    location: Location = UNKNOWN
    run: int = 0
