"""Tests that damage in each file of a store and of a snapshot is detected and never served as data."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ConfigurationError, DamagedFile
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.scrubbing import Scrub
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import restore_store
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.layout import (
    AGES,
    HEADER,
    MAX_GAPS,
    RECORDS_BYTES,
    SESSION,
    State,
    ages_copies,
    session_copies,
    watermark_copies,
)
from penstock.replay.store.records import KeptTwice, read_watermarks
from penstock.replay.store.ring_store import RingStore
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.direct_buffer import append, write_rows
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window

ROWS = 40
SIZE = capacity_bytes(ROWS)
FILES = ("segments.bin", "records.bin", "store.json")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
}


def fill(folder: Path | None) -> tuple[RingStore, ReplayBuffer]:
    """Creates a store of two actors with 16 seen, 4 leased and 8 unseen segments. Its learner was replaced once."""
    store = RingStore(folder, SIZE)
    buffer = ReplayBuffer(store, Gate(1e9, max_actors=8))
    plan = replace(PLAN, batch_segments=8, fresh_segments=4, off_policy_degree=6)
    buffer.adopt_plan(plan)
    for slot in (0, 7):
        buffer.intakes.open(ActorKey(slot, 3), SCHEMA, 4, 0.0)
    for window in range(7):
        buffer.intakes.issue_grants(0.0)
        slot, first = 7 * (window % 2), 1 + 4 * (window // 2)
        assert append(buffer, make_window(first, segments=4, slot=slot, incarnation=3), 0.0) == first + 3
        if window == 1:
            buffer.adopt_plan(replace(plan, session=8, next_batch=50))
    for number in range(50, 54):
        lease = buffer.leases.draw(number)
        assert lease is not None
        buffer.leases.commit(8, number, lease.keys, np.linspace(0.5, 2.0, lease.keys.size))
    assert buffer.leases.draw(54) is not None
    return store, buffer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the files of a store after a kill, by name."""
    folder = tmp_path_factory.mktemp("whole")
    fill(folder)
    return {name: (folder / name).read_bytes() for name in FILES}


