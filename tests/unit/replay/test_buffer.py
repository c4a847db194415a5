import random
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.direct_buffer import append, gather, intake_of
from helpers.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window
from penstock.errors import ConfigurationError, InvalidSegment, NotReady, Overloaded, PlaceLost, SchemaMismatch
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.fresh_segments import Lease
from penstock.replay.leases import MAX_LEASES
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Schema
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan, StoreCounts, Window, WindowHead
from penstock.types.run import LARGEST_VERSION_JUMP

FRESH_ONLY = replace(PLAN, batch_segments=2)


def make_buffer(plan: SamplingPlan | None = PLAN, *, rows: int = 40, folder: Path | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(RingStore(folder, capacity_bytes(rows)), Gate(10.0, max_actors=8))
    if plan is not None:
        buffer.adopt_plan(plan)
    return buffer


@dataclass
class Actor:
    """Sends windows in sequence. With one actor, sequences and keys are the same numbers."""

    buffer: ReplayBuffer
    slot: int = 0
    segments: int = 2
    incarnation: int = 1
    sent: int = 0

    def __post_init__(self) -> None:
        self.intake = self.buffer.open_actor(self.key, SCHEMA, self.segments, 0.0)
        self.sent = self.intake.stored_sequence

    @property
    def key(self) -> ActorKey:
        return ActorKey(self.slot, self.incarnation)

    def next_window(self, version: int) -> Window:
        return make_window(
            self.sent + 1, segments=self.segments, slot=self.slot, incarnation=self.incarnation, version=version
        )

    def send(self, version: int = 0) -> None:
        self.buffer.issue_grants(0.0)
        assert append(self.buffer, self.next_window(version), 0.0) == self.sent + self.segments
        self.sent += self.segments


def knows_version(buffer: ReplayBuffer, head: WindowHead) -> bool:
    return intake_of(buffer, head).knows_version(head)


def take(buffer: ReplayBuffer, number: int) -> Batch:
    lease = buffer.leases.draw(number)
    assert lease is not None
    return gather(buffer, lease)


def commit(
    buffer: ReplayBuffer, batch: Batch, priorities: NDArray[np.float64] | float = 1.0, session: int = PLAN.session
) -> CommitOutcome:
    values = np.broadcast_to(np.asarray(priorities, np.float64), batch.keys.shape).copy()
    return buffer.leases.commit(session, batch.number, batch.keys, values)


def train(
    buffer: ReplayBuffer, actor: Actor, batches: range, priority: float = 1.0, session: int = PLAN.session
) -> None:
    for number in batches:
        actor.send(version=number)
        commit(buffer, take(buffer, number), priority, session)


# Appending


def test_a_window_comes_back_as_a_fresh_batch() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    batch = take(buffer, 0)
    assert batch.fresh_segments == 2
    assert batch.head.probabilities.tolist() == [1.0, 1.0]
    assert batch.priorities.tolist() == [0.0, 0.0]
    assert batch.versions.tolist() == [0, 0]
    assert_same_columns(batch.columns, make_columns([(0, 1, 1), (0, 1, 2)]))


def test_a_resend_stores_nothing_twice() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    before = buffer.counts()
    assert append(buffer, make_window(1), 0.0) == 4
    assert append(buffer, make_window(3), 0.0) == 4
    assert buffer.counts() == before


def test_of_a_window_that_is_known_in_part_the_rest_is_stored() -> None:
    buffer = make_buffer(replace(FRESH_ONLY, off_policy_degree=2))
    actor = Actor(buffer)
    actor.send()
    buffer.issue_grants(0.0)
    assert append(buffer, make_window(2), 0.0) == 3
    assert buffer.counts().inserted == 3
    buffer.issue_grants(0.0)
    assert append(buffer, make_window(3), 0.0) == 4
    commit(buffer, take(buffer, 0))
    assert_same_columns(take(buffer, 1).columns, make_columns([(0, 1, 3), (0, 1, 4)]))


def test_a_gap_in_the_sequence_is_refused_and_names_what_was_due() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    buffer.issue_grants(0.0)
    with pytest.raises(InvalidSegment, match="sequence 4 after 2: 3 was expected"):
        append(buffer, make_window(4), 0.0)
    assert buffer.counts().inserted == 2


def test_a_window_without_a_grant_waits_and_is_taken_once_there_is_one() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    assert append(buffer, actor.next_window(0), 0.0) is None
    assert buffer.counts().inserted == 0
    actor.send()


def test_an_actor_that_comes_back_learns_what_is_stored() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.intake.close()
    assert buffer.counts().granted == 0
    assert Actor(buffer).sent == 2


def test_an_actor_whose_slot_was_taken_is_refused() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    Actor(buffer, incarnation=2).send()
    with pytest.raises(PlaceLost, match="join again"):
        append(buffer, actor.next_window(0), 0.0)
    with pytest.raises(PlaceLost, match="join again"):
        Actor(buffer)


@pytest.mark.parametrize(
    ("segments", "reason"), [(0, "must have segments"), (41, "1 to 40 segments, slot 0 announced 41")]
)
def test_an_impossible_window_is_refused(segments: int, reason: str) -> None:
    with pytest.raises(InvalidSegment, match=reason):
        Actor(make_buffer(plan=None), segments=segments)


def test_another_schema_is_refused() -> None:
    buffer = make_buffer()
    Actor(buffer)
    with pytest.raises(SchemaMismatch, match="start a new run"):
        buffer.open_actor(ActorKey(1, 1), Schema(2, SCHEMA.columns), 2, 0.0)


def test_what_is_granted_unseen_and_leased_keeps_the_limit() -> None:
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
        buffer.issue_grants(0.0)
        counts = buffer.counts()
        assert counts.granted + counts.unseen + counts.leased <= plan.outstanding_limit
    assert len(leased) > 50


def test_a_refused_append_changes_nothing() -> None:
    # Late windows leave the gate at once, so the ring comes round to a row that is leased, beside one that is seen.
    buffer = make_buffer(rows=9)
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    take(buffer, 3)
    for _ in range(3):
        actor.send(version=0)
        assert buffer.leases.draw(4) is None
    buffer.issue_grants(0.0)
    for _ in range(2):
        with pytest.raises(Overloaded, match="9 rows"):
            append(buffer, actor.next_window(0), 0.0)
        assert buffer.counts() == StoreCounts(capacity=9, stored=9, leased=2, inserted=14, late=6)
        buffer.issue_grants(0.0)


# Batches


def test_every_segment_is_committed_fresh_exactly_once_whoever_dies() -> None:
    chance = random.Random(6)
    plan = replace(PLAN, off_policy_degree=3)
    buffer = make_buffer(plan)
    actors = [Actor(buffer, slot=slot, segments=slot + 1) for slot in range(3)]
    committed: Counter[int] = Counter()
    held: list[Batch] = []
    next_commit = 0
    for _ in range(1500):
        buffer.issue_grants(0.0)
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


def test_batches_are_ordered_by_environment_and_key_whatever_the_arrival() -> None:
    plan = replace(PLAN, fresh_segments=12, batch_segments=12)
    batches = []
    for order in ([0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 0, 1], [1, 1, 0, 2, 2, 0]):
        buffer = make_buffer(plan)
        actors = [Actor(buffer, slot=slot) for slot in range(3)]
        for slot in order:
            actors[slot].send()
        batches.append(take(buffer, 0))
    by_environment = [(slot, 1, sequence) for slot in range(3) for sequence in (1, 3, 2, 4)]
    for batch in batches:
        assert_same_columns(batch.columns, make_columns(by_environment))


def test_a_leased_batch_is_handed_out_again_as_it_was() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    assert take(buffer, 0).keys.tolist() == take(buffer, 0).keys.tolist() == [1, 2]
    assert buffer.counts().leased == 2


def test_without_enough_fresh_segments_there_is_no_batch() -> None:
    buffer = make_buffer()
    actor = Actor(buffer, segments=1)
    assert buffer.training_waits_for() == "fresh segments"
    actor.send()
    assert buffer.leases.draw(0) is None
    actor.send()
    assert buffer.training_waits_for() == ""
    assert buffer.leases.draw(0) is not None


@pytest.mark.parametrize("number", [-1, 0, 2])
def test_a_batch_out_of_turn_is_refused(number: int) -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    train(buffer, actor, range(1))
    actor.send()
    with pytest.raises(InvalidSegment, match=f"batch {number} was requested, and 1 is next"):
        buffer.leases.draw(number)


def test_batches_are_leased_up_to_a_limit() -> None:
    buffer = make_buffer(replace(FRESH_ONLY, off_policy_degree=MAX_LEASES), rows=200)
    actor = Actor(buffer)
    for number in range(MAX_LEASES):
        actor.send(version=number)
        take(buffer, number)
    actor.send(version=MAX_LEASES)
    with pytest.raises(Overloaded, match=f"{MAX_LEASES} batches"):
        buffer.leases.draw(MAX_LEASES)


def test_without_a_plan_there_are_neither_grants_nor_batches() -> None:
    buffer = make_buffer(plan=None)
    Actor(buffer)
    assert buffer.issue_grants(0.0) == []
    assert buffer.collection_waits_for() == buffer.training_waits_for() == "learner"
    with pytest.raises(NotReady):
        buffer.leases.draw(0)


def test_segments_too_old_for_their_batch_become_replay_and_are_counted() -> None:
    buffer = make_buffer(replace(PLAN, next_batch=5))
    actor = Actor(buffer)
    actor.send(version=3)
    actor.send(version=4)
    batch = take(buffer, 5)
    assert batch.keys[:2].tolist() == [3, 4]
    assert set(batch.keys[2:].tolist()) <= {1, 2}
    assert batch.keys.size == 4
    # Nothing was trained that could say what a large priority is.
    assert batch.priorities[2:].tolist() == [1.0, 1.0]
    counts = buffer.counts()
    assert (counts.late, counts.unseen, counts.leased) == (2, 0, 2)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_late_segment_enters_at_the_largest_priority_present(tmp_path: Path, restarted: bool) -> None:
    plan = replace(PLAN, batch_segments=22, half_life=1e6)
    buffer = make_buffer(plan, folder=tmp_path)
    actor = Actor(buffer)
    train(buffer, actor, range(5), priority=8.0)
    if restarted:
        buffer = make_buffer(plan, folder=tmp_path)
        actor = Actor(buffer)
    actor.send(version=0)
    assert buffer.leases.draw(5) is None
    actor.send(version=5)
    batch = take(buffer, 5)
    late = batch.priorities[np.isin(batch.keys, [11, 12])]
    assert late.size >= 2
    assert late == pytest.approx(8.0, rel=0.01)


# Replay


def test_nothing_is_replayed_before_enough_was_trained() -> None:
    buffer = make_buffer(replace(PLAN, min_replay_segments=6))
    actor, sizes = Actor(buffer), []
    for number in range(5):
        actor.send(version=number)
        batch = take(buffer, number)
        sizes.append(batch.keys.size)
        commit(buffer, batch)
    assert sizes == [2, 2, 2, 4, 4]


def test_what_was_trained_and_overwritten_counts_no_more() -> None:
    buffer = make_buffer(replace(PLAN, min_replay_segments=5), rows=8)
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    # Segments 9 and 10 take the places of 1 and 2, so that of the 6 that were trained 4 are left.
    actor.send(version=3)
    assert take(buffer, 3).keys.tolist() == [7, 8]


def test_with_a_fresh_fraction_of_one_nothing_is_ever_replayed() -> None:
    buffer = make_buffer(FRESH_ONLY)
    actor = Actor(buffer)
    train(buffer, actor, range(5))
    actor.send(version=5)
    assert take(buffer, 5).keys.tolist() == [11, 12]


def test_replayed_draws_are_proportional_to_mass() -> None:
    plan = replace(PLAN, batch_segments=402, alpha=0.7, half_life=3.0)
    buffer = make_buffer(plan, rows=500)
    actor, priorities = Actor(buffer), np.random.default_rng(7).exponential(1.0, 12)
    for number in range(6):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, priorities[batch.keys.astype(np.int64) - 1])
    actor.send(version=6)
    batch = take(buffer, 6)

    ages = 6 - np.repeat(np.arange(6), 2)
    masses = ((priorities + plan.epsilon) * 2.0 ** (-ages / plan.half_life)) ** plan.alpha
    share, replayed = masses / masses.sum(), batch.keys[2:].astype(np.int64) - 1
    assert np.abs(np.bincount(replayed, minlength=12) - 400 * share).max() <= 2.0
    np.testing.assert_allclose(batch.head.probabilities[2:], share[replayed], rtol=1e-9)
    np.testing.assert_array_equal(batch.priorities[2:], priorities[replayed])
    np.testing.assert_array_equal(batch.versions[2:], replayed // 2)
    assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


@pytest.mark.parametrize("changed", [{"alpha": 1.5}, {"epsilon": 5.0}, {"half_life": 9.0}])
def test_an_adjusted_plan_holds_for_what_was_trained_before_too(changed: dict[str, float]) -> None:
    plan = replace(PLAN, batch_segments=12)
    buffer = make_buffer(plan)
    actor = Actor(buffer)
    for number in range(6):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, batch.keys.astype(np.float64))
    actor.send(version=6)
    plan = replace(plan, **changed)  # type: ignore[arg-type]
    buffer.adjust_plan(plan)
    batch = take(buffer, 6)
    assert np.unique(batch.keys[2:]).size > 3
    masses = ((batch.priorities[2:] + plan.epsilon) * 2.0 ** (batch.versions[2:] / plan.half_life)) ** plan.alpha
    np.testing.assert_allclose(
        batch.head.probabilities[2:] / masses, batch.head.probabilities[2] / masses[0], rtol=1e-9
    )


