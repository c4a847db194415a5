import math
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError, Overloaded
from penstock.replay.admission import GRANTS_AHEAD, ActorKey, Gate
from penstock.types.replay import MAX_ROUND_TRIP_WINDOWS, Grant, SamplingPlan
from tests.support.segments.segments import PLAN

TIMEOUT_S = 10.0


def make_plan(fresh: int, degree: int, publish_interval: int = 1) -> SamplingPlan:
    return replace(
        PLAN, batch_segments=fresh, fresh_segments=fresh, off_policy_degree=degree, publish_interval=publish_interval
    )


def make_gate(plan: SamplingPlan | None, windows: list[int], max_actors: int = 8) -> Gate:
    """Returns a gate with one actor per window size, in slots from 0."""
    gate = Gate(TIMEOUT_S, max_actors)
    for slot, window in enumerate(windows):
        gate.connect(actor(slot), window, 0.0)
    if plan is not None:
        gate.adopt(plan)
    return gate


def actor(slot: int) -> ActorKey:
    return ActorKey(slot, 1)


@dataclass
class World:
    """Simulates actors that join and leave, a store that only counts, and a learner, with one gate."""

    plan: SamplingPlan
    gate: Gate = field(init=False)
    now: float = 0.0
    windows: dict[ActorKey, int] = field(default_factory=dict)
    grants: dict[ActorKey, deque[Grant]] = field(default_factory=dict)
    heard_at: dict[ActorKey, float] = field(default_factory=dict)
    steps: int = 0
    unseen: int = 0
    leased: int = 0
    next_batch: int = 0

    def __post_init__(self) -> None:
        self.gate = make_gate(self.plan, [])

    def join(self, slot: int, window: int) -> None:
        self.leave(slot)
        self.gate.connect(actor(slot), window, self.now)
        self.windows[actor(slot)], self.grants[actor(slot)] = window, deque()
        self.heard_at[actor(slot)] = self.now

    def leave(self, slot: int) -> None:
        self.gate.disconnect(actor(slot))
        self.windows.pop(actor(slot), None)
        self.grants.pop(actor(slot), None)

    def hear_all(self, *, moving: bool = True, round_trip_windows: int | None = None) -> None:
        self.steps += moving
        for key in self.windows:
            self.gate.heard(key, self.now, self.steps, round_trip_windows)
            self.heard_at[key] = self.now

    def deliver(self, key: ActorKey) -> None:
        self.gate.heard(key, self.now)
        self.heard_at[key] = self.now
        assert self.gate.spend(key) == bool(self.grants[key])
        if self.grants[key]:
            self.grants[key].popleft()
            self.unseen += self.windows[key]

    def train(self) -> None:
        """Commits the leased batch and leases the next one."""
        self.next_batch += self.leased > 0
        self.leased = self.plan.fresh_segments if self.unseen >= self.plan.fresh_segments else 0
        self.unseen -= self.leased

    def replace_learner(self, jump: int) -> None:
        """Begins a new session. Leased segments become fresh again."""
        self.unseen, self.leased, self.next_batch = self.unseen + self.leased, 0, self.next_batch + jump
        self.gate.adopt(self.plan)

    def settle(self) -> None:
        """Runs the gate and checks its invariants."""
        self.gate.expire(self.now, self.next_batch)
        for key, returned in self.gate.take_returned().items():
            assert returned == len(self.grants[key]) > 0
            self.grants[key].clear()
        for key in self.windows:
            assert not self.grants[key] or self.now - self.heard_at[key] <= TIMEOUT_S
        for key, grant in self.gate.issue(self.unseen + self.leased, self.next_batch):
            self.grants[key].append(grant)
            assert self.now - self.heard_at[key] <= TIMEOUT_S
            assert self.next_batch <= grant.batch <= self.next_batch + self.plan.off_policy_degree
            assert grant.minimum_version == self.plan.minimum_version(grant.batch)
            # The learner can publish the required version without a window of the waiting actor.
            assert grant.minimum_version <= self.next_batch
        granted = sum(len(grants) * self.windows[key] for key, grants in self.grants.items())
        assert self.gate.granted == granted
        assert granted + self.unseen + self.leased <= (self.plan.off_policy_degree + 1) * self.plan.fresh_segments
        room = self.plan.outstanding_limit if self.plan.off_policy_degree else 0
        for key, grants in self.grants.items():
            assert len(grants) <= max(GRANTS_AHEAD, math.ceil(room / self.windows[key]))


