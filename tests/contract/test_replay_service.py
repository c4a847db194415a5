import asyncio
import hashlib
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from penstock.errors import InvalidSegment, SchemaMismatch
from penstock.replay.store.ring_store import RingStore
from penstock.rpc import methods
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.servicers import append
from penstock.telemetry import metrics
from penstock.types.block import Column, Extent, Schema
from penstock.types.replay import Batch, Grant, SamplingPlan
from penstock.types.waits import Awaited, WaitReason
from penstock.v1 import block_pb2, replay_pb2
from penstock.wire.schema import encode_schema
from penstock.wire.windows import encode_window
from tests.support.machine.timing import AT_ONCE, PATIENCE_S
from tests.support.segments.direct_buffer import read_rows
from tests.support.segments.segments import SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window
from tests.support.services.servers import (
    IMAGES,
    Actor,
    LiveReplay,
    Loopback,
    PlainStream,
    Recorder,
    Trainer,
    batch_request,
    open_request,
    plan_request,
    plan_with,
    until,
    window_request,
)

Code = grpc.StatusCode
HEARTBEAT = replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat())


def receive_grants(stream: PlainStream, count: int) -> list[replay_pb2.Grant]:
    """Returns the next grants of an append stream."""
    grants: list[replay_pb2.Grant] = []
    while len(grants) < count:
        grants += stream.receive().grants
    return grants


def receive_stored(stream: PlainStream, sequence: int) -> None:
    """Waits until this sequence is acknowledged."""
    while stream.receive().stored_sequence < sequence:
        pass


def receive_batch(stream: PlainStream) -> replay_pb2.SampleBatchesResponse:
    """Returns the next batch, which must be in one message."""
    while True:
        response: replay_pb2.SampleBatchesResponse = stream.receive()
        if not response.waiting and not response.HasField("opened"):
            return response


# Segments pass through unchanged


def test_windows_of_two_actors_return_in_batches_with_every_value_intact(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=8)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    sinks = [loopback.sink(slot, server) for slot in range(2)]
    # Otherwise the first could be granted everything before the other connects.
    until(lambda: loopback.replay_status(server).actors == 2, "both actors connect")
    actors = [Actor(sink, recorder, lambda: trainer.published, slot=slot) for slot, sink in enumerate(sinks)]
    sizes = [batch.keys.size for batch in trainer.train(30)]
    for actor in actors:
        actor.end()
    assert sizes[0] == 4
    assert set(sizes[5:]) == {8}
    assert len(set(trainer.fresh)) == len(trainer.fresh) == 30 * 4
    assert {slot for slot, _, _ in trainer.fresh} == {0, 1}


def test_the_preparer_of_batches_receives_each_batch_on_arrival_before_next_returns_it(loopback: Loopback) -> None:
    server, recorder, arrived = loopback.replay(), Recorder(), list[Batch]()
    plan = plan_with(batch_segments=4, fresh_segments=4)
    trainer = Trainer(loopback.source(server, plan, arrived=arrived.append), recorder, plan)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    batch = trainer.next()
    # The next batch arrives while this one would train, because the off-policy degree permits its collection.
    until(lambda: len(arrived) > 1, "the batch after it")
    assert arrived[0] is batch
    trainer.commit(batch)
    assert trainer.next() is arrived[1]
    actor.end()


def test_windows_and_batches_larger_than_a_message_travel_in_parts(loopback: Loopback) -> None:
    assert len(list(encode_window(make_window(segments=4, schema=IMAGES)))) > 1
    server, recorder = loopback.replay(schema=IMAGES, rows=20), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, min_replay_segments=4)
    trainer = Trainer(loopback.source(server, plan, schema=IMAGES), recorder, plan)
    sink = loopback.sink(0, server, schema=IMAGES, segments=4)
    actor = Actor(sink, recorder, lambda: trainer.published, slot=0, segments=4, schema=IMAGES, windows=5)
    sizes = [batch.keys.size for batch in trainer.train(4)]
    actor.end()
    assert sizes[0] == 4
    assert sizes[-1] == 8


def test_a_window_for_which_its_actor_waits_is_acknowledged_at_once(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "ANSWERED_WITHIN_S", 2.0 * PATIENCE_S)
    server = loopback.replay()
    loopback.source(server, plan_with(batch_segments=2, fresh_segments=2, off_policy_degree=1))
    sink = loopback.sink(0, server)
    for first in (1, 3):
        # There is no further grant with which the acknowledgement of the second window could go.
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(make_window(first))
    assert sink.drain(PATIENCE_S)