def test_masses_stay_right_however_far_versions_go() -> None:
    # The factor of age grows by 2^50 a version: it would overflow after 20, and the reference moves every six.
    plan = replace(PLAN, batch_segments=52, alpha=1.0, half_life=0.02, max_staleness=2**31)
    buffer = make_buffer(plan, rows=100)
    actor = Actor(buffer)
    train(buffer, actor, range(60))
    actor.send(version=60)
    batch = take(buffer, 60)
    assert set(batch.keys[2:].tolist()) == {119, 120}
    np.testing.assert_allclose(batch.head.probabilities[2:], 0.5, rtol=1e-9)


def test_a_version_that_was_not_published_yet_gives_no_more_mass_than_the_newest() -> None:
    plan = replace(PLAN, batch_segments=52, alpha=1.0, epsilon=0.0, half_life=1.0)
    buffer = make_buffer(plan, rows=100)
    actor = Actor(buffer)
    train(buffer, actor, range(10))
    # The learner went on without this service for a while.
    buffer.adjust_plan(replace(plan, next_batch=900))
    actor.send(version=900)
    commit(buffer, take(buffer, 10))
    actor.send(version=11)
    batch = take(buffer, 11)
    ahead = batch.versions[2:] == 900
    # Age 0, beside two segments of each age from 2 to 11.
    assert 0 < np.count_nonzero(ahead) < ahead.size
    np.testing.assert_allclose(batch.head.probabilities[2:][ahead], 1 / 3, rtol=1e-3)