@given(
    fresh=st.integers(1, 12),
    degree=st.integers(0, 4),
    publish_interval=st.integers(1, 4),
    steps=st.integers(0, 80),
    weights=st.lists(st.floats(0.0, 9.0), max_size=6).filter(lambda each: not each or any(each)),
    seed=st.integers(0, 2**32 - 1),
)
def test_outstanding_segments_stay_within_the_limit_and_training_continues_after_any_events(
    fresh: int, degree: int, publish_interval: int, steps: int, weights: list[float], seed: int
) -> None:
    chance = random.Random(seed)
    plan = make_plan(fresh, degree, publish_interval)
    world = World(replace(plan, slot_weights=tuple(weights), least_share=0.2))
    # With degree 0, all actors must have windows of one size.
    alike = chance.choice([size for size in range(1, fresh + 1) if fresh % size == 0])
    for _ in range(steps):
        match chance.choice(
            ["join", "leave", *["deliver"] * 3, "train", "train", "silence", "hear", "hear far", "hang", "replace"]
        ):
            case "join":
                world.join(chance.randrange(6), alike if degree == 0 else chance.randint(1, degree * fresh))
            case "leave":
                world.leave(chance.randrange(6))
            case "deliver" if world.windows:
                world.deliver(chance.choice(list(world.windows)))
            case "train":
                world.train()
            case "silence":
                world.now += chance.choice([1.0, 6.0, 11.0])
            case "hear":
                world.hear_all()
            case "hear far":
                world.hear_all(round_trip_windows=chance.choice([0, 1, 5, 2**31]))
            case "replace":
                world.replace_learner(chance.choice([0, 1, 50]))
            case "hang":
                world.hear_all(moving=False)
        world.settle()

    if not world.windows:
        world.join(0, alike)
    reached = world.next_batch + 5
    for _ in range(200 * (fresh + 1)):
        if world.next_batch >= reached:
            break
        world.hear_all()
        world.settle()
        for key in [key for key, grants in world.grants.items() if grants]:
            world.deliver(key)
        world.train()
    assert world.next_batch >= reached


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize("publish_interval", range(1, 5))
def test_a_grant_requires_the_newest_version_that_is_certain_to_be_published(
    degree: int, publish_interval: int
) -> None:
    plan = make_plan(4, degree, publish_interval)
    for batch in range(20):
        assert plan.minimum_version(batch) == max(
            version
            for version in range(batch + 1)
            if version % publish_interval == 0 and version <= max(0, batch - degree)
        )
        freshest = plan.minimum_version(batch)
        assert batch - freshest <= plan.largest_lag
        if batch >= degree + publish_interval:
            assert degree + publish_interval > plan.largest_lag


def test_grants_name_their_batches_in_order() -> None:
    gate = make_gate(make_plan(4, degree=2, publish_interval=2), [2, 2, 2])
    assert [grant for _, grant in gate.issue(waiting_segments=0, next_batch=7)] == [
        Grant(7, 4), Grant(7, 4), Grant(8, 6), Grant(8, 6), Grant(9, 6), Grant(9, 6)
    ]  # fmt: skip
    assert gate.granted == 12
    assert gate.issue(waiting_segments=0, next_batch=7) == []


def test_waiting_segments_reduce_the_grants() -> None:
    gate = make_gate(make_plan(4, degree=1), [2, 2])
    assert len(gate.issue(waiting_segments=5, next_batch=0)) == 1
    assert gate.issue(waiting_segments=6, next_batch=0) == []


def test_without_a_plan_nothing_is_granted() -> None:
    assert make_gate(None, [2]).issue(waiting_segments=0, next_batch=0) == []


def test_an_actor_without_a_grant_cannot_spend_one() -> None:
    gate = make_gate(make_plan(4, degree=1), [2])
    assert not gate.spend(actor(0))
    assert not gate.spend(actor(5))
    gate.issue(waiting_segments=0, next_batch=0)
    assert [gate.spend(actor(0)) for _ in range(3)] == [True, True, False]
    assert gate.granted == 0


