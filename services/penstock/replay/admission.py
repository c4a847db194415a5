"""The gate: it decides which actor may collect a window, for which batch, and with which weights.

Batches are numbered, and batch k is trained at version k. Collection may run `off_policy_degree` batches ahead of
training, so granted + unseen + leased segments never exceed (d + 1) F. A grant permits an actor to collect one window.
See docs/design-replay.md, "The gate".

Grants are shared by stride scheduling (Waldspurger & Weihl 1995, section 2): each grant advances the pass of its actor
by 1 / share, and the actor with the lowest pass goes first. The shares follow from the plan's weights of the slots.
Without weights all shares are equal, so the pass is the number of granted windows.

The module takes times as arguments and never blocks. Its callers hold the buffer's lock.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from penstock.errors import ConfigurationError, Overloaded
from penstock.gate_law import least_degree, share_conflict, window_conflict
from penstock.types.replay import MAX_ROUND_TRIP_WINDOWS, Grant, SamplingPlan

GRANTS_AHEAD = 2
"""Number of grants that an actor may always have: one for the window in collection, and one so that it need not wait.
A distant actor, or one with weights, may have more (`Gate._allowance`)."""


@dataclass(frozen=True, slots=True)
class ActorKey:
    """One incarnation of an actor."""

    slot: int
    incarnation: int


@dataclass(slots=True)
class _Actor:
    window_segments: int
    heard_at: float
    moved_at: float
    """Monotonic time in seconds when it last made progress or had nothing to do."""
    passed: float
    """Pass of stride scheduling: sum of the strides of its grants. A stride is 1 with an equal share."""
    stride: float = 1.0
    """Stride of its latest grant."""
    steps: int = 0
    round_trip_windows: int = 0
    silent: bool = False
    stuck: bool = False
    grants: deque[Grant] = field(default_factory=deque)

    @property
    def served(self) -> bool:
        """Whether the actor gets grants."""
        return not self.silent and not self.stuck


class Gate:
    """Issues grants by share: the actor with the lowest pass goes first.

    With degree 0 the turns are strict and all shares are equal, so that every environment contributes the same number
    of segments to every batch. Otherwise, if the actor with the lowest pass has all the grants that it may have, the
    next one gets the grant: no room is left unused for an actor that can't use it. Shares therefore equal the plan's
    shares if training is slower than collection. If training waits, actors collect at their own speeds.

    An actor loses its grants if, for `grant_timeout_s`, it is silent (sends nothing) or stuck (could step its
    environments and does not), so that other actors can use them. It gets grants again when it is heard or makes
    progress, respectively.

    Attributes:
        granted: Number of segments that were granted and have not arrived.
        plan: Plan in force; None before the first.
        timed_out_grants: Number of grants revoked from silent and stuck actors.
    """

    def __init__(self, grant_timeout_s: float, max_actors: int) -> None:
        self._grant_timeout_s = grant_timeout_s
        self._max_actors = max_actors
        self._actors: dict[ActorKey, _Actor] = {}
        self.granted = 0
        self._returned: dict[ActorKey, int] = {}
        self.plan: SamplingPlan | None = None
        self.timed_out_grants = 0

    @property
    def actors(self) -> int:
        """Number of connected actors."""
        return len(self._actors)

    @property
    def stuck_actors(self) -> int:
        """Number of connected actors that lost their grants and have not resumed."""
        return sum(not actor.served for actor in self._actors.values())

    def adopt(self, plan: SamplingPlan) -> None:
        """Adopts the plan of a new session.

        Outstanding grants count until the streams of their actors end, which `adopt` does not do. A window that was
        collected under such a grant takes the first grant of its actor's next stream, so it is not late.

        Raises:
            ConfigurationError: The window of a connected actor could never be granted, or shares exclude a slot.
        """
        _check_shares(plan)
        for key, actor in self._actors.items():
            self._check_window(plan, key, actor.window_segments)
        self.plan = plan
        for actor in self._actors.values():
            # Under another degree, turns may have been unequal. Actors do not make up for that in this session.
            actor.passed = len(actor.grants) * actor.stride

    def adjust(self, plan: SamplingPlan) -> SamplingPlan:
        """Adopts a changed plan of the same session. Outstanding grants stay valid even if they exceed its limit.

        Returns:
            The plan in force. If its degree is too low for the window of a connected actor, it is raised to the lowest
            sufficient one. The actor was admitted under another plan, and a lower degree must not end the run.

        Raises:
            ConfigurationError: Shares exclude a slot.
        """
        _check_shares(plan)
        windows = {actor.window_segments for actor in self._actors.values()}
        degree = max(plan.off_policy_degree, least_degree(plan.fresh_segments, windows))
        self.plan = replace(plan, off_policy_degree=degree)
        return self.plan

    def connect(self, key: ActorKey, window_segments: int, now: float) -> None:
        """Adds an actor. Its pass starts at the lowest pass of the others.

        Raises:
            Overloaded: `max_actors` actors are connected already.
            ConfigurationError: The actor's window could never be granted.
        """
        self.disconnect(key)
        if len(self._actors) >= self._max_actors:
            raise Overloaded(f"{self._max_actors} actors are connected; raise replay.max_actors for more")
        if self.plan is not None:
            self._check_window(self.plan, key, window_segments)
        self._actors[key] = _Actor(window_segments, now, now, self._lowest_pass())

    def disconnect(self, key: ActorKey) -> None:
        """Removes an actor and revokes its grants."""
        actor = self._actors.pop(key, None)
        self._returned.pop(key, None)
        if actor is not None:
            self._take_back(actor)

    def heard(self, key: ActorKey, now: float, steps: int | None = None, round_trip_windows: int | None = None) -> None:
        """Records a sign of life at monotonic time `now` in seconds.

        `steps` is the number of environment steps that the actor has taken, and `round_trip_windows` the number of
        windows that it collects during a round trip, both from a heartbeat. They are None for a window, which is
        progress in itself.
        """
        actor = self._actors.get(key)
        if actor is None:
            return
        moved = steps is None or steps != actor.steps
        if not actor.served and (moved or not actor.stuck):
            # In strict turns the others would otherwise wait until it has made up for every turn that it missed.
            actor.passed = max(actor.passed, self._lowest_pass())
        actor.heard_at, actor.silent = now, False
        if round_trip_windows is not None:
            actor.round_trip_windows = min(round_trip_windows, MAX_ROUND_TRIP_WINDOWS)
        if moved:
            actor.moved_at, actor.stuck = now, False
            actor.steps = actor.steps if steps is None else steps

    def spend(self, key: ActorKey) -> bool:
        """Spends the actor's oldest grant on a window that arrived. Returns False if it has none."""
        actor = self._actors.get(key)
        if actor is None or not actor.grants:
            return False
        actor.grants.popleft()
        self.granted -= actor.window_segments
        return True

    def expire(self, now: float, version: int) -> None:
        """Revokes the grants of actors that were silent or stuck for longer than the timeout.

        `version` is the version after the last commit. Its weights are published.
        """
        for key, actor in self._actors.items():
            if not actor.grants or actor.grants[0].minimum_version > version:
                actor.moved_at = now
            silent = now - actor.heard_at > self._grant_timeout_s
            stuck = now - actor.moved_at > self._grant_timeout_s
            if actor.served and (silent or stuck):
                actor.silent, actor.stuck = silent, stuck
                if actor.grants:
                    self._returned[key] = self._returned.get(key, 0) + len(actor.grants)
                self.timed_out_grants += len(actor.grants)
                self._take_back(actor)

    def take_returned(self) -> dict[ActorKey, int]:
        """Returns how many grants `expire` revoked since the last call, by actor. Each actor must be notified."""
        returned, self._returned = self._returned, {}
        return returned

    def issue(self, waiting_segments: int, next_batch: int) -> list[tuple[ActorKey, Grant]]:
        """Issues every grant for which there is room.

        `waiting_segments` are unseen, leased or arriving. `next_batch` is the first uncommitted batch.
        """
        plan = self.plan
        if plan is None:
            return []
        issued: list[tuple[ActorKey, Grant]] = []
        smallest = min((actor.window_segments for actor in self._actors.values()), default=0)
        if plan.fresh_segments and waiting_segments + self.granted + smallest > plan.outstanding_limit:
            # Most calls end here, before the shares are computed.
            return issued
        shares = self._shares(plan)
        while True:
            turn = self._next_turn(plan, shares)
            if turn is None:
                return issued
            key, actor = turn
            batch = next_batch
            if plan.fresh_segments:
                ahead = waiting_segments + self.granted + actor.window_segments
                if ahead > plan.outstanding_limit:
                    return issued
                batch += (ahead - 1) // plan.fresh_segments
            grant = Grant(batch, plan.minimum_version(batch))
            actor.grants.append(grant)
            actor.stride = 1.0 / shares.get(key, 1.0)
            if shares:
                room = plan.outstanding_limit / (actor.window_segments * len(shares))
                self._limit_arrears(actor.passed - actor.stride - room)
            actor.passed += actor.stride
            self.granted += actor.window_segments
            issued.append((key, grant))

    def _shares(self, plan: SamplingPlan) -> Mapping[ActorKey, float]:
        """Returns the shares of the actors that get grants, relative to an equal share; empty if all are equal."""
        served = [key for key, actor in self._actors.items() if actor.served]
        shares = plan.relative_shares([key.slot for key in served])
        return {} if set(shares) <= {1.0} else dict(zip(served, shares, strict=True))

    def _next_turn(self, plan: SamplingPlan, shares: Mapping[ActorKey, float]) -> tuple[ActorKey, _Actor] | None:
        served = [(key, actor) for key, actor in self._actors.items() if actor.served]
        if plan.off_policy_degree == 0 and served:
            lowest = min(actor.passed for _, actor in served)
            served = [(key, actor) for key, actor in served if actor.passed == lowest]
        ready = [
            (key, actor)
            for key, actor in served
            if len(actor.grants)
            < self._allowance(plan, actor, shares.get(key, 1.0) / len(served), weighted=bool(shares))
        ]
        return min(ready, key=lambda item: (item[1].passed, item[0].slot), default=None)

    def _limit_arrears(self, least: float) -> None:
        """Raises passes to at least `least`: an actor that could not use its turns makes up for one room of them.

        An actor with a large share that was too slow for it would otherwise get every grant when it is fast again.
        """
        for actor in self._actors.values():
            actor.passed = max(actor.passed, least)

    def _allowance(self, plan: SamplingPlan, actor: _Actor, share: float, *, weighted: bool) -> int:
        """Returns how many grants an actor with this share of all collection may have.

        Two suffice on the service's host. A distant actor also needs one for each window of a round trip: those on
        their way to the service, whose grants are not spent yet, and those on its way to the actor. It may have them up
        to its share of the room, so that it takes nothing from others. Its own estimate is therefore harmless.

        With weights, an actor may have its share of the windows of d batches, because a commit makes room for a whole
        batch at once. With two grants at a time, an actor with a large share would get no more windows of it than any
        other. Of the room of d + 1 batches, one remains for others, so that training continues without slow actors.

        With degree 0, the room of one batch is divided by strict turns, and an actor has two.
        """
        if plan.off_policy_degree == 0:
            return GRANTS_AHEAD
        needed = GRANTS_AHEAD + actor.round_trip_windows
        if not plan.fresh_segments:
            return needed
        batch_windows = plan.fresh_segments / actor.window_segments
        least = math.ceil(share * plan.off_policy_degree * batch_windows) if weighted else 0
        return max(GRANTS_AHEAD, least, min(needed, math.ceil(share * (plan.off_policy_degree + 1) * batch_windows)))

    def _take_back(self, actor: _Actor) -> None:
        self.granted -= len(actor.grants) * actor.window_segments
        actor.passed -= len(actor.grants) * actor.stride
        actor.grants.clear()

    def _lowest_pass(self) -> float:
        served = [actor for actor in self._actors.values() if actor.served]
        return min((actor.passed for actor in served or self._actors.values()), default=0.0)

    def _check_window(self, plan: SamplingPlan, key: ActorKey, window: int) -> None:
        sizes = (actor.window_segments for actor in self._actors.values() if actor.window_segments != window)
        reason = window_conflict(plan.fresh_segments, plan.off_policy_degree, window, next(sizes, None))
        if reason is not None:
            raise ConfigurationError(f"the actor in slot {key.slot} is refused: {reason}")


def _check_shares(plan: SamplingPlan) -> None:
    reason = share_conflict(plan.least_share) if plan.slot_weights else None
    if reason is not None:
        raise ConfigurationError(reason)
