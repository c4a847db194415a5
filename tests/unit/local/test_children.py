"""Child processes of a run: groups, logs and deaths. Small programs take the place of services."""

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from penstock.errors import ConfigurationError, PenstockError
from penstock.local import child_log, children
from penstock.local.child_log import ChildLog
from penstock.local.children import Child, Children
from penstock.local.process_group import Guard
from tests.support.machine.timing import wait_for
from tests.support.services.processes import is_alive

FORK = """
import os, signal, sys, time
if os.fork() == 0:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("forked", os.getpid(), flush=True)
    time.sleep(1000)
"""


class Run:
    """Child processes that run Python programs given as text."""

    def __init__(self, folder: Path, max_restarts: int = 2) -> None:
        self.folder, self.children = folder, Children(max_restarts)

    def start(self, script: str, name: str = "actor-0") -> Child:
        self.children.add(name, [sys.executable, "-c", textwrap.dedent(script)], self.folder / f"{name}.log")
        return self.children.find(name)

    def log_lines(self, child: Child, text: str) -> list[str]:
        """Waits for lines with this text in the child's log, and returns them."""

        def find() -> list[str]:
            return [line for line in child.log.path.read_text().splitlines() if text in line]

        return wait_for(find, text)

    def next_death(self) -> str:
        """Waits for the next notice of a death, and returns it."""
        return wait_for(self.children.revive, "a death")[0]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    with run.children:
        yield run


@pytest.mark.parametrize(
    "end",
    ["sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(1000)"],
    ids=["exits", "killed", "terminated"],
)
def test_processes_forked_by_a_child_end_with_it(run: Run, end: str) -> None:
    child = run.start(FORK + f"else:\n    time.sleep(0.2)\n    {end}\n")
    forked = int(run.log_lines(child, "forked")[0].split()[1])
    assert is_alive(forked)
    if end.startswith("time"):
        child.terminate()
    wait_for(lambda: child.exit_code is not None, "the end of the child")
    wait_for(lambda: not is_alive(forked), "the end of the forked process")


def test_a_child_that_ignores_sigterm_is_killed_with_its_group(run: Run) -> None:
    child = run.start(FORK + "else:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(1000)\n")
    forked = int(run.log_lines(child, "forked")[0].split()[1])
    child.terminate()
    child.end(0.1)
    assert child.exit_code == -signal.SIGKILL
    wait_for(lambda: not is_alive(forked), "the end of the forked process")


def test_a_guard_starts_while_another_thread_changes_the_variables() -> None:
    """Without a copy of them, a fifth of the starts failed with `EFAULT`."""
    with ThreadPoolExecutor(1) as pool:
        guards = pool.submit(lambda: [Guard(0.0) for _ in range(30)])
        while not guards.done():
            for number in range(7):
                os.environ[f"PENSTOCK_TEST_{number}"] = "x"
            for number in range(7):
                del os.environ[f"PENSTOCK_TEST_{number}"]
    for guard in guards.result():
        guard.close()


