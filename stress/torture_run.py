"""The torture test: fills a store under load, then kills its service repeatedly, and replaces learners and actors.

After every kill, each guarantee is checked against the ledger. Some kills occur in the middle of a window of several
parts, and some before the service is ready. All randomness except the scheduler's follows from one seed.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from penstock.rpc.loop import LoopThread
from penstock.types.replay import SamplingPlan
from tests.support.machine.timing import PATIENCE_S, Bound
from tests.support.segments.store_view import StoreState
from tests.support.services.another_host import Links, as_from_another_host
from tests.support.torture.actor import TortureActor
from tests.support.torture.content import SCHEMA
from tests.support.torture.learner import TortureLearner
from tests.support.torture.ledger import Ledger
from tests.support.torture.proportions import Proportions
from tests.support.torture.service import Found, ReplayProcess, check_store

_FRESH, _DEGREE = 24, 3
WINDOWS = (1, 3, 8, 24, 60)
"""Segments of a window, by slot. The last window travels in two parts; the gate permits none much larger."""

LEAST_MASS_RATIO = 0.99
"""Smallest ratio of the mass after a learner was replaced to the mass before.

A learner's death makes no segment older.
"""

_CUT_S = 1.0
"""Longest time in seconds between two cuts of a connection."""

_JUMPS = (0, 0, 1, 2, 20, 101)
"""Differences between a learner's first version and the previous learner's last: after a kill, or a lost page cache."""


@dataclass(frozen=True, slots=True)
class Options:
    """Load and duration of a run.

    Attributes:
        seconds: Seconds of kills after the store is full.
        capacity_bytes: Size of the store in bytes.
        seed: Seed of all randomness.
        fill_s: Longest time in seconds for filling the store before the first kill.
        alive_s: Range of the seconds between readiness and the next kill.
        ready_multiple: Largest ratio of the median restart to the first start, which has an empty store.
        least_p: Smallest permitted p-value of the counts of draws; a p-value above 1 - least_p is also a violation.
        least_restarts: Kills continue beyond `seconds` until the service has been ready this many times.
        distant: Whether clients connect by TCP, as from another host. Windows are in messages, and connections are cut.
        least_commits: Kills continue beyond `seconds` until this many batches were committed.
    """

    seconds: float
    capacity_bytes: int
    seed: int = 0
    fill_s: float = 120.0
    alive_s: tuple[float, float] = (0.3, 5.0)
    ready_multiple: float = 4.0
    least_p: float = 0.001
    least_restarts: int = 0
    least_commits: int = 0
    distant: bool = False


@dataclass(slots=True)
class Takeover:
    """The result of replacing a learner.

    Attributes:
        jump: Versions between the dead learner's last and the next one's first.
        mass_ratio: Mass of the segments stored before the takeover, divided by their mass before it; None if the
            service was killed meanwhile.
        late: Segments that the first batch classified as late although too few batches were trained since their
            version; None if the service was killed meanwhile.
    """

    jump: int
    mass_ratio: float | None = None
    late: int | None = None


@dataclass
class Report:
    """Results of a run. `violations` is empty if every guarantee held."""

    options: Options
    filled_s: float = 0.0
    first_ready_s: float = 0.0
    kills: dict[str, int] = field(default_factory=Counter)
    ready_s: list[float] = field(default_factory=list)
    ready_cpu_s: list[float] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    batches_drawn: int = 0
    batches_redrawn: int = 0
    largest_deviation: float = 0.0
    draws_kept: int = 0
    p_value: float = 0.5
    takeovers: list["Takeover"] = field(default_factory=list)

    def quantiles(self) -> tuple[float, float, float]:
        """Returns the median, 95th percentile and maximum of the seconds from a restart to readiness."""
        times = sorted(self.ready_s) or [0.0]
        return statistics.median(times), times[int(0.95 * (len(times) - 1))], times[-1]


class Torture:
    """One run of the test."""

    def __init__(self, folder: Path, options: Options, show: Callable[[str], None]) -> None:
        """Prepares a run.

        Args:
            folder: Empty folder, in which the store is created.
            options: Load and duration.
            show: Called with a line of progress every few seconds.
        """
        self._options, self._show = options, show
        self._random = random.Random(options.seed)
        self._ledger = Ledger()
        self._proportions = Proportions(np.random.default_rng(options.seed))
        unstaged = ("--replay.staging-bytes", "0") if options.distant else ()
        self._service = ReplayProcess(folder / "store", options.capacity_bytes, self._ledger, options=unstaged)
        self._links: Links | None = None
        self._report = Report(options)
        self._thread = LoopThread()
        self._actors: list[TortureActor] = []
        self._learner: TortureLearner | None = None
        self._hidden = False
        self._shown_at = 0.0

    def play(self) -> Report:
        """Starts, fills, kills and ends; leaves no process behind."""
        with as_from_another_host() if self._options.distant else nullcontext() as self._links:
            try:
                self._begin()
                self._fill()
                end = time.monotonic() + self._options.seconds
                while time.monotonic() < end or self._is_too_short():
                    self._round()
                    self._progress()
                self._end()
            finally:
                self._abandon()
        return self._conclude()

    # Phases

    def _begin(self) -> None:
        # The first start allocates the store. If it is killed meanwhile, the next start must recover.
        for pause in (0.2, 0.5, 0.8):
            self._service.start()
            time.sleep(pause * self._random.random())
            self._service.kill()
            self._report.kills["while it is created"] += 1
        self._service.start()
        self._report.first_ready_s = self._service.wait_until_ready() or 0.0
        self._new_learner()
        for slot in range(len(WINDOWS)):
            self._actors.append(self._new_actor(slot, 1))

    def _fill(self) -> None:
        started, rows = time.monotonic(), self._options.capacity_bytes // SCHEMA.segment_bytes
        while time.monotonic() < started + self._options.fill_s:
            with self._ledger.lock:
                stored = sum(stay.stored for stay in self._ledger.stays.values())
            if stored >= rows:
                break
            self._progress()
            time.sleep(0.05)
        self._report.filled_s = time.monotonic() - started

    def _round(self) -> None:
        """Waits, kills the service, checks the store, and starts the service again."""
        self._replace_clients(0.35)
        kind = self._wait_for_kill_time()
        self._service.kill()
        self._report.kills[kind] += 1
        self._replace_clients(0.2)
        # Not always, because the service must also recover by itself.
        if self._random.random() < 0.6:
            self._check()
        while self._random.random() < 0.2:
            self._service.start()
            time.sleep(self._random.uniform(0.0, 1.2))
            self._service.kill()
            self._report.kills["before it is ready"] += 1
        self._service.start()
        ready = self._service.wait_until_ready()
        if ready is not None:
            self._report.ready_s.append(ready)
            self._report.ready_cpu_s.append(self._service.cpu_s)
        self._hidden = self._random.random() < 0.4
        if self._hidden:
            self._service.hide()

    def _wait_for_kill_time(self) -> str:
        alive_s = self._random.uniform(*self._options.alive_s)
        if self._random.random() < 0.35:
            time.sleep(min(alive_s, 0.5))
            sending = self._actors[-1].sending_parts
            sending.clear()
            if sending.wait(3.0):
                time.sleep(self._random.uniform(0.0, 0.01))
                return "within a window of parts"
        end = time.monotonic() + alive_s
        while (left := end - time.monotonic()) > 0.0:
            time.sleep(min(left, self._random.uniform(0.0, _CUT_S)))
            if self._links is not None and self._links.cut(self._random):
                self._ledger.events["connections cut"] += 1
        return "at a random time"

    def _replace_clients(self, probability: float) -> None:
        if self._random.random() < probability:
            self._replace_learner()
            self._report.kills["learner"] += 1
        if self._random.random() < probability:
            slot = self._random.randrange(len(self._actors))
            former = self._actors[slot]
            former.die()
            self._actors[slot] = self._new_actor(slot, former.incarnation + 1)
            self._report.kills["actor"] += 1

    def _replace_learner(self) -> None:
        """Kills the learner, lets another take over, and compares masses."""
        assert self._learner is not None
        self._learner.die()
        view = self._service.view() if self._service.running else None
        before = view.read() if view is not None else None
        former = self._learner.version
        self._new_learner()
        takeover = Takeover(self._learner.plan.next_batch - former)
        self._report.takeovers.append(takeover)
        if view is None or before is None:
            return
        plan, first = self._learner.plan, self._learner.plan.next_batch
        if not _within(PATIENCE_S, lambda: view.session == plan.session):
            self._ledger.violated(f"no learner took over within {PATIENCE_S} s")
            return
        mass = before.mass(plan, before.trained, before.version)
        if mass:
            takeover.mass_ratio = view.read().mass(plan, before.trained, first) / mass
            if takeover.mass_ratio < LEAST_MASS_RATIO:
                self._ledger.violated(f"{takeover}: the mass was {mass} before")
        learner = self._learner
        if not _within(PATIENCE_S, lambda: learner.version > first):
            self._ledger.violated(f"{takeover}: no batch arrived within {PATIENCE_S} s")
            return
        takeover.late = self._made_late(before, view.read())
        if takeover.late:
            self._ledger.violated(f"{takeover}: segments became late because of the replacement")

    def _made_late(self, before: StoreState, after: StoreState) -> int:
        """Returns the number of segments that became late although too few batches were trained since their version."""
        # A segment that is replayed without having been in a batch was late.
        late = after.trained[after.trained["batch"] == -1]
        late = late[~np.isin(late["key"], before.trained["key"])]
        trained = self._ledger.trained_since(late["version"], self._ledger.highest_leased + 1)
        return int(np.count_nonzero(trained <= self._plan(1, 0).largest_lag))

    def _is_too_short(self) -> bool:
        """Returns whether too little has happened so far, as on a slow machine."""
        few = len(self._report.ready_s) < self._options.least_restarts
        return (few or self._ledger.events["commits"] < self._options.least_commits) and not self._ledger.violations

    def _check(self) -> None:
        found = check_store(self._service, self._ledger, self._plan(1, 0))
        if found is not None:
            self._report.found.append(found)

    def _end(self) -> None:
        """Waits for everything in flight; then kills the service for the last time, and checks the store."""
        for actor in self._actors:
            actor.leave()
        assert self._learner is not None
        self._learner.leave()
        self._service.kill()
        self._report.kills["at the end"] += 1
        self._check()

    def _abandon(self) -> None:
        for actor in self._actors:
            actor.die()
        self._actors.clear()
        if self._learner is not None:
            self._learner.die()
        if self._service.running:
            self._service.kill()
        self._thread.close()

    def _conclude(self) -> Report:
        report, proportions, ledger = self._report, self._proportions, self._ledger
        report.batches_drawn, report.batches_redrawn = proportions.batches, proportions.redrawn
        report.largest_deviation, report.draws_kept = proportions.largest_deviation, int(proportions.kept.sum())
        report.p_value = proportions.p_value
        bound, median = Bound(self._options.ready_multiple, report.first_ready_s), report.quantiles()[0]
        if median > bound.seconds:
            ledger.violated(f"the median restart took {median:.2f} s, expected at most {bound}")
        if not self._options.least_p <= report.p_value <= 1.0 - self._options.least_p:
            ledger.violated(f"draws do not match their probabilities: p = {report.p_value:.2e}, {proportions.kept}")
        report.events, report.violations = ledger.events, ledger.violations
        return report

    # Participants

    def _plan(self, session: int, next_batch: int) -> SamplingPlan:
        return SamplingPlan(
            session=session,
            next_batch=next_batch,
            batch_segments=3 * _FRESH,
            fresh_segments=_FRESH,
            off_policy_degree=_DEGREE,
            publish_interval=2,
            alpha=0.6,
            epsilon=1e-3,
            half_life=200.0,
            max_staleness=2**31,
            min_replay_segments=_FRESH,
            seed=self._random.getrandbits(32) if next_batch else self._options.seed,
        )

    def _new_learner(self) -> None:
        # A learner returns with the same version or a higher one.
        first = 0 if self._learner is None else self._learner.version + self._random.choice(_JUMPS)
        session = self._random.getrandbits(62) | 1
        self._learner = TortureLearner(
            self._service.address,
            SCHEMA,
            self._plan(session, first),
            self._ledger,
            self._proportions,
            dict(enumerate(WINDOWS)),
            prefetch=self._random.choice((1, 2, 3)),
            # The rows of the ring, at one batch's fresh segments per version, plus the allowance of the gate and slow
            # actors.
            oldest=self._options.capacity_bytes // SCHEMA.segment_bytes // _FRESH + 64,
        )

    def _published(self) -> int:
        assert self._learner is not None
        return self._learner.published

    def _new_actor(self, slot: int, incarnation: int) -> TortureActor:
        return TortureActor(
            self._thread,
            self._service.address,
            self._ledger,
            self._published,
            slot=slot,
            incarnation=incarnation,
            segments=WINDOWS[slot],
            seed=self._random.getrandbits(32),
        )

    def _progress(self) -> None:
        if time.monotonic() < self._shown_at + 5.0:
            return
        self._shown_at = time.monotonic()
        with self._ledger.lock:
            stored = sum(stay.stored for stay in self._ledger.stays.values())
            events = self._ledger.events
        self._show(
            f"{sum(self._report.kills.values())} kills, {stored} segments stored, {events['commits']} batches"
            f" committed, {events['segments sampled']} segments checked, ready after"
            f" {self._report.quantiles()[0]:.2f} s, {len(self._ledger.violations)} violations"
        )


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Waits for a condition; returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
