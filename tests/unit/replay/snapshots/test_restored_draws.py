"""Tests that a restored store gives the same draws as the store at the time of the snapshot."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import restore_store
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.direct_buffer import append
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window

ROWS = 5000
BATCHES = 40
DRAWS = 4000
"""Number of draws, high enough that each segment with mass is drawn."""
DRAWN = replace(
    PLAN,
    batch_segments=DRAWS + 4,
    fresh_segments=4,
    off_policy_degree=2,
    half_life=16.0,
    max_staleness=20,
    alpha=0.7,
)


class Run:
    """A buffer with one actor, trained by one learner."""

    def __init__(self, store: RingStore) -> None:
        self.buffer, self.store = ReplayBuffer(store, Gate(1e9, max_actors=8)), store
        self.sent, self._random = 0, np.random.default_rng(5)

    def insert(self, version: int) -> None:
        """Inserts one window of two segments collected with this version."""
        key = ActorKey(0, 1)
        intake = self.buffer.intakes.open(key, SCHEMA, 2, 0.0)
        self.buffer.intakes.issue_grants(0.0)
        assert append(self.buffer, make_window(self.sent + 1, version=version), 0.0) == self.sent + 2
        intake.close()
        self.sent += 2

    def train(self, number: int) -> None:
        """Trains a batch with few replayed segments and priorities from 0.1 to 10."""
        lease = self.buffer.leases.draw(number, replay_segments=16)
        assert lease is not None
        priorities = 10.0 ** self._random.uniform(-1.0, 1.0, lease.keys.size)
        self.buffer.leases.commit(PLAN.session, number, lease.keys, priorities)


def trained(folder: Path) -> Run:
    """Returns a run with seen, stale, late, leased and unseen segments, after batch 40 was prefetched."""
    run = Run(RingStore(folder, capacity_bytes(ROWS)))
    run.buffer.adopt_plan(DRAWN)
    for number in range(BATCHES):
        # Before each tenth batch, a window arrives that is too old for it.
        for version in (number, number, *([max(0, number - 5)] if number % 10 == 9 else [])):
            run.insert(version)
        run.train(number)
    for version in (BATCHES - 1, BATCHES, BATCHES, BATCHES, BATCHES):
        run.insert(version)
    assert run.buffer.leases.draw(BATCHES, replay_segments=16) is not None
    return run


def test_restored_segments_are_drawn_as_at_the_snapshot(tmp_path: Path) -> None:
    run = trained(tmp_path / "store")
    stored = run.store.headers[run.store.headers["key"] != 0]
    states = stored["state"]
    replayable = stored["key"][(states == State.SEEN) & (BATCHES + 1 - stored["version"] <= DRAWN.max_staleness)]
    assert [np.count_nonzero(states == state) for state in (State.SEEN, State.LEASED, State.UNSEEN)] == [168, 4, 6]
    snapshots = Snapshots(run.buffer, tmp_path / "snapshots", kept=1, bytes_per_s=2**40)
    taking = snapshots.begin(SnapshotRequest("then", run.buffer.version, automatic=False))
    taking.policy.set_result(Weights.of(BATCHES, b"policy"))
    assert taking.outcome.result(PATIENCE_S).version == BATCHES
    prefetched, expected = run.buffer.leases.draw(BATCHES), run.buffer.leases.draw(BATCHES + 1)
    assert prefetched is not None and expected is not None
    counts = run.buffer.counts()
    # The run continues until all segments of the snapshot are too old to be replayed.
    for number in range(BATCHES, BATCHES + 2 * DRAWN.max_staleness):
        run.train(number)
        run.insert(number + 1)
        run.insert(number + 1)

    source = SnapshotFolder(tmp_path / "snapshots")
    restore_store(source, source.read("then"), tmp_path / "new", capacity_bytes(ROWS))
    again = ReplayBuffer(RingStore(tmp_path / "new", capacity_bytes(ROWS)), Gate(1e9, max_actors=8))
    # A resumed learner begins a new session at its policy's version, which equals the store's version.
    again.adopt_plan(replace(DRAWN, session=8, next_batch=BATCHES))
    first, lease = again.leases.draw(BATCHES), again.leases.draw(BATCHES + 1)
    assert first is not None and lease is not None
    # Leased segments are fresh again in the same batch. Unseen segments follow, and none is late.
    assert first.keys[:4].tolist() == prefetched.keys[:4].tolist()
    assert first.fresh_segments == lease.fresh_segments == 4
    assert (again.counts().late, again.counts().unseen, again.counts().stored) == (
        counts.late,
        counts.unseen,
        counts.stored,
    )
    # The same seed draws the same segments with the same probabilities.
    assert np.unique(expected.keys[4:]).tolist() == sorted(replayable.tolist())
    assert 60 < replayable.size < np.count_nonzero(states == State.SEEN)
    assert lease.keys.tolist() == expected.keys.tolist()
    assert lease.versions.tolist() == expected.versions.tolist()
    assert lease.priorities.tolist() == expected.priorities.tolist()
    np.testing.assert_allclose(lease.probabilities, expected.probabilities, rtol=1e-12)
    assert again.mass.total > 0.0
