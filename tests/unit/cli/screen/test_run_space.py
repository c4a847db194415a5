"""`penstock runs list` shows what runs take on the disk, and `penstock runs remove` removes it, unless it is in use."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import _run
from penstock.cli.screen.run_space import Space
from penstock.machine.files import write_json
from penstock.replay.store.store_files import held
from penstock.runs.folder import LEARNER, RunFolder
from tests.support.machine.timing import PATIENCE_S
from tests.unit.cli.commands.test_runs import make_run

MB = 1_000_000


def fill(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stores of two runs in runs/ and of one whose folder is gone; that of `first` has two snapshots."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for started, name in enumerate(("first", "second"), 10):
        fill(make_run(tmp_path / "runs", name, started).best_checkpoint, 2 * MB)
    for name in ("first", "second", "gone"):
        fill(tmp_path / "replay" / name / "segments", 3 * MB)
    chunk = fill(tmp_path / "replay" / "first" / "snapshots" / "a" / "chunk", MB)
    other = chunk.parents[1] / "b" / "chunk"
    other.parent.mkdir()
    other.hardlink_to(chunk)
    return tmp_path / "replay"


def run(*arguments: str) -> int:
    return _run(["runs", "--stores=replay", *arguments])


def test_the_list_has_the_space_of_each_part_and_stores_without_a_run(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 0
    _, *lines = capsys.readouterr().out.splitlines()
    ends = {line.split()[0]: line.split()[-6:] for line in lines}
    assert ends["second"][-5:] == ["2.0", "MB", "3.0", "MB", "-"]
    # The snapshots share their only file.
    assert ends["first"] == ["2.0", "MB", "3.0", "MB", "1.0", "MB"]
    [gone] = [line for line in lines if line.startswith("gone")]
    assert "no folder" in gone and "3.0 MB" in gone


def test_a_removed_run_leaves_nothing_and_others_stay(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A shell completes the second.
    assert run("remove", "gone", "runs/first", "--yes") == 0
    assert {path.name for path in stores.iterdir()} == {"second"}
    assert {path.name for path in Path("runs").iterdir()} == {"second"}
    out = capsys.readouterr().out
    assert "first: folder 2.0 MB, store 3.0 MB, snapshots 1.0 MB" in out and "removed gone" in out


def test_the_store_of_a_run_on_a_network_is_removed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "runs", "far", 1)
    place = tmp_path / "scratch" / "penstock-far-0123"
    place.mkdir(parents=True, mode=0o700)
    fill(place / "segments", MB)
    write_json(folder.store_place, {"folder": str(place), "host": socket.gethostname()})
    assert Space.of(folder, None).stores == (place,)
    assert _run(["runs", "remove", "far", "--yes"]) == 0
    assert not place.exists() and not folder.root.exists()


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("n\n", True), ("", True)])
def test_removal_asks_first(stores: Path, answer: str, stays: bool) -> None:
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "penstock", "runs", "--stores=replay", "remove", "second"]
    asking = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, text=True)
    os.close(terminal)
    # The end of a terminal's input is Ctrl-D.
    os.write(controller, answer.encode() or b"\x04")
    shown, _ = asking.communicate(timeout=PATIENCE_S)
    os.close(controller)
    assert asking.returncode == 0
    assert "remove it for ever? [y/N]" in shown
    assert Path("runs/second").exists() == (stores / "second").exists() == stays


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run("remove", *arguments) == 2
    return capsys.readouterr().err


def test_without_a_terminal_a_confirmation_is_needed(
    stores: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open() as nowhere:
        monkeypatch.setattr("sys.stdin", nowhere)
        assert "add --yes" in refusal(capsys, "first")
    assert Path("runs/first").exists()


def test_a_store_in_use_is_not_removed(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(stores / "first", alone=False):
        assert "a replay service uses the store in replay/first; stop it" in refusal(capsys, "first", "--yes")
    assert (stores / "first" / "segments").exists() and Path("runs/first").exists()


def test_one_store_of_several_in_use_is_not_removed(stores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stores / "first" / "replay-1").mkdir()
    with held(stores / "first" / "replay-1", alone=False):
        assert "a replay service uses the store in replay/first/replay-1" in refusal(capsys, "first", "--yes")
    assert (stores / "first" / "segments").exists()


def test_a_run_whose_hidden_learner_still_writes_is_not_removed(
    stores: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(Path("runs/first"))
    write_json(folder.services, {LEARNER: "127.0.0.1:1"})
    folder.metrics.write_text("")
    assert "though its learner does not answer here" in refusal(capsys, "first", "--yes")
    os.utime(folder.metrics, (1, 1))
    assert run("remove", "first", "--yes") == 0


@pytest.mark.parametrize("name", ["frist", "../runs/first", ".", ""])
def test_only_runs_are_removed(stores: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, name, "--yes")
    assert f"there is no run {name!r} in runs" in message
    assert ("did you mean first?" in message) == (name == "frist")
    assert "name the runs to remove" in refusal(capsys)