def test_the_draws_of_a_batch_follow_from_seed_and_number() -> None:
    drawn = []
    for seed in (3, 3, 4):
        buffer = make_buffer(replace(PLAN, seed=seed, batch_segments=12))
        actor = Actor(buffer)
        train(buffer, actor, range(10))
        actor.send(version=10)
        drawn.append(take(buffer, 10).keys.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def replayed_ages(buffer: ReplayBuffer, actor: Actor, batches: range, session: int = PLAN.session) -> list[int]:
    ages: list[int] = []
    for number in batches:
        actor.send(version=number)
        batch = take(buffer, number)
        ages.extend((number - batch.versions[batch.fresh_segments :]).tolist())
        commit(buffer, batch, session=session)
    return ages


def test_too_old_segments_lose_their_mass() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=9, half_life=1e6), rows=150)
    ages = replayed_ages(buffer, Actor(buffer), range(70))
    assert set(ages) == set(range(1, 10))


def test_what_a_slow_actor_sends_is_replayed_no_longer_than_the_rest() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=15, half_life=1e6), rows=400)
    actor = Actor(buffer)
    train(buffer, actor, range(10))
    actor.send(version=0)
    ages = replayed_ages(buffer, actor, range(10, 60))
    assert max(ages) == 15


def test_a_batch_that_is_drawn_ahead_has_nothing_too_old_when_its_turn_comes() -> None:
    plan = replace(PLAN, max_staleness=5, half_life=1e6, off_policy_degree=3)
    buffer = make_buffer(plan, rows=400)
    actor = Actor(buffer)
    train(buffer, actor, range(20))
    for number in (20, 21, 22):
        actor.send(version=20)
        lease = buffer.leases.draw(number)
        assert lease is not None
        assert lease.keys.size > 2
        assert number - lease.versions.min() <= 5


