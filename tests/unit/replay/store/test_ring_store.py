import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, InvalidSegment, Overloaded, PlaceLost, SchemaMismatch
from penstock.replay.store.layout import SEGMENTS_FILE, State, bytes_of
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Columns, Fragment, Schema
from penstock.types.extents import StoreSize
from penstock.types.replay import Window
from penstock.wire.staged_checksum import SUMS, checksum_of, staged_checksum
from tests.support.segments.direct_buffer import read_rows, write_rows
from tests.support.segments.segments import (
    SCHEMA,
    assert_same_columns,
    capacity_bytes,
    make_columns,
    make_store,
    make_window,
)


def keys_of(first: int, last: int) -> NDArray[np.uint64]:
    return np.arange(first, last + 1, dtype=np.uint64)


def write(store: RingStore, window: Window, first_key: int) -> None:
    """Stores a window as already trained, so that the ring can overwrite it."""
    keys = keys_of(first_key, first_key + window.columns.segments - 1)
    write_rows(store, keys, window, 0)
    store.headers["state"][store.rows(keys)] = State.SEEN


def gather(store: RingStore, keys: NDArray[np.uint64]) -> Columns:
    assert store.schema is not None
    into = store.schema.empty(keys.size)
    read_rows(store, store.rows(keys), into)
    return into


def flip(path: Path, needle: bytes) -> None:
    """Inverts one bit in the middle of a byte string that occurs once in the file."""
    content = path.read_bytes()
    assert content.count(needle) == 1
    with path.open("r+b") as file:
        place = content.index(needle) + len(needle) // 2
        file.seek(place)
        file.write(bytes([content[place] ^ 0x10]))