def test_acknowledgements_go_with_grants_again_once_the_actor_does_not_wait() -> None:
    async def run() -> None:
        outbox = append.Outbox(0, None)
        outbox.take()
        outbox.acknowledge(1)
        assert not outbox._filled.is_set()
        outbox.hurry(True)
        assert (await outbox.next()).stored_sequence == 1
        outbox.acknowledge(2)
        owed = [outbox.owes]
        assert (await outbox.next()).stored_sequence == 2
        assert [*owed, outbox.owes] == [True, False]
        outbox.hurry(False)
        outbox.acknowledge(3)
        assert not outbox._filled.is_set()
        outbox.grant(Grant(1, 0))
        answer = await outbox.next()
        assert (answer.stored_sequence, len(answer.grants)) == (3, 1)

    asyncio.run(run())


def test_a_client_with_protobuf_alone_appends_samples_and_commits(loopback: Loopback) -> None:
    server = loopback.replay()
    columns = make_columns([(0, 1, 1), (0, 1, 2)])
    # All encoding follows the contract: the hash, the offsets, the payload.
    lines = ["penstock.v1", "3", "observation 7 2 2 0", "action 5  1 0", "terminated 1  1 0", "frame 2 3,3 2 2"]
    text = "\n".join([*lines, "memory 8 5 3 0"]) + "\n"
    payload, offsets = b"", []
    for array in columns.arrays:
        offsets.append(len(payload))
        payload += array.tobytes() + b"\0" * (-array.nbytes % 8)
    block = block_pb2.Block(
        schema_hash=int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"),
        segments=2,
        column_offsets=offsets,
        total_bytes=len(payload),
        parts=1,
        payload=payload,
    )
    window = replay_pb2.Window(first_sequence=1, version=0, environments=[0, 1], block=block)
    plan = plan_with(fresh_segments=2, batch_segments=2)

    appending = loopback.plain(server, methods.APPEND_SEGMENTS)
    appending.send(open_request())
    sampling = loopback.plain(server, methods.SAMPLE_BATCHES)
    sampling.send(plan_request(plan), batch_request(0))
    first = appending.receive()
    assert (first.stored_sequence, first.grants[0]) == (0, replay_pb2.Grant(batch=0, minimum_version=0))
    appending.send(replay_pb2.AppendSegmentsRequest(window=window))
    receive_stored(appending, 2)

    batch = receive_batch(sampling)
    assert (batch.batch, batch.fresh_segments, np.frombuffer(batch.versions, np.int64).tolist()) == (0, 2, [0, 0])
    for array, offset in zip(columns.arrays, batch.block.column_offsets, strict=True):
        assert batch.block.payload[offset : offset + array.nbytes] == array.tobytes()
    request = replay_pb2.CommitBatchRequest(
        session=plan.session, batch=0, keys=batch.keys, priorities=np.array([1.0, 2.0]).tobytes()
    )
    once = loopback.plain_call(server, methods.COMMIT_BATCH, request)
    again = loopback.plain_call(server, methods.COMMIT_BATCH, request)
    assert once == (Code.OK, replay_pb2.CommitBatchResponse(updated=2))
    assert again == (Code.OK, replay_pb2.CommitBatchResponse(repeated_commit=True))


def test_an_actor_that_has_half_closed_its_stream_still_receives_acknowledgements(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request())
    receive_grants(stream, 1)
    stream.send(window_request(1))
    stream.leave()
    receive_stored(stream, 2)
    assert stream.status()[0] == Code.OK


def test_a_commit_on_a_request_is_answered_with_the_next_head_or_alone_after_a_short_wait(
    loopback: Loopback,
) -> None:
    server, plan = loopback.replay(), plan_with(fresh_segments=2, batch_segments=2)
    appending = loopback.plain(server, methods.APPEND_SEGMENTS)
    appending.send(open_request())
    sampling = loopback.plain(server, methods.SAMPLE_BATCHES)

    def request(number: int, *, former: replay_pb2.SampleBatchesResponse | None = None, columns: bool = False) -> None:
        asked = batch_request(number)
        asked.batch.head_only = not columns
        if former is not None:
            asked.batch.commit.CopyFrom(
                replay_pb2.CommitBatchRequest(
                    session=plan.session,
                    batch=former.batch,
                    keys=former.keys,
                    priorities=np.ones(2).tobytes(),
                )
            )
        sampling.send(asked)

    sampling.send(plan_request(plan))
    appending.send(window_request(1), window_request(3))
    receive_stored(appending, 4)
    request(0)
    first = receive_batch(sampling)
    request(1, former=first)
    second = receive_batch(sampling)
    assert (second.batch, second.committed.updated, second.HasField("counts")) == (1, 2, True)
    request(2, former=second)
    alone = receive_batch(sampling)
    assert (alone.batch, alone.committed.updated, alone.HasField("counts")) == (1, 2, False)
    appending.send(window_request(5, version=2), window_request(7, version=2))
    third = receive_batch(sampling)
    assert (third.batch, third.HasField("committed")) == (2, False)
    receive_stored(appending, 8)
    request(3, former=third, columns=True)
    alone, fourth = receive_batch(sampling), receive_batch(sampling)
    assert (alone.batch, alone.committed.updated, alone.HasField("block")) == (2, 2, False)
    assert (fourth.batch, fourth.HasField("committed"), fourth.HasField("block")) == (3, False, True)


