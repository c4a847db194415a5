"""The gate: who may collect, for which batch, and with which weights (docs/ARCHITECTURE.md, "The gate").

Batches are numbered, and batch k trains at version k. Collection may run `off_policy_degree` batches ahead of training,
so that granted + unseen + leased segments never exceed (d + 1) F. A grant is leave to collect one window. Pure
bookkeeping: clocks are passed in, nothing blocks. Called by `replay.buffer` under its lock.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock.errors import ConfigurationError, Overloaded
from penstock.types import Grant, SamplingPlan

GRANTS_AHEAD = 2
"""Grants an actor holds at most: the window in collection and the next one, so that it need not wait for an answer."""


@dataclass(frozen=True, slots=True)
class ActorKey:
    """One stay of one actor in the run."""

    slot: int
    incarnation: int


@dataclass(slots=True)
class _Actor:
    window_segments: int
    heard_at: float
    windows_granted: int
    silent: bool = False
    grants: deque[Grant] = field(default_factory=deque)


class Gate:
    """Hands out grants fairly: whoever has been granted the fewest windows comes first.

    With degree 0 the turn is strict, so that every environment gives the same number of segments to every batch.
    """

    def __init__(self, grant_timeout_s: float, max_actors: int) -> None:
        self._grant_timeout_s = grant_timeout_s
        self._max_actors = max_actors
        self._actors: dict[ActorKey, _Actor] = {}
        self._granted = 0
        self.plan: SamplingPlan | None = None
        self.timed_out_grants = 0

    @property
    def granted(self) -> int:
        """Segments that were granted and have not come yet."""
        return self._granted

    @property
    def actors(self) -> int:
        """Connected actors."""
        return len(self._actors)

    def adopt(self, plan: SamplingPlan) -> None:
        """Works by this plan from now on. All open grants return first.

        Raises:
            ConfigurationError: A connected actor's window could never be granted.
        """
        for key, actor in self._actors.items():
            self._check_window(plan, key, actor.window_segments)
        self.plan = plan
        for actor in self._actors.values():
            self._take_back(actor)
            actor.windows_granted = 0

    def adjust(self, plan: SamplingPlan) -> None:
        """Works by this plan from now on. Grants that are out stay good, also where fewer would be given now.

        Raises:
            ConfigurationError: A connected actor's window could never be granted.
        """
        for key, actor in self._actors.items():
            self._check_window(plan, key, actor.window_segments)
        self.plan = plan

    def connect(self, key: ActorKey, window_segments: int, now: float) -> None:
        """Takes an actor in. It counts as having had as many windows as the one that had fewest.

        Raises:
            Overloaded: There are `max_actors` already.
            ConfigurationError: Its window could never be granted.
        """
        self.disconnect(key)
        if len(self._actors) >= self._max_actors:
            raise Overloaded(f"{self._max_actors} actors are connected; raise replay.max_actors for more")
        if self.plan is not None:
            self._check_window(self.plan, key, window_segments)
        self._actors[key] = _Actor(window_segments, now, self._fewest_windows())

    def disconnect(self, key: ActorKey) -> None:
        """Forgets an actor; its grants return."""
        actor = self._actors.pop(key, None)
        if actor is not None:
            self._take_back(actor)

    def heard(self, key: ActorKey, now: float) -> None:
        """Notes a sign of life."""
        actor = self._actors.get(key)
        if actor is None:
            return
        if actor.silent:
            # In a strict turn the others would wait until it had made up for all that it missed.
            actor.windows_granted = max(actor.windows_granted, self._fewest_windows())
        actor.heard_at, actor.silent = now, False

    def spend(self, key: ActorKey) -> bool:
        """Uses the actor's oldest grant for a window that came; False if it has none."""
        actor = self._actors.get(key)
        if actor is None or not actor.grants:
            return False
        actor.grants.popleft()
        self._granted -= actor.window_segments
        return True

    def expire(self, now: float) -> None:
        """Takes back the grants of actors that have been silent for too long."""
        for actor in self._actors.values():
            if not actor.silent and now - actor.heard_at > self._grant_timeout_s:
                actor.silent = True
                self.timed_out_grants += len(actor.grants)
                self._take_back(actor)

    def issue(self, waiting_segments: int, next_batch: int) -> list[tuple[ActorKey, Grant]]:
        """Hands out every grant that there is room for.

        Args:
            waiting_segments: Unseen segments, and leased ones that are not committed.
            next_batch: The number of the first batch that is not committed.
        """
        plan = self.plan
        if plan is None:
            return []
        issued: list[tuple[ActorKey, Grant]] = []
        while True:
            turn = self._next_turn(strict=plan.off_policy_degree == 0)
            if turn is None:
                return issued
            key, actor = turn
            batch = next_batch
            if plan.fresh_segments:
                ahead = waiting_segments + self._granted + actor.window_segments
                if ahead > plan.outstanding_limit:
                    return issued
                batch += (ahead - 1) // plan.fresh_segments
            grant = Grant(batch, plan.minimum_version(batch))
            actor.grants.append(grant)
            actor.windows_granted += 1
            self._granted += actor.window_segments
            issued.append((key, grant))

    def _next_turn(self, *, strict: bool) -> tuple[ActorKey, _Actor] | None:
        awake = [(key, actor) for key, actor in self._actors.items() if not actor.silent]
        if strict and awake:
            fewest = min(actor.windows_granted for _, actor in awake)
            awake = [(key, actor) for key, actor in awake if actor.windows_granted == fewest]
        ready = [(key, actor) for key, actor in awake if len(actor.grants) < GRANTS_AHEAD]
        return min(ready, key=lambda item: (item[1].windows_granted, item[0].slot), default=None)

    def _take_back(self, actor: _Actor) -> None:
        self._granted -= len(actor.grants) * actor.window_segments
        actor.windows_granted -= len(actor.grants)
        actor.grants.clear()

    def _fewest_windows(self) -> int:
        awake = [actor for actor in self._actors.values() if not actor.silent]
        return min((actor.windows_granted for actor in awake or self._actors.values()), default=0)

    def _check_window(self, plan: SamplingPlan, key: ActorKey, window: int) -> None:
        fresh, degree = plan.fresh_segments, plan.off_policy_degree
        if fresh == 0:
            return
        if degree == 0 and fresh % window:
            raise ConfigurationError(
                f"the actor in slot {key.slot} collects windows of {window} segments, and with off_policy_degree 0 the"
                f" {fresh} fresh segments of a batch must be a multiple of that"
            )
        other = next(
            (actor.window_segments for actor in self._actors.values() if actor.window_segments != window), None
        )
        if degree == 0 and other is not None:
            raise ConfigurationError(
                f"the actor in slot {key.slot} collects windows of {window} segments and another of {other}; with"
                f" off_policy_degree 0 and {fresh} fresh segments a batch could wait for a window that does not fit:"
                " give them equally many environments"
            )
        if degree > 0 and window > degree * fresh:
            raise ConfigurationError(
                f"the actor in slot {key.slot} collects windows of {window} segments, more than off_policy_degree"
                f" {degree} times the {fresh} fresh segments of a batch; give it fewer environments"
            )
