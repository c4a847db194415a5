import json
import math
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigurationError, InvalidSegment, NotReady, Overloaded, PenstockError, Unavailable
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots import taking as snapshots
from penstock.replay.snapshots import work as snapshot_work
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import Restored, restore_store
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.snapshots.work import RunningSnapshot
from penstock.replay.store.layout import HEADER, RECORDS_BYTES, State
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Schema
from penstock.types.replay import SamplingPlan
from penstock.types.run import Weights
from penstock.types.snapshots import Snapshot, SnapshotRequest
from tests.support.machine.timing import NEVER_S, PATIENCE_S, seconds_of
from tests.support.segments.direct_buffer import append, fragments_of, gather, read_rows
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window
from tests.support.services.servers import until

FAST = 2**40
ROW_BYTES = SCHEMA.segment_bytes
REPLAY_ONLY = replace(PLAN, fresh_segments=0, batch_segments=4)


class Service:
    """Replay service without its server, with one actor, one learner and snapshots."""

    def __init__(
        self,
        store: RingStore,
        root: Path | None,
        *,
        kept: int = 3,
        bytes_per_s: int = FAST,
        chunk_rows: int = 4,
        sent: int = 0,
        incarnation: int = 1,
    ) -> None:
        self.store = store
        self.buffer = ReplayBuffer(store, Gate(1e9, max_actors=8))
        self.outcomes: list[Snapshot | PenstockError] = []
        self.snapshots = Snapshots(
            self.buffer,
            root,
            kept=kept,
            bytes_per_s=bytes_per_s,
            ended=self.outcomes.append,
            chunk_bytes=chunk_rows * ROW_BYTES,
        )
        self.sent, self.key = sent, ActorKey(0, incarnation)

    def insert(self, segments: int, *, schema: Schema = SCHEMA) -> None:
        """Inserts windows of two segments. With one actor, sequences equal keys."""
        intake = self.buffer.intakes.open(self.key, schema, 2, 0.0)
        assert intake.stored_sequence == self.sent
        for _ in range(segments // 2):
            self.buffer.intakes.issue_grants(0.0)
            window = make_window(self.sent + 1, incarnation=self.key.incarnation, version=self.buffer.version)
            assert append(self.buffer, window, 0.0) == self.sent + 2
            self.sent += 2
        intake.close()

    def begin(self, name: str, *, automatic: bool = False) -> RunningSnapshot:
        """Begins a snapshot with a policy of the store's version, as a learner does."""
        version = self.buffer.version
        running = self.snapshots.begin(SnapshotRequest(name, version, automatic))
        running.policy.set_result(Weights.of(version, f"policy of {name}".encode()))
        return running

    def take(self, name: str, *, automatic: bool = False) -> Snapshot:
        return self.begin(name, automatic=automatic).outcome.result(PATIENCE_S)

    def train(self, number: int, priority: float) -> None:
        lease = self.buffer.leases.draw(number)
        assert lease is not None
        self.buffer.leases.commit(PLAN.session, number, lease.keys, np.full(lease.keys.size, priority))


def new_service(tmp_path: Path, rows: int = 40, plan: SamplingPlan = REPLAY_ONLY, **options: int) -> Service:
    service = Service(RingStore(tmp_path / "store", capacity_bytes(rows)), tmp_path / "snapshots", **options)
    service.buffer.adopt_plan(plan)
    return service


def restore(tmp_path: Path, name: str, rows: int = 40, into: str = "again") -> tuple[RingStore, Restored]:
    source = SnapshotFolder(tmp_path / "snapshots")
    restored = restore_store(source, source.read(name), tmp_path / into, capacity_bytes(rows))
    # Opens the store as a service in that folder does.
    return RingStore(tmp_path / into, capacity_bytes(rows)), restored


def keys_in(store: RingStore) -> list[int]:
    return sorted(store.headers["key"][store.headers["key"] != 0].tolist())


def assert_holds(store: RingStore, sequences: list[int]) -> None:
    """Asserts that the store has exactly these segments of the first actor, with keys equal to the sequences."""
    assert keys_in(store) == sequences
    keys = np.array(sequences, np.uint64)
    into = SCHEMA.empty(keys.size)
    read_rows(store, store.rows(keys), into)
    assert_same_columns(into, make_columns([(0, 1, sequence) for sequence in sequences]))
    assert store.headers["sequence"][store.rows(keys)].tolist() == sequences


def chunks(tmp_path: Path, name: str) -> dict[str, int]:
    """Returns the inode of each chunk file by file name."""
    return {path.name: path.stat().st_ino for path in sorted((tmp_path / "snapshots" / name).glob("*.chunk"))}


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limits the size of the files of this process in bytes, to simulate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# Taking and restoring


def test_segments_states_priorities_watermarks_and_counters_are_restored(tmp_path: Path) -> None:
    plan = replace(PLAN, batch_segments=2)
    service = new_service(tmp_path, plan=plan)
    for number in range(3):
        service.insert(2)
        service.train(number, priority=number + 0.5)
    service.insert(2)
    assert service.buffer.leases.draw(3) is not None
    service.insert(2)
    taken = service.take("before")
    assert (taken.segments, taken.absent, taken.damaged) == (10, 0, 0)

    store, restored = restore(tmp_path, "before")
    assert restored == Restored(segments=10, damaged=0, dropped=0, incarnations={0: 1})
    assert_holds(store, list(range(1, 11)))
    rows = store.rows(np.arange(1, 11, dtype=np.uint64))
    assert store.headers["state"][rows].tolist() == [State.SEEN] * 6 + [State.LEASED] * 2 + [State.UNSEEN] * 2
    assert store.headers["priority"][rows[:6]].tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]
    assert store.watermark(0, 1) == 10
    for counter in ("next_key", "version", "next_batch", "next_lease", "inserted", "late"):
        assert getattr(store.session, counter) == getattr(service.store.session, counter), counter
    assert store.session.next_key == 11
    assert store.session.identity != service.store.session.identity