def test_while_a_batch_is_not_ready_the_learner_receives_the_reason(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_with(fresh_segments=4, batch_segments=4))
    assert source.next(0.0) is None
    until(lambda: source.waiting_for == WaitReason(Awaited.ACTORS), "the learner waits for actors")
    status = loopback.replay_status(server)
    assert (status.training_waits_for, status.collection_waits_for) == ("actors", "actors")


# The gate


@pytest.mark.parametrize(("degree", "publish_interval"), [(1, 1), (2, 3)])
def test_grants_and_staleness_keep_their_bounds_under_any_delays_of_actors(
    loopback: Loopback, degree: int, publish_interval: int
) -> None:
    server, recorder = loopback.replay(rows=200), Recorder()
    plan = plan_with(batch_segments=9, fresh_segments=6, off_policy_degree=degree, publish_interval=publish_interval)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    delays = random.Random(1)

    def collect(grant: Grant) -> None:
        assert grant.minimum_version == plan.minimum_version(grant.batch)
        assert grant.batch <= trainer.version + degree
        # Simulates the pace of an environment; the test does not wait for anything here.
        time.sleep(delays.choice([0.0, 0.0, 0.001, 0.004]))

    windows = {0: 3, 2: 2, 3: 1}
    sinks = {slot: loopback.sink(slot, server, segments=segments) for slot, segments in windows.items()}
    until(lambda: loopback.replay_status(server).actors == 3, "all actors connect")
    actors = [
        Actor(sinks[slot], recorder, lambda: trainer.published, slot=slot, segments=segments, before=collect)
        for slot, segments in windows.items()
    ]
    for batch in trainer.train(200):
        lag = batch.number - batch.head.versions[: batch.fresh_segments]
        assert lag.min() >= 0
        assert lag.max() <= degree + publish_interval - 1
        counts = batch.counts
        assert counts.granted + counts.unseen + counts.leased <= plan.outstanding_limit
    for actor in actors:
        actor.end()
    assert len(set(trainer.fresh)) == len(trainer.fresh) == 200 * 6
    assert {slot for slot, _, _ in trainer.fresh} == {0, 2, 3}


