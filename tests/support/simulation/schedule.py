"""What a seed decides before a simulated run begins: its settings and its faults."""

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import grpc

from penstock.gate_law import least_capacity
from penstock.types.replay import SamplingPlan
from tests.support.segments.segments import PLAN

Kind = Literal["kill", "pause", "cut", "block", "isolate", "reset", "clock", "power", "full", "lie"]

CODES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
)
"""Codes with which a proxy may end a call, after which clients try again."""

_FAULTED_S = 12.0
_KINDS: tuple[tuple[Kind, float, float], ...] = (
    ("kill", 0.05, 3.0),
    ("kill", 0.05, 20.0),
    ("pause", 0.01, 3.0),
    ("pause", 3.0, 20.0),
    ("cut", 0.0, 0.0),
    ("cut", 0.0, 0.0),
    ("block", 0.1, 20.0),
    ("isolate", 0.1, 20.0),
    ("reset", 0.0, 0.0),
    ("reset", 0.0, 0.0),
    ("clock", 0.0, 0.0),
)
"""Kinds of faults, with the bounds on their seconds."""

_RARE_KINDS: tuple[tuple[Kind, str, float, float], ...] = (
    ("power", "learner", 0.05, 10.0),
    ("full", "learner", 0.1, 20.0),
    ("lie", "stranger", 0.0, 0.0),
    ("lie", "stranger", 0.0, 0.0),
)
"""Kinds of faults of one target alone, with the bounds on their seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    `kill` restarts after the seconds, with a new incarnation or session. `block` stops what the target sends to the
    other process, and `isolate` also the other direction. `reset` ends a call of the target with a status code, and
    `clock` sets its wall clock. `power` is a kill that loses what the target wrote and did not force to the disk, and
    on a `full` disk it can make no new file. `lie` lets a stranger call the replay service.
    """

    at_s: float
    kind: Kind
    target: str
    other: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a simulated run.

    Attributes:
        plan: Plan of the learner, without its session.
        rows: Capacity of the store.
        actors: Number of actors.
        window_segments: Segments in a window.
        prefetch_batches: Batches requested ahead.
        transport: "shared" memory, "messages" as between hosts, or "memory": messages, and a store without a folder.
    """

    plan: SamplingPlan
    rows: int
    actors: int
    window_segments: int
    prefetch_batches: int
    transport: Literal["shared", "messages", "memory"]

    @classmethod
    def drawn(cls, random: Random) -> "Settings":
        """Draws settings that can train."""
        window, windows, degree = random.choice((1, 2)), random.choice((1, 2, 3)), random.choice((0, 1, 1, 2, 4))
        fresh = window * windows
        batch = fresh * random.choice((1, 2))
        plan = replace(
            PLAN,
            batch_segments=batch,
            fresh_segments=fresh,
            off_policy_degree=degree,
            publish_interval=random.choice((1, 1, 2)),
            min_replay_segments=fresh,
            max_staleness=random.choice((8, 100)),
        )
        return cls(
            plan=plan,
            rows=least_capacity(fresh, degree, batch, fresh) + random.choice((0, 4, 40)),
            actors=random.choice((1, 2, 3)),
            window_segments=window,
            prefetch_batches=random.choice((1, 2)),
            transport=random.choice(("shared", "messages", "messages", "memory")),
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """A seed with its settings and faults."""

    seed: int
    settings: Settings
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int, *kept: int) -> "Schedule":
        """Returns the schedule of a seed, with the faults of these numbers alone, or with all if none is given."""
        random = Random(f"{seed} schedule")
        settings = Settings.drawn(random)
        faults = tuple(_drawn_fault(random, settings) for _ in range(random.randint(1, 6)))
        faults += tuple(_drawn_rare_fault(random) for _ in range(random.choice((0, 0, 1, 2))))
        return cls(seed, settings, tuple(faults[number] for number in kept) if kept else faults)

    def without(self, fault: Fault) -> "Schedule":
        """Returns the schedule without a fault."""
        return replace(self, faults=tuple(each for each in self.faults if each is not fault))

    @property
    def call(self) -> str:
        """Python code that makes it."""
        every = Schedule.of(self.seed).faults
        kept = "".join(f", {every.index(fault)}" for fault in self.faults)
        return f"Schedule.of({self.seed}{kept})  # {', '.join(map(str, self.faults))}"


def _drawn_fault(random: Random, settings: Settings) -> Fault:
    kind, least, most = random.choice(_KINDS)
    actor = f"actor{random.randrange(settings.actors)}"
    pair = random.choice((("learner", "replay"), (actor, "replay"), (actor, "learner")))
    target, other = random.sample(pair, 2)
    at_s, seconds = round(random.uniform(0.5, _FAULTED_S), 3), round(random.uniform(least, most), 3)
    if kind in ("cut", "block", "isolate"):
        return Fault(at_s, kind, target, other, seconds)
    return Fault(at_s, kind, pair[0] if kind == "reset" else target, seconds=seconds)


def _drawn_rare_fault(random: Random) -> Fault:
    kind, target, least, most = random.choice(_RARE_KINDS)
    at_s, seconds = round(random.uniform(0.5, _FAULTED_S), 3), round(random.uniform(least, most), 3)
    return Fault(at_s, kind, target, seconds=seconds)