def test_leased_segments_of_a_restored_store_are_fresh_again(tmp_path: Path) -> None:
    plan = replace(PLAN, batch_segments=2)
    service = new_service(tmp_path, plan=plan)
    service.insert(2)
    service.train(0, priority=1.0)
    service.insert(4)
    assert service.buffer.leases.draw(1) is not None
    service.take("before")

    store, _ = restore(tmp_path, "before")
    again = Service(store, tmp_path / "snapshots", sent=6)
    # The learner continued in the meantime and reconnects in the same session at a later batch.
    again.buffer.adopt_plan(replace(plan, next_batch=2))
    lease = again.buffer.leases.draw(2)
    assert lease is not None
    assert sorted(lease.keys[: lease.fresh_segments].tolist()) == [3, 4]
    again.train(2, priority=1.0)
    again.insert(2)
    assert_holds(store, list(range(1, 9)))


def test_a_restored_store_can_be_reopened(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(30)
    service.take("before")
    restore(tmp_path, "before")
    reopened = RingStore(tmp_path / "again", capacity_bytes(40))
    assert (reopened.recovery.segments, reopened.recovery.damaged) == (30, 0)
    assert_holds(reopened, list(range(1, 31)))


def test_a_wrapped_ring_is_restored(tmp_path: Path) -> None:
    service = new_service(tmp_path, rows=20)
    service.insert(50)
    service.take("round")
    store, _ = restore(tmp_path, "round", rows=20)
    assert_holds(store, list(range(31, 51)))


def test_an_arriving_window_is_only_in_a_later_snapshot(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(2)
    intake = service.buffer.intakes.open(ActorKey(1, 1), SCHEMA, 2, 0.0)
    service.buffer.intakes.issue_grants(0.0)
    window = make_window(1, slot=1)
    assert intake.reserve(window.head, 0.0)
    service.insert(4)
    assert service.take("without").segments == 6
    for fragment in fragments_of(window.columns):
        intake.put(fragment)
    intake.seal(0.0)
    assert service.take("with").segments == 8
    store, _ = restore(tmp_path, "with")
    assert keys_in(store) == list(range(1, 9))
    assert store.watermark(1, 1) == 2


def test_a_store_in_memory_can_have_a_snapshot_folder(tmp_path: Path) -> None:
    service = Service(RingStore(None, capacity_bytes(40)), tmp_path / "snapshots")
    service.buffer.adopt_plan(REPLAY_ONLY)
    service.insert(10)
    service.take("memory")
    assert_holds(restore(tmp_path, "memory")[0], list(range(1, 11)))


# Sharing


def test_snapshots_share_unchanged_chunks(tmp_path: Path) -> None:
    service = new_service(tmp_path, rows=40, chunk_rows=4)
    service.insert(22)
    first = service.take("first")
    service.insert(6)
    second = service.take("second")
    one, two = chunks(tmp_path, "first"), chunks(tmp_path, "second")
    # Chunks begin at multiples of 4. When keys 23 to 28 are added, the chunk of keys 20 to 23 grows.
    shared = {name for name in one if two.get(name) == one[name]}
    assert len(one) == 6 and len(two) == 8 and set(one) - shared == {f"{20:020}.chunk"}
    assert first.shared_bytes == 0
    assert second.shared_bytes == 19 * (ROW_BYTES + 8)
    shutil.rmtree(tmp_path / "snapshots" / "first")
    store, _ = restore(tmp_path, "second")
    assert_holds(store, list(range(1, 29)))


def test_a_chunk_is_shared_after_the_ring_overwrites_its_first_segments(tmp_path: Path) -> None:
    service = new_service(tmp_path, rows=20, chunk_rows=8)
    service.insert(20)
    service.take("first")
    service.insert(4)
    service.take("second")
    assert chunks(tmp_path, "first")[f"{0:020}.chunk"] == chunks(tmp_path, "second")[f"{0:020}.chunk"]
    store, _ = restore(tmp_path, "second", rows=20)
    assert_holds(store, list(range(5, 25)))


def test_new_priorities_do_not_rewrite_chunks(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(20)
    service.take("first")
    service.train(0, priority=9.0)
    written_bytes = 20 * HEADER.itemsize + RECORDS_BYTES + len("policy of second")
    assert service.take("second").written_bytes == written_bytes
    assert chunks(tmp_path, "first") == chunks(tmp_path, "second")
    assert restore(tmp_path, "first", into="one")[0].headers["priority"].max() < 9.0
    assert restore(tmp_path, "second", into="two")[0].headers["priority"].max() == 9.0


def test_chunks_with_the_same_keys_from_another_history_are_not_shared(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(8)
    service.take("early")
    service.insert(8)
    service.take("late")
    store, _ = restore(tmp_path, "early")
    other = Service(store, tmp_path / "snapshots", incarnation=2)
    other.buffer.adopt_plan(replace(REPLAY_ONLY, session=8))
    other.insert(8)
    other.take("branch")
    again, _ = restore(tmp_path, "branch", into="third")
    assert keys_in(again) == list(range(1, 17))
    keys = np.arange(9, 17, dtype=np.uint64)
    into = SCHEMA.empty(8)
    read_rows(again, again.rows(keys), into)
    assert_same_columns(into, make_columns([(0, 2, sequence) for sequence in range(1, 9)]))


# Snapshots of a store in use


def slow_pace(folder: Path, rows: int) -> int:
    """Returns the bytes per second at which copying takes a second plus five times as long as inserting."""
    service = new_service(folder, rows=rows)
    # The first window waits until the compiled code is loaded.
    service.insert(2)
    return int(rows * ROW_BYTES / (1.0 + 5.0 * seconds_of(lambda: service.insert(rows))))


def test_rows_overwritten_during_the_copy_are_absent_and_counted(tmp_path: Path) -> None:
    rows = 100
    # The ring wraps around during the copy.
    pace = slow_pace(tmp_path / "baseline", rows)
    service = new_service(tmp_path, rows=rows, chunk_rows=4, bytes_per_s=pace)
    service.insert(rows)
    going_on = threading.Event()

    def insert() -> None:
        # Bounded, because a thread that never waits would starve the copying thread.
        while not going_on.is_set() and service.sent < 4 * rows:
            service.insert(2)

    running = service.begin("busy")
    until(lambda: running.progress.segments >= 20, "some of the rows to be copied")
    inserting = threading.Thread(target=insert)
    inserting.start()
    try:
        taken = running.outcome.result(PATIENCE_S)
    finally:
        going_on.set()
        inserting.join()
    assert service.sent > rows + 20
    assert taken.damaged == 0
    assert 20 <= taken.segments < rows
    assert taken.segments + taken.absent == rows
    store, restored = restore(tmp_path, "busy", rows=rows)
    assert (restored.segments, restored.damaged) == (taken.segments, 0)
    # The segments and the watermark are those at the start of the snapshot.
    assert_holds(store, keys_in(store))
    assert keys_in(store)[-1] <= rows
    assert store.watermark(0, 1) == rows


def test_inserts_and_draws_continue_while_a_snapshot_is_written(tmp_path: Path) -> None:
    service = new_service(tmp_path, rows=100, bytes_per_s=math.ceil(40 * ROW_BYTES / NEVER_S))
    service.insert(40)
    running = service.begin("slow")
    until(lambda: running.progress.total_segments, "the snapshot to begin")
    service.insert(20)
    lease = service.buffer.leases.draw(0)
    assert lease is not None and gather(service.buffer, lease).keys.size == 4
    with pytest.raises(Overloaded, match="in progress"):
        service.begin("another")
    assert not running.outcome.done()
    service.snapshots.stop()


# Snapshots and policies


def test_a_store_is_frozen_after_the_commit_of_the_policys_version(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(8)
    lease = service.buffer.leases.draw(0)
    assert lease is not None
    running = service.snapshots.begin(SnapshotRequest("held", version=1, automatic=False))
    assert not running.frozen.wait(0.05)
    service.buffer.leases.commit(PLAN.session, 0, lease.keys, np.full(lease.keys.size, 9.0))
    assert running.frozen.wait(PATIENCE_S)
    # This batch is trained after the freeze and is not in the snapshot.
    service.train(1, priority=5.0)
    running.policy.set_result(Weights.of(1, b"policy"))
    assert running.outcome.result(PATIENCE_S).version == 1
    store, _ = restore(tmp_path, "held")
    assert (store.session.version, store.headers["priority"].max()) == (1, 9.0)
    source = SnapshotFolder(tmp_path / "snapshots")
    manifest = source.read("held")
    assert (source.policy(manifest), manifest.policy_version) == (b"policy", 1)


def test_a_missing_commit_or_policy_fails_the_snapshot_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_work, "_COMMIT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(snapshot_work, "_POLICY_TIMEOUT_S", 0.05)
    service = new_service(tmp_path)
    service.insert(8)
    uncommitted = service.snapshots.begin(SnapshotRequest("x", version=1, automatic=False))
    with pytest.raises(Unavailable, match="is to have version 1, and the store was trained to 0"):
        uncommitted.outcome.result(PATIENCE_S)
    without = service.snapshots.begin(SnapshotRequest("x", version=0, automatic=False))
    with pytest.raises(Unavailable, match="no policy arrived for snapshot 'x'"):
        without.outcome.result(PATIENCE_S)
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_an_abandoned_snapshot_ends_at_once_and_leaves_no_files(tmp_path: Path) -> None:
    # The snapshot would take about 10 seconds at this rate.
    service = new_service(tmp_path, bytes_per_s=4 * ROW_BYTES)
    service.insert(40)
    running = service.begin("slow")
    until(lambda: running.progress.segments, "the snapshot to begin")
    running.given_up.set()
    with pytest.raises(Unavailable, match="snapshot 'slow' was abandoned"):
        running.outcome.result(PATIENCE_S)
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_a_damaged_policy_is_refused(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(4)
    service.take("rotten")
    source = SnapshotFolder(tmp_path / "snapshots")
    flip(tmp_path / "snapshots" / "rotten" / "policy.safetensors", 3)
    with pytest.raises(ConfigurationError, match=r"policy\.safetensors is damaged; choose another"):
        source.policy(source.read("rotten"))


# Damage


def test_a_damaged_row_of_the_store_is_left_out_and_counted(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(10)
    service.store.columns[0][service.store.rows(np.array([3], np.uint64))[0], 0] ^= 1
    taken = service.take("damaged")
    assert (taken.segments, taken.absent, taken.damaged) == (9, 0, 1)
    store, restored = restore(tmp_path, "damaged")
    assert (restored.segments, restored.damaged) == (9, 0)
    assert_holds(store, [1, 2, *range(4, 11)])


def test_damaged_segments_of_a_snapshot_are_dropped_and_counted_at_the_restore(tmp_path: Path) -> None:
    service = new_service(tmp_path, chunk_rows=4)
    service.insert(22)
    service.take("rotten")
    place = tmp_path / "snapshots" / "rotten"
    # Damages the last byte of the chunk from 8 and a key of the chunk from 16. Truncates the chunk from 4.
    flip(place / f"{8:020}.chunk", (place / f"{8:020}.chunk").stat().st_size - 1)
    flip(place / f"{16:020}.chunk", 0)
    with (place / f"{4:020}.chunk").open("r+b") as file:
        file.truncate(100)
    store, restored = restore(tmp_path, "rotten")
    assert (restored.segments, restored.damaged) == (16, 6)
    assert_holds(store, [1, 2, 3, 8, 9, 10, 12, 13, 14, 15, 17, 18, 19, 20, 21, 22])


@pytest.mark.parametrize("file", ["headers.bin", "records.bin", "manifest.json"])
def test_a_snapshot_with_damaged_headers_records_or_manifest_is_refused(tmp_path: Path, file: str) -> None:
    service = new_service(tmp_path)
    service.insert(10)
    service.take("rotten")
    flip(tmp_path / "snapshots" / "rotten" / file, 0)
    with pytest.raises(ConfigurationError, match=f"{file}.*choose another"):
        restore(tmp_path, "rotten")
    assert not (tmp_path / "again").exists()
    # A new snapshot shares all intact chunks or none.
    assert service.take("sound").shared_bytes in (0, 10 * (ROW_BYTES + 8))
    assert_holds(restore(tmp_path, "sound")[0], list(range(1, 11)))


# Names and retention


def test_old_automatic_snapshots_are_removed_and_requested_ones_are_kept(tmp_path: Path) -> None:
    # The clock is set back by an hour before each snapshot.
    clock = iter(range(2_000_000_000, 0, -3600))
    service = new_service(tmp_path, kept=2)
    service.snapshots._now = lambda: float(next(clock))
    service.insert(4)
    service.take("named")
    for name in ("c", "a", "b"):
        service.insert(4)
        service.take(name, automatic=True)
    service.take("also-named")
    assert [snapshot.name for snapshot in service.snapshots.complete()] == ["named", "a", "b", "also-named"]
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["a", "also-named", "b", "named"]
    assert_holds(restore(tmp_path, "a")[0], list(range(1, 13)))


def test_a_request_beyond_the_limit_of_requested_snapshots_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MOST_NAMED", 2)
    service = new_service(tmp_path)
    service.insert(4)
    service.take("one")
    service.take("two")
    with pytest.raises(ConfigurationError, match=r"there are 2 requested snapshots in .*; remove the folders of some"):
        service.take("three")
    # Snapshots on the interval are still taken.
    service.take("on-the-interval", automatic=True)
    shutil.rmtree(tmp_path / "snapshots" / "one")
    service.take("three")


def test_a_snapshot_is_listed_as_reported(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(4)
    taken = service.take("told")
    assert service.snapshots.complete() == [taken] == service.outcomes
    content = json.loads((tmp_path / "snapshots" / "told" / "manifest.json").read_text())
    assert content["segments"] == 4 and content["schema_hash"] == f"{SCHEMA.hash:016x}"


@pytest.mark.parametrize("name", ["..", "a/b", ".hidden", "", "a b", "x" * 101])
def test_names_that_are_not_plain_file_names_are_refused(tmp_path: Path, name: str) -> None:
    service = new_service(tmp_path)
    service.insert(2)
    if name:
        with pytest.raises(InvalidSegment, match="can't be called"):
            service.begin(name)
    with pytest.raises((InvalidSegment, ConfigurationError)):
        restore(tmp_path, name)


def test_a_refused_snapshot_reports_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"replay\.snapshot_folder"):
        Service(RingStore(None, capacity_bytes(4)), None).begin("memory")
    service = new_service(tmp_path)
    with pytest.raises(NotReady, match="no actor has connected"):
        service.begin("empty")
    service.insert(2)
    service.take("taken")
    with pytest.raises(ConfigurationError, match="there is a snapshot 'taken'"):
        service.begin("taken")


KILLED = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_snapshots import ROW_BYTES, new_service
# The end is half a minute away when some rows are copied.
service = new_service(Path(sys.argv[1]), rows=40, bytes_per_s=16 * ROW_BYTES)
service.insert(40)
running = service.begin("killed")
while running.progress.segments < 8:
    time.sleep(0.005)
print("half-way", flush=True)
time.sleep(60)
"""


def test_a_snapshot_interrupted_by_a_kill_is_removed_by_the_next(tmp_path: Path) -> None:
    here = Path(__file__)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(here.parent), str(here.parents[3])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"half-way\n"
    finally:
        process.kill()
        process.communicate()
    left = list((tmp_path / "snapshots").glob(".*/*.chunk"))
    assert left
    store = RingStore(tmp_path / "store", capacity_bytes(40))
    service = Service(store, tmp_path / "snapshots")
    assert service.snapshots.complete() == []
    with pytest.raises(ConfigurationError, match=r"no snapshot 'killed'.*there are: none"):
        restore(tmp_path, "killed")
    service.take("next")
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["next"]
    assert_holds(restore(tmp_path, "next")[0], list(range(1, 41)))


def test_a_snapshot_interrupted_by_a_stop_leaves_no_files(tmp_path: Path) -> None:
    # The snapshot would take about 10 seconds at this rate.
    service = new_service(tmp_path, bytes_per_s=4 * ROW_BYTES)
    service.insert(40)
    running = service.begin("late")
    until(lambda: running.progress.segments, "the snapshot to begin")
    service.snapshots.stop()
    with pytest.raises(Unavailable, match="stopped before snapshot 'late'"):
        running.outcome.result(PATIENCE_S)
    assert list((tmp_path / "snapshots").iterdir()) == []
    with pytest.raises(Unavailable, match="stopping"):
        service.begin("later")


def test_a_snapshot_on_a_full_disk_leaves_no_files_and_the_next_succeeds(tmp_path: Path) -> None:
    service = new_service(tmp_path, chunk_rows=16)
    service.insert(40)
    with largest_file(4 * ROW_BYTES):
        failed = service.begin("full")
        with pytest.raises(
            ConfigurationError, match=r"can't write snapshot 'full'.*choose another replay.snapshot_folder"
        ):
            failed.outcome.result(PATIENCE_S)
    assert isinstance(service.outcomes[0], ConfigurationError)
    assert list((tmp_path / "snapshots").iterdir()) == []
    assert service.take("full").segments == 40


# Restoring


def test_an_unknown_name_is_refused_with_the_existing_names(tmp_path: Path) -> None:
    service = new_service(tmp_path)
    service.insert(2)
    service.take("one")
    service.take("two")
    with pytest.raises(ConfigurationError, match=r"no snapshot 'three'.*there are: one, two"):
        restore(tmp_path, "three")


@pytest.mark.parametrize("rows", [13, 64])
def test_a_restore_into_another_capacity_keeps_the_newest_segments(tmp_path: Path, rows: int) -> None:
    service = new_service(tmp_path, rows=40)
    service.insert(50)
    service.take("forty")
    store, restored = restore(tmp_path, "forty", rows=rows)
    expected = list(range(51 - min(rows, 40), 51))
    assert_holds(store, expected)
    assert restored.dropped == 40 - len(expected)
    again = Service(store, tmp_path / "snapshots", sent=50)
    again.buffer.adopt_plan(replace(REPLAY_ONLY, session=8))
    again.insert(8)
    assert_holds(store, [*expected, *range(51, 59)][-rows:])


def test_a_store_too_small_for_the_untrained_segments_is_refused(tmp_path: Path) -> None:
    service = new_service(tmp_path, rows=60, plan=replace(PLAN, batch_segments=20, fresh_segments=20))
    service.insert(20)
    service.take("unseen")
    with pytest.raises(ConfigurationError, match=r"holds 13 segments.* 7 that were not trained yet"):
        restore(tmp_path, "unseen", rows=13)
    assert not (tmp_path / "again").exists()
    assert_holds(restore(tmp_path, "unseen", rows=20)[0], list(range(1, 21)))