def test_with_degree_zero_nothing_is_collected_ahead_of_the_weights(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    plan = plan_with(batch_segments=4, fresh_segments=4, off_policy_degree=0)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    grants: Counter[int] = Counter()

    def collect(grant: Grant) -> None:
        assert grant.minimum_version == grant.batch <= trainer.version
        grants[grant.batch] += 1

    sinks = [loopback.sink(slot, server) for slot in range(2)]
    until(lambda: loopback.replay_status(server).actors == 2, "both actors connect")
    actors = [
        Actor(sink, recorder, lambda: trainer.published, slot=slot, before=collect) for slot, sink in enumerate(sinks)
    ]
    for batch in trainer.train(40):
        assert (batch.head.versions == batch.number).all()
    for actor in actors:
        actor.end()
    assert {grants[batch] for batch in range(40)} == {2}
    assert loopback.replay_status(server).counts.late == 0


def test_without_a_commit_grants_stop_at_the_gates_limit(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_with(fresh_segments=4, batch_segments=4))
    sink, sequence = loopback.sink(0, server), 1
    while sequence <= 8:
        grant = until(lambda: sink.next_grant(0.5), "a grant")
        assert grant == Grant(batch=sequence // 5, minimum_version=0)
        sink.send(make_window(sequence))
        sequence += 2
    batch = until(lambda: source.next(0.5), "a batch")
    assert sink.drain(PATIENCE_S)
    assert sink.next_grant(0.0) is None
    counts = loopback.replay_status(server).counts
    assert (counts.granted, counts.unseen + counts.leased) == (0, 8)
    source.commit(batch, np.ones(4))
    assert until(lambda: sink.next_grant(0.5), "a grant") == Grant(batch=2, minimum_version=1)


def test_a_silent_actor_loses_its_grants_and_the_other_continues(loopback: Loopback, first_answer_s: float) -> None:
    # Long enough for everything done while the actor still has its grants.
    server, recorder = loopback.replay(grant_timeout_s=2.0 + AT_ONCE * first_answer_s), Recorder()
    plan = plan_with(fresh_segments=4, batch_segments=4)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    silent = loopback.plain(server, methods.APPEND_SEGMENTS)
    silent.send(open_request(0, segments=4))
    receive_grants(silent, 2)
    sink = loopback.sink(1, server, segments=4)

    def both_connect() -> bool:
        silent.send(HEARTBEAT)
        return bool(loopback.replay_status(server).actors == 2)

    until(both_connect, "both actors connect")
    assert sink.next_grant(0.1) is None
    actor = Actor(sink, recorder, lambda: trainer.published, slot=1, segments=4)
    assert sum(batch.fresh_segments for batch in trainer.train(10)) == 40
    # Its window is too late to be fresh, but is stored as soon as there is room.
    recorder.note(make_window(segments=4))
    silent.send(window_request(1, segments=4))
    until(lambda: list(trainer.train(1)) and loopback.replay_status(server).counts.late >= 4, "the window is taken")
    receive_stored(silent, 4)
    actor.end()


def test_a_window_that_waits_for_room_longer_than_the_grant_timeout_is_stored(
    loopback: Loopback,
) -> None:
    server = loopback.replay(grant_timeout_s=0.6)
    plan = plan_with(fresh_segments=2, batch_segments=2, off_policy_degree=0, publish_interval=3)
    source = loopback.source(server, plan)
    first = loopback.sink(1, server)
    first.send(make_window(slot=1))
    batch = until(lambda: source.next(0.5), "a batch")
    first.close()
    # All room is taken until that batch is trained.
    sink = loopback.sink(0, server)
    sink.send(make_window())
    assert not sink.drain(1.5)
    source.commit(batch, np.ones(2))
    batch = until(lambda: source.next(0.5), "the next batch")
    assert_same_columns(batch.columns, make_window().columns)
    assert sink.drain(PATIENCE_S)


# Breaks


def test_windows_in_transit_at_the_death_of_the_service_are_stored_once_and_in_order(
    loopback: Loopback, tmp_path: Path
) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    loopback.source(server, plan_with(fresh_segments=40, batch_segments=40, off_policy_degree=3))
    sinks = [loopback.sink(slot, server) for slot in range(2)]
    actors = [Actor(sink, recorder, lambda: 0, slot=slot, windows=30) for slot, sink in enumerate(sinks)]

    def are_stored(segments: int) -> bool:
        return server.store.session.inserted >= segments

    for enough in (20, 50, 80):
        until(partial(are_stored, enough), f"{enough} segments are stored")
        server.kill()
        server = loopback.replay(folder=tmp_path, port=server.port)
    until(lambda: all(actor.sent == 30 for actor in actors), "everything is sent")
    for actor, sink in zip(actors, sinks, strict=True):
        actor.end()
        assert sink.drain(PATIENCE_S)
    server.kill()

    store = RingStore(tmp_path, capacity_bytes(400))
    assert (store.recovery.segments, store.recovery.damaged) == (120, 0)
    # The number of a row is its key until the ring turns over.
    assert store.headers["key"][1:121].tolist() == list(range(1, 121))
    for slot in range(2):
        rows = 1 + np.flatnonzero(store.headers["slot"][1:121] == slot)
        assert store.headers["sequence"][rows].tolist() == list(range(1, 61))
        came = SCHEMA.empty(60)
        read_rows(store, rows, came)
        assert_same_columns(came, make_columns([(slot, 1, sequence) for sequence in range(1, 61)]))


def test_a_window_cut_between_its_parts_is_not_stored_until_it_arrives_whole(loopback: Loopback) -> None:
    server = loopback.replay(schema=IMAGES, rows=20)
    source = loopback.source(server, plan_with(fresh_segments=4, batch_segments=4), schema=IMAGES)
    window = make_window(segments=4, schema=IMAGES)
    first, *_ = encode_window(window)
    cut = loopback.plain(server, methods.APPEND_SEGMENTS)
    cut.send(open_request(segments=4, schema=IMAGES))
    receive_grants(cut, 1)
    cut.send(first, HEARTBEAT)
    cut.leave()
    assert cut.status()[0] == Code.OK
    assert loopback.replay_status(server).counts.inserted == 0
    sink = loopback.sink(0, server, schema=IMAGES, segments=4)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(window)
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, window.columns)
    assert loopback.replay_status(server).counts.inserted == 4


def test_a_window_whose_acknowledgement_was_lost_is_dropped_on_its_second_arrival(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=4, batch_segments=4))
    before = loopback.plain(server, methods.APPEND_SEGMENTS)
    before.send(open_request())
    receive_grants(before, 2)
    before.send(window_request(1))
    receive_stored(before, 2)
    # The old stream is still open here: a client may notice a break before the server.
    after = loopback.plain(server, methods.APPEND_SEGMENTS)
    after.send(open_request())
    assert after.receive().stored_sequence == 2
    after.send(window_request(1), window_request(3))
    receive_stored(after, 4)
    assert loopback.replay_status(server).counts.inserted == 4
    before.send(HEARTBEAT)
    code, details = before.status()
    assert (code, "opened another stream" in details) == (Code.UNAVAILABLE, True)
    assert loopback.replay_status(server).actors == 1


