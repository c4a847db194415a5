"""The output of a service whose log can't be written: lines are lost and counted, and nothing raises."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.children import Children
from tests.support.machine.disks import fill, mounted
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.tiers import gate_of

SERVICE = """
import sys
from penstock.process import output
from penstock.telemetry import logs, metrics
output.protect()
logger = logs.configure({}, level="info", log_format="json")
lost = lambda: int(metrics.LOST_LOG_LINES._value.get())
"""
"""Program that has the output of a service. `lost` returns the lost lines."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "1m")


def run(script: str, stdout: int, stderr: int | None = None) -> int:
    program = [sys.executable, "-c", SERVICE + textwrap.dedent(script)]
    return subprocess.run(program, stdout=stdout, stderr=stderr, timeout=PATIENCE_S, check=False).returncode


EVERYTHING = """
import threading, traceback, warnings
logger.info("an event")
print("printed")
print("printed", file=sys.stderr, flush=True)
sys.stdout.buffer.write(b"bytes\\n")
warnings.warn("a warning")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
sys.exit(7 if lost() >= 8 else 1)
"""


@pytest.mark.parametrize("where", ["full", "no reader", "closed", "read-only descriptor"])
def test_no_kind_of_output_raises_and_all_of_it_is_counted(where: str) -> None:
    if where == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    elif where == "no reader":
        reading, descriptor = os.pipe()
        os.close(reading)
    else:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    first = "import os; os.close(1); os.close(2)\n" if where == "closed" else ""
    try:
        assert run(first + textwrap.dedent(EVERYTHING), stdout=descriptor, stderr=descriptor) == 7
    finally:
        os.close(descriptor)


def test_the_first_line_that_can_be_written_again_follows_the_number_of_lost_ones(disk: Path) -> None:
    log = disk / "log"
    script = f"""
        import os
        print("x" * 3000)
        print("y" * 3000)
        print("lost")
        os.unlink({str(disk / "ballast")!r})
        print("again")
        assert lost() == 2, lost()
    """
    with log.open("ab") as file:
        file.write(b"before\n")
        file.flush()
        fill(disk)
        assert run(script, stdout=file.fileno(), stderr=file.fileno()) == 0
    lines = log.read_text().splitlines()
    # The rest of the page took a part of the second line.
    assert (lines[0], lines[1], lines[-1]) == ("before", "x" * 3000, "again")
    assert lines[-2] == "[penstock: log lines lost here: 2 (No space left on device)]"
    assert set(lines[2]) == {"y"} and 0 < len(lines[2]) < 3000 and len(lines) == 5


def test_a_process_that_an_environment_forks_can_print(tmp_path: Path) -> None:
    script = """
        import os, threading
        stream = sys.stdout.buffer
        stream._lock.acquire()
        pid = os.fork()
        if pid == 0:
            print("forked")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """
    with (tmp_path / "log").open("ab") as file:
        assert run(script, stdout=file.fileno()) == 0
    assert (tmp_path / "log").read_text() == "forked\n"


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(max_restarts=5) as children:
        yield children


def death_of(children: Children, log: Path, script: str) -> str:
    """Runs the program as a child with this log; returns the launcher's line about its death."""
    children.add("actor-0", [sys.executable, "-c", SERVICE + textwrap.dedent(script)], log)
    return wait_for(children.revive, "a death")[0]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("print('no licence for the simulator'); sys.exit(4)", "exit code 4: no licence for the simulator"),
        ("raise ValueError('a bad value')", "exit code 1: ValueError: a bad value"),
        ("import os; os.abort()", "SIGABRT: Aborted"),
    ],
)
def test_the_launcher_shows_why_a_child_ended_whose_log_is_on_a_full_disk(
    children: Children, disk: Path, script: str, reason: str
) -> None:
    fill(disk)
    line = death_of(children, disk / "log", script)
    assert f"ended with {reason}; its log can't be written: No space left on device (the file system {disk}" in line


def test_a_log_that_could_not_be_opened_is_opened_once_the_disk_allows_it(children: Children, tmp_path: Path) -> None:
    script = f"""
        import time
        from pathlib import Path
        logger.info("lost")
        Path({str(tmp_path / "ready")!r}).touch()
        while not Path({str(tmp_path / "logs")!r}).exists():
            time.sleep(0.01)
        logger.info("kept")
        time.sleep(1000)
    """
    log = tmp_path / "logs" / "actor-0.log"
    children.add("actor-0", [sys.executable, "-c", SERVICE + textwrap.dedent(script)], log)
    wait_for((tmp_path / "ready").exists, "the first line")
    log.parent.mkdir()
    wait_for(lambda: log.exists() and "kept" in log.read_text(), "the second line")
    first, second = log.read_text().splitlines()
    assert first == "[penstock: log lines lost here: 1 (No such file or directory)]"
    assert '"event": "kept"' in second


def test_the_stack_of_a_crash_is_in_the_log_after_the_end(tmp_path: Path) -> None:
    with Children(max_restarts=5) as children:
        line = death_of(children, tmp_path / "log", "import os; os.kill(os.getpid(), 11)")
        assert "SIGSEGV: Segmentation fault" in line
    assert "Fatal Python error: Segmentation fault" in (tmp_path / "log").read_text()


def test_a_stopped_launcher_does_not_hold_up_a_child_and_its_end_costs_no_line(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = SERVICE + textwrap.dedent(f"""
        import time
        from pathlib import Path
        for number in range(30_000):
            print("line", number)
        Path({str(ready)!r}).touch()
        while Path({str(ready)!r}).exists():
            time.sleep(0.01)
        print("last")
        assert lost() == 0
        Path({str(tmp_path / "done")!r}).touch()
    """)
    launcher = f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from penstock.local.children import Children
        Children(0).add("actor-0", [sys.executable, "-c", {script!r}], Path({str(tmp_path / "log")!r}))
        print("started", flush=True)
        time.sleep(1000)
    """
    program = [sys.executable, "-c", textwrap.dedent(launcher)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        wait_for(ready.exists, "all lines")
        process.kill()
        process.wait()
        ready.unlink()
        wait_for((tmp_path / "done").exists, "the end of the child")
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [*(f"line {number}" for number in range(30_000)), "last"]


@pytest.mark.parametrize(
    "change",
    gate_of(
        3,
        [
            "sys.stdout.close(); sys.stderr.close()",
            "sys.stdout = sys.stderr = None",
            "sys.stdout = sys.stderr = open(__import__('os').devnull, 'w'); sys.stderr.close()",
            "import builtins; builtins.print = lambda *values, **options: None",
            "import builtins; builtins.print = lambda *values: 1 / 0",
            "import logging; logging.disable(logging.CRITICAL)",
        ],
    ),
)
def test_what_an_environment_does_to_the_streams_and_to_print_keeps_no_event_from_the_log(
    change: str, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as log:
        code = run(
            f"logger.info('before')\n{change}\nlogger.info('after')\nsys.exit(lost())", log.fileno(), log.fileno()
        )
    events = [line for line in (tmp_path / "log").read_text().splitlines() if '"event"' in line]
    assert code == 0 and len(events) == 2, (tmp_path / "log").read_text()
