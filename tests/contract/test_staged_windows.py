"""Actors with access to the store's folder pass their windows through it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, PlaceLost
from penstock.replay.store import staging
from penstock.replay.store.staging import SLOTS, StagingAreas, StagingSlots
from penstock.rpc import methods
from penstock.types.block import Column, Columns, Schema
from penstock.types.payloads import columns_in, layout, places
from penstock.types.replay import StagingOffer
from penstock.v1 import replay_pb2
from penstock.wire import block
from penstock.wire.encoding import raw_window
from penstock.wire.staged_checksum import staged_checksum
from penstock.wire.windows import encode_staged_window, encode_window
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import SCHEMA, assert_same_columns, make_window
from tests.support.services.servers import (
    IMAGES,
    Actor,
    LiveReplay,
    Loopback,
    PlainStream,
    Recorder,
    Trainer,
    open_request,
    pass_windows,
    plan_with,
    sample,
    until,
)

REQUEST = replay_pb2.GetReplayStatusRequest()


def staging_files(folder: Path) -> list[Path]:
    return list((folder / "staging").glob("*"))


@pytest.mark.parametrize("schema", [SCHEMA, IMAGES])
@pytest.mark.parametrize("through", ["slots", "messages"])
def test_windows_are_stored_staged_or_in_messages(
    loopback: Loopback, tmp_path: Path, schema: Schema, through: str
) -> None:
    staging_bytes = 2**27 if through == "slots" else 0
    server = loopback.replay(folder=tmp_path, schema=schema, rows=60, staging_bytes=staging_bytes)
    source = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4), schema=schema)
    sink = loopback.sink(0, server, schema=schema, segments=4)
    # More windows than slots, so that each slot is used again.
    for number in range(2 * SLOTS + 1):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = make_window(1 + 4 * number, segments=4, version=number, schema=schema)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        source.commit(batch, np.ones(4)).result(PATIENCE_S)
    assert sample("penstock_actor_stages_windows") == (through == "slots")
    assert len(staging_files(tmp_path)) == (through == "slots")
    sink.close()
    until(lambda: not staging_files(tmp_path), "the file is removed")


def test_staged_windows_of_a_broken_stream_are_stored_once(loopback: Loopback, tmp_path: Path) -> None:
    server, recorder = loopback.replay(folder=tmp_path), Recorder()
    plan = plan_with(batch_segments=8, fresh_segments=4, off_policy_degree=2, min_replay_segments=8)
    source = loopback.source(server, plan)
    trainer = Trainer(source, recorder, plan)
    actors = [Actor(loopback.sink(slot, server), recorder, lambda: trainer.published, slot=slot) for slot in range(2)]
    for number in range(5):
        for _ in trainer.train(6):
            pass
        server.kill()
        # The third stream finds no room for slots; the next one does again.
        server = loopback.replay(folder=tmp_path, port=server.port, staging_bytes=0 if number == 2 else 2**26)
    for _ in trainer.train(6):
        pass
    for actor in actors:
        actor.end()
    assert len(set(trainer.fresh)) == len(trainer.fresh)


def test_staging_areas_are_removed_with_their_stream_or_after_a_kill_and_stay_within_their_limit(
    tmp_path: Path,
) -> None:
    areas = StagingAreas(tmp_path, 3 * (1 + SLOTS) * 4096)
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
    """A client without our code, except for the area's memory."""

    def __init__(self, loopback: Loopback, server: LiveReplay, schema: Schema = SCHEMA) -> None:
        self.stream: PlainStream = loopback.plain(server, methods.APPEND_SEGMENTS)
        self.stream.send(open_request(schema=schema))
        offer = self.stream.receive().staging
        self.area = StagingSlots(StagingOffer(offer.path, offer.slot_bytes))
        self.slots = self.area.slots

    def prove(self, number: int | None = None) -> int:
        """Returns the service's answer to this number, or to the one in the area."""
        proof = replay_pb2.StagingProof(number=self.area.number if number is None else number)
        self.stream.send(replay_pb2.AppendSegmentsRequest(staging=proof))
        while not (response := self.stream.receive()).HasField("staging_proof"):
            pass
        return int(response.staging_proof.number)

    def proved(self) -> "StagedStream":
        assert self.area.is_shared(self.prove())
        return self

    def refused(self, request: replay_pb2.AppendSegmentsRequest) -> str:
        self.stream.send(request)
        code, details = self.stream.status()
        assert code == StatusCode.INVALID_ARGUMENT, (code, details)
        return details