@pytest.mark.parametrize("end", [LiveReplay.kill, LiveReplay.stop])
def test_the_learner_continues_from_its_batch_after_a_restart_of_the_service(
    loopback: Loopback, tmp_path: Path, end: Callable[[LiveReplay], None]
) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, off_policy_degree=3, min_replay_segments=4)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    actors = [Actor(loopback.sink(slot, server), recorder, lambda: trainer.published, slot=slot) for slot in range(2)]
    for _ in trainer.train(20):
        pass
    in_hand = trainer.next()
    end(server)
    outcomes = []
    committing = threading.Thread(target=lambda: outcomes.append(trainer.commit(in_hand)))
    committing.start()
    server = loopback.replay(folder=tmp_path, port=server.port)
    loopback.join(committing)
    assert (outcomes[0].updated, outcomes[0].repeated) == (8, False)
    for _ in trainer.train(20):
        pass
    for actor in actors:
        actor.end()
    # The trainer received every number once, in order. Every segment was fresh once, or too late for it.
    assert trainer.version == 41
    assert len(set(trainer.fresh)) == len(trainer.fresh)
    missing = 0
    for slot in range(2):
        sequences = {sequence for owner, _, sequence in trainer.fresh if owner == slot}
        missing += len(set(range(1, max(sequences))) - sequences)
    counts = loopback.replay_status(server).counts
    assert missing <= counts.late + counts.unseen + counts.leased


def test_a_window_collected_during_a_break_spends_a_grant_of_the_new_stream(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with(fresh_segments=2, batch_segments=2))
    sink = loopback.sink(0, server)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window(1))
    assert sink.drain(PATIENCE_S)
    until(lambda: sink.next_grant(0.5), "a grant")
    server.kill()
    server = loopback.replay(folder=tmp_path, port=server.port)
    until(lambda: loopback.replay_status(server).counts.granted == 2, "another window is granted")
    sink.send(make_window(3))
    assert sink.drain(PATIENCE_S)
    # No commit has made room for a third window.
    assert sink.next_grant(0.0) is None
    counts = loopback.replay_status(server).counts
    assert (counts.granted, counts.unseen + counts.leased) == (0, 4)


def test_grants_end_with_the_session_and_their_windows_spend_grants_of_the_next_stream(loopback: Loopback) -> None:
    server, plan = loopback.replay(), plan_with(fresh_segments=2, batch_segments=2)
    former = loopback.source(server, plan)
    sink = loopback.sink(0, server)
    for _ in range(2):
        until(lambda: sink.next_grant(0.5), "a grant")
    assert sink.next_grant(0.3) is None
    former.close(0.0)
    loopback.source(server, replace(plan, session=plan.session + 1))
    # Both former grants are in use, so this one can only be of the stream that has opened again.
    until(lambda: sink.next_grant(0.5), "a grant of the next stream")
    assert loopback.replay_status(server).counts.granted == 4
    sink.send(make_window(1))
    assert sink.drain(PATIENCE_S)
    counts = loopback.replay_status(server).counts
    assert (counts.granted, counts.unseen + counts.leased, counts.late) == (2, 2, 0)


@pytest.mark.parametrize("event", ["the service restarts", "another learner comes"])
def test_actors_follow_the_gate_again_after_an_interruption(loopback: Loopback, tmp_path: Path, event: str) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    plan = plan_with(batch_segments=4, fresh_segments=4, off_policy_degree=0)
    trainers = [Trainer(source := loopback.source(server, plan), recorder, plan)]
    actors = [
        Actor(
            loopback.sink(slot, server),
            recorder,
            lambda: trainers[-1].published,
            slot=slot,
            # Simulates the pace of an environment, so that the interruption finds windows in collection.
            before=lambda grant: time.sleep(0.002),
        )
        for slot in range(2)
    ]
    for _ in trainers[-1].train(10):
        pass
    for _ in range(2):
        if event == "the service restarts":
            server.kill()
            server = loopback.replay(folder=tmp_path, port=server.port)
        else:
            source.close()
            plan = replace(plan, session=plan.session + 1, next_batch=trainers[-1].version + 100)
            trainers.append(Trainer(source := loopback.source(server, plan), recorder, plan))
        for _ in trainers[-1].train(25):
            pass
    for actor in actors:
        actor.end()
    # A grant that outlived its stream would keep its actor one window ahead, and make each of its windows late.
    windows_under_way = 2 * 2 * 2
    assert loopback.replay_status(server).counts.late <= windows_under_way


