"""Stores and snapshots of earlier releases: those of this format continue, others are refused with what to do."""

import json
import shutil
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConfigurationError
from penstock.replay.snapshots.folder import FORMAT as SNAPSHOT_FORMAT
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.store.description import FORMAT
from penstock.replay.store.ring_store import RingStore
from tests.compatibility.messages import HERE
from tests.compatibility.services import unpack
from tests.support.services.processes import run

STORES = sorted(folder.parent.name for folder in HERE.glob("*/services.tar.xz"))
CAPACITY = 65536


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the folder of a stopped replay service's store."""
    unpack(HERE / request.param, tmp_path)
    return tmp_path / "store"


def format_of(path: Path) -> int:
    return int(json.loads(path.read_text())["format"])


def manifests(store: Path) -> list[Path]:
    return list(store.glob("snapshots/*/manifest.json"))


def test_a_store_and_a_snapshot_of_every_format_are_kept(tmp_path: Path) -> None:
    stores, snapshots = set(), set()
    for name in STORES:
        unpack(HERE / name, tmp_path / name)
        stores.add(format_of(tmp_path / name / "store" / "store.json"))
        snapshots |= {format_of(path) for path in manifests(tmp_path / name / "store")}
    assert stores == set(range(1, FORMAT + 1))
    assert snapshots == set(range(1, SNAPSHOT_FORMAT + 1))
    assert penstock.__version__ in STORES


def test_a_store_continues_or_is_refused_with_what_to_do(store: Path) -> None:
    found = format_of(store / "store.json")
    if found == FORMAT:
        continued = RingStore(store, CAPACITY)
        assert continued.recovery.segments > 0
        return
    before = sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in store.rglob("*"))
    with pytest.raises(ConfigurationError) as refused:
        RingStore(store, CAPACITY)
    message = str(refused.value)
    assert f"is a store of format {found}, and this version reads {FORMAT}" in message
    assert f"remove the folder {store} to continue with an empty store" in message
    assert sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in store.rglob("*")) == before


def test_a_snapshot_is_read_or_refused_with_its_format(store: Path) -> None:
    folder = SnapshotFolder(store / "snapshots")
    for path in manifests(store):
        name, found = path.parent.name, format_of(path)
        if found == SNAPSHOT_FORMAT:
            assert folder.read(name).snapshot.segments > 0
            continue
        with pytest.raises(ConfigurationError, match=f"format {found}, and this version reads {SNAPSHOT_FORMAT}"):
            folder.read(name)
        assert folder.complete() == []


@pytest.mark.nightly
def test_an_interrupted_run_whose_store_is_refused_says_so_and_continues_without_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    shutil.copytree(HERE / "bb932d0" / "run", folder)
    unpack(HERE / "bb932d0", tmp_path)
    shutil.move(tmp_path / "store", folder / "replay")
    refused = run("train", "--resume", str(folder), "--run.total-steps", "900")
    assert refused.code == 2
    assert f"is a store of format 3, and this version reads {FORMAT}" in refused.stderr
    assert f"remove the folder {folder / 'replay'} to continue with an empty store" in refused.stderr
    shutil.rmtree(folder / "replay")
    continued = run("train", "--resume", str(folder), "--run.total-steps", "900")
    assert continued.code == 0, continued.stderr
