"""Where the socket files of a run on one machine are."""

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.local.sockets import sockets_of
from penstock.machine.addresses import Address
from penstock.runs.folder import RunFolder
from tests.support.machine.disks import mounted_without_sockets


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns the folder for temporary files, whose path is short, unlike that of the test's own folder."""
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def made(root: Path) -> RunFolder:
    folder = RunFolder(root)
    folder.create()
    return folder


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_sockets_are_in_a_private_folder_of_the_run_which_is_removed_with_what_is_left_in_it(
    tmp_path: Path, umask: int
) -> None:
    folder, before = made(tmp_path / "a run"), os.umask(umask)
    try:
        with sockets_of(folder) as sockets:
            assert sockets.root.parent == folder.root
            assert stat.S_IMODE(sockets.root.stat().st_mode) == 0o700
            assert Address.parse(sockets.address("learner")).path == str(sockets.root / "learner")
            listening(sockets.root / "learner").close()
        assert not sockets.root.exists()
    finally:
        os.umask(before)


def test_a_relative_folder_has_absolute_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sockets_of(made(Path("run"))) as sockets:
        assert Address.parse(sockets.address("learner")).path.startswith(str(tmp_path / "run"))


def test_each_session_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    with sockets_of(folder) as first:
        pass
    with sockets_of(folder) as second:
        assert first.root != second.root


@pytest.mark.parametrize("name", ["x" * 120, "a,b"], ids=["too long", "with a comma"])
def test_sockets_of_a_run_whose_path_no_address_can_have_are_among_temporary_files(
    tmp_path: Path, scratch: Path, name: str
) -> None:
    folder = made(tmp_path / name)
    with sockets_of(folder) as sockets:
        assert sockets.root.parent == scratch
        assert stat.S_IMODE(sockets.root.stat().st_mode) == 0o700
        assert list(folder.root.glob("sockets-*")) == []
    assert list(scratch.iterdir()) == []


def test_the_longest_path_that_fits_is_used(tmp_path: Path, scratch: Path) -> None:
    with sockets_of(made(tmp_path / "x")) as sockets:
        free = 107 - len(str(sockets.root / "replay-1000").encode())
    for more, place in ((0, tmp_path), (1, scratch)):
        folder = made(tmp_path / ("x" * (1 + free + more)))
        with sockets_of(folder) as sockets:
            assert sockets.root.parent == (folder.root if place == tmp_path else scratch)
            with listening(sockets.root / "replay-1000"):
                assert Address.parse(sockets.address("replay-1000")).path


def test_sockets_of_a_run_on_a_file_system_without_sockets_are_among_temporary_files(
    tmp_path: Path, scratch: Path
) -> None:
    for disk in mounted_without_sockets(tmp_path / "disk"):
        (disk / "run").mkdir()
        with sockets_of(RunFolder(disk / "run")) as sockets:
            assert sockets.root.parent == scratch
            assert list((disk / "run").iterdir()) == []


def test_without_any_place_the_folders_that_were_tried_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.local.sockets.scratch_folders", lambda: iter([tmp_path / ("y" * 120)]))
    (tmp_path / ("y" * 120)).mkdir()
    folder = made(tmp_path / ("x" * 120))
    with (
        pytest.raises(ConfigurationError, match=rf"^none of {folder.root}, {tmp_path}/y+ can hold .* TMPDIR$"),
        sockets_of(folder),
    ):
        pass


def test_sockets_of_killed_sessions_are_removed_wherever_they_were(tmp_path: Path, scratch: Path) -> None:
    folder = made(tmp_path / "run")
    here, there = folder.root / "sockets-killed", scratch / "penstock-sockets-killed"
    for left in (here, there):
        left.mkdir()
        listening(left / "learner").close()
    folder.services.write_text(json.dumps({"learner": f"unix:{there / 'learner'}"}))
    with sockets_of(folder):
        assert not here.exists() and not there.exists()


def test_a_list_of_services_can_not_have_other_folders_removed(tmp_path: Path, scratch: Path) -> None:
    folder, other = made(tmp_path / "run"), scratch / "mine"
    kept = scratch / "penstock-sockets-kept"
    for place in (other, kept):
        place.mkdir()
    (kept / "file").write_text("kept")
    listening(other / "learner").close()
    folder.services.write_text(json.dumps({"learner": f"unix:{other / 'x'}", "replay": f"unix:{kept / 'x'}"}))
    with sockets_of(folder):
        pass
    assert (other / "learner").is_socket() and (kept / "file").read_text() == "kept"


@pytest.mark.parametrize("content", ["", "[]", '{"learner": "unix:"}', '{"learner": 3}'])
def test_a_damaged_list_of_services_hinders_nothing(tmp_path: Path, content: str) -> None:
    folder = made(tmp_path / "run")
    folder.services.write_text(content)
    with sockets_of(folder) as sockets:
        assert sockets.root.is_dir()
