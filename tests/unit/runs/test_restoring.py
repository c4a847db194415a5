"""Runs restored from a snapshot: the files of the new run, and no leftovers of a failed restore."""

import dataclasses
import json
import threading
from pathlib import Path

import pytest

from penstock.config import Config, build, load_toml
from penstock.errors import ConfigurationError
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.durable.versions import VersionMark
from penstock.learning.members.roster import Roster, decode_roster
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder, of_service
from penstock.runs.restoring import restore_run
from penstock.runs.store_place import choose_place
from penstock.types.run import Weights
from penstock.types.snapshots import SnapshotRequest
from tests.support.machine.network_mounts import mounted_over_fuse
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.direct_buffer import append
from tests.support.segments.segments import PLAN, SCHEMA, capacity_bytes, make_window
from tests.support.training.training import make_learner

CAPACITY = max(capacity_bytes(100), 2**16)
VERSION, ENV_STEPS = 12, 3_000


def checkpoint(version: int = VERSION, env_steps: int = ENV_STEPS) -> checkpoints.Snapshot:
    progress = RunProgress(version=version, env_steps=env_steps, segments_fresh=20, best_return=7.0)
    return checkpoints.take(make_learner(), progress)


def take(folder: RunFolder, name: str, policy: checkpoints.Snapshot, service: str = "replay", shards: int = 1) -> None:
    """Takes a snapshot of this policy and of a store of 20 segments at the same version."""
    store = RingStore(None, CAPACITY)
    buffer = ReplayBuffer(store, Gate(1e9, max_actors=4))
    version = policy.progress.version
    buffer.adopt_plan(dataclasses.replace(PLAN, next_batch=version, batch_segments=20, fresh_segments=20))
    buffer.intakes.open(ActorKey(3, 5), SCHEMA, 20, 0.0)
    buffer.intakes.issue_grants(0.0)
    assert append(buffer, make_window(slot=3, incarnation=5, segments=20, version=version), 0.0) == 20
    root = of_service(folder.snapshots, service, shards)
    snapshots = Snapshots(buffer, root, kept=3, bytes_per_s=2**40)
    taking = snapshots.begin(SnapshotRequest(name, version, automatic=False))
    taking.policy.set_result(Weights.of(version, policy.data))
    assert taking.outcome.result(PATIENCE_S).segments == 20


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Returns a run that continued to 9,000 steps after its snapshot `then`, and whose best checkpoint is newer."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    take(folder, "then", checkpoint())
    for version, env_steps in ((20, 6_000), (30, 9_000)):
        checkpoints.save(folder, checkpoint(version, env_steps), keep=3)
    checkpoints.save_best(folder, checkpoint(25, 8_000))
    records = [{"kind": "training", "env_steps": steps} for steps in (1_000, 3_000, 5_000)]
    folder.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    folder.roster.write_text(json.dumps({"slots": [[0, 9], [3, 2]], "environments": [[0, 9], [1, 9]], "members": []}))
    mark = VersionMark(folder.versions)
    mark.use(30)
    mark.close()
    return folder


def settings(run: RunFolder, **replay: object) -> Config:
    return build({"run": {"dir": str(run.root), "seed": 77}, "replay": {"capacity_bytes": CAPACITY, **replay}})


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_run_has_policy_store_and_settings_of_the_snapshot_and_the_old_run_is_unchanged(
    run: RunFolder, tmp_path: Path
) -> None:
    before, into = files(run.root), RunFolder(tmp_path / "new")
    shown = []
    restored = restore_run(settings(run), "then", into=into.root, show=lambda *progress: shown.append(progress))
    assert (restored.version, restored.env_steps, restored.stores[0].segments) == (VERSION, ENV_STEPS, 20)
    newest = checkpoints.newest(into)
    assert newest == into.checkpoint(ENV_STEPS)
    learner = make_learner(seed=1)
    assert checkpoints.restore(learner, newest).version == VERSION
    # The learner continues at the version of the store.
    notices: list[str] = []
    assert VersionMark(into.versions, VERSION, notice=notices.append).first == VERSION
    assert not notices
    store = RingStore(into.replay, CAPACITY)
    assert (store.recovery.segments, store.session.version) == (20, VERSION)
    assert build(load_toml(into.config)) == settings(run).repeatable()
    assert [json.loads(line)["env_steps"] for line in into.metrics.read_text().splitlines()] == [1_000, 3_000]
    assert shown[-1][0] == "replay" and shown[-1][1].segments == shown[-1][1].total_segments == 20
    # The old run's best checkpoint is newer than the snapshot, so the new run has none yet.
    assert not into.best_checkpoint.exists()
    assert files(run.root) == before


