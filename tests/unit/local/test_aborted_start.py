"""The run's folder after a start that failed or was interrupted."""

from pathlib import Path

import pytest

from penstock.errors import ConfigurationError, PenstockError
from penstock.local.aborted_start import AbortedStart
from penstock.runs.folder import RunFolder

ENDS = [ConfigurationError("no"), KeyboardInterrupt()]


def begin(folder: RunFolder, *, trained: bool = False) -> None:
    """Creates the files of a session in its folder."""
    folder.create()
    files = (folder.config, folder.services, folder.roster, folder.roster_copy, folder.damaged_metrics)
    for path in (*files, folder.root / f".{folder.versions.name}.123"):
        path.write_text("new")
    folder.replay.mkdir(exist_ok=True)
    (folder.replay / "segments.bin").touch()
    (folder.logs / "learner.log").touch()
    if trained:
        (folder.checkpoints / "000000000100.safetensors").touch()


@pytest.mark.parametrize("end", ENDS, ids=["refused", "interrupted"])
def test_a_new_folder_is_removed_with_its_new_parents(tmp_path: Path, end: BaseException) -> None:
    folder = RunFolder(tmp_path / "runs" / "one")
    start = AbortedStart(folder)
    with pytest.raises(type(end)), start.undone():
        begin(folder)
        raise end
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ENDS, ids=["refused", "interrupted"])
def test_a_new_place_elsewhere_is_removed_and_an_existing_one_stays(tmp_path: Path, end: BaseException) -> None:
    folder, new, old = RunFolder(tmp_path / "run"), tmp_path / "new", tmp_path / "old"
    old.mkdir()
    start = AbortedStart(folder)
    with pytest.raises(type(end)), start.undone():
        for place in (new, old):
            start.made(place)
            place.mkdir(exist_ok=True)
            (place / "segments.bin").touch()
        raise end
    assert list(tmp_path.iterdir()) == [old] and list(old.iterdir()) == [old / "segments.bin"]


@pytest.mark.parametrize("end", ENDS, ids=["refused", "interrupted"])
def test_an_existing_run_is_restored(tmp_path: Path, end: BaseException) -> None:
    folder = RunFolder(tmp_path)
    begin(folder, trained=True)
    folder.config.write_text("old")
    folder.services.unlink()
    (tmp_path / "notes.txt").write_text("the user's")
    before = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    start = AbortedStart(folder)
    with pytest.raises(type(end)), start.undone():
        begin(folder)
        raise end
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == before
    assert folder.config.read_text() == "old"
    assert (folder.replay / "segments.bin").exists()


@pytest.mark.parametrize("seen", [True, False], ids=["reported by the learner", "found by its checkpoint"])
def test_nothing_is_removed_after_the_first_trained_batch(tmp_path: Path, seen: bool) -> None:
    for end, expected in ((ConfigurationError("no"), PenstockError), (KeyboardInterrupt(), KeyboardInterrupt)):
        folder = RunFolder(tmp_path / type(end).__name__)
        start = AbortedStart(folder)
        with pytest.raises(expected) as raised, start.undone():
            begin(folder, trained=not seen)
            if seen:
                start.note_training()
            raise end
        # Exit code 2 is only for mistakes found before training.
        assert not isinstance(raised.value, ConfigurationError)
        assert folder.config.read_text() == "new" and folder.replay.exists() and folder.logs.exists()


def test_any_other_failure_removes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(PenstockError), AbortedStart(folder).undone():
        begin(folder)
        raise PenstockError("an environment failed")
    assert folder.config.exists() and folder.replay.exists()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(ConfigurationError, match="can't write the run's folder"), AbortedStart(folder).undone():
        folder.create()
