"""Trains on one environment for two windows, with its id alone, and records the result."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from penstock.errors import USAGE_ERROR
from penstock.presets import configure
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.services.processes import PENSTOCK, Command, Ended

WINDOWS = 2
SHORTENED = ("--ppo.epochs=1", "--evaluation.episodes=1", "--evaluation.max-episode-steps=64")
"""Options that shorten the training on each batch and the evaluation at the end, which would otherwise take hours."""
PATIENCE = ("--environment.check-timeout-s=600",)
"""Option without an effect on the result: a busy machine may need more than a minute for the imports of a package."""


_GRACE_S = 60.0
"""Seconds after its deadline in which a command may end its services."""


class Outcome(StrEnum):
    """The result of a run."""

    TRAINED = "trained"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class Result:
    """A run on one environment.

    Attributes:
        outcome: TRAINED: two windows were trained, and the command succeeded. REFUSED: one line says what the user must
            change. TIMED_OUT: the command was ended at its deadline.
        steps: Environment steps that were trained.
        batches: Batches that were trained.
        seconds: Duration of the command.
        message: Last line of output of a run that did not train; empty if it did.
        notes: Lines that Penstock printed about the environment.
        output: All output.
    """

    outcome: Outcome
    steps: int
    batches: int
    seconds: float
    message: str
    notes: tuple[str, ...]
    output: str


def steps_of(env_id: str) -> int:
    """Returns the steps of two windows, with the preset of the environment if one ships."""
    actor = configure(environment=env_id).actor
    return WINDOWS * actor.environments * actor.unroll_length


def train_two_windows(
    env_id: str,
    folder: Path,
    deadline_s: float,
    *,
    program: Sequence[str] = (PENSTOCK,),
    variables: Mapping[str, str] | None = None,
) -> Result:
    """Trains on an environment, in a run below `folder`, with the Penstock that `program` starts."""
    run, started, timed_out = RunFolder(folder / "run"), time.monotonic(), False
    given = [f"--env-id={env_id}", f"--total-steps={steps_of(env_id)}", *SHORTENED, *PATIENCE, f"--run-dir={run.root}"]
    with Command("train", *given, directory=folder, program=program, environment=variables) as command:
        try:
            command.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            command.terminate()
            # What has not ended then is killed.
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(_GRACE_S)
        left = [] if timed_out else command.left_behind()
        end = Ended(command.process.poll() or 0, command.stdout, command.stderr, left)
    return _result_of(env_id, end, run, time.monotonic() - started, timed_out)


def _result_of(env_id: str, end: Ended, run: RunFolder, seconds: float, timed_out: bool) -> Result:
    output = f"{end.stdout}\n{end.stderr}".strip()
    summary = Summary.read(run.summary) if end.code == 0 and run.summary.exists() else None
    steps = summary.env_steps if summary else 0
    batches = summary.statistics.batches_trained if summary and summary.statistics else 0
    message = ""
    if timed_out:
        outcome, message = Outcome.TIMED_OUT, _last_line(end.stdout)
    elif end.code == USAGE_ERROR and end.stderr.count("\n") == 1:
        outcome, message = Outcome.REFUSED, _last_line(end.stderr)
    elif end.left_behind:
        outcome, message = Outcome.FAILED, f"left {len(end.left_behind)} processes behind"
    elif steps < steps_of(env_id) or not batches or "Traceback" in output:
        outcome, message = Outcome.FAILED, _last_line(end.stderr or end.stdout)
    else:
        outcome = Outcome.TRAINED
    notes = tuple(line for line in output.splitlines() if line.startswith(f"{env_id}: "))
    return Result(outcome, steps, batches, seconds, message, notes, output)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Objects appear with their addresses, which differ in every run.
    return re.sub(r" at 0x[0-9a-f]+", "", lines[-1]) if lines else ""