def lay(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def test_a_killed_store_is_not_reported_as_damaged(whole: dict[str, bytes], tmp_path: Path) -> None:
    lay(tmp_path, whole)
    store = RingStore(tmp_path, SIZE)
    assert (store.recovery.segments, store.recovery.damaged, store.recovery.repaired) == (28, 0, 0)
    states = Counter(store.headers["state"][store.headers["key"] != 0].tolist())
    assert states == {State.SEEN: 16, State.LEASED: 4, State.UNSEEN: 8}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", *DAMAGES])
def test_a_lost_file_is_named_in_the_error(whole: dict[str, bytes], tmp_path: Path, name: str, damage: str) -> None:
    lay(tmp_path, whole)
    if damage == "missing":
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(DAMAGES[damage](whole[name]))
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    # The next start reports the same error.
    for _ in range(2):
        with pytest.raises(DamagedFile) as raised:
            RingStore(tmp_path, SIZE)
        message = str(raised.value)
        assert str(tmp_path / name) in message and "\n" not in message
        assert "penstock replay restore" in message and f"remove the folder {tmp_path}" in message
        kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert all(kept[other] == content for other, content in left.items())


def test_a_store_without_description_and_segments_is_not_treated_as_new(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    lay(tmp_path, {"records.bin": whole["records.bin"]})
    with pytest.raises(DamagedFile, match=r"store\.json is missing, and records\.bin counts segments"):
        RingStore(tmp_path, SIZE)


def test_a_damaged_size_in_the_description_is_not_reported_as_another_configuration(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    lay(tmp_path, whole)
    (tmp_path / "store.json").write_bytes(whole["store.json"].replace(f"{SIZE}".encode(), f"{SIZE + 8}".encode()))
    with pytest.raises(DamagedFile, match=rf"store\.json names {SIZE + 8} bytes, and .*segments\.bin has another"):
        RingStore(tmp_path, SIZE)


def test_zeroed_headers_are_counted(whole: dict[str, bytes], tmp_path: Path) -> None:
    content = bytearray(whole["segments.bin"])
    # Headers of keys 5 to 14.
    content[5 * HEADER.itemsize : 15 * HEADER.itemsize] = bytes(10 * HEADER.itemsize)
    lay(tmp_path, {**whole, "segments.bin": bytes(content)})
    store = RingStore(tmp_path, SIZE)
    assert (store.recovery.segments, store.recovery.damaged) == (18, 10)
    # The damage is counted once.
    assert RingStore(tmp_path, SIZE).recovery.damaged == 0


@pytest.mark.parametrize("half", [0, 1])
def test_one_copy_of_the_records_suffices(whole: dict[str, bytes], tmp_path: Path, half: int) -> None:
    content = bytearray(whole["records.bin"])
    content[half * RECORDS_BYTES // 2 : (half + 1) * RECORDS_BYTES // 2] = bytes(RECORDS_BYTES // 2)
    lay(tmp_path, {**whole, "records.bin": bytes(content)})
    store = RingStore(tmp_path, SIZE)
    # The 4096 watermarks, the session and the ages.
    assert store.recovery.repaired == 4096 + 2
    assert served(store) == expected(whole, tmp_path)
    assert RingStore(tmp_path, SIZE).recovery.repaired == 0


def test_an_outdated_copy_after_a_kill_is_replaced_from_the_other(whole: dict[str, bytes], tmp_path: Path) -> None:
    records = np.frombuffer(bytearray(whole["records.bin"]), np.uint8)
    kept, before = KeptTwice(ages_copies(records)), ages_copies(records).copy()
    kept.record["lag"] = 9
    kept.save()
    # The process was killed between the two writes.
    ages_copies(records)[1] = before[1]
    lay(tmp_path, {**whole, "records.bin": records.tobytes()})
    store = RingStore(tmp_path, SIZE)
    assert store.recovery.repaired == 0
    assert ages_copies(store.records)["lag"].tolist() == [9, 9]


@pytest.mark.parametrize("state", sorted({code ^ 1 << bit for code in State for bit in range(32)} | {0, 3, 11}))
def test_an_invalid_state_counts_as_damage(tmp_path: Path, state: int) -> None:
    store = RingStore(tmp_path, SIZE)
    store.adopt(SCHEMA)
    write_rows(store, np.arange(1, 5, dtype=np.uint64), make_window(1, segments=4), 0)
    store.headers["state"][3] = state
    again = RingStore(tmp_path, SIZE)
    assert (again.recovery.segments, again.recovery.damaged) == (3, 1)


def test_a_damaged_state_does_not_block_the_ring(tmp_path: Path) -> None:
    store, buffer = fill(tmp_path)
    scrub = Scrub(buffer)
    assert scrub.step() == 0
    rows = {state: int(np.flatnonzero(store.headers["state"] == state)[0]) for state in (1, 2, 4)}
    for row in rows.values():
        store.headers["state"][row] ^= 64
    # Unseen and leased segments get their states back. Seen segments are dropped.
    assert scrub.step() == 1
    assert store.headers["state"][rows[State.UNSEEN]] == State.UNSEEN
    assert store.headers["state"][rows[State.LEASED]] == State.LEASED
    assert store.headers["key"][rows[State.SEEN]] == 0
    assert buffer.counts().stored == 27
    # The ring wraps around over all rows.
    for number in range(54, 70):
        lease = buffer.leases.draw(number)
        assert lease is not None and lease.fresh_segments == 4
        buffer.leases.commit(8, number, lease.keys, np.ones(lease.keys.size))
        buffer.intakes.issue_grants(0.0)
        sequence = buffer.store.watermark(0, 3) + 1
        assert append(buffer, make_window(sequence, segments=4, incarnation=3, version=number), 0.0) == sequence + 3
    assert buffer.counts().stored == ROWS


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", np.nan), ("priority", np.inf), ("priority", -1e-9), ("batch", -2), ("batch", 53), ("batch", 56)],
)
def test_invalid_header_values_count_as_damage(
    whole: dict[str, bytes], tmp_path: Path, field: str, value: float
) -> None:
    lay(tmp_path, whole)
    headers = np.memmap(tmp_path / "segments.bin", HEADER, "r+", shape=(ROWS,))
    headers[field][np.flatnonzero(headers["state"] == State.LEASED)[0]] = value
    headers.flush()
    store = RingStore(tmp_path, SIZE)
    assert (store.recovery.segments, store.recovery.damaged) == (27, 1)


# Single bits


def served(store: RingStore) -> dict[str, bytes]:
    """Returns the data that a service would use: fields of the records by name and segments by key."""
    content = {"marks": read_watermarks(store.records)[0].tobytes()}
    ages = KeptTwice(ages_copies(store.records)).record[0]
    # The first two fields, sequence and checksum, differ between writes.
    for kind, record in (("session", store.session._kept.record[0]), ("ages", ages)):
        content |= {f"{kind}.{name}": record[name].tobytes() for name in record.dtype.names[2:]}
    for row in np.flatnonzero(store.headers["key"]).tolist():
        payload = b"".join(column[row].tobytes() for column in store.columns)
        content[f"segment {int(store.headers['key'][row])}"] = store.headers[row].tobytes() + payload
    return content


def expected(whole: dict[str, bytes], tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "as it was"
    folder.mkdir(exist_ok=True)
    lay(folder, whole)
    return served(RingStore(folder, SIZE))


def offset_in(memory: np.ndarray, view: np.ndarray) -> int:
    """Returns the offset in bytes of a view in the memory."""
    return int(view.__array_interface__["data"][0] - memory.__array_interface__["data"][0])


def flips(whole: dict[str, bytes]) -> Iterator[tuple[str, str, int]]:
    """Yields 900 flips, each with the damaged part, the file name and the index of the bit."""
    random = np.random.default_rng(5)
    for name in HEADER.names or ():
        start, width = int(HEADER.fields[name][1]), int(HEADER.fields[name][0].itemsize)  # type: ignore[index]
        for _ in range(35):
            row = int(random.integers(1, 29))
            yield name, "segments.bin", 8 * (row * HEADER.itemsize + start) + int(random.integers(8 * width))
    records = np.frombuffer(whole["records.bin"], np.uint8)
    copies = {"session": session_copies(records), "ages": ages_copies(records), "mark": watermark_copies(records)[:, 7]}
    widths = {"session": SESSION.itemsize, "ages": AGES.itemsize - 16 * (MAX_GAPS - 2), "mark": 16}
    for kind, view in copies.items():
        for index in range(100):
            start = offset_in(records, view[index % 2 : index % 2 + 1])
            yield kind, "records.bin", 8 * start + int(random.integers(8 * widths[kind]))
    for _ in range(200):
        yield "anywhere", "segments.bin", int(random.integers(8 * len(whole["segments.bin"])))
    for _ in range(50):
        yield "description", "store.json", int(random.integers(8 * len(whole["store.json"])))


@pytest.mark.nightly
def test_900_flipped_bits_in_a_store_are_noticed_or_change_nothing(whole: dict[str, bytes], tmp_path: Path) -> None:
    intact = expected(whole, tmp_path)
    outcomes: dict[str, Counter[str]] = {}
    for kind, name, bit in flips(whole):
        content = bytearray(whole[name])
        content[bit // 8] ^= 1 << bit % 8
        lay(tmp_path, {**whole, name: bytes(content)})
        outcomes.setdefault(kind, Counter())[outcome_of(tmp_path, name, intact)] += 1
    assert sum(count.total() for count in outcomes.values()) == 900
    for kind, count in outcomes.items():
        assert not count["silent"], (kind, count)
        if kind in ("priority", "batch"):
            # These fields have bounds but no checksum. Within the bounds, a flip changes only draw probabilities.
            assert set(count) == {"noticed", "unchecked"}, (kind, count)
        elif kind not in ("anywhere", "description"):
            # These parts have no unused bits.
            assert set(count) == {"noticed"}, (kind, count)


def outcome_of(folder: Path, name: str, intact: dict[str, bytes]) -> str:
    try:
        store = RingStore(folder, SIZE)
    except ConfigurationError as error:
        assert str(folder / name) in str(error)
        return "noticed"
    found = store.recovery
    content: dict[str, Any] = served(store)
    noticed = bool(found.damaged or found.torn or found.repaired)
    # The remaining content must be unchanged, even if the damage is noticed.
    wrong = [key for key, value in content.items() if intact.get(key) != value]
    lost = len(intact) - len(content)
    assert lost <= found.damaged + found.torn
    if wrong:
        fields = {field for key in wrong for field in changed_fields(intact.get(key, b""), content[key])}
        return "unchecked" if fields <= {"priority", "batch"} else "silent"
    return "noticed" if noticed else "unused"


def changed_fields(before: bytes, after: bytes) -> set[str]:
    """Returns the header fields that differ, or `payload` if the payload differs or a value is not a segment."""
    if (
        len(before) != len(after)
        or len(after) <= HEADER.itemsize
        or before[HEADER.itemsize :] != after[HEADER.itemsize :]
    ):
        return {"payload"}
    headers = [np.frombuffer(content[: HEADER.itemsize], HEADER)[0] for content in (before, after)]
    return {name for name in HEADER.names or () if headers[0][name].tobytes() != headers[1][name].tobytes()}


# Snapshots


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with one snapshot, `then`."""
    root = tmp_path_factory.mktemp("snapshots")
    _, buffer = fill(None)
    snapshots = Snapshots(buffer, root, kept=3, bytes_per_s=2**40, chunk_bytes=8 * SCHEMA.segment_bytes)
    running = snapshots.begin(SnapshotRequest("then", buffer.version, automatic=False))
    running.policy.set_result(Weights.of(buffer.version, b"policy" * 50))
    assert running.outcome.result(PATIENCE_S).segments == 28
    return root


def restored(root: Path, into: Path) -> tuple[str, dict[str, bytes]]:
    """Restores the snapshot and returns the error or the damage count, and the content of the new store."""
    source = SnapshotFolder(root)
    try:
        manifest = source.read("then")
        result = restore_store(source, manifest, into, SIZE)
        source.policy(manifest)
    except ConfigurationError as error:
        return str(error), {}
    content = served(RingStore(into, SIZE))
    del content["session.identity"]
    return f"{result.damaged} damaged" if result.damaged else "", content


@pytest.mark.parametrize("damage", ["missing", *DAMAGES])
def test_each_lost_file_of_a_snapshot_is_detected(snapshot: Path, tmp_path: Path, damage: str) -> None:
    said, intact = restored(snapshot, tmp_path / "intact")
    assert not said and len([key for key in intact if key.startswith("segment")]) == 28
    names = sorted(path.name for path in (snapshot / "then").iterdir())
    assert len(names) == 4 + 4
    for name in names:
        root = tmp_path / name
        shutil.copytree(snapshot, root)
        path = root / "then" / name
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
        said, content = restored(root, root / "again")
        if name.endswith(".chunk"):
            assert said.endswith(" damaged")
        else:
            assert str(root) in said and ("choose another" in said or "no snapshot 'then'" in said)
        assert content.items() <= intact.items()


def test_100_flipped_bits_in_a_snapshot_are_noticed_or_change_nothing(snapshot: Path, tmp_path: Path) -> None:
    _, intact = restored(snapshot, tmp_path / "intact")
    random, root = np.random.default_rng(6), tmp_path / "damaged"
    paths = sorted((snapshot / "then").iterdir())
    shutil.copytree(snapshot, root)
    unused = 0
    for index in range(100):
        whole = paths[index % len(paths)].read_bytes()
        content, bit = bytearray(whole), int(random.integers(8 * len(whole)))
        content[bit // 8] ^= 1 << bit % 8
        path = root / "then" / paths[index % len(paths)].name
        path.write_bytes(bytes(content))
        said, found = restored(root, tmp_path / "again")
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        path.write_bytes(whole)
        assert said or found == intact, (path.name, bit)
        assert found.items() <= intact.items(), (path.name, bit)
        unused += not said
    # Unused bits are in rows of overwritten segments in a chunk and in blanks of the manifest.
    assert unused < 10