def test_when_all_are_too_old_nothing_is_replayed() -> None:
    buffer = make_buffer(replace(PLAN, max_staleness=0))
    actor = Actor(buffer)
    train(buffer, actor, range(3))
    actor.send(version=3)
    assert take(buffer, 3).keys.size == 2


def test_a_more_patient_plan_replays_the_old_again_and_then_lets_them_go() -> None:
    plan = replace(PLAN, max_staleness=1, half_life=1e6)
    buffer = make_buffer(plan, rows=300)
    actor = Actor(buffer)
    assert max(replayed_ages(buffer, actor, range(40))) == 1
    buffer.adopt_plan(replace(plan, session=8, next_batch=40, max_staleness=50))
    assert 40 < max(replayed_ages(buffer, actor, range(40, 100), session=8)) <= 50


def make_buffer_that_draws_1_and_2() -> tuple[ReplayBuffer, Actor, Lease]:
    """The next window overwrites them, before or after the third batch is gathered."""
    buffer = make_buffer(rows=8)
    actor = Actor(buffer)
    train(buffer, actor, range(1), priority=1e30)
    for number in (1, 2):
        actor.send(version=number)
        batch = take(buffer, number)
        commit(buffer, batch, np.where(batch.keys <= 2, 1e30, 1.0))
    actor.send(version=3)
    lease = buffer.leases.draw(3)
    assert lease is not None
    assert lease.keys.tolist() == [7, 8, 1, 2]
    return buffer, actor, lease


