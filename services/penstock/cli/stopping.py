"""The end of a run that is interrupted: the learner finishes its batch and saves, in sight of the user.

The first Ctrl-C (or SIGTERM, or the end of the terminal) asks for that; one more kills. A learner that trains is waited
for as long as a batch may take; one that does nothing any more is killed sooner.
"""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from penstock.cli.children import Child
from penstock.cli.process_group import signals_handled
from penstock.types import RunStatus

LONGEST_S = 600.0
"""Most seconds for the batch in training and its checkpoint; batches of pixels take a minute or two on a CPU."""

IDLE_S = 60.0
"""A learner that has used no processor for so long does not train: it hangs, and is killed."""

REPEAT_S = 0.5
"""Signals this soon after the first are the same Ctrl-C: programs such as `uv run` pass on what the terminal sent."""

_POLL_S = 0.1
_LEAST_CPU_S = 1.0
"""Processor time within `IDLE_S` that tells training from heartbeats, also on a machine that is busy otherwise."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the run.

    Attributes:
        saved_steps: Environment steps of the newest checkpoint; None: there is none.
        trained_steps: Environment steps that had been trained, as far as the learner had told.
        finished: Whether the learner finished its batch and saved; it was killed otherwise.
    """

    def __init__(self, saved_steps: int | None, trained_steps: int, finished: bool) -> None:
        super().__init__()
        self.saved_steps, self.trained_steps, self.finished = saved_steps, trained_steps, finished


def finish(learner: Child, status: RunStatus, say: Callable[[RunStatus, list[str]], None], reason: str = "") -> bool:
    """Has the learner finish its batch and save a checkpoint; whether it did.

    Args:
        learner: Asked to end, and watched.
        status: The last one of the run.
        say: Shows a status and news to the user; called a few times a second.
        reason: Why the run ends; empty: the user wants it.
    """
    began = time.monotonic()
    pressed: list[float] = []
    with signals_handled(lambda number, frame: pressed.append(time.monotonic())):
        learner.ask_to_end()
        begun_training = bool(status.env_steps)
        what = "finishing a batch and saving a checkpoint" if begun_training else "ending all services"
        lead = f"{reason}; " if reason else ""
        status = dataclasses.replace(status, phase="stopping", waiting_for="the learner")
        # A terminal discards what is printed before it has done with the key. And the learner may have ended by now.
        time.sleep(_POLL_S)
        say(status, [f"{lead}stopping: {what} (Ctrl-C again to kill)"])
        patience = _Patience(learner)
        while learner.exit_code is None:
            waited = time.monotonic() - began
            if any(at - began > REPEAT_S for at in pressed) or waited > LONGEST_S or patience.is_over():
                learner.end(0.0)
                return False
            waiting_for = f"the learner, {waited:.0f} s of at most {LONGEST_S:.0f} s (Ctrl-C again to kill)"
            say(dataclasses.replace(status, waiting_for=waiting_for), [])
            time.sleep(_POLL_S)
    return learner.exit_code == 0


class _Patience:
    """Watches whether a process still works, by the processor time it uses."""

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
        """Processor time of all its threads; None where the system does not tell."""
        try:
            text = Path(f"/proc/{self._pid}/stat").read_text()
        except OSError:
            return None
        # The command's name, in parentheses, may hold spaces.
        values = text.rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
