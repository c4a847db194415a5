"""Tests the whole buffer: plans, sessions, restarts and the limit on outstanding segments."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigurationError, NotReady, SchemaMismatch
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import Batch, CommitOutcome
from tests.support.segments.direct_buffer import (
    Actor,
    append,
    commit,
    gather,
    make_buffer,
    make_open_buffer,
    take,
    train,
)
from tests.support.segments.segments import PLAN, capacity_bytes, make_window


def test_granted_unseen_and_leased_segments_never_exceed_the_limit() -> None:
    chance = random.Random(5)
    plan = replace(PLAN, off_policy_degree=2, fresh_segments=3, batch_segments=5)
    buffer = make_buffer(plan)
    actors = [Actor(buffer, slot=slot, segments=slot + 1) for slot in range(4)]
    leased: list[Batch] = []
    for _ in range(600):
        actor = chance.choice(actors)
        if append(buffer, actor.next_window(len(leased)), 0.0) is not None:
            actor.sent += actor.segments
        if chance.random() < 0.3 and (lease := buffer.leases.draw(plan.next_batch + len(leased))) is not None:
            leased.append(gather(buffer, lease))
        uncommitted = [batch for batch in leased if batch.number >= buffer.version]
        if chance.random() < 0.3 and uncommitted:
            commit(buffer, uncommitted[0])
        buffer.intakes.issue_grants(0.0)
        counts = buffer.counts()
        assert counts.granted + counts.unseen + counts.leased <= plan.outstanding_limit
    assert len(leased) > 50


def test_each_segment_is_committed_fresh_exactly_once_when_learners_die() -> None:
    chance = random.Random(6)
    plan = replace(PLAN, off_policy_degree=3)
    buffer = make_buffer(plan)
    actors = [Actor(buffer, slot=slot, segments=slot + 1) for slot in range(3)]
    committed: Counter[int] = Counter()
    held: list[Batch] = []
    next_commit = 0
    for _ in range(1500):
        buffer.intakes.issue_grants(0.0)
        actor = chance.choice(actors)
        if append(buffer, actor.next_window(next_commit), 0.0) is not None:
            actor.sent += actor.segments
        match chance.choice(["lease", "lease", "commit", "commit", "die"] if chance.random() < 0.9 else ["die"]):
            case "lease":
                if buffer.leases.draw(next_commit + len(held)) is not None:
                    held.append(take(buffer, next_commit + len(held)))
            case "commit" if held:
                batch = held.pop(0)
                commit(buffer, batch, session=plan.session)
                committed.update(batch.keys[: batch.fresh_segments].tolist())
                next_commit += 1
            case "die" if chance.random() < 0.2:
                plan = replace(plan, session=plan.session + 1, next_batch=next_commit)
                buffer.adopt_plan(plan)
                held.clear()
    counts = buffer.counts()
    assert counts.late == 0
    assert next_commit > 200
    assert buffer.counts().refunded > 20
    assert set(committed.values()) == {1}
    assert len(committed) == counts.inserted - counts.unseen - counts.leased


def test_without_a_plan_there_are_neither_grants_nor_batches() -> None:
    buffer = make_buffer(plan=None)
    Actor(buffer)
    assert buffer.intakes.issue_grants(0.0) == []
    assert buffer.collection_waits_for() == buffer.training_waits_for() == "learner"
    with pytest.raises(NotReady):
        buffer.leases.draw(0)


def test_leases_survive_a_new_stream_of_the_same_session() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    first, second = take(buffer, 0), take(buffer, 1)
    buffer.adopt_plan(PLAN)
    assert buffer.counts().leased == 4
    assert take(buffer, 1).keys.tolist() == second.keys.tolist()
    commit(buffer, first)
    commit(buffer, second)
    assert buffer.counts().refunded == 0


def test_a_new_session_returns_leased_segments_in_their_order() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    dead, _ = take(buffer, 0), take(buffer, 1)
    buffer.adopt_plan(replace(PLAN, session=8))
    assert buffer.counts().refunded == buffer.counts().refunded == 4
    assert take(buffer, 0).keys.tolist() == [1, 2]
    assert take(buffer, 1).keys.tolist() == [3, 4]
    with pytest.raises(SchemaMismatch, match="another learner session"):
        commit(buffer, dead)


def test_outstanding_grants_survive_plan_changes() -> None:
    buffer = make_buffer()
    Actor(buffer)
    buffer.intakes.issue_grants(0.0)
    assert buffer.counts().granted == 4
    with pytest.raises(ConfigurationError):
        buffer.adopt_plan(replace(PLAN, session=8, off_policy_degree=100))
    assert buffer.counts().granted == 4
    assert (buffer.gate.plan, buffer.session) == (PLAN, PLAN.session)
    buffer.adopt_plan(PLAN)
    assert buffer.counts().granted == 4
    buffer.adopt_plan(replace(PLAN, alpha=PLAN.alpha / 2))
    buffer.adopt_plan(replace(PLAN, session=8))
    assert buffer.counts().granted == 4


def test_a_store_too_small_for_the_plan_is_refused_with_the_numbers() -> None:
    numbers = "holds 7 segments, and off_policy_degree 1 with batches of 4 needs 8"
    early = make_buffer(PLAN, rows=7)
    with pytest.raises(ConfigurationError, match=numbers):
        Actor(early)
    late = make_buffer(None, rows=7)
    Actor(late)
    with pytest.raises(ConfigurationError, match=numbers):
        late.adopt_plan(PLAN)
    Actor(make_buffer(PLAN, rows=8))


def test_a_restart_restores_the_leases_of_the_current_session(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    actor = Actor(buffer)
    train(buffer, actor, range(2))
    actor.send(version=2)
    actor.send(version=2)
    held, ahead = take(buffer, 2), take(buffer, 3)
    before = buffer.counts()

    again = make_buffer(plan=None, folder=tmp_path)
    assert again.counts() == before
    again.adopt_plan(PLAN)
    assert again.counts() == before
    assert take(again, 3).keys.tolist() == ahead.keys[:2].tolist()
    assert commit(again, held) == CommitOutcome(updated=4, overwritten=0)
    assert commit(again, ahead) == CommitOutcome(updated=4, overwritten=0)
    assert again.counts().refunded == 0
    assert Actor(again).sent == 8


def test_a_restart_does_not_change_later_batches(tmp_path: Path) -> None:
    drawn = []
    for folder in (None, tmp_path):
        buffer = make_buffer(replace(PLAN, batch_segments=12), folder=folder)
        actor = Actor(buffer)
        for number in range(8):
            actor.send(version=number)
            batch = take(buffer, number)
            commit(buffer, batch, batch.keys.astype(np.float64))
        actor.send(version=8)
        if folder is not None:
            buffer = make_buffer(replace(PLAN, batch_segments=12), folder=folder)
        batch = take(buffer, 8)
        drawn.append((batch.keys.tolist(), batch.priorities.tolist(), batch.head.probabilities.tolist()))
    assert drawn[0] == drawn[1]


def test_a_new_session_after_a_restart_returns_leased_segments(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    Actor(buffer).send()
    take(buffer, 0)
    again = make_buffer(replace(PLAN, session=8), folder=tmp_path)
    assert again.counts().refunded == 2
    assert take(again, 0).keys.tolist() == [1, 2]


def test_a_commit_before_the_plan_after_a_restart_can_be_repeated(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    actor = Actor(buffer)
    actor.send()
    batch = take(buffer, 0)
    again = make_buffer(plan=None, folder=tmp_path)
    with pytest.raises(NotReady):
        commit(again, batch)
    again.adopt_plan(PLAN)
    assert commit(again, batch).updated == 2


@pytest.mark.parametrize("lost", [[4], [1, 2, 3, 4]])
def test_keys_of_lost_rows_are_not_used_again(tmp_path: Path, lost: list[int]) -> None:
    store = RingStore(tmp_path, capacity_bytes(40))
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    buffer.adopt_plan(PLAN)
    actor = Actor(buffer)
    train(buffer, actor, range(2))
    store.headers["checksum"][lost] ^= np.uint64(1)
    again = make_buffer(folder=tmp_path)
    Actor(again).send(version=2)
    assert take(again, 2).keys[:2].tolist() == [5, 6]


def test_without_fresh_segments_windows_are_replayed_at_once_with_the_largest_priority() -> None:
    buffer = make_open_buffer(segments=2)
    buffer.adopt_plan(replace(PLAN, session=9, fresh_segments=0, batch_segments=6, min_replay_segments=2))
    assert buffer.leases.draw(0) is None
    assert buffer.training_waits_for() == "fresh segments"
    for sequence in (1, 3, 5, 7, 9, 11, 13):
        # The store has 12 rows and no batch is committed, but the gate stays open.
        buffer.intakes.issue_grants(0.0)
        assert append(buffer, make_window(sequence), 0.0) == sequence + 1
    lease = buffer.leases.draw(0)
    assert lease is not None
    assert (lease.fresh_segments, lease.keys.size) == (0, 6)
    assert set(lease.keys.tolist()) <= set(range(3, 15))
    assert lease.priorities.tolist() == [1.0] * 6
    buffer.leases.commit(9, 0, lease.keys, np.full(6, 5.0))
    buffer.intakes.issue_grants(0.0)
    append(buffer, make_window(15), 0.0)
    assert buffer.store.headers["priority"][buffer.store.rows(np.array([15], np.uint64))].tolist() == [5.0]


def test_a_plan_without_fresh_segments_makes_unseen_segments_replayable() -> None:
    buffer = make_open_buffer(segments=4)
    append(buffer, make_window(1, segments=4), 0.0)
    buffer.adjust_plan(replace(PLAN, fresh_segments=0, batch_segments=4))
    lease = buffer.leases.draw(0)
    assert lease is not None
    assert (buffer.counts().unseen, lease.fresh_segments, lease.keys.size) == (0, 0, 4)


def test_an_adjusted_plan_opens_the_gate_and_keeps_grants_and_leases() -> None:
    buffer = make_open_buffer(rows=60, segments=2)
    for sequence in (1, 3, 5, 7):
        buffer.intakes.issue_grants(0.0)
        assert append(buffer, make_window(sequence), 0.0) == sequence + 1
    assert buffer.intakes.issue_grants(0.0) == []
    lease = buffer.leases.draw(0)
    buffer.adjust_plan(replace(PLAN, batch_segments=4, fresh_segments=4, off_policy_degree=2))
    granted = buffer.intakes.issue_grants(0.0)
    assert [grant.batch for _, grant in granted] == [2, 2]
    buffer.adjust_plan(replace(PLAN, batch_segments=4, fresh_segments=4, off_policy_degree=1))
    # The new plan allows fewer grants, but outstanding grants stay valid.
    assert buffer.counts().granted == 4
    assert append(buffer, make_window(9), 0.0) == 10
    assert lease is not None
    assert buffer.leases.draw(0) is lease
    assert buffer.leases.commit(PLAN.session, 0, lease.keys, np.ones(4)).updated == 4