def test_priorities_of_overwritten_segments_are_ignored_and_counted() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    batch = gather(buffer, lease)
    actor.send(version=3)
    assert commit(buffer, batch, 5.0) == CommitOutcome(updated=2, overwritten=2)
    assert buffer.leases.ignored_priorities == 2
    following = take(buffer, 4)
    assert following.keys[:2].tolist() == [9, 10]
    assert following.priorities[:2].tolist() == [0.0, 0.0]
    assert set(following.keys[2:].tolist()) <= set(range(3, 9))


def test_segments_overwritten_before_they_are_read_are_drawn_again() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    actor.send(version=3)
    batch = gather(buffer, lease)
    assert batch.keys[:2].tolist() == [7, 8]
    replayed = batch.keys[2:].astype(np.int64)
    assert set(replayed.tolist()) <= {3, 4, 5, 6}
    assert batch.versions[2:].tolist() == ((replayed - 1) // 2).tolist()
    assert batch.priorities[2:].tolist() == [1.0, 1.0]
    # Of equal priorities, a version apart, the younger two have 2^(alpha / half_life) times the mass.
    older = 0.5 / (1.0 + 2.0 ** (PLAN.alpha / PLAN.half_life))
    expected = np.where(replayed <= 4, older, 0.5 - older)
    np.testing.assert_allclose(batch.head.probabilities[2:], expected, rtol=1e-9)
    assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


def test_the_parts_of_a_batch_make_up_the_whole() -> None:
    buffer, _, lease = make_buffer_that_draws_1_and_2()
    parts = [gather(buffer, lease, part, 2) for part in range(2)]
    assert [part.keys.tolist() for part in parts] == [[7, 1], [8, 2]]
    assert [part.fresh_segments for part in parts] == [1, 1]
    assert_same_columns(parts[1].columns, make_columns([(0, 1, 8), (0, 1, 2)]))


def test_a_batch_that_was_handed_out_stays_as_it_was_when_it_is_drawn_again() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    first = gather(buffer, lease)
    actor.send(version=3)
    second = gather(buffer, lease)
    assert first.keys.tolist() == [7, 8, 1, 2]
    assert not set(second.keys.tolist()) & {1, 2}
    for batch in (first, second):
        assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))


def test_a_part_that_was_handed_out_stays_as_it_was_when_another_is_drawn_again() -> None:
    buffer, actor, lease = make_buffer_that_draws_1_and_2()
    first = gather(buffer, lease, 0, 2)
    actor.send(version=3)
    second = gather(buffer, lease, 1, 2)
    assert first.keys.tolist() == [7, 1]
    assert second.keys[1] > 2
    for part in (first, second):
        assert_same_columns(part.columns, make_columns([(0, 1, int(key)) for key in part.keys]))


