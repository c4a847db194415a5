"""Start and end of the process of the `penstock` command."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.machine.timing import start_patience_s
from tests.support.tiers import gate_of


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=start_patience_s()
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["grpc", "numpy", "rich"])
def test_a_file_in_the_current_folder_does_not_shadow_an_installed_module(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    commands = {"module": ["-m", "penstock"], "script": [str(Path(sys.executable).with_name("penstock"))]}
    for how, command in commands.items():
        end = run([*command, "status", str(tmp_path / "nothing")], tmp_path)
        assert "shadowed" not in end.stderr, how
        assert end.stderr.startswith("penstock: ") and end.returncode == 2, end.stderr


def test_ctrl_c_while_a_library_defines_a_class_is_an_ordinary_interrupt(tmp_path: Path) -> None:
    script = """
        import signal
        from penstock.cli import main

        class Attribute:
            def __set_name__(self, owner, name):
                signal.raise_signal(signal.SIGINT)

        def command(arguments):
            class Imported:
                attribute = Attribute()

        signal.signal(signal.SIGINT, signal.default_int_handler)
        main._execute = lambda name, arguments: command(arguments)
        main.main(["status"])
    """
    end = run(["-c", textwrap.dedent(script)], tmp_path)
    assert (end.returncode, end.stderr) == (130, "")


@pytest.mark.parametrize("buffered", gate_of(1, [True, False]))
@pytest.mark.parametrize(
    "arguments",
    gate_of(3, ["--help", "--version", "train --help", "train --help-all", "doctor", "runs", "plot --help"]),
)
def test_a_command_whose_reader_has_left_ends_without_a_traceback(
    arguments: str, buffered: bool, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    variables = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [sys.executable, "-m", "penstock", *arguments.split()]
    end = subprocess.run(
        command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, env=variables, timeout=start_patience_s()
    )
    os.close(writing)
    assert (end.returncode, end.stderr) == (0, b"")


@pytest.mark.parametrize(
    "arguments", ["train", "status", "runs", "evaluate", "plot", "launch", "doctor", "learner", "replay snapshots"]
)
def test_every_command_refuses_a_folder_whose_name_is_not_utf_8(arguments: str, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for command, directory in ((arguments.split(), folder), ([*arguments.split(), str(folder)], tmp_path)):
        end = run(["-m", "penstock", *command], directory)
        assert end.returncode == 2
        refusal = f"penstock: {str(folder)!a} is not text in UTF-8, which messages between services need; rename"
        assert end.stderr == f"{refusal} the file or folder\n"
        assert not list(folder.iterdir())


def test_an_accent_is_refused_with_a_remedy_if_python_does_not_read_names_as_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / "café"
    folder.mkdir()
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "penstock", "train"]
    end = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=start_patience_s())
    assert end.returncode == 2 and end.stderr.endswith(
        "rename the file or folder, or start Python in UTF-8 mode, not with ascii (PYTHONUTF8=1)\n"
    )


@pytest.mark.parametrize(("ends", "code"), [("return 0", 0), ("raise SystemExit(5)", 5), ("1 / 0", 1)])
def test_a_service_ends_even_if_an_environment_left_threads(ends: str, code: int, tmp_path: Path) -> None:
    script = f"""
        import threading, time
        from penstock.cli import main

        def command(arguments):
            threading.Thread(target=lambda: time.sleep(100_000)).start()
            {ends}

        main._LEAVING_S = 0.2
        main._execute = lambda name, arguments: command(arguments)
        main.main(["actor"])
    """
    end = run(["-c", textwrap.dedent(script)], tmp_path)
    assert end.returncode == code, end.stderr
    assert ("ZeroDivisionError" in end.stderr) == (code == 1)


def test_a_service_logs_the_errors_of_grpc_and_a_command_does_not_print_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
        import os
        from penstock.cli import main

        def command(arguments):
            print(os.environ["GRPC_VERBOSITY"])
            return 0

        main._execute = lambda name, arguments: command(arguments)
        main.main()
    """
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    for name, level in (("learner", "ERROR"), ("status", "NONE")):
        assert run(["-c", textwrap.dedent(script), name], tmp_path).stdout.strip() == level