@pytest.fixture(params=["anonymous memory", "a folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "replay" if request.param == "a folder" else None


def test_written_segments_are_gathered_in_any_order(folder: Path | None) -> None:
    store = make_store(10, folder)
    write(store, make_window(1, segments=3), 1)
    write(store, make_window(1, segments=4, slot=2, version=5), 4)
    assert_same_columns(
        gather(store, np.array([7, 2, 2, 1], np.uint64)), make_columns([(2, 1, 4), (0, 1, 2), (0, 1, 2), (0, 1, 1)])
    )
    assert store.headers["environment"][store.rows(keys_of(1, 7))].tolist() == [0, 1, 2, 8, 9, 10, 11]
    assert store.headers["version"][store.rows(keys_of(1, 7))].tolist() == [0, 0, 0, 5, 5, 5, 5]


def test_a_window_can_be_stored_from_its_middle() -> None:
    store = make_store(5)
    write_rows(store, keys_of(1, 2), make_window(1, segments=4), 2)
    assert_same_columns(gather(store, keys_of(1, 2)), make_columns([(0, 1, 3), (0, 1, 4)]))
    assert store.headers["sequence"][store.rows(keys_of(1, 2))].tolist() == [3, 4]
    assert store.headers["environment"][store.rows(keys_of(1, 2))].tolist() == [2, 3]


@given(capacity=st.integers(2, 9), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_the_ring_holds_the_latest_segments_and_no_others(capacity: int, sizes: list[int]) -> None:
    store, written = make_store(capacity), 0
    for size in sizes:
        size = min(size, capacity)
        write(store, make_window(written + 1, segments=size), written + 1)
        written += size
        oldest = max(1, written - capacity + 1)
        assert store.present(keys_of(1, written + capacity)).tolist() == [
            oldest <= key <= written for key in range(1, written + capacity + 1)
        ]
        assert_same_columns(
            gather(store, keys_of(oldest, written)), make_columns([(0, 1, key) for key in range(oldest, written + 1)])
        )


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("next_key", [1, 18], ids=["within the ring", "over the ring's end"])
def test_the_checksum_covers_all_bytes_of_a_window(first: int, next_key: int) -> None:
    store, window = make_store(20), make_window(segments=4)
    keys = np.arange(next_key, next_key + 4 - first, dtype=np.uint64)
    store.reserve(keys)
    sums = np.zeros(SUMS, np.uint64)
    for index, column in enumerate(window.columns.arrays):
        store.put(keys, first, Fragment(index, 0, column.reshape(-1).view(np.uint8)), sums)
    store.seal(keys, store.inspect(keys, window.head, first), window.head)
    assert checksum_of(sums) == staged_checksum(window.columns.contents)
    stored = SCHEMA.empty(keys.size)
    read_rows(store, store.rows(keys), stored)
    for came, sent in zip(stored.arrays, window.columns.arrays, strict=True):
        np.testing.assert_array_equal(came, sent[first:])


def test_no_key_is_present_in_an_empty_store() -> None:
    assert not make_store(4).present(keys_of(0, 8)).any()


def test_unseen_and_leased_rows_are_never_overwritten() -> None:
    for state in (State.UNSEEN, State.LEASED):
        store = make_store(4)
        write(store, make_window(1, segments=4), 1)
        store.headers["state"][store.rows(keys_of(2, 2))] = state
        with pytest.raises(Overloaded, match="4 rows"):
            write_rows(store, keys_of(5, 6), make_window(5), 0)
        assert store.present(keys_of(1, 4)).all()
        assert_same_columns(gather(store, keys_of(1, 4)), make_window(1, segments=4).columns)
        assert store.watermark(0, 1) == 4


def test_a_reopened_folder_has_every_segment_and_watermark(tmp_path: Path) -> None:
    store = make_store(5, tmp_path)
    write(store, make_window(1, segments=3), 1)
    write(store, make_window(1, segments=3, slot=9, incarnation=4), 4)
    store.session.next_batch = 11
    store.session.save()

    again = RingStore(tmp_path, capacity_bytes(5))
    assert again.schema == SCHEMA
    assert (again.recovery.segments, again.recovery.damaged) == (5, 0)
    assert again.present(keys_of(2, 6)).all()
    assert_same_columns(
        gather(again, keys_of(2, 6)), make_columns([(0, 1, 2), (0, 1, 3), (9, 4, 1), (9, 4, 2), (9, 4, 3)])
    )
    assert (again.watermark(0, 1), again.watermark(9, 4), again.watermark(1, 1)) == (3, 3, 0)
    assert again.session.next_batch == 11


def test_a_folder_without_a_schema_opens_empty(tmp_path: Path) -> None:
    RingStore(tmp_path, capacity_bytes(5))
    again = RingStore(tmp_path, capacity_bytes(5))
    assert (again.schema, again.capacity, again.recovery.segments) == (None, 0, 0)


def test_a_torn_row_is_not_recovered(tmp_path: Path) -> None:
    store = make_store(5, tmp_path)
    write(store, make_window(1, segments=4), 1)
    store.headers["key"][store.rows(keys_of(3, 3))] = 0
    again = RingStore(tmp_path, capacity_bytes(5))
    assert again.recovery.segments == 3
    assert again.present(keys_of(0, 5)).tolist() == [False, True, True, False, True, False]


@pytest.mark.parametrize("column", [column.name for column in SCHEMA.columns if column.name != "terminated"])
def test_a_row_with_a_flipped_payload_bit_is_dropped_and_counted(tmp_path: Path, column: str) -> None:
    store, window = make_store(5, tmp_path), make_window(1, segments=4)
    write(store, window, 1)
    flip(tmp_path / "segments.bin", window.columns.column(column)[2].tobytes())
    again = RingStore(tmp_path, capacity_bytes(5))
    assert (again.recovery.segments, again.recovery.damaged) == (3, 1)
    assert again.present(keys_of(1, 4)).tolist() == [True, True, False, True]


@pytest.mark.parametrize("field", ["key", "sequence", "version", "slot", "incarnation", "environment", "checksum"])
def test_a_row_with_a_changed_identity_is_dropped_and_counted(tmp_path: Path, field: str) -> None:
    store = make_store(5, tmp_path)
    write(store, make_window(1, segments=4), 1)
    store.headers[field][store.rows(keys_of(2, 2))] += 5
    again = RingStore(tmp_path, capacity_bytes(5))
    assert (again.recovery.segments, again.recovery.damaged) == (3, 1)
    assert again.present(keys_of(1, 7)).tolist() == [True, False, True, True, False, False, False]


def test_a_new_priority_or_state_does_not_count_as_damage(tmp_path: Path) -> None:
    store = make_store(5, tmp_path)
    write(store, make_window(1, segments=2), 1)
    store.headers["priority"], store.headers["state"], store.headers["batch"] = 4.5, State.LEASED, 8
    store.session.next_lease = 9
    store.session.save()
    again = RingStore(tmp_path, capacity_bytes(5))
    assert again.recovery.segments == 2
    assert again.headers["priority"][again.rows(keys_of(1, 2))].tolist() == [4.5, 4.5]


def test_a_watermark_outlives_the_rows_it_counted(tmp_path: Path) -> None:
    store = make_store(4, tmp_path)
    write(store, make_window(1, segments=2), 1)
    for round_ in range(3):
        write(store, make_window(1 + 2 * round_, slot=1), 3 + 2 * round_)
    assert not store.present(keys_of(1, 2)).any()
    assert store.watermark(0, 1) == 2
    assert RingStore(tmp_path, capacity_bytes(4)).watermark(0, 1) == 2


def test_a_watermark_is_restored_from_the_rows_after_a_kill(tmp_path: Path) -> None:
    store = make_store(6, tmp_path)
    write(store, make_window(1), 1)
    before = (tmp_path / "records.bin").read_bytes()
    write(store, make_window(3), 3)
    write(store, make_window(1, slot=3, incarnation=2), 5)
    (tmp_path / "records.bin").write_bytes(before)
    again = RingStore(tmp_path, capacity_bytes(6))
    assert (again.watermark(0, 1), again.watermark(3, 2)) == (4, 2)


def test_an_earlier_incarnation_of_a_slot_is_refused() -> None:
    store = make_store(6)
    write(store, make_window(1), 1)
    assert store.watermark(0, 2) == 0
    write(store, make_window(1, incarnation=2), 3)
    assert store.watermark(0, 2) == 2
    with pytest.raises(PlaceLost, match="incarnation 1 of slot 0 is over: 2"):
        store.watermark(0, 1)


@pytest.mark.parametrize("slot", [-1, 4096])
def test_a_slot_out_of_range_is_refused(slot: int) -> None:
    with pytest.raises(InvalidSegment, match=f"4096, got {slot}"):
        make_store(3).watermark(slot, 1)


def test_another_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    make_store(5, tmp_path)
    with pytest.raises(ConfigurationError, match=f"{capacity_bytes(5)} bytes, and {capacity_bytes(6)}"):
        RingStore(tmp_path, capacity_bytes(6))


def test_a_store_in_segments_is_allocated_when_the_schema_is_known(folder: Path | None) -> None:
    asked: list[Schema] = []

    def size(schema: Schema) -> int:
        asked.append(schema)
        return bytes_of(StoreSize(7, "segments"), schema)

    store = RingStore(folder, size)
    assert (store.capacity, asked) == (0, [])
    assert folder is None or not (folder / SEGMENTS_FILE).exists()
    store.flush()
    store.adopt(SCHEMA)
    assert (store.capacity, asked) == (7, [SCHEMA])
    write(store, make_window(1, segments=3), 1)
    if folder is not None:
        assert (folder / SEGMENTS_FILE).stat().st_size == bytes_of(StoreSize(7, "segments"), SCHEMA)
        again = RingStore(folder, size)
        assert (again.capacity, again.recovery.segments) == (7, 3)


def test_another_size_in_steps_is_refused(tmp_path: Path) -> None:
    make_store(5, tmp_path)
    steps = StoreSize(5 * SCHEMA.unroll_length + 1, "steps")
    with pytest.raises(ConfigurationError, match=r"bytes, and .* are configured"):
        RingStore(tmp_path, lambda schema: bytes_of(steps, schema))


def test_a_description_with_another_schema_hash_is_refused(tmp_path: Path) -> None:
    make_store(5, tmp_path)
    description = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(description | {"unroll_length": 4}))
    with pytest.raises(ConfigurationError, match=r"store\.json names schema"):
        make_store(5, tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    make_store(5, tmp_path)
    description = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(description | {"format": 1}))
    with pytest.raises(ConfigurationError, match="format 1, and this version reads 4"):
        RingStore(tmp_path, capacity_bytes(5))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 4, "unroll_length": 3, "columns": [["x"]]}'])
def test_an_unreadable_description_is_refused(tmp_path: Path, content: str) -> None:
    make_store(5, tmp_path)
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"store\.json does not describe a store"):
        RingStore(tmp_path, capacity_bytes(5))