def test_grants_of_a_silent_actor_are_revoked_and_go_to_others() -> None:
    gate = make_gate(make_plan(4, degree=0), [2, 2])
    assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=0)] == [0, 1]
    gate.heard(actor(1), 9.0)
    gate.expire(10.0, version=0)
    assert gate.granted == 4
    gate.expire(10.1, version=0)
    assert (gate.granted, gate.timed_out_grants) == (2, 1)
    assert not gate.spend(actor(0))
    assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=0)] == [1]


def test_a_silent_actor_gets_grants_again_after_a_message() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    gate.expire(11.0, version=0)
    assert gate.issue(waiting_segments=0, next_batch=0) == []
    gate.heard(actor(0), 12.0)
    assert len(gate.issue(waiting_segments=0, next_batch=0)) == 2


def beat(gate: Gate, slot: int, now: float, steps: int) -> None:
    gate.heard(actor(slot), now, steps)


@pytest.mark.parametrize("degree", [0, 1])
def test_heartbeats_without_new_steps_do_not_keep_grants(degree: int) -> None:
    gate = make_gate(make_plan(4, degree), [4, 4])
    gate.expire(0.0, version=0)
    stuck = next(key for key, _ in gate.issue(waiting_segments=0, next_batch=0)).slot
    for second in range(1, 10):
        beat(gate, stuck, second, 7)
        gate.expire(second, version=0)
        assert gate.timed_out_grants == 0
    # The first heartbeat reported steps. The later ones report no new step.
    for now in (10.0, 11.1):
        beat(gate, stuck, now, 7)
        beat(gate, 1 - stuck, now, int(now))
        gate.expire(now, version=0)
    assert gate.take_returned() == {actor(stuck): 1}
    assert (gate.timed_out_grants, gate.stuck_actors, gate.take_returned()) == (1, 1, {})
    for batch in range(5):
        # The other actor continues alone, also with strict turns.
        assert {key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=batch)} == {1 - stuck}
        while gate.spend(actor(1 - stuck)):
            pass


def test_a_stuck_actor_gets_grants_again_after_a_step_and_has_no_arrears() -> None:
    gate = make_gate(make_plan(2, degree=0), [1, 1])
    gate.expire(0.0, version=0)
    gate.issue(waiting_segments=0, next_batch=0)
    gate.heard(actor(0), 11.0)
    assert gate.spend(actor(0))
    beat(gate, 1, 11.0, 0)
    gate.expire(11.0, version=0)
    for batch in range(20):
        gate.issue(waiting_segments=0, next_batch=batch)
        while gate.spend(actor(0)):
            pass
    beat(gate, 1, 12.0, 0)
    assert gate.stuck_actors == 1
    beat(gate, 1, 13.0, 1)
    assert gate.stuck_actors == 0
    assert sorted(key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=20)) == [0, 1]