def staged_request(slot: int) -> replay_pb2.AppendSegmentsRequest:
    return replay_pb2.AppendSegmentsRequest.FromString(encode_staged_window(raw_window(make_window()), slot, 0))


def staged(client: StagedStream, slot: int, schema: Schema = SCHEMA) -> Columns:
    """Returns the window of two segments in a slot."""
    return columns_in(schema, 2, client.slots[slot, : layout(schema, 2)[1]])


def stage(columns: Columns, slot: NDArray[np.uint8]) -> None:
    """Copies raw columns to a slot."""
    block.pack(columns.contents, places(columns.schema, columns.segments), 0, slot)


def checksum_in(client: StagedStream, slot: int, schema: Schema = SCHEMA) -> int:
    """Returns the checksum of the raw window of two segments in a slot."""
    return staged_checksum(staged(client, slot, schema).contents)


def test_a_staged_window_with_one_flipped_bit_is_refused_and_counted(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    window = make_window()
    for column, byte in ((0, 0), (3, 50), (4, -1)):
        client = StagedStream(loopback, server).proved()
        stage(window.columns, client.slots[2])
        checksum = checksum_in(client, 2)
        staged(client, 2).arrays[column].reshape(-1).view(np.uint8)[byte] ^= 1
        request = replay_pb2.AppendSegmentsRequest.FromString(encode_staged_window(raw_window(window), 2, checksum))
        assert "a different checksum in the staging area" in client.refused(request)
    counts = loopback.ask(server.address, methods.GET_REPLAY_STATUS, REQUEST).counts
    assert (counts.refused, counts.inserted) == (6, 0)
    assert server.store.headers["key"].max() == 0
    # The same service stores the windows that its actor staged.
    client = StagedStream(loopback, server).proved()
    stage(window.columns, client.slots[2])
    client.stream.send(encode_staged_window(raw_window(window), 2, checksum_in(client, 2)))
    while client.stream.receive().stored_sequence != 2:
        pass


def test_a_window_damaged_in_the_staging_area_is_sent_again_in_messages(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Incoherent(StagingSlots):
        """Shares the page of the proof with the service, but none of the slots."""

        def __init__(self, offer: StagingOffer) -> None:
            super().__init__(offer)
            self.slots = self.slots.copy()

    notes: list[tuple[str, str]] = []
    monkeypatch.setattr("penstock.rpc.clients.segment_sink.StagingSlots", Incoherent)
    monkeypatch.setattr("penstock.telemetry.logs.note", lambda event, **values: notes.append((event, str(values))))
    server = loopback.replay(folder=tmp_path, rows=60)
    source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2))
    sink = loopback.sink(0, server)
    until(lambda: sample("penstock_actor_stages_windows") == 1, "the sink stages windows")
    pass_windows(sink, source, 2 * SLOTS)
    assert sample("penstock_actor_stages_windows") == 0
    assert loopback.ask(server.address, methods.GET_REPLAY_STATUS, REQUEST).counts.refused == 2
    lines = [(event, values) for event, values in notes if "a different checksum" in values]
    assert [event for event, _ in lines if event == "actor left"] == ["actor left"]
    assert [event for event, _ in lines if event.endswith("not used")] == ["shared memory not used"]