def test_groups_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    launcher = f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from penstock.local import children
        children._ORPHANS_GRACE_S = 0.1
        group = children.Children(0)
        script = {FORK!r} + "else: time.sleep(1000)"
        group.add("actor-0", [sys.executable, "-c", script], Path({str(tmp_path)!r}, "log"))
        time.sleep(1000)
    """
    outer = Run(tmp_path)
    with outer.children:
        child = outer.start(launcher, "launcher")
        wait_for((tmp_path / "log").exists, "the log")
        forked = wait_for(lambda: (tmp_path / "log").read_text(), "a forked process").split()[1]
        assert child.group is not None
        psutil.Process(child.group.pid).kill()
        wait_for(lambda: not is_alive(int(forked)), "the end of the group")


def test_an_interrupt_during_the_start_of_a_child_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    note = Guard.note

    def interrupted(guard: Guard, sign: str, group: int) -> None:
        # At this point, the process exists and is not registered yet.
        note(guard, sign, group)
        if sign == "+":
            started.append(group)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Guard, "note", interrupted)
    run = Run(tmp_path)
    with pytest.raises(KeyboardInterrupt), run.children:
        run.start("import time; time.sleep(1000)")
    assert len(started) == 1
    wait_for(lambda: not is_alive(started[0]), "the end of the child")


def test_a_death_is_reported_with_its_exception_and_the_first_restart_is_immediate(run: Run) -> None:
    child = run.start("print('one step')\nraise RuntimeError('simulator lost')")
    line = run.next_death()
    assert line.startswith("actor-0 ended with exit code 1: RuntimeError: simulator lost; restarting (see ")
    assert child.exit_code is None or child.deaths == 1


def test_pauses_grow_and_a_child_without_progress_ends_the_run(run: Run) -> None:
    run.start("raise RuntimeError('simulator lost')")
    lines = [run.next_death(), run.next_death()]
    assert "restarting in 0.5 s" in lines[1]
    with pytest.raises(PenstockError, match=r"actor-0 died 3 times without progress.*RuntimeError: simulator lost"):
        run.next_death()


def test_progress_resets_the_number_of_deaths(run: Run) -> None:
    run.start("raise RuntimeError('simulator lost')")
    for steps in range(1, 7):
        assert "restarting (see" in run.next_death()
        run.children.progressed({"actor-0": steps, "learner": 9})
    run.children.progressed({"actor-0": 3})
    assert "restarting (see" in run.next_death()
    assert "in 0.5 s" in run.next_death()


@pytest.mark.parametrize(("code", "error"), [(2, ConfigurationError), (3, PenstockError)])
def test_a_child_that_gave_up_ends_the_run_with_its_reason(run: Run, code: int, error: type[Exception]) -> None:
    run.start(f"import sys; print('penstock: no such thing', file=sys.stderr); sys.exit({code})")
    with pytest.raises(error, match="no such thing") as raised:
        run.next_death()
    assert type(raised.value) is error


@pytest.mark.parametrize("code", [2, 3])
def test_an_environment_that_exits_with_a_code_of_penstock_counts_as_a_death(run: Run, code: int) -> None:
    run.start(f"import sys; print('bye'); sys.exit({code})")
    assert run.next_death().startswith(f"actor-0 ended with exit code {code}: bye; restarting")


def test_a_bounded_log_keeps_its_beginning_and_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_log, "MOST_BYTES", 40_000)
    monkeypatch.setattr(child_log, "HEAD_BYTES", 5_000)
    monkeypatch.setattr(child_log, "TAIL_BYTES", 5_000)
    child = run.start(
        """
        import sys, time
        for number in range(100_000):
            print("line", number, flush=True)
            if number % 1000 == 0:
                time.sleep(0.01)
        while True:  # A cut may lose what is written meanwhile.
            print("last", flush=True)
            time.sleep(0.1)
        """
    )
    largest = 0

    def is_done() -> bool:
        nonlocal largest
        run.children.revive()
        largest = max(largest, child.log.path.stat().st_size)
        return child.log.path.read_text().endswith("last\n")

    wait_for(is_done, "the last line")
    lines = child.log.path.read_text().splitlines()
    assert lines[0] == "line 0" and lines[-1] == "last"
    assert any("bytes were cut out of this log here" in line for line in lines)
    assert largest < 1_500_000
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line ")]
    assert numbers == sorted(set(numbers))


def test_a_reason_is_found_in_a_log_that_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_log, "MOST_BYTES", 4_000)
    monkeypatch.setattr(child_log, "HEAD_BYTES", 1_000)
    monkeypatch.setattr(child_log, "TAIL_BYTES", 1_000)
    log = ChildLog(tmp_path / "log")
    with log.opened() as file:
        file.write(b"penstock: an earlier process\n" + b"x\n" * 3_000)
    with log.opened() as file:
        file.write(b"y\n" * 100 + b"Traceback (most recent call last):\n  File\nValueError: why\nmore\n")
        file.flush()
        log.cut()
        assert log.path.stat().st_size < 4_000
        file.write(b"one more\n")
    assert log.own_reason() == ""
    assert log.cause() == "ValueError: why"


def test_a_crash_in_a_library_is_reported_from_the_stack_written_by_python(run: Run) -> None:
    run.start("import faulthandler, os; faulthandler.enable(); os.abort()")
    assert run.next_death().startswith("actor-0 ended with SIGABRT: Aborted; restarting")


def test_a_child_starts_even_if_its_log_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "actor-0.log").mkdir()
    child = run.start("print('hello')")
    assert wait_for(lambda: child.exit_code is not None, "the end of the child")
    assert child.exit_code == 0


def test_all_children_end_within_the_longest_grace_period(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_COLLECTING_GRACE_S", 0.2)
    monkeypatch.setattr(children, "_GRACE_S", 0.4)
    program = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(999)
    """
    members = [run.start(program, name) for name in ("replay", "learner", "evaluator", "actor-0", "actor-1")]
    for child in members:
        run.log_lines(child, "ready")
    started = time.monotonic()
    run.children.__exit__()
    assert [child.exit_code for child in members] == [-signal.SIGKILL] * 5
    assert time.monotonic() - started >= 0.4