def test_another_learner_takes_over_and_the_old_one_receives_the_reason(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    plan = plan_with(batch_segments=4, fresh_segments=4)
    old = loopback.source(server, plan)
    trainers = [former := Trainer(old, recorder, plan)]
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainers[-1].published, slot=0)
    batch = former.next()
    successor = replace(plan, session=secrets.randbits(62) + 1, next_batch=1)
    old.close(0.0)
    trainers.append(trainer := Trainer(loopback.source(server, successor), recorder, successor))
    taken_over = trainer.next()
    assert taken_over.keys.tolist() == batch.keys.tolist()
    assert trainer.fresh == former.fresh
    assert trainer.commit(taken_over).updated == 4
    returned = loopback.source(server, plan)
    with pytest.raises(SchemaMismatch, match="the learner begins at 0"):
        until(lambda: returned.next(0.5), "the old learner learns of it")
    trainer.next()
    actor.end()


def test_health_watchers_receive_the_end_of_a_run_until_the_next_begins(loopback: Loopback) -> None:
    server = loopback.replay()
    plan = plan_with(batch_segments=4, fresh_segments=4)
    old = loopback.source(server, plan)
    until(lambda: old.waiting_for != WaitReason(Awaited.REPLAY_SERVICE), "the service answers the first learner")
    old.finish()
    assert run_finished() == 1.0
    old.close()
    successor = replace(plan, session=secrets.randbits(62) + 1)
    new = loopback.source(server, successor)
    until(lambda: run_finished() == 0.0, "the next run begins")
    # A learner that was taken over has no effect.
    code, _ = loopback.plain_call(server, methods.FINISH_RUN, replay_pb2.FinishRunRequest(session=plan.session))
    assert code == Code.FAILED_PRECONDITION
    assert run_finished() == 0.0
    new.finish()
    assert run_finished() == 1.0


def run_finished() -> float:
    (family,) = metrics.REPLAY_RUN_FINISHED.collect()
    return family.samples[0].value


# Refusals


OTHER = Schema(4, SCHEMA.columns)
TWINS = Schema(3, (Column("reward", "float32"), Column("reward", "float32", (2,), Extent.SEGMENT)))


def damaged(damage: Callable[[replay_pb2.Window], object], **options: int) -> replay_pb2.AppendSegmentsRequest:
    """Returns a window of slot 1 with a fault."""
    request = window_request(1, slot=1, **options)
    damage(request.window)
    return request


def put_nan(window: replay_pb2.Window) -> None:
    window.block.payload = b"\x00\x00\xc0\x7f" + window.block.payload[4:]


APPENDING = [
    ([window_request(1, slot=1)], Code.INVALID_ARGUMENT, "must begin with `open`"),
    ([HEARTBEAT], Code.INVALID_ARGUMENT, "must begin with `open`"),
    ([b"\xff\xff\xff"], Code.INVALID_ARGUMENT, "malformed message"),
    ([open_request(1, schema=Schema(0, SCHEMA.columns))], Code.INVALID_ARGUMENT, "needs steps and columns"),
    ([open_request(1, schema=TWINS)], Code.INVALID_ARGUMENT, "two columns of the same name"),
    ([open_request(1, schema=OTHER)], Code.FAILED_PRECONDITION, f"{OTHER.hash:016x}"),
    ([open_request(1, segments=0)], Code.INVALID_ARGUMENT, "must have segments"),
    ([open_request(1, segments=401)], Code.INVALID_ARGUMENT, "1 to 400 segments"),
    ([open_request(1, segments=9)], Code.FAILED_PRECONDITION, "windows of 9 segments"),
    ([open_request(4096)], Code.INVALID_ARGUMENT, "slot must be below 4096"),
    ([open_request(0, incarnation=0)], Code.FAILED_PRECONDITION, "join again"),
    ([open_request(1), open_request(1)], Code.INVALID_ARGUMENT, "carries windows, heartbeats"),
    ([open_request(1), b"\xff\xff\xff"], Code.INVALID_ARGUMENT, "malformed message"),
    ([open_request(1), damaged(put_nan)], Code.INVALID_ARGUMENT, "observation has values that are not finite"),
    ([open_request(1), window_request(3, slot=1)], Code.INVALID_ARGUMENT, "1 was expected"),
    ([open_request(1), window_request(0, slot=1)], Code.INVALID_ARGUMENT, "sequences start at 1"),
    ([open_request(1), window_request(1, slot=1, segments=3)], Code.INVALID_ARGUMENT, "2 were announced"),
    ([open_request(1), window_request(1, slot=1, version=-1)], Code.INVALID_ARGUMENT, "versions at 0"),
    ([open_request(1), window_request(1, slot=1, version=1_001_001)], Code.INVALID_ARGUMENT, "0 is the newest"),
    ([open_request(1), damaged(lambda window: window.environments.pop())], Code.INVALID_ARGUMENT, "1 environments"),
    ([open_request(1), damaged(lambda window: window.ClearField("block"))], Code.INVALID_ARGUMENT, "0 segments"),
    (
        [open_request(1), damaged(lambda window: setattr(window.block, "schema_hash", 7))],
        Code.INVALID_ARGUMENT,
        "schema 0000000000000007",
    ),
    (
        [open_request(1), damaged(lambda window: setattr(window.block, "payload", b""))],
        Code.INVALID_ARGUMENT,
        "ends at byte 0 of",
    ),
    (
        [open_request(1), damaged(lambda window: setattr(window.block, "total_bytes", 2**50))],
        Code.RESOURCE_EXHAUSTED,
        "the maximum is",
    ),
]