def test_a_slow_actor_keeps_its_grants() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    gate.expire(0.0, version=0)
    assert len(gate.issue(waiting_segments=0, next_batch=0)) == 2
    for second in range(300):
        beat(gate, 0, second, second // 8)
        gate.expire(second, version=0)
    assert (gate.timed_out_grants, gate.stuck_actors) == (0, 0)


def test_an_actor_that_waits_for_weights_or_for_a_grant_is_not_stuck() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    beat(gate, 0, 100.0, 0)
    gate.expire(100.0, version=0)
    assert gate.stuck_actors == 0
    # Both grants require versions that are not published yet.
    assert [grant.minimum_version for _, grant in gate.issue(waiting_segments=0, next_batch=5)] == [4, 5]
    for second in range(100, 200):
        beat(gate, 0, second, 0)
        gate.expire(second, version=3)
    assert gate.stuck_actors == 0
    beat(gate, 0, 210.0, 0)
    gate.expire(210.0, version=4)
    assert (gate.stuck_actors, gate.take_returned()) == (1, {actor(0): 2})


def test_a_window_counts_as_progress() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    gate.expire(0.0, version=0)
    gate.issue(waiting_segments=0, next_batch=0)
    for second in (9.0, 18.0):
        gate.heard(actor(0), second)
        assert gate.spend(actor(0))
        gate.expire(second, version=9)
        gate.issue(waiting_segments=0, next_batch=int(second))
    assert gate.stuck_actors == 0


def test_grants_revoked_twice_are_reported_together() -> None:
    gate = make_gate(make_plan(fresh=4, degree=3), [2])
    for now in (0.0, 11.0):
        gate.heard(actor(0), now)
        assert len(gate.issue(0, 0)) == 2
        gate.expire(now + TIMEOUT_S + 1.0, 0)
    assert gate.take_returned() == {actor(0): 4}
    assert gate.take_returned() == {}


def test_revoked_grants_do_not_count_as_received() -> None:
    gate = make_gate(make_plan(fresh=4, degree=3), [2, 2])
    gate.issue(0, 0)
    for _ in range(2):
        assert gate.spend(actor(0))
    assert [key for key, _ in gate.issue(0, 0)] == [actor(0)] * 2
    # Actor 0 has spent 2 of its 4 grants. Actor 1 has received 2 grants.
    gate.heard(actor(1), 11.0)
    gate.expire(11.0, 0)
    gate.heard(actor(0), 11.0)
    assert gate.spend(actor(1))
    # The limit allows one more window.
    assert [key for key, _ in gate.issue(12, 0)] == [actor(0)]


def test_no_returned_grants_are_reported_for_an_actor_that_has_left() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    gate.expire(0.0, version=0)
    gate.issue(waiting_segments=0, next_batch=0)
    gate.expire(11.0, version=0)
    gate.connect(actor(0), 4, 12.0)
    assert gate.take_returned() == {}


def test_grants_of_a_leaving_actor_are_returned_at_once() -> None:
    gate = make_gate(make_plan(4, degree=1), [4, 4])
    assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=0)] == [0, 1]
    gate.disconnect(actor(0))
    assert (gate.granted, gate.actors) == (4, 1)
    assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=0)] == [1]


def test_a_returning_actor_starts_without_grants() -> None:
    gate = make_gate(make_plan(4, degree=1), [4])
    gate.issue(waiting_segments=0, next_batch=0)
    gate.connect(actor(0), 4, 1.0)
    assert (gate.granted, gate.actors) == (0, 1)
    assert not gate.spend(actor(0))


def test_outstanding_grants_stay_valid_when_the_learner_is_replaced() -> None:
    gate = make_gate(make_plan(4, degree=0), [2, 2])
    gate.issue(waiting_segments=0, next_batch=0)
    assert gate.spend(actor(0))
    # The stored window and the one being collected fill the batch, so no other window is granted.
    gate.adopt(make_plan(4, degree=0))
    assert gate.issue(waiting_segments=2, next_batch=7) == []
    assert gate.spend(actor(1))


def test_outstanding_grants_count_in_a_new_session() -> None:
    gate = make_gate(make_plan(fresh=2, degree=1), [2, 2])
    assert len(gate.issue(0, 0)) == 2
    assert gate.spend(actor(1))
    gate.adopt(replace(make_plan(fresh=2, degree=1), session=8))
    assert [key for key, _ in gate.issue(0, 0)] == [actor(1)]


def test_a_new_session_begins_without_arrears() -> None:
    gate = make_gate(make_plan(2, degree=2), [2, 2])
    for _ in range(5):
        gate.issue(waiting_segments=0, next_batch=0)
        assert gate.spend(actor(0))
    for slot in (0, 1):
        while gate.spend(actor(slot)):
            pass
    gate.adopt(make_plan(4, degree=0))
    # With degree 0 turns are strict. With arrears, the slower actor would collect alone for several batches.
    assert {key for key, _ in gate.issue(waiting_segments=0, next_batch=9)} == {actor(0), actor(1)}


@pytest.mark.parametrize(
    ("windows", "before", "after", "in_force"),
    [([4, 20], 3, 2, 3), ([4, 20], 3, 1, 3), ([4], 3, 0, 0), ([16], 2, 1, 2), ([4, 8], 1, 0, 1), ([4, 20], 3, 4, 4)],
)
def test_a_lowered_degree_still_admits_every_connected_window(
    windows: list[int], before: int, after: int, in_force: int
) -> None:
    gate = make_gate(make_plan(8, before), windows)
    assert gate.adjust(make_plan(8, after)) == gate.plan == make_plan(8, in_force)
    assert len(gate.issue(waiting_segments=0, next_batch=0)) > 0


