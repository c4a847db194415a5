"""Processes in the background of a run: they get the processor time that training leaves, and end with their parent."""

import contextlib
import os
import signal
import sys
from pathlib import Path

PARENT = "PENSTOCK_IN_BACKGROUND_OF"
"""Environment variable with the process id of the parent of a process that `begin` puts into the background."""

OWN_SESSION = sys.platform == "linux"
"""Whether a process in the background needs a session of its own: `begin` can end it with its parent, and Linux divides
the processor time between sessions (sched(7), autogroup)."""

NICENESS = 10
"""Of processes in the background. On busy cores they get about 5% each; with 19 it would be 1%, too little for a film
of a long episode."""

_PR_SET_PDEATHSIG = 1


def lower_priority() -> None:
    """Lowers the priority of this process and, if it leads its session, of the session."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    # Niceness counts within a session only, if the kernel groups processes by session.
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICENESS))


def end_with(parent: int) -> bool:
    """Ends this process, by SIGKILL, when the parent's thread that started it ends. Returns False if the system can't.

    Ends it at once if the parent has ended already.
    """
    import ctypes  # most commands do without it

    if not hasattr(c := ctypes.CDLL(None), "prctl"):
        return False
    c.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    return True


def begin() -> None:
    """Puts this process into the background if the variable `PARENT` says so."""
    if parent := os.environ.pop(PARENT, ""):
        end_with(int(parent))
        lower_priority()
