"""Copies are repeated after a failure, which is counted and shown, and the end of a run does not wait for ever."""

import json
import time
from pathlib import Path

import pytest

from penstock.cli.commands.status import copy_lines
from penstock.learning.durable.copying import Copying
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import wait_for
from tests.support.services.servers import sample

LONG_S = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "walker")
    folder.create()
    folder.config.write_text("settings")
    return folder


def test_the_end_copies_what_no_round_has_copied(folder: RunFolder, tmp_path: Path) -> None:
    notices = list[str]()
    began = Copying(str(tmp_path / "copies"), folder, interval_s=LONG_S, notice=notices.append)
    folder.summary.write_text("{}")
    began.close(LONG_S)
    assert (tmp_path / "copies" / "walker" / "summary.json").read_text() == "{}"
    assert (notices, copy_lines(folder)) == ([], [])
    # A continued run does not copy it again.
    (tmp_path / "copies" / "walker" / "config.toml").unlink()
    Copying(str(tmp_path / "copies"), folder, interval_s=LONG_S, notice=notices.append).close(LONG_S)
    assert not (tmp_path / "copies" / "walker" / "config.toml").exists()


def test_a_failure_is_shown_once_counted_and_repeated_until_it_succeeds(folder: RunFolder, tmp_path: Path) -> None:
    place, notices = tmp_path / "copies", list[str]()
    # A file in place of the folder.
    place.write_text("")
    before = sample("penstock_copy_failures_total")
    began = Copying(str(place), folder, interval_s=0.1, notice=notices.append)
    wait_for(lambda: sample("penstock_copy_failures_total") >= before + 2, "two failures")
    [line] = copy_lines(folder)
    assert line.startswith(f"copies to {place} fail (")
    assert "File exists" in line or "Not a directory" in line
    place.unlink()
    wait_for(lambda: (place / "walker" / "config.toml").exists(), "a copy")
    wait_for(lambda: len(notices) == 2, "the notice of success")
    assert "can't copy to" in notices[0] and "succeed again" in notices[1]
    assert copy_lines(folder) == []
    began.close(LONG_S)


def test_the_end_waits_for_a_bounded_time(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "copies").write_text("")
    began = Copying(str(tmp_path / "copies"), folder, interval_s=LONG_S, notice=lambda text: None)
    started = time.monotonic()
    began.close(3.0)
    assert time.monotonic() - started < 60.0
    # A round ends at the latest some seconds later, so that it is noted.
    wait_for(lambda: not began._thread.is_alive(), "the end of the last round")
    assert json.loads(folder.copies.read_text())["failures"]