def test_what_is_gathered_while_rows_are_overwritten_is_never_torn() -> None:
    buffer, batches = make_buffer(rows=8), 400
    actor, failures = Actor(buffer), list[Exception]()

    def collect() -> None:
        try:
            while buffer.version < batches:
                buffer.issue_grants(0.0)
                if append(buffer, actor.next_window(buffer.version), 0.0) is not None:
                    actor.sent += 2
        except Exception as error:
            failures.append(error)

    collecting = threading.Thread(target=collect)
    collecting.start()
    number = 0
    while number < batches and collecting.is_alive():
        if (lease := buffer.leases.draw(number)) is not None:
            batch = gather(buffer, lease)
            assert_same_columns(batch.columns, make_columns([(0, 1, int(key)) for key in batch.keys]))
            commit(buffer, batch)
            number += 1
    collecting.join()
    assert (number, failures) == (batches, [])


# Commits


def test_a_repeated_commit_changes_nothing() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    batch = take(buffer, 0)
    assert commit(buffer, batch, 2.0) == CommitOutcome(updated=2, overwritten=0)
    assert commit(buffer, batch, 9.0) == CommitOutcome(updated=0, overwritten=0, repeated=True)
    assert buffer.version == 1
    actor.send()
    assert take(buffer, 1).priorities.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_of_a_segment_that_was_drawn_twice_one_priority_is_kept() -> None:
    buffer = make_buffer(replace(PLAN, batch_segments=10))
    actor = Actor(buffer)
    train(buffer, actor, range(1))
    actor.send(version=1)
    batch = take(buffer, 1)
    assert batch.keys.tolist() == [3, 4, 1, 1, 1, 1, 2, 2, 2, 2]
    assert commit(buffer, batch, np.arange(10.0)).updated == 10
    actor.send(version=2)
    drawn = take(buffer, 2)
    assert set(zip(drawn.keys[2:].tolist(), drawn.priorities[2:].tolist(), strict=True)) <= {
        (1, 5.0), (2, 9.0), (3, 0.0), (4, 1.0)
    }  # fmt: skip
    assert buffer.counts().stored == 6


def test_what_a_commit_leaves_out_is_fresh_again_and_first() -> None:
    buffer = make_buffer(replace(PLAN, fresh_segments=3, batch_segments=3))
    actor = Actor(buffer, segments=3)
    actor.send(version=0)
    actor.send(version=0)
    batch = take(buffer, 0)
    buffer.leases.commit(PLAN.session, 0, batch.keys[1:2], np.ones(1))
    counts = buffer.counts()
    assert (counts.unseen, counts.leased) == (5, 0)
    assert sorted(take(buffer, 1).keys.tolist()) == [1, 3, 4]


def test_what_a_commit_leaves_out_is_fresh_again_in_its_order_of_arrival() -> None:
    plan = replace(PLAN, fresh_segments=3, batch_segments=3)
    buffer = make_buffer(plan)
    Actor(buffer, segments=3).send(version=0)
    batch = take(buffer, 0)
    buffer.leases.commit(PLAN.session, 0, batch.keys[1:2], np.ones(1))
    buffer.adjust_plan(replace(plan, fresh_segments=1, batch_segments=1))
    assert [take(buffer, number).keys.tolist() for number in (1, 2)] == [[1], [3]]


@pytest.mark.parametrize("committed", [0, 3])
def test_a_window_of_a_version_that_no_batch_was_handed_out_for_is_refused(committed: int) -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    train(buffer, actor, range(committed))
    actor.send(version=committed)
    buffer.issue_grants(0.0)
    for version in (committed + 1, committed + 990, 10**15):
        with pytest.raises(InvalidSegment, match=f"sent version {version}, and {committed} is the newest"):
            append(buffer, actor.next_window(version), 0.0)
    # The batch is trained, and its version published, before it is committed.
    take(buffer, committed)
    actor.send(version=committed + 1)


def test_a_version_is_known_from_leases_plans_and_batches_that_were_passed_over() -> None:
    buffer = make_buffer(replace(PLAN, next_batch=20))

    def newest() -> int:
        known = [knows_version(buffer, make_window(version=version).head) for version in range(100)]
        assert known == sorted(known, reverse=True)
        return known.count(True) - 1

    actor = Actor(buffer)
    assert newest() == 20
    actor.send(version=20)
    take(buffer, 20)
    assert newest() == 21
    # A learner with several shards goes on without this one, and its stream may be opened again meanwhile.
    buffer.leases.commit(PLAN.session, 24, np.zeros(0, np.uint64), np.zeros(0))
    assert newest() == 25
    buffer.adopt_plan(replace(PLAN, next_batch=30))
    assert newest() == 30
    buffer.adopt_plan(replace(PLAN, session=9, next_batch=50))
    assert newest() == 50
    furthest = 50 + LARGEST_VERSION_JUMP + 1_000
    assert not knows_version(buffer, make_window(version=furthest).head)
    with pytest.raises(InvalidSegment, match=f"sent version {furthest + 1}, and 50 is the newest"):
        knows_version(buffer, make_window(version=furthest + 1).head)


