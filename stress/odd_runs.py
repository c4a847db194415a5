"""Runs of `penstock train` with an environment that misbehaves, and the checks of their results."""

import time
from dataclasses import dataclass
from pathlib import Path

from penstock.runs.folder import RunFolder
from tests.support.environments.odd import KINDS, Where, env_id
from tests.support.machine.timing import DRILL_PATIENCE_S
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_of

STEPS = 1_600
"""Environment steps of a run: each of its 4 environments misbehaves late, at its step 300."""

OPTIONS = (
    f"--env-import=tests.support.environments.odd --actors=1 --envs-per-actor=4 --total-steps={STEPS} --ppo.epochs=1"
    " --actor.unroll-length=16 --sampling.batch-segments=8 --sampling.fresh-fraction=0.5 --evaluation.episodes=2"
    " --evaluation.interval-steps=100000 --evaluation.timeout-s=20 --checkpoint.save-interval=200"
    " --train.max-restarts=3"
)

CHECK_S = 10.0
"""Deadline of the check for kinds that hang in it, in seconds."""


@dataclass(frozen=True, slots=True)
class OddRun:
    """The result of a run with one kind of environment.

    Attributes:
        kind: Name in `KINDS`.
        folder: Folder of the run, which may not exist.
        end: Exit code, output, and processes that were left behind.
        seconds: Duration of the run.
        interrupted: Whether the run was interrupted because it did not end by itself.
    """

    kind: str
    folder: Path
    end: Ended
    seconds: float
    interrupted: bool


def train_with(kind: str, root: Path, patience_s: float, *options: str) -> OddRun:
    """Trains with an environment of this kind; interrupts a run that has not ended after this time."""
    folder = root / "runs" / kind
    given = [f"--env-id={env_id(kind)}", *OPTIONS.split(), f"--run-dir={folder}", *options]
    if KINDS[kind].hangs:
        given.append(f"--environment.check-timeout-s={CHECK_S}")
    started, interrupted = time.monotonic(), False
    with Command("train", *given, environment=WITH_HELPERS, directory=root) as command:
        while command.process.poll() is None:
            if time.monotonic() - started > patience_s and not interrupted:
                command.interrupt()
                interrupted = True
            assert time.monotonic() - started < patience_s + DRILL_PATIENCE_S, f"{kind} can't be interrupted"
            time.sleep(0.1)
        return OddRun(kind, folder, end_of(command), time.monotonic() - started, interrupted)


def faults_of(run: OddRun) -> list[str]:
    """Returns the faults of a run's end; empty if there are none."""
    kind, end, text = KINDS[run.kind], run.end, run.end.stdout + run.end.stderr
    broken = [f"does not show {part!r}" for part in kind.says if part not in text]
    codes = {Where.REFUSED: (2,), Where.WARNED: (0,), Where.HARMLESS: (0,), Where.TRAINING: (0, 3)}[kind.where]
    if run.interrupted:
        broken.append("did not end by itself")
    elif end.code not in codes:
        broken.append(f"exit code {end.code}, not one of {codes}")
    if kind.where is not Where.HARMLESS and env_id(run.kind) not in text:
        broken.append("does not name the environment")
    if "Traceback" in text:
        broken.append("a traceback")
    if end.code and end.stderr.count("\n") != (0 if run.interrupted else 1):
        broken.append(f"{end.stderr.count(chr(10))} lines of errors")
    if end.left_behind:
        broken.append(f"left {len(end.left_behind)} processes")
    return broken + _broken_files(run, kind.where)


def _broken_files(run: OddRun, where: Where) -> list[str]:
    folder = RunFolder(run.folder)
    if where is Where.REFUSED:
        return ["left a run's folder"] if run.folder.parent.exists() and run.folder.exists() else []
    missing = [] if folder.config.exists() else ["no config.toml"]
    if run.end.code == 0:
        return [*missing, *([] if folder.summary.exists() else ["no summary.json"])]
    return [*missing, *([] if folder.replay.exists() else ["no store"])]
