"""An actor and a learner that follow the contract, and verify the service that they receive during stress tests.

Contents are verified: every segment of a batch must be as the actor sent it. The clients are those of actors and
learners. Used by `hostile.py` and `fuzz.py`.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from penstock.errors import Unavailable
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.types.location import Place
from penstock.types.replay import SamplingPlan
from penstock.types.run import Assignment, RunIdentity
from stress.support.marked_segments import SCHEMA, MarkedWindows, damaged

PATIENCE_S = 30.0
PREFETCH = 2


def plan_of(
    batch_segments: int = 256, fresh_segments: int = 64, degree: int = 8, identity: RunIdentity | None = None
) -> SamplingPlan:
    """Returns a plan of batches of which a quarter is fresh, in a new session of a run with this identity."""
    return SamplingPlan(
        session=secrets.randbits(62) + 1,
        next_batch=0,
        batch_segments=batch_segments,
        fresh_segments=fresh_segments,
        off_policy_degree=degree,
        publish_interval=1,
        alpha=0.6,
        epsilon=1e-3,
        half_life=1e4,
        max_staleness=2**31,
        min_replay_segments=1,
        run=identity.number if identity else 0,
        actor_key=identity.actor_key if identity else b"",
    )


@dataclass(frozen=True, slots=True)
class Served:
    """The work of a pair during a span of time.

    Attributes:
        seconds: Length of the span.
        batches: Batches that were verified and committed.
        segments: Segments in those batches.
        inserted: Segments that were sent and stored.
        damaged: Segments in batches that differ from those sent.
        wait_p99_s: 99th percentile of the learner's waits for a batch, in seconds.
        wait_max_s: Longest of those waits, in seconds.
    """

    seconds: float
    batches: int
    segments: int
    inserted: int
    damaged: int
    wait_p99_s: float
    wait_max_s: float

    @property
    def batches_per_s(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds


class HealthyPair:
    """One actor and one learner, each in a thread."""

    def __init__(
        self,
        address: str,
        plan: SamplingPlan,
        *,
        window_segments: int = 16,
        verify: bool = True,
        credentials: Callable[[Role], Credentials | None] = lambda role: None,
        identity: RunIdentity | None = None,
    ) -> None:
        """Starts the pair, whose clients have the `credentials` of their roles, and whose actor a place in the run."""
        self.plan, self._verify = plan, verify
        self._loops = LoopThread(credentials("actor")), LoopThread(credentials("learner"))
        self._source = ReplayBatchSource(
            self._loops[1], address, SCHEMA, prefetch_batches=PREFETCH, key=identity.key if identity else b""
        )
        place = Assignment(0, 1, tuple(range(window_segments)), b"", 0, Place((address,)))
        if identity is not None:
            place = replace(place, run=identity.number, replay_token=identity.token(0, 1))
        self._sink = ReplaySegmentSink(self._loops[0], place, SCHEMA)
        self._windows = MarkedWindows(0, window_segments)
        self._version, self._interval_s = 0, 0.0
        self._waits: list[float] = []
        self._segments = self._damaged = 0
        self._stop = threading.Event()
        self._failures: list[Exception] = []
        self._source.open(plan)
        self._threads = [threading.Thread(target=self._guard, args=(run,)) for run in (self._act, self._learn)]
        for thread in self._threads:
            thread.start()

    def run(self, seconds: float, *, batches_per_s: float = 0.0, until: Callable[[], bool] = lambda: False) -> Served:
        """Lets the pair work for this time from its first batch on, or until the condition is true.

        `batches_per_s` is the pace; with 0, the pair runs as fast as it can. Raises the first error of either client.
        """
        self._interval_s = 1.0 / batches_per_s if batches_per_s else 0.0
        # The service may still start.
        while not self._waits and not self._failures:
            time.sleep(0.05)
        before = (len(self._waits), self._segments, self._windows.sequence, self._damaged)
        began = time.monotonic()
        while time.monotonic() - began < seconds and not until() and not self._failures:
            time.sleep(0.05)
        spent, waits = time.monotonic() - began, np.array(self._waits[before[0] :] or [0.0])
        self._raise_failure()
        return Served(
            seconds=spent,
            batches=len(self._waits) - before[0],
            segments=self._segments - before[1],
            inserted=self._windows.sequence - before[2],
            damaged=self._damaged - before[3],
            wait_p99_s=float(np.quantile(waits, 0.99)),
            wait_max_s=float(waits.max()),
        )

    def close(self) -> None:
        """Closes both clients. Raises the first error of either."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._sink.close()
        self._source.close()
        for loop in self._loops:
            loop.close()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self._failures.append(error)
            self._stop.set()

    def _act(self) -> None:
        while not self._stop.is_set():
            if self._sink.next_grant(0.1) is not None:
                self._sink.send(self._windows.next(self._version))

    def _learn(self) -> None:
        random = np.random.default_rng(1)
        due = time.monotonic()
        while not self._stop.is_set():
            asked = time.monotonic()
            while (batch := self._source.next(0.1)) is None and not self._stop.is_set():
                if time.monotonic() - asked > PATIENCE_S:
                    raise Unavailable(f"no batch in {PATIENCE_S} s: {self._source.waiting_for}")
            if batch is None:
                return
            self._waits.append(time.monotonic() - asked)
            if self._verify:
                self._damaged += damaged(batch.columns)
            self._version = batch.number + 1
            self._segments += batch.keys.size
            self._source.commit(batch, random.random(batch.keys.size))
            # A late batch is not made up for, so that delays show in the rate.
            due = max(due + self._interval_s, time.monotonic())
            self._stop.wait(due - time.monotonic())
