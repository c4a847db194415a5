"""Rows in encoded forms: stored as sent, checked, recovered, overwritten, read, and kept in snapshots."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.scrubbing import Scrub
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import restore_store
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.encoded_rows import Pieces
from penstock.replay.store.layout import SEGMENTS_FILE, State
from penstock.replay.store.ring_store import RingStore
from penstock.replay.store.segment_rows import copy_pieces
from penstock.replay.store.store_reader import StoreReader
from penstock.types.block import Columns, Fragment
from penstock.types.codecs import ENCODINGS, Codec, Forms, encodable, form
from penstock.types.payloads import columns_in, places
from penstock.types.replay import Window
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest
from penstock.wire.encoding import EncodedWindow, WindowEncoder
from penstock.wire.staged_checksum import SUMS, checksum_of, staged_checksum
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.direct_buffer import fragments_of
from tests.support.segments.game_frames import FRAMES, frame_columns, frame_window
from tests.support.segments.segments import PLAN, assert_same_columns, capacity_bytes, make_store

REPLAY_ONLY = replace(PLAN, fresh_segments=0, batch_segments=4)


def encoded(window: Window) -> EncodedWindow:
    result = WindowEncoder(FRAMES).encode(window, ENCODINGS)
    assert result is not None
    return replace(result, head=replace(result.head, forms=result.forms))


def forms_of(window: EncodedWindow) -> Forms:
    assert window.forms is not None
    return window.forms


def fragments(window: EncodedWindow, piece_bytes: int = 2**20) -> list[Fragment]:
    """Returns the bytes of a window's columns in pieces of at most this size."""
    starts = window.places.starts
    return [
        Fragment(position, start, content[start : start + piece_bytes], starts.get(position))
        for position, content in enumerate(window.contents)
        for start in range(0, content.size, piece_bytes)
    ]


def keys_of(first: int, count: int) -> NDArray[np.uint64]:
    return np.arange(first, first + count, dtype=np.uint64)


def write(store: RingStore, window: Window, first_key: int, *, first: int = 0, piece_bytes: int = 2**20) -> None:
    """Stores a window's segments from index `first` on encoded, as already trained."""
    one = encoded(window)
    keys = keys_of(first_key, window.columns.segments - first)
    store.reserve(keys, forms_of(one)[first:])
    for fragment in fragments(one, piece_bytes):
        store.put(keys, first, fragment)
    store.seal(keys, store.inspect(keys, one.head, first), one.head)
    store.headers["state"][store.rows(keys)] = State.SEEN


def write_raw(store: RingStore, window: Window, first_key: int) -> None:
    keys = keys_of(first_key, window.columns.segments)
    store.reserve(keys)
    for fragment in fragments_of(window.columns):
        store.put(keys, 0, fragment)
    store.seal(keys, store.inspect(keys, window.head, 0), window.head)
    store.headers["state"][store.rows(keys)] = State.SEEN


def gather(store: RingStore, keys: NDArray[np.uint64], part_bytes: int = 2**30) -> Columns:
    """Returns the decoded columns of segments, copied in parts of this size."""
    where = places(FRAMES, keys.size)
    payload = np.zeros(where.total_bytes, np.uint8)
    for start in range(0, payload.size, part_bytes):
        store.gather_bytes(store.rows(keys), where, start, payload[start : start + part_bytes])
    return columns_in(FRAMES, keys.size, payload)


def together(*windows: Window) -> Columns:
    arrays = zip(*(window.columns.arrays for window in windows), strict=True)
    return Columns(FRAMES, tuple(np.concatenate(each) for each in arrays))


@given(first=st.integers(0, 3), next_key=st.integers(1, 9), piece_bytes=st.integers(100, 30_000))
def test_windows_are_stored_from_any_segment_in_any_pieces_across_the_rings_end(
    first: int, next_key: int, piece_bytes: int
) -> None:
    store, window = make_store(7, schema=FRAMES), frame_window(segments=4)
    write(store, window, next_key, first=first, piece_bytes=piece_bytes)
    keys = keys_of(next_key, 4 - first)
    came = gather(store, keys, part_bytes=piece_bytes)
    assert_same_columns(came, Columns(FRAMES, tuple(array[first:] for array in window.columns.arrays)))
    np.testing.assert_array_equal(store.forms[store.rows(keys)], forms_of(encoded(window))[first:])


