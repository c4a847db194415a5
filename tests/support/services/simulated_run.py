"""A run in simulated time: the real buffer with its gate, and actors and a learner at a distance from it.

Its pace follows from the law of the gate alone, and not from the speed of this machine.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey
from penstock.types.replay import Grant
from tests.support.segments.direct_buffer import append, make_buffer
from tests.support.segments.segments import PLAN, SCHEMA, make_window

_SEGMENTS = 2
"""Segments in each window."""


@dataclass(frozen=True, slots=True)
class Distant:
    """The speed and the distance of an actor.

    Attributes:
        window_s: Seconds that the collection of a window takes.
        round_trip_s: Seconds of a round trip to the replay service, and to the learner.
        reports: Whether the actor reports the windows of a round trip to the service.
    """

    window_s: float
    round_trip_s: float = 0.0
    reports: bool = True


@dataclass(frozen=True, slots=True)
class Pace:
    """The outcome of a simulation: trained batches per second, and the share of segments that were late."""

    batches_per_s: float
    late: float


def most_batches_per_s(
    *, degree: int, windows_per_actor: float, window_s: float, batch_s: float, round_trip_s: float
) -> float:
    """Returns the physical limit on the batches per second of a run with actors of one speed.

    A batch can't be trained or collected faster than the learner and the actors work. The weights for batch k follow
    from batch k - d - 1. Between the commits of these d + 1 batches lie a round trip, the collection of a batch, and
    its training.
    """
    collect_s = windows_per_actor * window_s
    return min(1.0 / batch_s, 1.0 / collect_s, (degree + 1) / (round_trip_s + collect_s + batch_s))


@dataclass(slots=True)
class _Actor:
    distant: Distant
    sent: int = 0
    version: int = 0
    grants: deque[Grant] = field(default_factory=deque)
    collects: bool = False


class SimulatedRun:
    """One run. All times are in simulated seconds."""

    def __init__(
        self,
        actors: Sequence[Distant],
        *,
        degree: int,
        batch_s: float,
        windows_per_actor: int = 1,
        learner_round_trip_s: float = 0.0,
        prefetch: int = 1,
        jitter: float = 0.1,
    ) -> None:
        """Connects the actors.

        Args:
            actors: Actors, which have slots from 0.
            degree: Off-policy degree.
            batch_s: Seconds that training on a batch takes.
            windows_per_actor: Windows of each actor in a batch, if all collect equally.
            learner_round_trip_s: Seconds of a round trip between the learner and the replay service.
            prefetch: Batches that the learner requests ahead of the one that it trains next.
            jitter: Largest share by which the duration of a window or a batch varies.
        """
        fresh = _SEGMENTS * len(actors) * windows_per_actor
        self._plan = replace(
            PLAN, batch_segments=fresh, fresh_segments=fresh, off_policy_degree=degree, min_replay_segments=0
        )
        self._buffer = make_buffer(self._plan, rows=(degree + 3) * fresh)
        self._actors = {ActorKey(slot, 1): _Actor(distant) for slot, distant in enumerate(actors)}
        self._batch_s, self._learner_round_trip_s, self._prefetch = batch_s, learner_round_trip_s, prefetch
        self._random, self._jitter = random.Random(0), jitter
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._requested = self._prefetch + 1
        self._leased: dict[int, NDArray[np.uint64]] = {}
        self._ready: deque[int] = deque()
        self._trains = False
        self._now, self._trained = 0.0, 0
        for key, actor in self._actors.items():
            intake = self._buffer.intakes.open(key, SCHEMA, _SEGMENTS, 0.0)
            windows = int(actor.distant.round_trip_s / actor.distant.window_s) if actor.distant.reports else 0
            intake.heard(0.0, 0, windows)

    def run(self, batches: int) -> Pace:
        """Trains this number of batches. Returns the pace of the second half of them."""
        self._grant()
        began, before = 0.0, self._buffer.counts()
        while self._trained < batches:
            self._now, _, event = heapq.heappop(self._events)
            trained = self._trained
            event()
            if trained < batches // 2 <= self._trained:
                began, before = self._now, self._buffer.counts()
        counts = self._buffer.counts()
        late = (counts.late - before.late) / (counts.inserted - before.inserted)
        return Pace((batches - batches // 2) / (self._now - began), late)

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._order), event))

    def _varied(self, seconds: float) -> float:
        return seconds * (1.0 + self._jitter * self._random.uniform(-1.0, 1.0))

    # At the replay service

    def _grant(self) -> None:
        for key, grant in self._buffer.intakes.issue_grants(self._now):
            self._after(self._actors[key].distant.round_trip_s / 2, partial(self._granted, key, grant))

    def _arrive(self, key: ActorKey, first_sequence: int, version: int) -> None:
        window = make_window(first_sequence, segments=_SEGMENTS, slot=key.slot, version=version)
        assert append(self._buffer, window, self._now) is not None
        self._draw()
        self._grant()

    def _draw(self) -> None:
        leases = self._buffer.leases
        while leases.next_number <= self._requested and (lease := leases.draw(leases.next_number)) is not None:
            self._leased[lease.number] = lease.keys
            self._after(self._learner_round_trip_s / 2, partial(self._receive, lease.number))

    def _commit(self, number: int) -> None:
        keys = self._leased.pop(number)
        self._buffer.leases.commit(self._plan.session, number, keys, np.ones(keys.size))
        # The commit travels with the request for the batch that is wanted from then on.
        self._requested = number + self._prefetch + 2
        self._draw()
        self._grant()

    # At an actor

    def _granted(self, key: ActorKey, grant: Grant) -> None:
        self._actors[key].grants.append(grant)
        self._collect(key)

    def _published(self, key: ActorKey, version: int) -> None:
        self._actors[key].version = version
        self._collect(key)

    def _collect(self, key: ActorKey) -> None:
        actor = self._actors[key]
        if actor.collects or not actor.grants or actor.grants[0].minimum_version > actor.version:
            return
        actor.grants.popleft()
        actor.collects = True
        self._after(self._varied(actor.distant.window_s), partial(self._collected, key, actor.version))

    def _collected(self, key: ActorKey, version: int) -> None:
        actor = self._actors[key]
        self._after(actor.distant.round_trip_s / 2, partial(self._arrive, key, actor.sent + 1, version))
        actor.sent += _SEGMENTS
        actor.collects = False
        self._collect(key)

    # At the learner

    def _receive(self, number: int) -> None:
        self._ready.append(number)
        self._train()

    def _train(self) -> None:
        if self._ready and not self._trains:
            self._trains = True
            self._after(self._varied(self._batch_s), partial(self._end_batch, self._ready.popleft()))

    def _end_batch(self, number: int) -> None:
        self._trains = False
        self._trained += 1
        for key, actor in self._actors.items():
            self._after(actor.distant.round_trip_s / 2, partial(self._published, key, number + 1))
        self._after(self._learner_round_trip_s / 2, partial(self._commit, number))
        self._train()
