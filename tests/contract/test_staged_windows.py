"""Actors that see the store's folder hand their windows over through it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode

from helpers.segments import SCHEMA, assert_same_columns, make_window
from helpers.servers import (
    IMAGES,
    PATIENCE_S,
    Actor,
    LiveReplay,
    Loopback,
    PlainStream,
    Recorder,
    Trainer,
    open_request,
    plan_with,
    sample,
    until,
)
from penstock.replay.staging import SLOTS, StagingAreas, StagingSlots
from penstock.rpc import methods
from penstock.rpc.segment_sink import _map
from penstock.types import Schema, StagingOffer
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire.replay import encode_staged_window


def staging_files(folder: Path) -> list[Path]:
    return list((folder / "staging").glob("*"))


@pytest.mark.parametrize("schema", [SCHEMA, IMAGES])
@pytest.mark.parametrize("through", ["slots", "messages"])
def test_what_is_sent_is_stored_either_way(loopback: Loopback, tmp_path: Path, schema: Schema, through: str) -> None:
    staging_bytes = 2**27 if through == "slots" else 0
    server = loopback.replay(folder=tmp_path, schema=schema, rows=60, staging_bytes=staging_bytes)
    source = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4), schema=schema)
    sink = loopback.sink(0, server, schema=schema, segments=4)
    # More windows than there are slots, so that each is used again.
    for number in range(2 * SLOTS + 1):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = make_window(1 + 4 * number, segments=4, version=number, schema=schema)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        source.commit(batch, np.ones(4), number + 1).result(PATIENCE_S)
    assert sample("penstock_actor_stages_windows") == (through == "slots")
    assert len(staging_files(tmp_path)) == (through == "slots")
    sink.close()
    until(lambda: not staging_files(tmp_path), "the file is removed")


def test_windows_of_a_broken_stream_are_stored_once_from_the_memory_they_lie_in(
    loopback: Loopback, tmp_path: Path
) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, off_policy_degree=2, min_replay_segments=8)
    source = loopback.source(server, plan)
    trainer = Trainer(source, recorder, plan)
    actors = [Actor(loopback.sink(slot, server), recorder, lambda: trainer.published, slot=slot) for slot in range(2)]
    for number in range(5):
        for _ in trainer.train(6):
            pass
        server.kill()
        # The third finds no room for slots, the next one does again.
        server = loopback.replay(folder=tmp_path, port=server.port, staging_bytes=0 if number == 2 else 2**26)
    for _ in trainer.train(6):
        pass
    for actor in actors:
        actor.end()
    assert len(set(trainer.fresh)) == len(trainer.fresh)


def test_areas_are_removed_with_their_stream_and_after_a_kill_and_keep_to_their_budget(tmp_path: Path) -> None:
    areas = StagingAreas(tmp_path, 3 * SLOTS * 4096)
    given = [areas.allocate(4000), areas.allocate(4096)]
    assert areas.allocate(4097) is None
    given.append(areas.allocate(1))
    assert areas.allocate(1) is None
    assert len(staging_files(tmp_path)) == 3
    assert all(path.stat().st_blocks * 512 >= SLOTS * 4096 for path in staging_files(tmp_path))
    assert given[0] is not None
    given[0].close()
    assert areas.allocate(4096) is not None
    assert len(staging_files(tmp_path)) == 3
    StagingAreas(tmp_path, 2**20)
    assert staging_files(tmp_path) == []
    assert StagingAreas(None, 2**20).allocate(1) is None


class StagedStream:
    """A client without our code, but for the area's memory."""

    def __init__(self, loopback: Loopback, server: LiveReplay) -> None:
        self.stream: PlainStream = loopback.plain(server, methods.APPEND_SEGMENTS)
        self.stream.send(open_request())
        offer = self.stream.receive().staging
        self.slots = StagingSlots(StagingOffer(offer.path, offer.slot_bytes)).slots

    def refused(self, request: replay_pb2.AppendSegmentsRequest) -> str:
        self.stream.send(request)
        code, details = self.stream.status()
        assert code == StatusCode.INVALID_ARGUMENT, (code, details)
        return details


def staged_request(slot: int) -> replay_pb2.AppendSegmentsRequest:
    return replay_pb2.AppendSegmentsRequest.FromString(encode_staged_window(make_window(), slot))


def test_what_lies_in_a_slot_is_checked_like_what_comes_in_a_message(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    client = StagedStream(loopback, server)
    columns = make_window().columns
    columns.arrays[0][0, 0, 0] = np.nan
    block.pack(columns, 0, client.slots[1])
    assert "observation" in client.refused(staged_request(1))
    assert server.store.headers["key"].max() == 0


def test_a_slot_that_is_not_there_is_invalid(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    assert "slot 4" in StagedStream(loopback, server).refused(staged_request(SLOTS))
    request = staged_request(0)
    request.window.block.payload = b"1234"
    assert "a staged block with a payload" in StagedStream(loopback, server).refused(request)
    request = staged_request(0)
    request.window.block.parts = 2
    assert "part 0 of 2" in StagedStream(loopback, server).refused(request)
    elsewhere = loopback.plain(loopback.replay(), methods.APPEND_SEGMENTS)
    elsewhere.send(open_request(), staged_request(0))
    assert elsewhere.status()[0] == StatusCode.INVALID_ARGUMENT


def test_an_offer_that_leads_nowhere_is_passed_over(tmp_path: Path) -> None:
    areas = StagingAreas(tmp_path, 2**20)
    area = areas.allocate(100)
    assert area is not None
    assert _map(area.offer) is not None
    assert _map(replace(area.offer, slot_bytes=2**20)) is None
    area.close()
    assert _map(area.offer) is None
    assert _map(None) is None
