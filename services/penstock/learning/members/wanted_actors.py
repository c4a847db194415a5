"""The number of actors that a run can use, judged by where learner and actors spend their time.

The launcher of one machine, and the engine of a cluster, follow this number. It does not depend on how many actors
there should be, but on those that work: preempted actors, and actors that are still starting, do not mislead it.

If the busy actors feed the learner for a share of its time, it takes their number divided by that share to feed it for
all of its time:

    needed = busy actors / busy share of the learner
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from penstock.types.status import MissingActors

INTERVAL_S = 5.0
"""Least seconds between two looks at a run."""

LEAST_BATCHES = 2
"""Batches between two looks, so that the work of an actor and the batches made of it fall into the same look."""

LOOKS = 6
"""Looks over which the work is added up at most, so that noise of single ones does not move the number."""

STARVED = 0.1
"""Share of the learner's time spent waiting for fresh segments, above which more actors are wanted."""

GROWTH = 4
"""Largest multiple of the actors that were seen to make the run faster: 64 are reached from 1 in five."""

IDLE_ACTORS = 1.25
"""Actors above those that are needed from which on fewer are wanted: one less still leaves some of them idle."""

IDLE_SHARE = 0.25
"""Share of the actors' time spent waiting above which more actors would wait too, although the learner waits as well.
With degree 0 it trains and they collect in turn."""

USED = 1.15
"""Multiple of the wanted actors that are needed although the learner does not wait: there are more, and they work."""

NOTICEABLE = 1.5
"""Ratio of the busy actors from which on the run's speeds are compared. Noise hides the effect of fewer."""

SEEN_LOOKS = 3
"""Looks since the last change by which its effect is judged. In the first ones, new actors are still starting."""

WORTH_IT = 0.2
"""Least gain in speed for a gain in busy actors. Below it another part of the run, such as a core, is the limit."""

RETRIED_AFTER_S = 900.0
"""Seconds after which actors are tried again that did not make the run faster, doubled with every failure."""

MISSING_AFTER_S = 60.0
"""Seconds without an expected actor after which it is missing: longer than the start of a container."""


@dataclass(frozen=True, slots=True)
class Work:
    """Running totals of a session. Two of them differ by the events in between.

    Attributes:
        elapsed_s: Seconds of the session.
        excluded_s: Seconds of these in which the learner waited for anything but fresh segments.
        starved_s: Seconds in which it waited for fresh segments.
        collecting_s: Seconds that all actors together worked.
        gated_s: Seconds that all actors together waited for the learner.
        batches: Trained batches.
        env_steps: Environment steps trained.
    """

    elapsed_s: float = 0.0
    excluded_s: float = 0.0
    starved_s: float = 0.0
    collecting_s: float = 0.0
    gated_s: float = 0.0
    batches: int = 0
    env_steps: int = 0

    @property
    def own_s(self) -> float:
        """Seconds in which the learner trained or waited for fresh segments."""
        return self.elapsed_s - self.excluded_s


@dataclass(frozen=True, slots=True)
class _Look:
    """Changes between two moments: means over the learner's own time.

    Attributes:
        busy: Actors that worked.
        present: Actors that worked or waited for the learner.
        starved: Share of its time in which the learner waited for fresh segments.
        pace: Environment steps trained per second.
    """

    busy: float
    present: float
    starved: float
    pace: float

    @classmethod
    def between(cls, before: Work, now: Work) -> "_Look":
        own_s = now.own_s - before.own_s
        busy = (now.collecting_s - before.collecting_s) / own_s
        return cls(
            busy=busy,
            present=busy + (now.gated_s - before.gated_s) / own_s,
            starved=(now.starved_s - before.starved_s) / own_s,
            pace=(now.env_steps - before.env_steps) / own_s,
        )

    @property
    def needed(self) -> float:
        """Actors with which the learner would not wait."""
        return self.busy / max(1.0 - self.starved, 1e-3)


