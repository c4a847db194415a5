"""Snapshots of a service that continues to serve an actor and a learner."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigurationError, InvalidSegment, NotReady, Overloaded, PlaceLost, Unavailable
from penstock.learning.durable.checkpoints import RunProgress, Snapshot
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import Restored, restore_store
from penstock.replay.store.records import session_of
from penstock.replay.store.ring_store import RingStore
from penstock.rpc import methods
from penstock.rpc.servicers.run_snapshots import RunSnapshotServicer
from penstock.types.extents import Amounts
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotProgress, SnapshotRequest
from penstock.wire.snapshots import encode_requests
from tests.support.machine.timing import AT_ONCE, PATIENCE_S
from tests.support.segments.direct_buffer import read_rows
from tests.support.segments.segments import SCHEMA, capacity_bytes
from tests.support.services.servers import Actor, LiveReplay, Loopback, Recorder, Trainer, plan_with, sample, until

ROWS = 400


def test_snapshots_during_inserts_and_samples_contain_the_sent_segments(
    loopback: Loopback, tmp_path: Path, first_answer_s: float
) -> None:
    # Slow enough for several windows of the actor: it takes more than a second.
    pace = int(60_000 / (1.0 + AT_ONCE * first_answer_s))
    server = loopback.replay(rows=ROWS, snapshots=tmp_path, snapshot_bytes_per_s=pace)
    recorder, plan = Recorder(), plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(30):
        pass
    shown: list[SnapshotProgress] = []
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(loopback.take, server, "live", shown.append)
        trained_before = trainer.version
        while not taking.done():
            for _ in trainer.train(1):
                pass
        taken = taking.result(PATIENCE_S)
    actor.end()
    assert trainer.version > trained_before + 2
    assert taken.segments + taken.absent >= 120 and taken.damaged == 0
    assert shown and shown[-1].segments > 0 and shown[-1].total_bytes == shown[-1].total_segments * SCHEMA.segment_bytes
    assert loopback.snapshots(server).complete() == [taken]

    restored = _restore(tmp_path, "live", tmp_path / "new")
    assert restored.segments == taken.segments
    store = RingStore(tmp_path / "new", capacity_bytes(ROWS))
    # Every segment was sent by the actor, under its own name.
    live = store.headers[store.headers["key"] != 0]
    columns = SCHEMA.empty(live.size)
    read_rows(store, store.rows(np.ascontiguousarray(live["key"])), columns)
    for row, header in enumerate(live):
        window, number = recorder.windows[(0, 1, int(header["sequence"]))]
        for came, sent in zip(columns.arrays, window.columns.arrays, strict=True):
            np.testing.assert_array_equal(came[row], sent[number])


def test_a_snapshot_is_abandoned_without_the_learner_that_requested_it(loopback: Loopback, tmp_path: Path) -> None:
    # It would take half a minute.
    server = loopback.replay(rows=ROWS, snapshots=tmp_path, snapshot_bytes_per_s=2**16 // 50)
    _fill(loopback, server)
    stream = loopback.plain(server, methods.TAKE_SNAPSHOT)
    request = SnapshotRequest("left", 0, automatic=False)
    stream.send(*encode_requests(request, Weights.of(0, b"policy")))
    assert stream.receive().HasField("progress")
    with pytest.raises(Overloaded, match="another snapshot is in progress"):
        loopback.take(server, "another")
    assert list(tmp_path.glob(".unfinished-left"))
    stream.close()
    until(lambda: not list(tmp_path.iterdir()), "the snapshot to be abandoned")
    assert loopback.snapshots(server).complete() == []


def test_a_learners_snapshot_has_policy_and_store_of_one_version(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(rows=ROWS, snapshots=tmp_path)
    recorder, plan = Recorder(), plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan, prefetch=2), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    run = RunSnapshots(loopback.stores(server), RunStatistics(limits=Amounts(steps=1), earlier_s=0.0), interval_s=0.0)
    client = loopback.run_snapshots(loopback.methods(RunSnapshotServicer(run).behaviours))
    with pytest.raises(NotReady, match="is not training"):
        client.take("early")
    run.open()
    for _ in trainer.train(10):
        pass
    shown: list[SnapshotProgress] = []
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.take, "", shown.append)
        while not asking.done():
            trainer.begin_commit(trainer.next())
            # The last commit has not been answered yet.
            run.take_what_is_due(lambda: _checkpoint(trainer.version))
        taken = asking.result(PATIENCE_S)
    actor.end()
    (store,) = taken.stores
    assert 10 < taken.version == store.version < trainer.version
    assert taken.name == store.name and taken.name.endswith(f"-v{taken.version}")
    source = SnapshotFolder(tmp_path)
    manifest = source.read(taken.name)
    assert source.policy(manifest) == _checkpoint(taken.version).data
    assert taken.env_steps == 100 * taken.version
    # It contains every earlier commit, and no later one.
    records = source.records(manifest)
    assert session_of(records).next_batch == taken.version
    run.close()
    with pytest.raises(NotReady, match="is not training"):
        client.take("late")


def test_if_a_store_fails_the_snapshots_of_the_others_are_abandoned(loopback: Loopback, tmp_path: Path) -> None:
    slow = loopback.replay(rows=ROWS, snapshots=tmp_path / "slow", snapshot_bytes_per_s=2**16 // 50)
    other = loopback.replay(rows=ROWS, snapshots=tmp_path / "other")
    _fill(loopback, slow)
    _fill(loopback, other)
    loopback.take(other, "taken")
    statistics = RunStatistics(limits=Amounts(steps=1), earlier_s=0.0)
    run = RunSnapshots(loopback.stores(slow, other), statistics, interval_s=1e-6)
    run.open()
    asked = run.request("taken")
    run.take_what_is_due(lambda: _checkpoint(0))
    with pytest.raises(ConfigurationError, match="there is a snapshot 'taken'"):
        asked.outcome.result(PATIENCE_S)
    until(lambda: not slow.snapshots._busy, "the other to be abandoned")
    assert not list((tmp_path / "slow").glob("*"))
    assert not statistics.status().notices
    # Without one of its stores a run can't be saved; the user at the terminal receives the reason.
    other.kill()
    failures = sample("penstock_learner_snapshot_failures_total")
    run.take_what_is_due(lambda: _checkpoint(0))
    until(lambda: statistics.status().notices, "the failure to be reported")
    assert statistics.status().notices[0].text.startswith("no snapshot was taken: the replay service at")
    assert sample("penstock_learner_snapshot_failures_total") == failures + 1
    assert loopback.snapshots(slow).complete() == []


def test_actors_join_again_after_a_store_is_restored_during_the_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(rows=ROWS, folder=tmp_path / "first", snapshots=tmp_path / "snapshots")
    recorder, plan = Recorder(), plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(10):
        pass
    loopback.take(server, "before")
    for _ in trainer.train(10):
        pass
    server.kill()
    # Segments trained since then may be untrained in the restored store.
    trainer.fresh.clear()
    _restore(tmp_path / "snapshots", "before", tmp_path / "second")
    again = loopback.replay(rows=ROWS, folder=tmp_path / "second", port=server.port)
    assert again.store.watermark(0, 1) >= 40
    until(lambda: actor.error, "the actor to notice")
    assert isinstance(actor.error, PlaceLost)
    assert re.search(r"has this actor's segments up to sequence \d+, but it acknowledged \d+", str(actor.error))
    successor = Actor(
        loopback.sink(0, again, incarnation=2), recorder, lambda: trainer.published, slot=0, incarnation=2
    )
    for _ in trainer.train(10):
        pass
    successor.end()
    assert trainer.version == 30


def test_snapshot_errors_reach_the_caller(loopback: Loopback, tmp_path: Path) -> None:
    in_memory, fresh = loopback.replay(), loopback.replay(snapshots=tmp_path)
    with pytest.raises(ConfigurationError, match="has no folder for snapshots"):
        loopback.take(in_memory, "x")
    with pytest.raises(ConfigurationError, match="has no folder for snapshots"):
        loopback.snapshots(in_memory).complete()
    with pytest.raises(NotReady, match="no actor has connected"):
        loopback.take(fresh, "x")
    with pytest.raises(InvalidSegment, match="can't be called"):
        loopback.take(fresh, "../elsewhere")
    _fill(loopback, fresh)
    loopback.take(fresh, "once")
    with pytest.raises(ConfigurationError, match="there is a snapshot 'once'"):
        loopback.take(fresh, "once")
    fresh.kill()
    with pytest.raises(Unavailable, match="can't be reached"):
        loopback.take(fresh, "late")


def _checkpoint(version: int) -> Snapshot:
    return Snapshot(RunProgress(version=version, env_steps=100 * version), f"policy {version}".encode())


def _restore(root: Path, name: str, folder: Path) -> Restored:
    source = SnapshotFolder(root)
    return restore_store(source, source.read(name), folder, capacity_bytes(ROWS))


def _fill(loopback: Loopback, server: LiveReplay) -> None:
    """Stores 40 segments."""
    plan = plan_with(fresh_segments=0, batch_segments=4)
    source = loopback.source(server, plan)
    actor = Actor(loopback.sink(0, server), Recorder(), lambda: 0, slot=0, windows=20)
    until(lambda: not actor.thread.is_alive(), "the actor to be done")
    actor.end()
    until(lambda: np.count_nonzero(server.store.headers["key"]) == 40, "all to be stored")
    source.close(0.0)
