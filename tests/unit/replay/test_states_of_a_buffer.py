"""A buffer with its gate, leases and plan, in any order of actors and learners that come, go and lie."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.errors import InvalidSegment, PenstockError, SchemaMismatch, Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.segments import Lease
from penstock.types.replay import Grant, Window
from tests.support.segments.direct_buffer import append, make_buffer
from tests.support.segments.segments import PLAN, SCHEMA, make_window

ACTORS = 3
TIMEOUT_S = 10.0


class BufferStates(RuleBasedStateMachine):
    """A buffer of production and what its clients were told. Windows have one segment, so that any degree is valid."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = replace(PLAN, batch_segments=2, fresh_segments=1, off_policy_degree=2, min_replay_segments=1)
        self.buffer = make_buffer(self.plan, rows=24)
        self.now, self.session, self.version = 0.0, self.plan.session, 0
        self.incarnations = dict.fromkeys(range(ACTORS), 0)
        self.sequences = dict.fromkeys(range(ACTORS), 0)
        self.grants: dict[int, list[Grant]] = {}
        self.leases: list[Lease] = []
        self.trained: set[int] = set()
        self.sent: dict[tuple[int, int, int], int] = {}

    # Actors

    @rule(slot=st.integers(0, ACTORS - 1))
    def an_actor_comes(self, slot: int) -> None:
        self.incarnations[slot], self.sequences[slot] = self.incarnations[slot] + 1, 0
        self.buffer.gate.disconnect(ActorKey(slot, self.incarnations[slot] - 1))
        self.buffer.intakes.open(ActorKey(slot, self.incarnations[slot]), SCHEMA, 1, self.now)
        self.grants[slot] = []

    @rule(slot=st.integers(0, ACTORS - 1))
    def an_actor_goes(self, slot: int) -> None:
        self.buffer.gate.disconnect(ActorKey(slot, self.incarnations[slot]))
        self.grants.pop(slot, None)

    @precondition(lambda self: any(self.grants.values()))
    @rule(choice=st.integers(0, ACTORS - 1), behind=st.integers(0, 2))
    def an_actor_sends(self, choice: int, behind: int) -> None:
        granted = [slot for slot, grants in self.grants.items() if grants]
        slot = granted[choice % len(granted)]
        version = max(self.grants[slot].pop(0).minimum_version, self.version - behind)
        self.sequences[slot] += 1
        self.sent[slot, self.incarnations[slot], self.sequences[slot]] = version
        assert append(self.buffer, self.window(slot, self.sequences[slot], version)) == self.sequences[slot]

    @rule(slot=st.integers(0, ACTORS - 1))
    def an_actor_sends_without_a_grant(self, slot: int) -> None:
        if self.incarnations[slot] and not self.grants.get(slot):
            assert append(self.buffer, self.window(slot, self.sequences[slot] + 1, self.version)) is None

    def window(self, slot: int, first: int, version: int) -> Window:
        return make_window(first, segments=1, slot=slot, incarnation=self.incarnations[slot], version=version)

    @rule(slot=st.integers(0, ACTORS - 1))
    def an_actor_sends_again(self, slot: int) -> None:
        if self.sequences[slot]:
            before = self.buffer.counts()
            assert append(self.buffer, self.window(slot, self.sequences[slot], 0)) == self.sequences[slot]
            assert self.buffer.counts() == before

    @rule(slot=st.integers(0, ACTORS - 1), gap=st.integers(2, 5), ahead=st.integers(0, 3))
    def an_actor_lies(self, slot: int, gap: int, ahead: int) -> None:
        if not self.incarnations[slot]:
            return
        # It leaves a gap, or claims a version that nobody has published.
        first, version = self.sequences[slot] + (1 if ahead else gap), self.buffer.leases.next_number + ahead
        self.refused(InvalidSegment, lambda: append(self.buffer, self.window(slot, first, version)))

    @rule(seconds=st.sampled_from([0.1, 1.0, 11.0]), heard=st.booleans(), moving=st.booleans())
    def time_passes(self, seconds: float, heard: bool, moving: bool) -> None:
        self.now += seconds
        for slot in self.grants if heard else ():
            self.buffer.gate.heard(ActorKey(slot, self.incarnations[slot]), self.now, int(self.now) if moving else 0)

    # Learners

    @rule()
    def the_learner_draws(self) -> None:
        number = self.buffer.leases.next_number
        lease = self.buffer.leases.draw(number)
        if lease is None:
            assert self.buffer.counts().unseen < self.plan.fresh_segments
            return
        head = self.buffer.leases.head(lease, 0)
        fresh = head.keys[: head.fresh_segments].tolist()
        assert not self.trained & set(fresh)
        assert (head.ages[: head.fresh_segments] <= self.plan.largest_lag).all()
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(priority=st.floats(0.0, 10.0))
    def the_learner_commits(self, priority: float) -> None:
        lease = self.leases.pop(0)
        outcome = self.buffer.leases.commit(self.session, lease.number, lease.keys, np.full(lease.keys.size, priority))
        assert not outcome.repeated
        self.trained |= set(lease.keys[: lease.fresh_segments].tolist())
        self.version = lease.number + 1
        again = self.buffer.leases.commit(self.session, lease.number, lease.keys, np.ones(lease.keys.size))
        assert again.repeated

    @rule(batches=st.integers(1, 6), behind=st.integers(0, 2))
    def all_work(self, batches: int, behind: int) -> None:
        for _ in range(batches):
            self.grants_and_segments_are_bounded()
            for choice in range(ACTORS):
                if any(self.grants.values()):
                    self.an_actor_sends(choice, behind)
            self.the_learner_draws()
            if self.leases:
                self.the_learner_commits(1.0)

    @rule(jump=st.sampled_from([0, 1, 40]))
    def another_learner_takes_over(self, jump: int) -> None:
        self.session += 1
        self.version = self.buffer.version + jump
        self.buffer.adopt_plan(replace(self.plan, session=self.session, next_batch=self.version))
        self.leases.clear()
        # Its streams end, and the grants with them.
        for slot in list(self.grants):
            self.buffer.gate.disconnect(ActorKey(slot, self.incarnations[slot]))
            self.buffer.intakes.open(ActorKey(slot, self.incarnations[slot]), SCHEMA, 1, self.now)
            self.grants[slot] = []

    @rule()
    def the_learner_returns(self) -> None:
        self.buffer.adopt_plan(replace(self.plan, session=self.session, next_batch=self.version), connected=True)

    @rule(session=st.integers(100, 105), ahead=st.integers(0, 50))
    def a_learner_lies_about_its_session(self, session: int, ahead: int) -> None:
        plan = replace(self.plan, session=10**6 + session, next_batch=self.buffer.version + ahead)
        self.refused(Unavailable, lambda: self.buffer.adopt_plan(plan, connected=True))
        keys = np.arange(1, 4, dtype=np.uint64)
        commit = self.buffer.leases.commit
        self.refused(SchemaMismatch, lambda: commit(10**6 + session, self.version, keys, np.ones(3)))
        behind = replace(self.plan, session=10**6 + session, next_batch=self.buffer.version - 1)
        if behind.next_batch >= 0 and self.sent:
            self.refused(SchemaMismatch, lambda: self.buffer.adopt_plan(behind))

    @rule(ahead=st.integers(1, 3))
    def a_learner_lies_about_a_batch(self, ahead: int) -> None:
        number = self.buffer.leases.next_number + ahead
        self.refused(InvalidSegment, lambda: self.buffer.leases.draw(number))
        if self.buffer.store.schema is None:
            return
        keys = np.arange(1, 4, dtype=np.uint64)
        self.refused(InvalidSegment, lambda: self.buffer.leases.commit(self.session, number, keys, np.ones(3)))

    def refused(self, error: type[PenstockError], call: Callable[[], object]) -> None:
        before = (self.buffer.counts(), self.buffer.version, self.buffer.session)
        try:
            call()
        except error:
            pass
        else:
            raise AssertionError(f"no {error.__name__}")
        assert (self.buffer.counts(), self.buffer.version, self.buffer.session) == before

    # What always holds

    @invariant()
    def grants_and_segments_are_bounded(self) -> None:
        issued = self.buffer.intakes.issue_grants(self.now)
        for key, count in self.buffer.intakes.take_returned().items():
            del self.grants[key.slot][:count]
        for key, grant in issued:
            assert key.incarnation == self.incarnations[key.slot]
            assert grant.minimum_version <= self.version + self.plan.off_policy_degree
            self.grants[key.slot].append(grant)
        counts = self.buffer.counts()
        assert counts.granted == sum(map(len, self.grants.values()))
        limit = (self.plan.off_policy_degree + 1) * self.plan.fresh_segments
        assert counts.granted + counts.unseen + counts.leased <= limit

    @invariant()
    def each_segment_is_stored_once(self) -> None:
        headers = self.buffer.store.headers if self.buffer.store.schema is not None else ()
        names = [(int(row["slot"]), int(row["incarnation"]), int(row["sequence"])) for row in headers if row["key"]]
        assert len(set(names)) == len(names)
        for row in headers:
            if row["key"]:
                name = (int(row["slot"]), int(row["incarnation"]), int(row["sequence"]))
                assert self.sent[name] == row["version"]

    @invariant()
    def the_root_is_the_sum_of_the_leaves(self) -> None:
        index = self.buffer._segments.index
        if index is not None:
            np.testing.assert_allclose(index._tree.total, index._tree.masses.sum(), rtol=1e-9)


TestBufferStates = BufferStates.TestCase
TestBufferStates.settings = settings(stateful_step_count=60)
