"""A store that was restored from a snapshot is drawn from as it was when the snapshot was taken."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from helpers.direct_buffer import append
from helpers.segments import PLAN, SCHEMA, capacity_bytes, make_window
from helpers.timing import PATIENCE_S
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import restore_store
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest

ROWS = 5000
BATCHES = 40
DRAWS = 4000
"""So many that every segment with a mass is among them."""
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
        """One window of two segments that were collected by this version."""
        key = ActorKey(0, 1)
        intake = self.buffer.intakes.open(key, SCHEMA, 2, 0.0)
        self.buffer.intakes.issue_grants(0.0)
        assert append(self.buffer, make_window(self.sent + 1, version=version), 0.0) == self.sent + 2
        intake.close()
        self.sent += 2

    def train(self, number: int) -> None:
        """Few segments are replayed; the priorities are of two orders of magnitude."""
        lease = self.buffer.leases.draw(number, replay_segments=16)
        assert lease is not None
        priorities = 10.0 ** self._random.uniform(-1.0, 1.0, lease.keys.size)
        self.buffer.leases.commit(PLAN.session, number, lease.keys, priorities)


def trained(folder: Path) -> Run:
    """A run with seen, stale, late, leased and unseen segments; batch 40 is prefetched, 41 would be next."""
    run = Run(RingStore(folder, capacity_bytes(ROWS)))
    run.buffer.adopt_plan(DRAWN)
    for number in range(BATCHES):
        # Every tenth batch a window comes that is too old for it.
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
    # The run goes on, far beyond what any segment of the snapshot would be replayed at.
    for number in range(BATCHES, BATCHES + 2 * DRAWN.max_staleness):
        run.train(number)
        run.insert(number + 1)
        run.insert(number + 1)

    source = SnapshotFolder(tmp_path / "snapshots")
    restore_store(source, source.read("then"), tmp_path / "new", capacity_bytes(ROWS))
    again = ReplayBuffer(RingStore(tmp_path / "new", capacity_bytes(ROWS)), Gate(1e9, max_actors=8))
    # A resumed learner begins at its policy's version, which is the store's, in a session of its own.
    again.adopt_plan(replace(DRAWN, session=8, next_batch=BATCHES))
    first, lease = again.leases.draw(BATCHES), again.leases.draw(BATCHES + 1)
    assert first is not None and lease is not None
    # What was leased is fresh again, in the same batch; what was unseen comes next, and none of it is late.
    assert first.keys[:4].tolist() == prefetched.keys[:4].tolist()
    assert first.fresh_segments == lease.fresh_segments == 4
    assert (again.counts().late, again.counts().unseen, again.counts().stored) == (
        counts.late,
        counts.unseen,
        counts.stored,
    )
    # The same seed draws the same segments, each with the probability that it had.
    assert np.unique(expected.keys[4:]).tolist() == sorted(replayable.tolist())
    assert 60 < replayable.size < np.count_nonzero(states == State.SEEN)
    assert lease.keys.tolist() == expected.keys.tolist()
    assert lease.versions.tolist() == expected.versions.tolist()
    assert lease.priorities.tolist() == expected.priorities.tolist()
    np.testing.assert_allclose(lease.probabilities, expected.probabilities, rtol=1e-12)
    assert again.mass.total > 0.0
