"""State of the run's actors and of their nodes: progress, whether they are stuck, and failures of their environments.

Actors are identified by name, so a process that replaces a crashed one continues its counts.
"""

import dataclasses
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.errors import AllActorsFailed
from penstock.machine import installation
from penstock.telemetry import metrics
from penstock.types.location import UNKNOWN, Location
from penstock.types.run import ActorProgress, EnvironmentFault
from penstock.types.statistics import Timing
from penstock.types.status import ActorState, NodeState

STUCK_AFTER_S = 10.0
"""Seconds without a step, while an actor could take one, after which it counts as stuck: longer than a slow simulator's
step, and short enough for a user who watches."""

MOST_FAILURES = 3
"""Consecutive failures of every actor that end the run. One may be an accident, and so may two in a simulator that was
just restarted."""

_FORGOTTEN_AFTER_S = 60.0
"""Seconds after an actor left until it is forgotten. A process restarts in less time."""

_SHOWN = 256
"""Largest number of actors, and of nodes, in a status."""

_TRAIL = 11
"""Moments by which the speed of an actor is measured. It reports its progress every second."""

_REPORTED_AT_ONCE = 3
_REPORTED_EVERY_S = 60.0
_SLOW_WINDOW_S = 3.0
_KIND, _MOST_KINDS = 48, 32
"""Characters of a warning, without digits, that tell its kind, and the most kinds that are reported."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """Time of a report of progress in monotonic seconds, and an actor's steps, waiting and total seconds until then."""

    at_s: float
    steps: int
    waited_s: float
    spent_s: float


@dataclass(slots=True)
class _Actor:
    state: ActorState
    moved_at: float
    changed_at: float
    """Time at which the actor last joined or left, in monotonic seconds."""
    streams: int = 0
    progress: ActorProgress = field(default_factory=ActorProgress)
    window_began_at: float = 0.0
    failures: int = 0
    """Failures in total. Deliveries do not reset them, because the user has already seen the first ones."""
    reported_at: float = 0.0
    last_fault: str = ""
    reported_stuck_s: float = STUCK_AFTER_S
    waited_s: float = 0.0
    spent_s: float = 0.0
    """Seconds that it reported as waiting, and in total."""
    trail: deque[_Moment] = field(default_factory=lambda: deque(maxlen=_TRAIL))

    def steps_per_s(self) -> float:
        """Returns its environment steps per second over the last moments; 0 unless it is connected."""
        if not self.streams or len(self.trail) < 2:
            return 0.0
        first, last = self.trail[0], self.trail[-1]
        return max(0, last.steps - first.steps) / (last.at_s - first.at_s) if last.at_s > first.at_s else 0.0