def test_a_new_run_on_a_network_file_system_has_its_store_where_it_is_found_when_the_run_is_resumed(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    for shared in mounted_over_fuse(tmp_path / "real", tmp_path / "shared"):
        restored = restore_run(settings(run), "then", into=shared / "new")
        place = choose_place(RunFolder(shared / "new"), None)
        assert (place.root.parent, place.notes) == (tmp_path, ())
        assert restored.notes == (
            f"{shared / 'new'} is on a network file system (fuse), so its replay store is in {place.root}",
        )
        assert RingStore(place.root, CAPACITY).recovery.segments == 20
        assert not RunFolder(shared / "new").replay.exists()


def test_a_best_checkpoint_from_before_the_snapshot_is_kept_in_the_new_run(run: RunFolder, tmp_path: Path) -> None:
    checkpoints.save_best(run, checkpoint(VERSION - 2, ENV_STEPS - 500))
    restore_run(settings(run), "then", into=tmp_path / "new")
    new = RunFolder(tmp_path / "new")
    assert new.best_checkpoint.read_bytes() == run.best_checkpoint.read_bytes()
    assert new.best_measured.read_bytes() == run.best_measured.read_bytes()


def test_incarnations_of_the_new_run_exceed_those_of_the_old_run(run: RunFolder, tmp_path: Path) -> None:
    restore_run(settings(run), "then", into=tmp_path / "new")
    path = RunFolder(tmp_path / "new").roster
    # The snapshot has segments of slot 3 in incarnation 5. The roster of the old run has incarnation 9 for slot 0.
    assert dict(decode_roster(path.read_bytes())["slots"]) == {0: 9, 3: 5}
    notices: list[str] = []
    roster = Roster(
        path,
        seed=1,
        max_actors=8,
        rejoin_timeout_s=1.0,
        now=0.0,
        writes=RetriedWrites(notices.append),
        notice=notices.append,
    )
    assert not notices
    assert (roster.connected, roster.largest_window) == (0, 0)


def test_all_shards_are_restored_together_into_a_separate_folder(run: RunFolder, tmp_path: Path) -> None:
    config = settings(run).changed({"train": {"replay_shards": 2}})
    policy = checkpoint()
    for service in ("replay-0", "replay-1"):
        take(run, "both", policy, service, shards=2)
    restored = restore_run(config, "both", into=tmp_path / "new", stores=tmp_path / "stores" / "new")
    assert [store.segments for store in restored.stores] == [20, 20]
    for service in ("replay-0", "replay-1"):
        assert RingStore(tmp_path / "stores" / "new" / service, CAPACITY).recovery.segments == 20
    assert not RunFolder(tmp_path / "new").replay.exists()


def test_parts_of_different_moments_are_refused(run: RunFolder, tmp_path: Path) -> None:
    config = settings(run).changed({"train": {"replay_shards": 2}})
    take(run, "mixed", checkpoint(12), "replay-0", shards=2)
    take(run, "mixed", checkpoint(13), "replay-1", shards=2)
    with pytest.raises(ConfigurationError, match=r"taken at different moments .*replay-1: policy 13, store 13"):
        restore_run(config, "mixed", into=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["policy.safetensors", "headers.bin", "manifest.json"])
def test_a_failed_restore_leaves_no_files(run: RunFolder, tmp_path: Path, place: str) -> None:
    damaged = run.snapshots / "then" / place
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(ConfigurationError, match="choose another"):
        restore_run(settings(run), "then", into=tmp_path / "new", stores=tmp_path / "stores")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_killed_restore_can_be_repeated(run: RunFolder, tmp_path: Path) -> None:
    left = tmp_path / ".new.unfinished" / "replay"
    left.mkdir(parents=True)
    (left / "segments.bin").write_bytes(b"half")
    restore_run(settings(run), "then", into=tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run"]
    assert RingStore(RunFolder(tmp_path / "new").replay, CAPACITY).recovery.segments == 20


def test_unsuitable_target_folders_are_refused(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigurationError, match=r"new exists already; name a folder that does not"):
        restore_run(settings(run), "then", into=tmp_path / "new")
    with pytest.raises(ConfigurationError, match=r"is in the new run's folder"):
        restore_run(settings(run), "then", into=tmp_path / "other", stores=tmp_path / "other" / "replay")
    with pytest.raises(ConfigurationError, match=r"no snapshot 'now'.*there are: then"):
        restore_run(settings(run), "now", into=tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"can't restore snapshot 'then' into .*file"):
        restore_run(settings(run), "then", into=tmp_path / "file" / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new", "run"]


def test_a_second_restore_into_the_same_folder_is_refused(run: RunFolder, tmp_path: Path) -> None:
    started, released = threading.Event(), threading.Event()

    def hold(*progress: object) -> None:
        started.set()
        assert released.wait(PATIENCE_S)

    first = threading.Thread(
        target=restore_run, args=(settings(run), "then"), kwargs={"into": tmp_path / "new", "show": hold}
    )
    first.start()
    try:
        assert started.wait(PATIENCE_S)
        with pytest.raises(ConfigurationError, match="another process is restoring a snapshot into"):
            restore_run(settings(run), "then", into=tmp_path / "new")
    finally:
        released.set()
        first.join()
    assert RingStore(RunFolder(tmp_path / "new").replay, CAPACITY).recovery.segments == 20