@pytest.mark.parametrize(("requests", "code", "reason"), APPENDING)
def test_invalid_messages_of_an_actor_are_refused_without_effect_on_another_actor(
    loopback: Loopback, requests: list[replay_pb2.AppendSegmentsRequest | bytes], code: Code, reason: str
) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=8, batch_segments=8))
    neighbour, offender = (loopback.plain(server, methods.APPEND_SEGMENTS) for _ in range(2))
    neighbour.send(open_request())
    receive_grants(neighbour, 2)
    neighbour.send(window_request(1))
    receive_stored(neighbour, 2)
    offender.send(*requests)
    came, details = offender.status()
    assert (came, reason in details) == (code, True), details
    neighbour.send(window_request(3), window_request(5))
    receive_stored(neighbour, 6)
    status = loopback.replay_status(server)
    assert (status.actors, status.counts.inserted) == (1, 6)


PLAN_BESIDE = plan_with(fresh_segments=4, batch_segments=4)
SAMPLING: list[tuple[list[replay_pb2.SampleBatchesRequest | bytes], Code, str]] = [
    ([batch_request(0)], Code.INVALID_ARGUMENT, "must begin with `plan`"),
    ([b"\xff\xff\xff"], Code.INVALID_ARGUMENT, "malformed message"),
    ([plan_request(replace(PLAN_BESIDE, session=0))], Code.INVALID_ARGUMENT, "invalid plan: session 0"),
    ([plan_request(replace(PLAN_BESIDE, half_life=0.0))], Code.INVALID_ARGUMENT, "half_life must be from"),
    ([plan_request(replace(PLAN_BESIDE, slot_weights=(0.0, 0.0)))], Code.INVALID_ARGUMENT, "all slot_weights are 0"),
    (
        [plan_request(replace(PLAN_BESIDE, slot_weights=(1.0, 0.0), least_share=0.0))],
        Code.FAILED_PRECONDITION,
        "sampling.least_share 0 would exclude slots",
    ),
    ([plan_request(plan_with(batch_segments=400))], Code.FAILED_PRECONDITION, "holds 400 segments"),
    ([plan_request(plan_with(next_batch=2))], Code.UNAVAILABLE, "another learner of this run is connected"),
    ([plan_request(PLAN_BESIDE), replay_pb2.SampleBatchesRequest()], Code.INVALID_ARGUMENT, "carries plans"),
    ([plan_request(PLAN_BESIDE), batch_request(7)], Code.INVALID_ARGUMENT, "is next"),
]


@pytest.mark.parametrize(("requests", "code", "reason"), SAMPLING)
def test_invalid_requests_of_a_learner_are_refused_and_the_run_continues(
    loopback: Loopback, requests: list[replay_pb2.SampleBatchesRequest | bytes], code: Code, reason: str
) -> None:
    server, recorder = loopback.replay(), Recorder()
    trainer = Trainer(loopback.source(server, PLAN_BESIDE, prefetch=0), recorder, PLAN_BESIDE)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(2):
        pass
    offender = loopback.plain(server, methods.SAMPLE_BATCHES)
    offender.send(*requests)
    came, details = offender.status()
    assert (came, reason in details) == (code, True), details
    for _ in trainer.train(5):
        pass
    actor.end()