def test_actors_of_equal_speed_get_equal_numbers_of_grants() -> None:
    world = World(make_plan(6, degree=1))
    for slot in range(5):
        world.join(slot, 2)
    delivered: Counter[int] = Counter()
    for _ in range(300):
        world.settle()
        for key in [key for key, grants in world.grants.items() if grants]:
            world.deliver(key)
            delivered[key.slot] += 1
        world.train()
    assert max(delivered.values()) - min(delivered.values()) <= 1
    assert min(delivered.values()) > 50


def test_a_new_actor_gets_its_share_and_no_arrears() -> None:
    gate = make_gate(make_plan(2, degree=0), [1])
    for batch in range(50):
        assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=batch)] == [0, 0]
        assert gate.spend(actor(0))
        assert gate.spend(actor(0))
    gate.connect(actor(1), 1, 0.0)
    for batch in range(50, 60):
        assert sorted(key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=batch)) == [0, 1]
        assert gate.spend(actor(0))
        assert gate.spend(actor(1))


def test_a_silent_actor_accumulates_no_arrears() -> None:
    gate = make_gate(make_plan(2, degree=0), [1, 1])
    gate.heard(actor(0), 11.0)
    gate.expire(11.0, version=0)
    for batch in range(50):
        assert [key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=batch)] == [0, 0]
        assert gate.spend(actor(0))
        assert gate.spend(actor(0))
    gate.heard(actor(1), 12.0)
    for batch in range(50, 60):
        assert sorted(key.slot for key, _ in gate.issue(waiting_segments=0, next_batch=batch)) == [0, 1]
        assert gate.spend(actor(0))
        assert gate.spend(actor(1))


def test_with_a_degree_above_zero_a_slow_actor_does_not_delay_training() -> None:
    world = World(make_plan(2, degree=2))
    world.join(0, 1)
    world.join(1, 1)
    for _ in range(100):
        world.hear_all()
        world.settle()
        if world.grants[actor(1)]:
            world.deliver(actor(1))
        world.train()
    assert world.next_batch > 40


def test_with_degree_zero_all_actors_contribute_equally_to_each_batch() -> None:
    chance = random.Random(4)
    world = World(make_plan(24, degree=0))
    for slot in range(3):
        world.join(slot, 2)
    given_to_batch: Counter[tuple[int, int]] = Counter()
    for _ in range(2000):
        world.settle()
        key = actor(chance.choice([0, 0, 0, 1, 2]))
        if world.grants[key]:
            given_to_batch[(world.grants[key][0].batch, key.slot)] += 1
            world.deliver(key)
        world.train()
    assert world.next_batch > 30
    assert {given_to_batch[(batch, slot)] for batch in range(world.next_batch) for slot in range(3)} == {4}


def hear_far(gate: Gate, slot: int, windows: int) -> None:
    gate.heard(actor(slot), 0.0, 0, windows)


def count_grants(gate: Gate, waiting_segments: int = 0) -> dict[int, int]:
    """Returns the number of grants that the gate issues now, by slot."""
    return dict(Counter(key.slot for key, _ in gate.issue(waiting_segments, next_batch=0)))


def test_an_actor_gets_a_grant_for_each_window_of_its_round_trip_within_its_share_of_the_room() -> None:
    # The room of 9 batches is 18 windows of each actor.
    gate = make_gate(make_plan(4, degree=8), [1, 1])
    hear_far(gate, 0, 5)
    assert count_grants(gate) == {0: 7, 1: 2}
    hear_far(gate, 1, 1_000)
    assert count_grants(gate) == {1: 16}
    hear_far(gate, 0, 1_000)
    assert count_grants(gate) == {0: 11}


def test_an_actor_that_comes_closer_keeps_its_grants_and_gets_no_more() -> None:
    gate = make_gate(make_plan(4, degree=8), [1, 1])
    hear_far(gate, 0, 5)
    count_grants(gate)
    hear_far(gate, 0, 0)
    for _ in range(5):
        assert gate.spend(actor(0))
        assert count_grants(gate) == {}
    assert gate.spend(actor(0))
    assert count_grants(gate) == {0: 1}


