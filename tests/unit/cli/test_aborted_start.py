"""What a start that fails, or is interrupted, leaves of a run's folder."""

from pathlib import Path

import pytest

from penstock.cli.aborted_start import AbortedStart
from penstock.errors import ConfigurationError, PenstockError
from penstock.run_folder import RunFolder

ENDS = [ConfigurationError("no"), KeyboardInterrupt()]


def begin(folder: RunFolder, *, trained: bool = False) -> None:
    """What a session makes in its folder."""
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
def test_a_new_folder_is_gone_with_those_above_it_that_were_new_too(tmp_path: Path, end: BaseException) -> None:
    folder = RunFolder(tmp_path / "runs" / "one")
    start = AbortedStart(folder)
    with pytest.raises(type(end)), start.undone():
        begin(folder)
        raise end
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ENDS, ids=["refused", "interrupted"])
def test_a_run_that_was_there_is_as_it_was(tmp_path: Path, end: BaseException) -> None:
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


@pytest.mark.parametrize("seen", [True, False], ids=["told by the learner", "seen by its checkpoint"])
def test_nothing_is_removed_once_a_batch_was_trained(tmp_path: Path, seen: bool) -> None:
    for end, becomes in ((ConfigurationError("no"), PenstockError), (KeyboardInterrupt(), KeyboardInterrupt)):
        folder = RunFolder(tmp_path / type(end).__name__)
        start = AbortedStart(folder)
        with pytest.raises(becomes) as raised, start.undone():
            begin(folder, trained=not seen)
            if seen:
                start.note_training()
            raise end
        # Exit code 2 is for mistakes that are found before training.
        assert not isinstance(raised.value, ConfigurationError)
        assert folder.config.read_text() == "new" and folder.replay.exists() and folder.logs.exists()


def test_any_other_failure_removes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(PenstockError), AbortedStart(folder).undone():
        begin(folder)
        raise PenstockError("an environment failed")
    assert folder.config.exists() and folder.replay.exists()


def test_a_folder_that_cannot_be_made_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = RunFolder(tmp_path / "file" / "run")
    with pytest.raises(ConfigurationError, match="can't write the run's folder"), AbortedStart(folder).undone():
        folder.create()
