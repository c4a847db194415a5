import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder
from penstock.runs.store_place import StorePlace, choose_place, record_place, remove_store
from tests.support.machine.network_mounts import mounted_over_fuse
from tests.support.segments.segments import capacity_bytes


@pytest.fixture
def local(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """Yields the folder of a run on a network file system, beside a local folder for temporary files."""
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for mount in mounted_over_fuse(tmp_path / "real", tmp_path / "shared"):
        folder = RunFolder(mount / "run")
        folder.create()
        yield folder


def made(folder: RunFolder, configured: str | None = None) -> StorePlace:
    """Returns the place of a run's store, with the store in it."""
    place = choose_place(folder, configured)
    RingStore(place.root, max(capacity_bytes(20), 2**16))
    record_place(folder, place)
    return place


def test_a_run_on_a_local_disk_has_its_store_in_its_folder(local: RunFolder) -> None:
    assert made(local) == StorePlace(local.replay) == choose_place(local, None)
    assert not local.store_place.exists()
    remove_store(local, StorePlace(local.replay))
    assert not local.replay.exists()


def test_a_run_on_a_network_has_its_store_among_temporary_files_and_finds_it_again(
    shared: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(shared)
    assert place.root.parent == tmp_path / "scratch" and place.root.name.startswith("penstock-run-")
    (note,) = place.notes
    assert note == f"{shared.root} is on a network file system (fuse), so its replay store is in {place.root}"
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert choose_place(shared, None) == StorePlace(place.root)
    remove_store(shared, place)
    assert not place.root.exists() and not shared.store_place.exists()


def test_two_runs_of_the_same_name_have_different_stores(shared: RunFolder) -> None:
    assert choose_place(shared, None).root != choose_place(shared, None).root


def test_a_run_that_resumes_on_another_host_begins_a_new_store(shared: RunFolder, tmp_path: Path) -> None:
    gone = tmp_path / "scratch" / "penstock-run-0123456789abcdef"
    shared.store_place.write_text(json.dumps({"folder": str(gone), "host": "node7"}))
    place = choose_place(shared, None)
    assert place.root not in (gone, shared.replay)
    assert place.notes[0] == f"the replay store of this run was in {gone} on node7 and is not here, so it begins anew"
    record_place(shared, place)
    assert json.loads(shared.store_place.read_text()) == {"folder": str(place.root), "host": socket.gethostname()}


def test_a_folder_that_another_user_put_in_place_of_the_store_is_not_used(
    shared: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(shared)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert choose_place(shared, None).root != place.root
    monkeypatch.undo()
    place.root.rename(tmp_path / "elsewhere")
    place.root.symlink_to(tmp_path / "elsewhere")
    assert choose_place(shared, None).root != place.root


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"folder": 3, "host": "a"}', "\0"])
def test_a_record_that_can_not_be_read_is_ignored(local: RunFolder, record: str) -> None:
    local.store_place.write_text(record)
    assert choose_place(local, None) == StorePlace(local.replay)
    record_place(local, StorePlace(local.replay))
    assert not local.store_place.exists()


def test_a_configured_folder_has_a_folder_for_each_run(local: RunFolder, tmp_path: Path) -> None:
    place = made(local, str(tmp_path / "stores"))
    assert place.root.parent == tmp_path / "stores" and place.notes == ()
    assert choose_place(local, str(tmp_path / "others")) == StorePlace(place.root)
    remove_store(local, place)
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_run_keeps_the_store_in_its_folder_when_another_folder_is_configured_later(
    local: RunFolder, tmp_path: Path
) -> None:
    made(local)
    assert choose_place(local, str(tmp_path / "stores")) == StorePlace(local.replay)


def test_a_configured_folder_on_a_network_is_refused(shared: RunFolder) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^replay\.folder \S+ is on a network file system \(fuse\)[^\n]*\$TMPDIR$"
    ):
        choose_place(shared, str(shared.root.parent))


def test_a_store_on_a_network_is_refused_with_places_that_work(shared: RunFolder) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"^the replay store in \S+ would be on a network file system \(fuse\)[^\n]*--replay\.folder \$TMPDIR",
    ):
        RingStore(shared.replay, 2**20)
    assert not shared.replay.exists()