def test_a_returning_actor_is_near_until_it_reports_its_round_trip() -> None:
    gate = make_gate(make_plan(4, degree=8), [1, 1])
    hear_far(gate, 0, 5)
    gate.connect(actor(0), 1, 0.0)
    assert count_grants(gate) == {0: 2, 1: 2}


def test_a_window_does_not_change_the_reported_round_trip() -> None:
    gate = make_gate(make_plan(4, degree=8), [1, 1])
    hear_far(gate, 0, 5)
    gate.heard(actor(0), 1.0)
    assert count_grants(gate) == {0: 7, 1: 2}


def test_with_degree_zero_the_round_trip_changes_neither_grants_nor_their_order() -> None:
    near, far = (make_gate(make_plan(8, degree=0), [2, 2]) for _ in range(2))
    hear_far(far, 1, 50)
    for _ in range(20):
        issued = far.issue(waiting_segments=0, next_batch=0)
        assert issued == near.issue(waiting_segments=0, next_batch=0)
        for key, _ in issued:
            assert near.spend(key) and far.spend(key)


def test_without_fresh_segments_only_the_round_trip_limits_the_grants() -> None:
    gate = make_gate(replace(make_plan(4, degree=1), fresh_segments=0), [1, 1])
    hear_far(gate, 1, 50)
    assert count_grants(gate) == {0: 2, 1: 52}
    hear_far(gate, 1, 2**32 - 1)
    assert count_grants(gate) == {1: MAX_ROUND_TRIP_WINDOWS - 50}


def test_an_actor_with_weights_gets_the_larger_of_its_share_and_the_windows_of_its_round_trip() -> None:
    # Shares 1.5 and 0.5: of d batches, 3 and 1 windows; of the room, 6 and 2.
    plan = replace(make_plan(4, degree=1), slot_weights=(3.0, 1.0), least_share=0.1)
    gate = make_gate(plan, [1, 1])
    hear_far(gate, 1, 50)
    issued = count_grants(gate)
    assert issued == {0: 3, 1: 2}
    hear_far(gate, 0, 50)
    assert count_grants(gate) == {0: 3}


def test_more_actors_than_configured_are_refused() -> None:
    gate = make_gate(None, [1, 1], max_actors=2)
    with pytest.raises(Overloaded, match="2 actors"):
        gate.connect(actor(2), 1, 0.0)
    gate.connect(actor(1), 1, 0.0)
    assert gate.actors == 2


@pytest.mark.parametrize(
    ("fresh", "degree", "window", "numbers"),
    [
        (6, 0, 4, "slot 0 .* 4 segments.* 6 fresh"),
        (6, 0, 12, "slot 0 .* 12 segments.* 6 fresh"),
        (6, 1, 7, "slot 0 .* 7 segments.*degree 1 .* 6 fresh"),
        (6, 2, 13, "slot 0 .* 13 segments.*degree 2 .* 6 fresh"),
    ],
)
def test_a_window_that_can_never_be_granted_is_refused_with_the_numbers(
    fresh: int, degree: int, window: int, numbers: str
) -> None:
    plan = make_plan(fresh, degree)
    with pytest.raises(ConfigurationError, match=numbers):
        make_gate(plan, []).connect(actor(0), window, 0.0)
    gate = make_gate(None, [window])
    with pytest.raises(ConfigurationError, match=numbers):
        gate.adopt(plan)
    assert gate.plan is None


@pytest.mark.parametrize(("fresh", "degree", "window"), [(6, 0, 6), (6, 0, 2), (6, 1, 6), (6, 2, 12)])
def test_the_largest_window_that_fits_is_accepted(fresh: int, degree: int, window: int) -> None:
    assert len(make_gate(make_plan(fresh, degree), [window]).issue(waiting_segments=0, next_batch=0)) > 0


def test_with_degree_zero_windows_of_two_sizes_are_refused() -> None:
    # A batch could wait for a window that does not fit.
    gate = make_gate(make_plan(4, degree=0), [2])
    with pytest.raises(ConfigurationError, match=r"slot 1 .* 4 segments.* 2"):
        gate.connect(actor(1), 4, 0.0)
    mixed = make_gate(None, [2, 4])
    with pytest.raises(ConfigurationError, match=r"4 segments.* 2|2 segments.* 4"):
        mixed.adopt(make_plan(4, degree=0))
    mixed.adopt(make_plan(4, degree=1))