@pytest.mark.parametrize("part_bytes", [2**30, 777])
def test_stored_bytes_are_gathered_as_they_were_sent(part_bytes: int) -> None:
    store = make_store(7, schema=FRAMES)
    first, second = frame_window(1, segments=3), frame_window(4, segments=2)
    write(store, first, 1)
    write_raw(store, second, 4)
    keys = np.array([4, 2, 5, 2], np.uint64)
    forms = store.forms_of(store.rows(keys))
    assert forms is not None
    where = places(FRAMES, keys.size, forms)
    payload = np.zeros(where.total_bytes, np.uint8)
    for start in range(0, payload.size, part_bytes):
        store.gather_bytes(store.rows(keys), where, start, payload[start : start + part_bytes])
    for position in range(len(FRAMES.columns)):
        sent = fragments(encoded(first))[position].data
        raw = [array.tobytes() for array in second.columns.arrays[position]]
        if position in encodable(FRAMES):
            starts = places(FRAMES, 3, encoded(first).forms).starts[position]
            mine = sent[starts[1] : starts[2]].tobytes()
        else:
            mine = first.columns.arrays[position][1].tobytes()
        content = payload[where.offsets[position] : where.offsets[position] + where.sizes[position]].tobytes()
        assert content == raw[0] + mine + raw[1] + mine


def test_a_reopened_store_has_encoded_and_raw_segments(tmp_path: Path) -> None:
    store = make_store(7, tmp_path, FRAMES)
    first, second = frame_window(1, segments=3), frame_window(4, segments=2)
    write(store, first, 1)
    write_raw(store, second, 4)
    again = RingStore(tmp_path, capacity_bytes(7, FRAMES))
    assert (again.recovery.segments, again.recovery.damaged, again.recovery.torn) == (5, 0, 0)
    assert_same_columns(gather(again, keys_of(1, 5)), together(first, second))


def test_rows_overwritten_with_shorter_data_are_intact(tmp_path: Path) -> None:
    store = make_store(4, tmp_path, FRAMES)
    write_raw(store, frame_window(1, segments=4), 1)
    window = frame_window(5, segments=4)
    write(store, window, 5)
    # What the longer segment has left behind the encoded bytes belongs to no segment.
    store.columns[0][:, -1] ^= 255
    again = RingStore(tmp_path, capacity_bytes(4, FRAMES))
    assert (again.recovery.segments, again.recovery.damaged) == (4, 0)
    assert_same_columns(gather(again, keys_of(5, 4)), window.columns)
    write_raw(again, frame_window(9, segments=4), 9)
    assert not again.forms.any()
    assert_same_columns(gather(again, keys_of(9, 4)), frame_window(9, segments=4).columns)