class WantedActors:
    """Judge of the number of actors. Used by one thread at a time.

    Attributes:
        number: Actors that the run can use; None if that is not known yet.
    """

    def __init__(self, first: int | None, *, least: int, most: int) -> None:
        """Begins with `first` actors (None: as many as there are), between `least` and `most`."""
        self._least, self._most = least, max(least, most)
        self.number: int | None = None if first is None else self._bounded(first)
        self._moments: deque[Work] = deque(maxlen=LOOKS + 1)
        """Beginning of each look since the last change, and the end of the last one."""
        self._reference: _Look | None = None
        """The most actors whose speed is known, while the learner waits."""
        self._ceiling, self._retried_at_s, self._retried_after_s = self._most, 0.0, RETRIED_AFTER_S

    def observe(self, now: Work) -> str:
        """Looks at the run if it is time, and returns why the number has changed; empty if it has not."""
        before = self._moments[-1] if self._moments else None
        if before is None or (now.own_s - before.own_s >= INTERVAL_S and now.batches - before.batches >= LEAST_BATCHES):
            self._moments.append(now)
        if before is None or self._moments[-1] is before:
            return ""
        if now.elapsed_s >= self._retried_at_s:
            self._ceiling = self._most
        recent, latest = _Look.between(self._moments[0], now), _Look.between(before, now)
        if self.number is None:
            self.number = self._bounded(math.ceil(latest.present))
        if min(recent.starved, latest.starved) > STARVED:
            return self._revoke(recent, latest, now, self.number) or self._grow(recent, self.number)
        self._reference = None
        if recent.starved <= STARVED:
            return self._settle(recent, self.number)
        return ""

    def _revoke(self, recent: _Look, latest: _Look, now: Work, number: int) -> str:
        """Takes back the last actors if they did not make the run faster."""
        reference = self._reference
        if reference is None or recent.busy < reference.busy:
            self._reference = recent
            return ""
        if recent.busy < NOTICEABLE * reference.busy or len(self._moments) <= SEEN_LOOKS:
            return ""
        if number <= math.ceil(reference.busy):
            # They were taken back already, and have not left yet.
            return ""
        gain = recent.busy / reference.busy - 1.0
        if recent.pace >= (1.0 + WORTH_IT * gain) * reference.pace:
            # All of the new actors work in the last look.
            self._reference = max(recent, latest, key=lambda look: look.busy)
            return ""
        self._ceiling, self._retried_at_s = math.ceil(reference.busy), now.elapsed_s + self._retried_after_s
        self._retried_after_s *= 2.0
        pace = f"{recent.pace:,.0f} instead of {reference.pace:,.0f} steps/s"
        return self._change(min(number, self._ceiling), f"more were no faster ({pace})")

    def _grow(self, recent: _Look, number: int) -> str:
        assert self._reference is not None
        if recent.present - recent.busy >= max(1.0, IDLE_SHARE * recent.present):
            return ""
        most = min(GROWTH * math.ceil(self._reference.busy), self._ceiling)
        reason = f"the learner waits {recent.starved:.0%} of the time for fresh segments"
        return self._change(max(number, min(math.ceil(recent.needed), most)), reason)

    def _settle(self, recent: _Look, number: int) -> str:
        """Adjusts the number while the learner does not wait."""
        is_seen = len(self._moments) > LOOKS
        if is_seen and (number - recent.needed > IDLE_ACTORS or recent.needed > USED * number):
            return self._change(math.ceil(recent.needed), f"{recent.needed:.1f} keep the learner busy")
        return ""

    def _change(self, number: int, reason: str) -> str:
        number = self._bounded(number)
        if number == self.number:
            return ""
        self.number = number
        last = self._moments[-1]
        self._moments.clear()
        self._moments.append(last)
        return reason

    def _bounded(self, number: int) -> int:
        return min(self._most, max(self._least, number))


class ExpectedActors:
    """Watch of the actors that an engine was asked to start. Used by one thread at a time."""

    def __init__(self, number: int | Literal["wanted"] | None, command: str = "") -> None:
        """Expects this number of actors, or as many as are wanted. `command` shows why one is missing."""
        self._number, self._command = number, command
        self._fewer_since: float | None = None
        self._expected = 0
        self._said = False

    def observe(self, now_s: float, present: int, wanted: int | None) -> bool:
        """Looks at the number of connected actors, and returns whether they have become too few for too long."""
        self._expected = (wanted if self._number == "wanted" else self._number) or 0
        if present >= self._expected:
            self._fewer_since, self._said = None, False
            return False
        if self._fewer_since is None:
            self._fewer_since = now_s
        newly = not self._said and self.missing(now_s) is not None
        self._said |= newly
        return newly

    def missing(self, now_s: float) -> MissingActors | None:
        """Returns the actors that were missing at the last look, and have been for `MISSING_AFTER_S`."""
        if self._fewer_since is None or now_s - self._fewer_since < MISSING_AFTER_S:
            return None
        return MissingActors(self._expected, now_s - self._fewer_since, self._command)