def test_a_service_that_restarts_knows_the_versions_that_it_knew(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    Actor(buffer).send(version=0)
    take(buffer, 0)
    again = make_buffer(None, folder=tmp_path)
    assert [knows_version(again, make_window(version=version).head) for version in (1, 2)] == [True, False]


@pytest.mark.parametrize("priorities", [[1.0, np.nan], [1.0, np.inf], [-1e-9, 1.0], [1.0]])
def test_bad_priorities_are_refused_and_the_lease_goes_on(priorities: list[float]) -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    batch = take(buffer, 0)
    with pytest.raises(InvalidSegment, match="priorities must be finite"):
        buffer.leases.commit(PLAN.session, 0, batch.keys, np.array(priorities))
    assert commit(buffer, batch).updated == 2


def test_commits_out_of_order_are_refused() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    actor.send()
    first, second = take(buffer, 0), take(buffer, 1)
    with pytest.raises(InvalidSegment, match="0 is the next to commit"):
        commit(buffer, second)
    commit(buffer, first)
    commit(buffer, second)


def test_a_batch_that_was_never_leased_cannot_be_committed() -> None:
    buffer = make_buffer()
    Actor(buffer).send()
    with pytest.raises(InvalidSegment):
        buffer.leases.commit(PLAN.session, 0, np.array([1, 2], np.uint64), np.ones(2))
    assert buffer.counts().unseen == 2


@pytest.mark.parametrize("key", [3, 5])
def test_a_commit_of_segments_that_are_not_in_the_batch_and_were_not_trained_is_refused(key: int) -> None:
    buffer = make_buffer(replace(PLAN, off_policy_degree=2))
    actor = Actor(buffer)
    for _ in range(3):
        actor.send()
    take(buffer, 0), take(buffer, 1)
    with pytest.raises(InvalidSegment, match="batch 0"):
        buffer.leases.commit(PLAN.session, 0, np.array([1, 2, key], np.uint64), np.ones(3))
    counts = buffer.counts()
    assert (counts.unseen, counts.leased) == (2, 4)


def test_a_commit_of_key_zero_gives_mass_to_no_empty_row() -> None:
    buffer = make_buffer()
    actor = Actor(buffer)
    actor.send()
    take(buffer, 0)
    outcome = buffer.leases.commit(PLAN.session, 0, np.array([1, 2, 0], np.uint64), np.array([0.0, 0.0, 1e9]))
    assert outcome == CommitOutcome(updated=2, overwritten=1)
    actor.send()
    assert take(buffer, 1).keys.tolist() == [3, 4, 1, 2]


# Sessions and restarts


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


def test_the_leases_of_a_dead_session_are_fresh_again_in_their_order() -> None:
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


def test_grants_that_are_out_outlive_every_plan() -> None:
    buffer = make_buffer()
    Actor(buffer)
    buffer.issue_grants(0.0)
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


def test_a_restart_under_a_living_session_restores_its_leases(tmp_path: Path) -> None:
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


def test_a_restart_leaves_the_batches_to_come_as_they_were(tmp_path: Path) -> None:
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


def test_a_restart_under_a_new_session_makes_leases_fresh(tmp_path: Path) -> None:
    buffer = make_buffer(folder=tmp_path)
    Actor(buffer).send()
    take(buffer, 0)
    again = make_buffer(replace(PLAN, session=8), folder=tmp_path)
    assert again.counts().refunded == 2
    assert take(again, 0).keys.tolist() == [1, 2]


def test_a_commit_between_a_restart_and_the_plan_is_asked_to_come_again(tmp_path: Path) -> None:
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
def test_a_key_is_not_used_again_when_the_newest_rows_are_lost(tmp_path: Path, lost: list[int]) -> None:
    store = RingStore(tmp_path, capacity_bytes(40))
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    buffer.adopt_plan(PLAN)
    actor = Actor(buffer)
    train(buffer, actor, range(2))
    store.headers["checksum"][lost] ^= np.uint64(1)
    again = make_buffer(folder=tmp_path)
    Actor(again).send(version=2)
    assert take(again, 2).keys[:2].tolist() == [5, 6]
