"""Snapshots of a service that goes on serving an actor and a learner."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from helpers.segments import SCHEMA, capacity_bytes
from helpers.servers import PATIENCE_S, Actor, LiveReplay, Loopback, Recorder, Trainer, plan_with, until
from penstock.errors import ConfigurationError, InvalidSegment, NotReady, Overloaded, PlaceLost, Unavailable
from penstock.replay.restoring import open_store
from penstock.rpc import methods
from penstock.types import SnapshotProgress
from penstock.v1 import replay_pb2

ROWS = 400


def test_snapshots_are_taken_beside_inserts_and_samples_and_hold_what_was_sent(
    loopback: Loopback, tmp_path: Path
) -> None:
    # Slow enough for several windows of the actor to come in between: it takes more than a second.
    server = loopback.replay(rows=ROWS, snapshots=tmp_path, snapshot_bytes_per_s=60_000)
    recorder, plan = Recorder(), plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(30):
        pass
    shown: list[SnapshotProgress] = []
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(loopback.snapshots(server).take, "live", shown.append)
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

    store, restored = open_store(None, capacity_bytes(ROWS), tmp_path, "live")
    assert restored is not None and restored.segments == taken.segments
    # Every segment is one that the actor sent, under its own name.
    live = store.headers[store.headers["key"] != 0]
    columns = SCHEMA.empty(live.size)
    store.gather(store.rows(np.ascontiguousarray(live["key"])), columns)
    for row, header in enumerate(live):
        window, number = recorder.windows[(0, 1, int(header["sequence"]))]
        for came, sent in zip(columns.arrays, window.columns.arrays, strict=True):
            np.testing.assert_array_equal(came[row], sent[number])


def test_a_snapshot_goes_on_without_the_client_that_asked_for_it(loopback: Loopback, tmp_path: Path) -> None:
    # It takes two seconds, and what is shown meanwhile next to none.
    server = loopback.replay(rows=ROWS, snapshots=tmp_path, snapshot_bytes_per_s=20_000)
    _fill(loopback, server)
    channel = grpc.insecure_channel(server.address, options=(("grpc.enable_http_proxy", 0),))
    take = channel.unary_stream(
        methods.TAKE_SNAPSHOT.path,
        request_serializer=replay_pb2.TakeSnapshotRequest.SerializeToString,
        response_deserializer=replay_pb2.TakeSnapshotResponse.FromString,
    )
    call = take(replay_pb2.TakeSnapshotRequest(name="left"), timeout=PATIENCE_S)
    assert next(call).HasField("progress")
    with pytest.raises(Overloaded, match="a snapshot is on its way"):
        loopback.snapshots(server).take("another")
    call.cancel()
    channel.close()
    client = loopback.snapshots(server)
    assert client.complete() == []
    (taken,) = until(client.complete, "the snapshot to be complete")
    assert (taken.name, taken.segments) == ("left", 40)


def test_a_store_that_is_put_back_while_the_run_goes_on_has_its_actors_join_again(
    loopback: Loopback, tmp_path: Path
) -> None:
    server = loopback.replay(rows=ROWS, folder=tmp_path / "first", snapshots=tmp_path / "snapshots")
    recorder, plan = Recorder(), plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(10):
        pass
    loopback.snapshots(server).take("before")
    for _ in trainer.train(10):
        pass
    server.kill()
    # What was trained since then may be there untrained.
    trainer.fresh.clear()
    restored, _ = open_store(tmp_path / "second", capacity_bytes(ROWS), tmp_path / "snapshots", "before")
    assert restored.watermark(0, 1) >= 40
    again = loopback.replay(rows=ROWS, folder=tmp_path / "second", port=server.port)
    until(lambda: actor.error, "the actor to notice")
    assert isinstance(actor.error, PlaceLost)
    assert re.search(r"holds this actor's segments up to \d+, and it had stored \d+", str(actor.error))
    successor = Actor(
        loopback.sink(0, again, incarnation=2), recorder, lambda: trainer.published, slot=0, incarnation=2
    )
    for _ in trainer.train(10):
        pass
    successor.end()
    assert trainer.version == 30


def test_errors_reach_whoever_asks(loopback: Loopback, tmp_path: Path) -> None:
    in_memory, fresh = loopback.snapshots(loopback.replay()), loopback.replay(snapshots=tmp_path)
    with pytest.raises(ConfigurationError, match="has no folder for snapshots"):
        in_memory.take()
    with pytest.raises(ConfigurationError, match="has no folder for snapshots"):
        in_memory.complete()
    client = loopback.snapshots(fresh)
    with pytest.raises(NotReady, match="no actor has come"):
        client.take()
    with pytest.raises(InvalidSegment, match="can't be called"):
        client.take("../elsewhere")
    _fill(loopback, fresh)
    client.take("once")
    with pytest.raises(ConfigurationError, match="there is a snapshot 'once'"):
        client.take("once")
    fresh.kill()
    with pytest.raises(Unavailable, match="can't be reached"):
        client.take("late")


def _fill(loopback: Loopback, server: LiveReplay) -> None:
    """40 segments."""
    plan = plan_with(fresh_segments=0, batch_segments=4)
    source = loopback.source(server, plan)
    actor = Actor(loopback.sink(0, server), Recorder(), lambda: 0, slot=0, windows=20)
    until(lambda: not actor.thread.is_alive(), "the actor to be done")
    actor.end()
    until(lambda: np.count_nonzero(server.store.headers["key"]) == 40, "all to be stored")
    source.close(0.0)
