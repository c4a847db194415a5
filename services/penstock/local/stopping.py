"""Ends an interrupted run: the learner finishes its batch and saves a checkpoint while its progress is shown.

The first Ctrl-C (or SIGTERM or SIGHUP) requests this, and another one kills the learner. A working learner has the
time that a batch may take; an idle one is killed sooner.
"""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from penstock.local.children import Child
from penstock.local.process_group import signals_handled
from penstock.types.status import RunStatus

LONGEST_S = 600.0
"""Most seconds for the current batch and its checkpoint; a batch of images takes a minute or two on a CPU."""

IDLE_S = 60.0
"""Seconds without processor time after which a learner counts as hung and is killed."""

REPEAT_S = 0.5
"""Seconds within which several signals count as one Ctrl-C: programs such as `uv run` forward the terminal's signal."""

_POLL_S = 0.1
_LEAST_CPU_S = 1.0
"""Seconds of processor time within `IDLE_S` that distinguish training from heartbeats, even on a busy machine."""


class Interrupted(KeyboardInterrupt):
    """An interrupt ended the run after training had begun.

    For example::

        try:
            penstock.train("CartPole-v1", total_steps=50_000)
        except penstock.Interrupted as interrupted:
            print(f"saved at {interrupted.saved_steps} steps; penstock.train(resume=True) continues")

    Attributes:
        saved_steps: Environment steps of the newest checkpoint; None if there is none.
        trained_steps: Environment steps trained, as last reported by the learner.
        finished: Whether the learner finished its batch and saved a checkpoint; otherwise it was killed or failed.
    """

    def __init__(self, saved_steps: int | None, trained_steps: int, finished: bool) -> None:
        super().__init__()
        self.saved_steps, self.trained_steps, self.finished = saved_steps, trained_steps, finished


class StopTraining(Exception):
    """Raised by an observer to end the run, which can be resumed, and to get its summary."""


def finish(
    learner: Child, status: RunStatus, observer: Callable[[RunStatus, list[str]], None], *, reason: str = ""
) -> bool:
    """Lets the learner finish its batch and save a checkpoint; returns whether it did.

    The learner receives SIGTERM. `observer` receives the status, at first the given one, and lines of news, a few times
    per second. `reason` is the reason for ending the run; empty if the user ended it.
    """
    began = time.monotonic()
    pressed: list[float] = []
    with signals_handled(lambda number, frame: pressed.append(time.monotonic())):
        learner.terminate()
        what = "finishing a batch and saving a checkpoint" if status.env_steps else "ending all services"
        lead = f"{reason}; " if reason else ""
        status = dataclasses.replace(status, phase="stopping", waiting_for="the learner")
        # The kernel discards terminal output until it has handled the Ctrl-C.
        time.sleep(_POLL_S)
        # Shown even if the learner has ended already.
        observer(status, [f"{lead}stopping: {what} (Ctrl-C again to kill)"])
        patience = _Patience(learner)
        while learner.exit_code is None:
            waited = time.monotonic() - began
            if any(at - began > REPEAT_S for at in pressed) or waited > LONGEST_S or patience.is_over():
                learner.end(0.0)
                return False
            waiting_for = f"the learner, {waited:.0f} s of at most {LONGEST_S:.0f} s (Ctrl-C again to kill)"
            observer(dataclasses.replace(status, waiting_for=waiting_for), [])
            time.sleep(_POLL_S)
    return learner.exit_code == 0


class _Patience:
    """Monitor of a process's processor time, which shows whether the process still works."""

    def __init__(self, child: Child) -> None:
        self._pid = child.group.pid if child.group else 0
        self._used_s, self._since = self._cpu_s(), time.monotonic()

    def is_over(self) -> bool:
        used_s, now = self._cpu_s(), time.monotonic()
        if used_s is None:
            return False
        if self._used_s is None or used_s > self._used_s + _LEAST_CPU_S:
            self._used_s, self._since = used_s, now
        return now - self._since > IDLE_S

    def _cpu_s(self) -> float | None:
        """Returns the processor time of all threads in seconds; None if the system does not provide it."""
        try:
            text = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return None
        # The command's name, in parentheses, may contain spaces.
        values = text.rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
