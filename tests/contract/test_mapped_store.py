"""A learner with access to the store's folder reads the columns from the mapped file."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.replay.store.store_reader import StoreReader
from penstock.rpc import methods
from penstock.types.block import Schema
from penstock.types.replay import Batch, MappedStore, Window
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.direct_buffer import write_rows
from tests.support.segments.segments import SCHEMA, assert_same_columns, make_columns, make_store, make_window
from tests.support.services.servers import (
    IMAGES,
    Actor,
    Loopback,
    Recorder,
    Trainer,
    pass_windows,
    plan_request,
    plan_with,
    sample,
    until,
)


@pytest.mark.parametrize("schema", [SCHEMA, IMAGES])
def test_batches_read_from_the_folder_contain_the_sent_segments(
    loopback: Loopback, tmp_path: Path, schema: Schema
) -> None:
    server = loopback.replay(folder=tmp_path, schema=schema, rows=40)
    source = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4), schema=schema)
    sink, window = loopback.sink(0, server, schema=schema, segments=4), make_window(segments=4, schema=schema)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(window)
    batch = until(lambda: source.next(0.5), "a batch")
    assert source.reads == "mapped store"
    assert_same_columns(batch.columns, window.columns)
    assert source.commit(batch, np.ones(4)).result(PATIENCE_S).updated == 4


def test_without_a_folder_batches_arrive_over_grpc(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_with())
    sink = loopback.sink(0, server)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window())
    until(lambda: source.next(0.5), "a batch")
    assert source.reads == "messages"


def test_a_folder_of_the_same_name_with_another_store_is_not_read(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path / "store")
    loopback.source(server, plan_with())
    sink = loopback.sink(0, server)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window())
    assert sink.drain(PATIENCE_S)
    offer = server.store.mapped
    assert offer is not None
    StoreReader(offer, SCHEMA)
    for wrong in (replace(offer, identity=offer.identity + 1), replace(offer, folder=str(tmp_path / "elsewhere"))):
        with pytest.raises(ConfigurationError):
            StoreReader(wrong, SCHEMA)
    with pytest.raises(ConfigurationError, match="another schema"):
        StoreReader(offer, IMAGES)
    (tmp_path / "store" / "segments.bin").rename(tmp_path / "segments.bin")
    with pytest.raises(ConfigurationError, match="can't map the store"):
        StoreReader(offer, SCHEMA)
    shutil.move(tmp_path / "segments.bin", tmp_path / "store" / "segments.bin")


def test_batches_arrive_in_messages_if_only_the_folder_is_shared_and_not_the_memory(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = []

    def read_copy(store: MappedStore, schema: Schema) -> StoreReader:
        copy = tmp_path / "of another host"
        shutil.copytree(store.folder, copy)
        return StoreReader(replace(store, folder=str(copy)), schema)

    monkeypatch.setattr("penstock.rpc.clients.sampling_stream.StoreReader", read_copy)
    monkeypatch.setattr("penstock.telemetry.logs.note", lambda event, **values: notes.append((event, values)))
    server = loopback.replay(folder=tmp_path / "store", staging_bytes=0)
    source, sink = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2)), loopback.sink(0, server)
    pass_windows(sink, source, 3)
    assert source.reads == "messages"
    assert sample("penstock_learner_reads_mapped_store") == 0
    assert [event for event, _ in notes if event.endswith("not used")] == ["mapped store not used"]


@pytest.mark.parametrize("rows", [400, 512])
def test_a_proof_is_visible_in_the_memory_that_the_service_writes_and_in_no_earlier_copy(
    tmp_path: Path, rows: int
) -> None:
    # Headers of 512 rows fill whole pages.
    store = make_store(rows, tmp_path / "store")
    write_rows(store, np.arange(1, 3, dtype=np.uint64), make_window(), 0)
    offer = store.mapped
    assert offer is not None
    first = store.prove()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    here, copy = StoreReader(offer, SCHEMA), StoreReader(replace(offer, folder=str(tmp_path / "copy")), SCHEMA)
    assert here.shows(first)
    assert copy.shows(first)
    second = store.prove()
    assert here.shows(second)
    assert here.shows(first), "another stream's proof came after ours"
    assert not copy.shows(second)
    into = SCHEMA.empty(2)
    assert here.gather(np.arange(1, 3, dtype=np.uint64), into)
    assert_same_columns(into, make_window().columns)
    assert make_store(rows, tmp_path / "store").recovery.damaged == 0


def test_a_small_ring_that_turns_over_during_reads_yields_no_mixed_segment(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path, schema=IMAGES, rows=12)
    plan = plan_with(batch_segments=8, fresh_segments=0, min_replay_segments=4)
    source, sink = loopback.source(server, plan, schema=IMAGES, prefetch=2), loopback.sink(0, server, schema=IMAGES)
    columns = [make_columns([(0, 0, fill)] * 2, IMAGES) for fill in range(4)]
    for fill, window in enumerate(columns):
        for array in window.arrays:
            array[...] = fill + 1
    done, before = threading.Event(), sample("penstock_learner_redrawn_batches_total")

    def send() -> None:
        sequence = 1
        while not done.is_set():
            if sink.next_grant(0.5) is not None:
                sink.send(Window(make_window(sequence, schema=IMAGES).head, columns[sequence // 2 % 4]))
                sequence += 2

    sending = threading.Thread(target=send)
    sending.start()
    try:
        for number in range(300):
            batch = until(lambda: source.next(0.5), "a batch")
            observation, reward = batch.columns.arrays
            for row in range(8):
                fills = {int(observation[row].min()), int(observation[row].max()), int(reward[row].max())}
                assert len(fills) == 1, fills
            source.commit(batch, np.ones(8))
            if number >= 40 and sample("penstock_learner_redrawn_batches_total") > before:
                break
    finally:
        done.set()
        loopback.join(sending)
    assert source.reads == "mapped store"
    assert sample("penstock_learner_redrawn_batches_total") > before


def test_a_batch_is_repeated_while_a_later_one_waits_for_fresh_segments(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    sink, stream = loopback.sink(0, server, segments=2), loopback.plain(server, methods.SAMPLE_BATCHES)
    stream.send(plan_request(plan_with(batch_segments=2, fresh_segments=2, off_policy_degree=0)))
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window())
    answers = (response for response in iter(stream.receive, None) if not response.waiting)
    assert next(answers).HasField("opened")
    first, second = (
        replay_pb2.SampleBatchesRequest(batch=replay_pb2.BatchRequest(batch=number, head_only=True))
        for number in range(2)
    )
    stream.send(first, second)
    given = next(answers)
    # Nothing is collected for the second batch before the first is trained.
    assert stream.receive().waiting
    stream.send(first)
    again = next(answers)
    assert (again.batch, again.keys) == (0, given.keys)


def test_unanswered_commits_are_sent_again_after_a_break(loopback: Loopback, tmp_path: Path) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, off_policy_degree=2, min_replay_segments=8)
    source = loopback.source(server, plan)
    trainer = Trainer(source, recorder, plan)
    actors = [Actor(loopback.sink(slot, server), recorder, lambda: trainer.published, slot=slot) for slot in range(2)]
    for _ in trainer.train(5):
        pass
    for _ in range(3):
        batch = trainer.next()
        server.kill()
        outcome = trainer.begin_commit(batch)
        assert not outcome.done()
        server = loopback.replay(folder=tmp_path, port=server.port)
        assert outcome.result(PATIENCE_S).updated == batch.keys.size
        for _ in range(3):
            batch = trainer.next()
            trainer.commit(batch)
    for actor in actors:
        actor.end()


class Pages:
    """Memory of a device: allocates, and knows what lies in it."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[np.uint8]] = []

    def allocate(self, size: int) -> memoryview:
        self.arrays.append(np.zeros(size, np.uint8))
        return self.arrays[-1].data

    def hold(self, batch: Batch) -> bool:
        return all(any(np.shares_memory(each, page) for page in self.arrays) for each in batch.columns.arrays)


@pytest.mark.parametrize(("mapped", "segments"), [(True, 4), (False, 4), (False, 2048)])
def test_columns_are_received_where_the_device_reads_them(
    loopback: Loopback, tmp_path: Path, mapped: bool, segments: int
) -> None:
    pages = Pages()
    server = loopback.replay(folder=tmp_path if mapped else None, rows=4 * segments, staging_bytes=0)
    source = loopback.source(server, plan_with(batch_segments=segments, fresh_segments=segments), memory=pages.allocate)
    sink = loopback.sink(0, server, segments=segments)
    for number in range(3):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = make_window(1 + number * segments, segments=segments, version=number)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        assert pages.hold(batch)
        source.commit(batch, np.ones(segments)).result(PATIENCE_S)
    assert source.reads == ("mapped store" if mapped else "messages")
    # One of each batch that is not yet released; the next one may have been requested.
    assert len(pages.arrays) <= 3