@pytest.mark.parametrize("damage", ["byte", "form"])
def test_a_changed_byte_or_form_is_found(tmp_path: Path, damage: str) -> None:
    store = make_store(7, tmp_path, FRAMES)
    write(store, frame_window(1, segments=3), 1)
    row = int(store.rows(keys_of(2, 1))[0])
    if damage == "byte":
        store.columns[0][row, 5] ^= 1
    else:
        store.forms[row, 1] ^= 1
    assert (store.checksums(np.arange(1, 4)) == store.headers["checksum"][1:4]).tolist() == [True, False, True]
    again = RingStore(tmp_path, capacity_bytes(7, FRAMES))
    assert (again.recovery.segments, again.recovery.damaged) == (2, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_the_checksum_of_an_encoded_window_covers_all_its_bytes(first: int) -> None:
    store, window = make_store(7, schema=FRAMES), encoded(frame_window(segments=4))
    keys = keys_of(5, 4 - first)
    store.reserve(keys, forms_of(window)[first:])
    sums = np.zeros(SUMS, np.uint64)
    for fragment in fragments(window, piece_bytes=2**30):
        store.put(keys, first, fragment, sums)
    assert checksum_of(sums) == staged_checksum(window.contents)
    store.seal(keys, store.inspect(keys, window.head, first), window.head)
    came = gather(store, keys, part_bytes=2**30)
    assert_same_columns(came, Columns(FRAMES, tuple(a[first:] for a in frame_window(segments=4).columns.arrays)))


def test_a_window_that_was_being_written_is_torn(tmp_path: Path) -> None:
    store, window = make_store(7, tmp_path, FRAMES), encoded(frame_window(1, segments=3))
    write(store, frame_window(1, segments=3), 1)
    keys = keys_of(8, 2)
    store.reserve(keys, forms_of(window)[:2])
    store.put(keys, 0, fragments(window)[0])
    again = RingStore(tmp_path, capacity_bytes(7, FRAMES))
    assert (again.recovery.segments, again.recovery.damaged, again.recovery.torn) == (1, 0, 2)
    assert_same_columns(
        gather(again, keys_of(3, 1)), Columns(FRAMES, tuple(a[2:] for a in frame_window(1, segments=3).columns.arrays))
    )


def test_bytes_that_do_not_decode_are_refused_with_their_column() -> None:
    store, window = make_store(7, schema=FRAMES), encoded(frame_window(1, segments=2))
    keys = keys_of(1, 2)
    store.reserve(keys, window.forms)
    for fragment in fragments(window):
        store.put(keys, 0, fragment)
    store.columns[1][store.rows(keys)[1], :50] = 255
    with pytest.raises(InvalidSegment, match=r"column speeds has .* bytes of lz4 that don't decode to 7200 bytes"):
        store.inspect(keys, window.head, 0)


def test_the_scrub_drops_encoded_segments_that_changed() -> None:
    buffer = ReplayBuffer(RingStore(None, capacity_bytes(7, FRAMES)), Gate(10.0, max_actors=8))
    buffer.adopt_plan(REPLAY_ONLY)
    send(buffer, 3)
    assert Scrub(buffer).step() == 0
    buffer.store.columns[0][buffer.store.rows(keys_of(2, 1)), 5] ^= 1
    assert Scrub(buffer).step() == 1
    assert buffer.store.present(keys_of(1, 3)).tolist() == [True, False, True]


def send(buffer: ReplayBuffer, windows: int, *, raw_every: int = 1000) -> None:
    """Sends windows of one segment, encoded but for every so many."""
    intake = buffer.intakes.open(ActorKey(0, 1), FRAMES, 1, 0.0)
    for number in range(1, windows + 1):
        buffer.intakes.issue_grants(0.0)
        window = frame_window(number, segments=1)
        one = encoded(window)
        raw = number % raw_every == 0
        assert intake.reserve(window.head if raw else one.head, 0.0)
        for fragment in fragments_of(window.columns) if raw else fragments(one):
            intake.put(fragment)
        assert intake.seal(0.0) == number


def test_a_mapped_store_is_read_decoded(tmp_path: Path) -> None:
    store = make_store(7, tmp_path, FRAMES)
    first, second = frame_window(1, segments=3), frame_window(4, segments=2)
    write(store, first, 1)
    write_raw(store, second, 4)
    mapped = store.mapped
    assert mapped is not None
    reader, into = StoreReader(mapped, FRAMES), FRAMES.empty(5)
    assert reader.gather(keys_of(1, 5), into)
    assert_same_columns(into, together(first, second))
    assert reader.take_damaged() == 0
    # A row that is overwritten while it is read may have any bytes and forms.
    store.headers["key"][store.rows(keys_of(2, 1))] = 0
    store.forms[store.rows(keys_of(2, 1))] = form(Codec.LZ4, 2**28 - 1)
    assert not reader.gather(keys_of(1, 5), into)
    assert reader.take_damaged() == 0


def test_a_snapshot_has_rows_as_they_are_stored_and_restores_them(tmp_path: Path) -> None:
    buffer = ReplayBuffer(RingStore(tmp_path / "store", capacity_bytes(20, FRAMES)), Gate(10.0, max_actors=8))
    buffer.adopt_plan(REPLAY_ONLY)
    send(buffer, 12, raw_every=5)
    snapshots = Snapshots(
        buffer, tmp_path / "snapshots", kept=3, bytes_per_s=2**40, chunk_bytes=4 * FRAMES.segment_bytes
    )
    for name in ("first", "second"):
        running = snapshots.begin(SnapshotRequest(name, 0, automatic=False))
        running.policy.set_result(Weights.of(0, b"policy"))
        taken = running.outcome.result(PATIENCE_S)
        assert (taken.segments, taken.absent, taken.damaged) == (12, 0, 0)
    chunks = sum(path.stat().st_size for path in (tmp_path / "snapshots" / "first").glob("*.chunk"))
    stored = sum(encoded(frame_window(n, segments=1)).contents[p].size for n in range(1, 13) for p in range(5))
    assert chunks < stored + 3 * FRAMES.segment_bytes < 12 * FRAMES.segment_bytes
    # The second snapshot shares all chunks.
    assert taken.shared_bytes == chunks
    source = SnapshotFolder(tmp_path / "snapshots")
    for capacity in (20, 5):
        folder = tmp_path / f"again {capacity}"
        restored = restore_store(source, source.read("second"), folder, capacity_bytes(capacity, FRAMES))
        kept = min(12, capacity)
        assert (restored.segments, restored.damaged, restored.dropped) == (kept, 0, 12 - kept)
        again = RingStore(folder, capacity_bytes(capacity, FRAMES))
        assert again.recovery.segments == kept and again.recovery.damaged == 0
        windows = [frame_window(number, segments=1) for number in range(13 - kept, 13)]
        assert_same_columns(gather(again, keys_of(13 - kept, kept)), together(*windows))
        assert again.forms[again.rows(keys_of(10, 1))].any() == False  # noqa: E712
        assert again.forms[again.rows(keys_of(11, 1))].any()


def test_a_damaged_chunk_costs_its_rows_alone(tmp_path: Path) -> None:
    buffer = ReplayBuffer(RingStore(tmp_path / "store", capacity_bytes(20, FRAMES)), Gate(10.0, max_actors=8))
    buffer.adopt_plan(REPLAY_ONLY)
    send(buffer, 8)
    snapshots = Snapshots(
        buffer, tmp_path / "snapshots", kept=3, bytes_per_s=2**40, chunk_bytes=4 * FRAMES.segment_bytes
    )
    running = snapshots.begin(SnapshotRequest("one", 0, automatic=False))
    running.policy.set_result(Weights.of(0, b"policy"))
    assert running.outcome.result(PATIENCE_S).segments == 8
    source = SnapshotFolder(tmp_path / "snapshots")
    chunk = tmp_path / "snapshots" / "one" / source.read("one").chunks[1].file
    content = bytearray(chunk.read_bytes())
    # The first form of the chunk's second row: the places of all later bytes are other ones.
    content[8 * source.read("one").chunks[1].rows + 12] ^= 4
    chunk.write_bytes(bytes(content))
    restored = restore_store(source, source.read("one"), tmp_path / "again", capacity_bytes(20, FRAMES))
    assert restored.damaged == source.read("one").chunks[1].rows
    assert restored.segments == 8 - restored.damaged


@given(
    starts=st.lists(st.integers(-20, 60), min_size=1, max_size=5),
    targets=st.lists(st.integers(-20, 60), min_size=5, max_size=5),
    sizes=st.lists(st.integers(0, 40), min_size=5, max_size=5),
)
def test_pieces_are_cut_off_at_both_ends(starts: list[int], targets: list[int], sizes: list[int]) -> None:
    data, into, expected = np.arange(1, 41, dtype=np.uint8), np.zeros(50, np.uint8), np.zeros(50, np.uint8)
    for start, target, size in zip(starts, targets, sizes, strict=False):
        for offset in range(size):
            if 0 <= start + offset < data.size and 0 <= target + offset < into.size:
                expected[target + offset] = data[start + offset]
    count = len(starts)
    copy_pieces(data, np.array(starts), into, np.array(targets[:count]), np.array(sizes[:count]))
    np.testing.assert_array_equal(into, expected)


def test_pieces_of_rows_and_packed_pieces_have_their_places() -> None:
    rows = np.arange(12, dtype=np.uint8).reshape(3, 4)
    whole, some = Pieces.of_rows(rows), Pieces.of_rows(rows, np.array([1, 0, 4]))
    packed = Pieces.packed(np.arange(5, dtype=np.uint8), np.array([1, 0, 4]))
    assert (whole.starts.tolist(), whole.sizes.tolist(), whole.total_bytes) == ([0, 4, 8], [4, 4, 4], 12)
    assert (some.starts.tolist(), some.sizes.tolist(), some.total_bytes) == ([0, 4, 8], [1, 0, 4], 5)
    assert (packed.starts.tolist(), packed.part(1, 3).starts.tolist()) == ([0, 1, 1], [1, 1])


def test_windows_with_infinite_values_are_refused_encoded_too() -> None:
    columns = frame_columns(2)
    columns.arrays[1][1, 2, 3] = np.nan
    store = make_store(7, schema=FRAMES)
    with pytest.raises(InvalidSegment, match="column speeds has values that are not finite"):
        write(store, replace(frame_window(), columns=columns), 1)


def test_the_file_ends_with_the_forms(tmp_path: Path) -> None:
    store = make_store(7, tmp_path, FRAMES)
    assert (tmp_path / SEGMENTS_FILE).stat().st_size == capacity_bytes(7, FRAMES)
    assert store.capacity == 7 and store.forms.shape == (7, 3)
