"""Processes in the background have a low priority, in a session of their own, and end with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.machine import background

AUTOGROUP = Path("/proc/self/autogroup")
CHILD = """
import os, sys, time
from pathlib import Path
from penstock.machine import background
background.begin()
group = Path("/proc/self/autogroup")
nice = group.read_text().split()[-1] if group.exists() else "none"
print(os.getpriority(os.PRIO_PROCESS, 0), nice, background.PARENT in os.environ, flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
from penstock.machine import background
subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}],
    env={{**os.environ, background.PARENT: str(os.getpid())}},
    start_new_session=background.OWN_SESSION,
)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have neither")


def test_it_has_a_low_priority_also_among_sessions_and_ends_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        priority, group, is_told = parent.stdout.readline().split()
        assert (int(priority), is_told) == (background.NICENESS, "False")
        assert group == (str(background.NICENESS) if AUTOGROUP.exists() else "none")
        began = time.monotonic()
        parent.send_signal(signal.SIGKILL)
        # The child has the pipe too, which is at its end when it has ended.
        assert parent.stdout.read() == ""
    assert time.monotonic() - began < 10.0


def test_the_session_of_others_keeps_its_priority() -> None:
    before = AUTOGROUP.read_text() if AUTOGROUP.exists() else ""
    command = [sys.executable, "-c", "from penstock.machine import background as b; b.lower_priority()"]
    subprocess.run(command, check=True)
    assert (AUTOGROUP.read_text() if AUTOGROUP.exists() else "") == before


def test_a_process_that_is_not_in_the_background_keeps_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(background.PARENT, raising=False)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    background.begin()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