Commit = replay_pb2.CommitBatchRequest


def with_priority(position: int, priority: float) -> Callable[[Commit], object]:
    """Returns a function that replaces one priority of a commit."""

    def damage(commit: Commit) -> None:
        priorities = np.frombuffer(commit.priorities).copy()
        priorities[position] = priority
        commit.priorities = priorities.tobytes()

    return damage


COMMITS: list[tuple[Callable[[Commit], object], Code, str]] = [
    (with_priority(1, -0.5), Code.INVALID_ARGUMENT, "not negative"),
    (with_priority(1, float("nan")), Code.INVALID_ARGUMENT, "finite"),
    (lambda commit: setattr(commit, "priorities", commit.priorities[:-8]), Code.INVALID_ARGUMENT, "3 for 4 keys"),
    (lambda commit: setattr(commit, "batch", 7), Code.INVALID_ARGUMENT, "0 is the next to commit"),
    (lambda commit: setattr(commit, "session", 5), Code.FAILED_PRECONDITION, "another learner session"),
    (
        lambda commit: setattr(commit, "keys", np.uint64(5).tobytes() + commit.keys[8:]),
        Code.INVALID_ARGUMENT,
        "not leased to it",
    ),
]


@pytest.mark.parametrize(("damage", "code", "reason"), COMMITS)
def test_an_invalid_commit_is_refused_and_the_valid_one_still_counts(
    loopback: Loopback, damage: Callable[[Commit], object], code: Code, reason: str
) -> None:
    server, plan = loopback.replay(), plan_with(fresh_segments=4, batch_segments=4)
    source, sink = loopback.source(server, plan, prefetch=0), loopback.sink(0, server)
    for sequence in (1, 3, 5):
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(make_window(sequence))
    assert sink.drain(PATIENCE_S)
    batch = until(lambda: source.next(0.5), "a batch")
    request = Commit(session=plan.session, batch=0, keys=batch.keys.tobytes(), priorities=np.ones(4).tobytes())
    damage(request)
    came, details = loopback.plain_call(server, methods.COMMIT_BATCH, request)
    assert (came, reason in details) == (code, True), details
    assert loopback.replay_status(server).version == 0
    assert source.commit(batch, np.ones(4)).result(PATIENCE_S).updated == 4
    assert loopback.replay_status(server).version == 1


def test_more_actors_than_configured_are_refused_until_one_leaves(loopback: Loopback) -> None:
    server = loopback.replay(max_actors=1)
    loopback.source(server, plan_with())
    first = loopback.plain(server, methods.APPEND_SEGMENTS)
    first.send(open_request(0))
    receive_grants(first, 1)
    refused = loopback.plain(server, methods.APPEND_SEGMENTS)
    refused.send(open_request(1))
    code, details = refused.status()
    assert (code, "replay.max_actors" in details) == (Code.RESOURCE_EXHAUSTED, True)
    patient = loopback.sink(2, server)
    assert patient.next_grant(0.1) is None
    first.leave()
    assert until(lambda: patient.next_grant(0.5), "a grant").batch == 0


def test_a_permanent_error_is_raised_at_the_actors_next_call(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    sink: ReplaySegmentSink = loopback.sink(0, server)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window(11))
    with pytest.raises(InvalidSegment, match="1 was expected"):
        until(lambda: sink.next_grant(0.5) and False, "the error is raised")
    with pytest.raises(InvalidSegment, match="1 was expected"):
        sink.send(make_window(13))
    assert not sink.drain(0.0)


def test_a_plan_too_large_for_the_store_is_raised_at_the_learners_next_call(loopback: Loopback) -> None:
    server = loopback.replay(rows=8)
    loopback.sink(0, server)
    until(lambda: loopback.replay_status(server).actors == 1, "the actor connects")
    plan: SamplingPlan = plan_with(fresh_segments=4, batch_segments=4)
    source = loopback.source(server, plan)
    with pytest.raises(Exception, match=r"holds 8 segments.*needs 12; raise replay\.capacity_bytes"):
        until(lambda: source.next(0.5), "the error is raised")


def test_the_schema_of_a_run_is_that_of_its_first_actor(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    stranger = loopback.plain(server, methods.APPEND_SEGMENTS)
    stranger.send(open_request(schema=OTHER))
    assert stranger.receive().stored_sequence == 0
    sink = loopback.sink(1, server)
    with pytest.raises(SchemaMismatch, match=f"{OTHER.hash:016x}.*{SCHEMA.hash:016x}"):
        until(lambda: sink.next_grant(0.5), "the error is raised")
    assert encode_schema(OTHER) != encode_schema(SCHEMA)
