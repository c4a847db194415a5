"""The number of actors under `--actors auto`, adjusted to where the time of a run on one machine is spent."""

import os
from typing import NamedTuple

from penstock.types.statistics import CoordinatorStatistics
from penstock.types.status import RunStatus

INTERVAL_S = 5.0
"""Least seconds between two observations. The first one after adding an actor is skipped, while that actor starts."""

STARVED = 0.1
"""Share of the learner's time spent waiting for fresh segments, above which another actor is tried."""

IDLE_ACTORS = 1.25
"""Actors times the share of their time spent waiting, above which the others can do one's work and still wait."""

WORTH_IT = 1.05
"""Least ratio of the run's speeds after and before adding an actor; without a free core, an actor stays below it."""


def usable_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    # Not every system supports CPU affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Look(NamedTuple):
    """Running totals of a session. Two looks differ by what happened in between."""

    seconds: float
    env_steps: int
    starved_s: float
    batches: int
    collecting_s: float
    gated_s: float

    @classmethod
    def at(cls, status: RunStatus, statistics: CoordinatorStatistics) -> "_Look":
        # A session's mean times its batches is a running total.
        times, batches = statistics.times, statistics.batches_trained
        return cls(
            status.elapsed_s,
            status.env_steps,
            sum(wait.seconds for wait in statistics.waits if wait.for_actors),
            batches,
            times.collect_busy_s * batches,
            (times.collect_wait_s or 0.0) * batches,
        )


class ActorCount:
    """Decides from successive observations of a run how many actors it should have, which is `wanted`."""

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        """Begins with one actor for every two cores, between `least` and `most` (None: the number of cores)."""
        cores = usable_cores()
        self._least, self._most = least, max(least, cores if most is None else most)
        self.wanted = min(self._most, max(least, cores // 2))
        self._before: _Look | None = None
        self._pace_before_growing: float | None = None
        self._settling = False

    def observe(self, status: RunStatus) -> str:
        """Adjusts `wanted` to the run's status; returns the decision and its reason in one line, or an empty string."""
        statistics = status.coordinator
        if statistics is None or status.phase != "training" or not statistics.batches_trained:
            return ""
        now, before = _Look.at(status, statistics), self._before
        if before is None or now.seconds < before.seconds or now.batches < before.batches:
            # The first observation, or one of a restarted learner.
            self._before = now
            return ""
        seconds = now.seconds - before.seconds
        if seconds < INTERVAL_S or now.batches == before.batches:
            return ""
        self._before = now
        if self._settling:
            self._settling = False
            return ""
        starved = (now.starved_s - before.starved_s) / seconds
        gated_s, collecting_s = now.gated_s - before.gated_s, now.collecting_s - before.collecting_s
        gated = gated_s / max(gated_s + collecting_s, 1e-9)
        return self._decide(starved, gated, (now.env_steps - before.env_steps) / seconds)

    def _decide(self, starved: float, gated: float, pace: float) -> str:
        grown_from, self._pace_before_growing = self._pace_before_growing, None
        if grown_from is not None and pace < WORTH_IT * grown_from:
            self.wanted -= 1
            self._most = self.wanted
            return f"{self._actors()}: one more was no faster ({pace:,.0f} instead of {grown_from:,.0f} steps/s)"
        if starved > STARVED and self.wanted < self._most and self.wanted * gated < 1.0:
            self.wanted, self._pace_before_growing, self._settling = self.wanted + 1, pace, True
            return f"{self._actors()}: the learner waits {starved:.0%} of the time for fresh segments"
        if starved <= STARVED and self.wanted > self._least and self.wanted * gated > IDLE_ACTORS:
            self.wanted -= 1
            return f"{self._actors()}: they wait {gated:.0%} of the time for the learner"
        return ""

    def _actors(self) -> str:
        return f"now {self.wanted} actor{'s' if self.wanted != 1 else ''}"