def test_a_window_that_changed_before_it_was_stored_is_not_sent(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    sink = loopback.sink(0, server)
    until(lambda: sink._staging is not None and sink.next_grant(0.5), "a grant, and a staging area")
    staging = sink._staging
    assert staging is not None
    server.kill()
    sink.send(make_window())
    staging.slots[0, 0] ^= 1
    server = loopback.replay(folder=tmp_path, port=server.port)
    with pytest.raises(PlaceLost, match="changed in its staging area"):
        until(lambda: sink.next_grant(0.5) and False, "the sink fails")
    assert server.store.headers["key"].max() == 0


def test_a_staged_payload_is_checked_like_one_in_a_message(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    client = StagedStream(loopback, server).proved()
    columns = make_window().columns
    columns.arrays[0][0, 0, 0] = np.nan
    stage(columns, client.slots[1])
    request = staged_request(1)
    request.window.staged_checksum = checksum_in(client, 1)
    assert "observation" in client.refused(request)
    assert server.store.headers["key"].max() == 0


def test_a_window_without_a_valid_row_is_refused_in_messages_and_staged(loopback: Loopback, tmp_path: Path) -> None:
    schema = Schema(2, (Column("observation", "float32", (2,)), Column("valid", "bool")))
    server = loopback.replay(folder=tmp_path, schema=schema)
    loopback.source(server, plan_with(), schema=schema)
    empty = make_window(schema=schema)
    empty.columns.column("valid")[...] = False
    (whole,) = encode_window(empty)
    plain = loopback.plain(server, methods.APPEND_SEGMENTS)
    plain.send(open_request(schema=schema), whole)
    code, details = plain.status()
    assert code == StatusCode.INVALID_ARGUMENT
    assert "valid marks no row" in details
    client = StagedStream(loopback, server, schema).proved()
    client.slots[...] = 0
    request = replay_pb2.AppendSegmentsRequest.FromString(
        encode_staged_window(raw_window(empty), 0, checksum_in(client, 0, schema))
    )
    assert "valid marks no row" in client.refused(request)
    until(lambda: loopback.ask(server.address, methods.GET_REPLAY_STATUS, REQUEST).counts.refused == 4, "both count")
    assert server.store.headers["key"].max() == 0
    # One row of one segment is sufficient.
    empty.columns.column("valid")[1, 1] = True
    sink = loopback.sink(0, server, schema=schema)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(empty)
    assert sink.drain(PATIENCE_S)


def test_a_slot_outside_the_staging_area_is_invalid(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    for slot in (SLOTS, SLOTS + 1, 2**31, 2**32 - 1):
        assert f"slot {slot} of" in StagedStream(loopback, server).proved().refused(staged_request(slot))
    request = staged_request(0)
    request.window.block.payload = b"1234"
    assert "a staged block has a payload" in StagedStream(loopback, server).proved().refused(request)
    request = staged_request(0)
    request.window.block.parts = 2
    assert "part 0 of 2" in StagedStream(loopback, server).proved().refused(request)
    unshared = loopback.replay()
    loopback.source(unshared, plan_with())
    elsewhere = loopback.plain(unshared, methods.APPEND_SEGMENTS)
    elsewhere.send(open_request(), staged_request(0))
    assert elsewhere.status()[0] == StatusCode.INVALID_ARGUMENT


def test_a_window_is_staged_only_in_memory_proved_by_the_client(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_with())
    assert "not proved" in StagedStream(loopback, server).refused(staged_request(0))
    for wrong in (0, 1):
        client = StagedStream(loopback, server)
        assert client.prove(wrong) == 0
        assert not client.area.is_shared(0)
        assert "not proved" in client.refused(staged_request(0))
    unshared = loopback.replay()
    loopback.source(unshared, plan_with())
    without = loopback.plain(unshared, methods.APPEND_SEGMENTS)
    proof = replay_pb2.StagingProof(number=1)
    without.send(open_request(), replay_pb2.AppendSegmentsRequest(staging=proof))
    assert without.status()[0] == StatusCode.INVALID_ARGUMENT
    assert server.store.headers["key"].max() == 0


def test_windows_are_sent_in_messages_if_only_the_file_is_shared(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_here, notes = staging._open, []

    def open_copy(offer: StagingOffer) -> object:
        copy = tmp_path / "of another host" / "staging" / Path(offer.path).name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(offer.path, copy)
        return open_here(replace(offer, path=str(copy)))

    monkeypatch.setattr("penstock.replay.store.staging._open", open_copy)
    monkeypatch.setattr("penstock.telemetry.logs.note", lambda event, **values: notes.append((event, values)))
    server = loopback.replay(folder=tmp_path / "store", rows=60)
    source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2))
    sink = loopback.sink(0, server)
    pass_windows(sink, source, 2 * SLOTS)
    assert sample("penstock_actor_stages_windows") == 0
    assert [event for event, _ in notes if event.endswith("not used")] == ["shared memory not used"]


def linked(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


def fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def named(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


NAME = "0123456789abcdef" * 2
SIZE = (1 + SLOTS) * 4096


@pytest.mark.parametrize(
    "disguised",
    [
        pytest.param(lambda folder, area: named(folder / NAME, bytes(SIZE)), id="not a staging area"),
        pytest.param(lambda folder, area: Path(shutil.copy(area, folder / "notes.txt")), id="another name"),
        pytest.param(lambda folder, area: Path(shutil.copy(area, folder.parent / NAME)), id="another folder"),
        pytest.param(lambda folder, area: linked(folder / NAME, area), id="a link"),
        pytest.param(
            lambda folder, area: linked(folder.parent / "elsewhere", folder.parent) / "staging" / area.name,
            id="a link on the way",
        ),
        pytest.param(lambda folder, area: folder / ".." / "staging" / area.name, id="dots on the way"),
        pytest.param(lambda folder, area: fifo(folder / NAME), id="a FIFO"),
        pytest.param(lambda folder, area: named(folder / NAME, area.read_bytes() + b"x"), id="longer"),
        pytest.param(lambda folder, area: named(folder / NAME, area.read_bytes()[:-1]), id="shorter"),
        pytest.param(lambda folder, area: folder / ("f" * 32), id="not there"),
    ],
)
def test_a_rogue_service_can_not_make_the_client_write_another_file(
    tmp_path: Path, disguised: Callable[[Path, Path], Path]
) -> None:
    area = StagingAreas(tmp_path, 2**20).allocate(4096)
    assert area is not None
    path = disguised(tmp_path / "staging", Path(area.offer.path))
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ConfigurationError, match="can't map"):
        StagingSlots(replace(area.offer, path=str(path)))
    assert (path.read_bytes() if path.is_file() else b"") == before
    StagingSlots(area.offer)


def test_a_file_with_another_name_or_size_than_offered_is_not_mapped(tmp_path: Path) -> None:
    area = StagingAreas(tmp_path, 2**20).allocate(100)
    assert area is not None
    for slot_bytes in (0, 4095, 8192, 2**60):
        with pytest.raises(ConfigurationError, match="can't map"):
            StagingSlots(replace(area.offer, slot_bytes=slot_bytes))
    StagingSlots(area.offer)
    os.link(area.offer.path, tmp_path / "other name")
    with pytest.raises(ConfigurationError, match="one name"):
        StagingSlots(area.offer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_mapped(tmp_path: Path) -> None:
    area = StagingAreas(tmp_path, 2**20).allocate(100)
    assert area is not None
    os.chown(area.offer.path, 12345, -1)
    with pytest.raises(ConfigurationError, match="another user"):
        StagingSlots(area.offer)
    # A service may run under another user than its actors; that user then owns the folder too.
    os.chown(tmp_path / "staging", 12345, -1)
    StagingSlots(area.offer)
