"""The commands of Slurm that a launched run needs, with their refusals as one-line errors."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError, PenstockError

_FORMATS = {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
"""Variables that fix the language of messages and the format of times.

Jobs inherit them, and in the locale C, Python does not start from a folder with accents in its path.
"""
_PATIENCE_S = 120.0
"""Limit of one command in seconds. A loaded controller may take half a minute; one that does not answer, for ever."""

_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job.

    Attributes:
        state: Slurm's name of it, such as PENDING or RUNNING.
        reason: Slurm's reason for it; empty if there is none.
    """

    state: str
    reason: str = ""

    @property
    def ended(self) -> bool:
        """Whether the job will not run again."""
        return self.state in _ENDED


GONE = JobState("COMPLETED")
"""State of a job that Slurm has forgotten, some minutes after its end."""


def submit(script: Path, variables: Mapping[str, str], *options: str) -> int:
    """Submits a script and returns the number of its job.

    `variables` are the environment variables of this command, which the job inherits. Raises `ConfigurationError` with
    Slurm's reason if it is refused.
    """
    if any(not name.isprintable() for name in (str(script), *options)):
        raise ConfigurationError(f"{str(script)!r} has characters that a shell can't show; choose another --run-dir")
    ended = _run("sbatch", "--parsable", *options, str(script), variables=variables)
    if ended.returncode:
        raise ConfigurationError(f"sbatch refused {script.name}: {_reason(ended)}")
    # With several clusters, the number is followed by the name of one.
    return int(ended.stdout.strip().partition(";")[0])


def state_of(job: int) -> JobState:
    """Returns the state of a job; `GONE` if Slurm has forgotten it. Raises `PenstockError` if Slurm does not answer."""
    ended = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r")
    if ended.returncode:
        if "Invalid job id" in ended.stderr:
            return GONE
        raise PenstockError(f"squeue gave no state of job {job}: {_reason(ended)}")
    lines = ended.stdout.splitlines()
    if not lines:
        return GONE
    state, _, reason = lines[0].partition("|")
    return JobState(state.strip(), "" if reason == "None" else reason)


def cancel(*jobs: int) -> None:
    """Cancels jobs; jobs that have ended are left as they are."""
    _run("scancel", *map(str, jobs))


def running_tasks(array: int) -> list[str]:
    """Returns the names of an array's tasks that run, the one that was started last at the end."""
    ended = _checked("squeue", "--noheader", "--array", "--states=RUNNING", f"--jobs={array}", "--format=%S %i")
    return [line.split()[1] for line in sorted(ended.stdout.splitlines())]


def size_of(array: int) -> int:
    """Returns the number of an array's tasks that run or wait."""
    ended = _checked("squeue", "--noheader", "--array", f"--jobs={array}", "--format=%i")
    return len(ended.stdout.splitlines())


def set_limit(array: int, tasks: int) -> None:
    """Sets how many tasks of an array may run at a time."""
    _checked("scontrol", "update", f"JobId={array}", f"ArrayTaskThrottle={tasks}")


def requeue(task: str) -> None:
    """Ends a running task of an array and puts it back into the queue."""
    _checked("scontrol", "requeue", task)


def _checked(*command: str) -> "subprocess.CompletedProcess[str]":
    ended = _run(*command)
    if ended.returncode:
        raise PenstockError(f"{command[0]} failed: {_reason(ended)}")
    return ended


def _run(*command: str, variables: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            env={**(os.environ if variables is None else variables), **_FORMATS},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no {command[0]} on this machine; start the run from a login node of a Slurm cluster, or print"
            " its scripts with --print"
        ) from None
    except subprocess.TimeoutExpired:
        raise PenstockError(f"{command[0]} did not answer within {_PATIENCE_S:.0f} s; try again later") from None


def _reason(ended: "subprocess.CompletedProcess[str]") -> str:
    """Returns the output of a command of Slurm, without the names of programs that precede it."""
    words = [line.strip() for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
    return "; ".join(line.partition(": error: ")[2] or line for line in words) or f"exit code {ended.returncode}"
