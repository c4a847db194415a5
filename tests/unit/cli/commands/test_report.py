"""`penstock report`: the file that it writes, and the end of the server."""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from penstock.cli.commands.report import command
from penstock.errors import ConfigurationError
from tests.support.machine.timing import PATIENCE_S, start_patience_s
from tests.unit.cli.report.test_report_page import make, records


def test_the_page_is_in_the_folder_of_a_run_or_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    for name in ("a", "b"):
        make(tmp_path / "runs" / name, records(3))
    wanted = {
        ("a",): "runs/a/report.html",
        ("a", "b"): "report.html",
        ("a", "-o", "page.html"): "page.html",
    }
    for arguments, output in wanted.items():
        assert command(arguments) == 0
        assert capsys.readouterr().out == f"{output}\n"
        assert Path(output).read_text().startswith("<!doctype html>")
    assert command(()) == 0
    assert "the newest run is runs/" in capsys.readouterr().err


def test_what_can_not_be_done_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "run", records(3))
    with pytest.raises(ConfigurationError, match="--serve writes no file; leave out --output"):
        command([str(tmp_path / "run"), "--serve", "--output=x.html"])
    with pytest.raises(ConfigurationError, match="contains no run with metrics"):
        command([str(tmp_path)])
    with pytest.raises(ConfigurationError, match=r"can't write .*; .*choose another file with .*--output"):
        command([str(tmp_path / "run"), f"--output={tmp_path / 'missing' / 'page.html'}"])


def test_ctrl_c_ends_the_server_with_code_0(tmp_path: Path) -> None:
    make(tmp_path / "run", records(3))
    arguments = [sys.executable, "-m", "penstock", "report", str(tmp_path / "run"), "--serve"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert b"CartPole-v1" in answer.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=start_patience_s())
    assert (process.returncode, errors) == (0, "")