def test_another_schema_is_refused_and_the_same_is_accepted(folder: Path | None) -> None:
    store, other = make_store(5, folder), Schema(SCHEMA.unroll_length + 1, SCHEMA.columns)
    store.adopt(SCHEMA)
    with pytest.raises(SchemaMismatch, match=f"{SCHEMA.hash:016x}.*{other.hash:016x}"):
        store.adopt(other)


def test_a_store_too_small_for_two_segments_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=f"{capacity_bytes(1)} holds 1 segments of {SCHEMA.segment_bytes} bytes"
    ):
        make_store(1)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="can't allocate"):
        RingStore(tmp_path / "file", capacity_bytes(5))


def test_a_folder_of_another_user_is_not_reported_as_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Simulates the kernel's refusal, because tests may run as root.
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(ConfigurationError, match=r"can't write .*Permission denied .*; change the owner"):
        RingStore(tmp_path, capacity_bytes(5))


def test_a_disk_that_is_too_small_is_reported_before_space_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.posix_fallocate", lambda *given: pytest.fail("asked for room that there is not"))
    with pytest.raises(ConfigurationError, match=r"No space left on device \(.* bytes free\); free space"):
        RingStore(tmp_path, 2**60)
    assert (tmp_path / "segments.bin").stat().st_blocks == 0


def test_a_failed_allocation_frees_its_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = os.posix_fallocate

    def give_half(descriptor: int, offset: int, size: int) -> None:
        # ext4 does this when the disk fills up during the allocation.
        allocate(descriptor, offset, size // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", give_half)
        with pytest.raises(ConfigurationError, match="can't allocate"):
            RingStore(tmp_path, capacity_bytes(5000))
    assert (tmp_path / "segments.bin").stat().st_blocks == 0
    RingStore(tmp_path, capacity_bytes(50))


@pytest.mark.parametrize("lacking", ["", "posix_fallocate"])
def test_the_files_have_their_full_size_from_the_start(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking:  # as on macOS
        monkeypatch.delattr(os, lacking)
    RingStore(tmp_path, capacity_bytes(50))
    segments = (tmp_path / "segments.bin").stat()
    assert segments.st_size == capacity_bytes(50)
    assert segments.st_blocks * 512 >= capacity_bytes(50)


def test_a_store_without_segments_can_be_reopened(tmp_path: Path) -> None:
    RingStore(tmp_path, capacity_bytes(8)).adopt(SCHEMA)
    again = RingStore(tmp_path, capacity_bytes(8))
    assert (again.schema, again.recovery.segments) == (SCHEMA, 0)