class ActorStates:
    """State of a run's actors, with notices to the user about those that fail or are stuck. Any thread may call."""

    def __init__(self, notice: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Creates the state of a run without actors. `notice` shows a line to the user."""
        self._notice, self._clock = notice, clock
        self._lock = threading.Lock()
        self._actors: dict[str, _Actor] = {}
        self._warned = set[str]()

    def joined(self, name: str, slot: int, location: Location = UNKNOWN) -> None:
        """Records that an actor's stream was opened from this location."""
        with self._lock:
            now = self._clock()
            actor = self._actors.setdefault(name, _Actor(ActorState(name), now, now))
            actor.state = dataclasses.replace(actor.state, slot=slot, node=location.node, job=location.job)
            actor.trail.clear()
            actor.streams += 1
            actor.moved_at = actor.changed_at = now
            actor.progress, actor.reported_stuck_s = ActorProgress(), STUCK_AFTER_S

    def left(self, name: str) -> None:
        """Records that an actor's stream has ended."""
        with self._lock:
            actor = self._actors.get(name)
            if actor is not None:
                actor.streams -= 1
                actor.changed_at = self._clock()

    def progressed(self, name: str, progress: ActorProgress) -> None:
        """Records an actor's progress."""
        with self._lock:
            actor = self._actors.get(name)
            if actor is None:
                return
            now, before = self._clock(), actor.progress
            if progress.steps != before.steps or not progress.doing:
                actor.moved_at, actor.reported_stuck_s = now, STUCK_AFTER_S
            if progress.window_step < before.window_step or not progress.doing or not before.doing:
                actor.window_began_at = now
            actor.progress = progress
            actor.state = dataclasses.replace(actor.state, steps=progress.steps)
            actor.trail.append(_Moment(now, progress.steps, actor.waited_s, actor.spent_s))

    def delivered(self, name: str, segments: int, timing: Timing | None = None) -> None:
        """Records the number of segments that an actor delivered, and how it spent its time since its last report."""
        with self._lock:
            actor = self._actors.get(name)
            if actor is not None and timing is not None:
                actor.waited_s += timing.waiting_s
                actor.spent_s += sum(timing.by_activity().values())
            if actor is not None and segments:
                actor.moved_at = actor.window_began_at = self._clock()
                actor.state = dataclasses.replace(actor.state, segments=actor.state.segments + segments, failures=0)

    def failed(self, name: str, fault: EnvironmentFault) -> None:
        """Records a fault in one of an actor's environments."""
        line = f"{name}, {fault.text}"
        with self._lock:
            actor = self._actors.get(name)
            if actor is None:
                return
            if fault.dropped:
                due = self._count(actor, line)
            else:
                # Each kind is reported once: if one environment leaves its space's bounds, all of them do.
                kind = re.sub(r"\d", "", fault.text)[:_KIND]
                due = kind not in self._warned and len(self._warned) < _MOST_KINDS
                self._warned |= {kind}
        if due:
            self._notice(line)

    def _count(self, actor: _Actor, line: str) -> bool:
        """Counts a failure and returns whether to report it: the first ones at once, then one per minute."""
        now, state = self._clock(), actor.state
        actor.failures, actor.last_fault, actor.moved_at = actor.failures + 1, line, now
        actor.state = dataclasses.replace(state, failures=state.failures + 1, dropped_windows=state.dropped_windows + 1)
        metrics.LEARNER_DROPPED_WINDOWS.inc()
        if actor.failures > _REPORTED_AT_ONCE and now - actor.reported_at < _REPORTED_EVERY_S:
            return False
        actor.reported_at = now
        return True

    def look(self) -> None:
        """Notifies the user of stuck actors. Called about once per second."""
        lines = []
        with self._lock:
            now = self._clock()
            self._forget(now)
            stuck = 0
            for actor in self._actors.values():
                stuck_s = self._stuck_s(actor, now)
                stuck += stuck_s > STUCK_AFTER_S
                if stuck_s > actor.reported_stuck_s:
                    actor.reported_stuck_s = 2.0 * stuck_s
                    lines.append(f"{actor.state.name} (slot {actor.state.slot}): {_stuck(actor, stuck_s)}")
            metrics.LEARNER_STUCK_ACTORS.set(stuck)
        for line in lines:
            self._notice(line)

    def check(self) -> None:
        """Raises `AllActorsFailed`, with the last failure, if every actor failed `MOST_FAILURES` times in a row."""
        with self._lock:
            actors = list(self._actors.values())
            if not actors or any(actor.state.failures < MOST_FAILURES for actor in actors):
                return
            last = max(actors, key=lambda actor: actor.moved_at)
        raise AllActorsFailed(
            f"{last.last_fault}; the environments of every actor failed {MOST_FAILURES} times in a row: fix the"
            f" environment, then continue with {installation.how_to_resume('--resume')}"
        )

    def states(self) -> tuple[ActorState, ...]:
        """Returns the current state of the actors, by slot; at most the first `_SHOWN`."""
        with self._lock:
            now = self._clock()
            shown = [
                dataclasses.replace(
                    actor.state,
                    connected=actor.streams > 0,
                    stuck_s=self._stuck_s(actor, now),
                    doing=_doing(actor.progress) if actor.streams else "",
                    steps_per_s=actor.steps_per_s(),
                )
                for actor in self._actors.values()
            ]
        return tuple(sorted(shown, key=lambda state: (state.slot, state.name))[:_SHOWN])

    def nodes(self) -> tuple[NodeState, ...]:
        """Returns the current state of the nodes with connected actors, by name; at most the first `_SHOWN`."""
        with self._lock:
            now, by_node = self._clock(), dict[str, list[_Actor]]()
            for actor in self._actors.values():
                if actor.streams:
                    by_node.setdefault(actor.state.node, []).append(actor)
            return tuple(self._node(name, by_node[name], now) for name in sorted(by_node)[:_SHOWN])

    def _node(self, name: str, actors: Sequence[_Actor], now: float) -> NodeState:
        speeds = [actor.steps_per_s() for actor in actors]
        ends = [(actor.trail[0], actor.trail[-1]) for actor in actors if actor.trail]
        waited_s = sum(last.waited_s - first.waited_s for first, last in ends)
        spent_s = sum(last.spent_s - first.spent_s for first, last in ends)
        return NodeState(
            name,
            actors=len(actors),
            stuck=sum(self._stuck_s(actor, now) > STUCK_AFTER_S for actor in actors),
            steps_per_s=sum(speeds),
            least_steps_per_s=min(speeds),
            most_steps_per_s=max(speeds),
            waiting_share=waited_s / spent_s if spent_s > 0.0 else None,
        )

    def slowest(self) -> str:
        """Describes the progress of the actor with the slowest window; empty unless it takes several seconds."""
        with self._lock:
            now = self._clock()
            slow = [
                actor
                for actor in self._actors.values()
                if actor.streams and actor.progress.doing and now - actor.window_began_at > _SLOW_WINDOW_S
            ]
            if not slow:
                return ""
            actor = max(slow, key=lambda actor: now - actor.window_began_at)
            progress, seconds = actor.progress, now - actor.window_began_at
            pace = f" ({seconds / progress.window_step:.1f} s per step)" if progress.window_step else ""
            return (
                f"{actor.state.name} is at step {progress.window_step} of {progress.window_steps} of its window{pace}"
            )

    def _forget(self, now: float) -> None:
        self._actors = {
            name: actor
            for name, actor in self._actors.items()
            if actor.streams or now - actor.changed_at < _FORGOTTEN_AFTER_S
        }

    @staticmethod
    def _stuck_s(actor: _Actor, now: float) -> float:
        return max(0.0, now - actor.moved_at) if actor.streams else 0.0


def _stuck(actor: _Actor, seconds: float) -> str:
    doing = _doing(actor.progress)
    return f"{doing} has not returned for {seconds:.0f} s" if doing else f"no message for {seconds:.0f} s"


def _doing(progress: ActorProgress) -> str:
    if not progress.doing:
        return ""
    of = "the environments" if progress.environment is None else f"environment {progress.environment}"
    return f"{progress.doing} of {of}"
