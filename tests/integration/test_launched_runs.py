"""`penstock launch slurm` with all services of a run, followed to its end; small programs take the place of Slurm's.

They start the scripts as processes of this machine. `make e2e-slurm` uses a real Slurm, and nodes that fail.
"""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.runs.folder import RunFolder
from tests.support.machine.timing import wait_for_run
from tests.support.services.processes import Command, end_of

pytestmark = pytest.mark.nightly

PROGRAMS = {
    "sbatch": r"""
for script; do :; done
job=$(($(ls "$JOBS" | wc -l) + FIRST_JOB))
mkdir "$JOBS/$job"
output=$(sed -n 's/^#SBATCH --output=//p' "$script")
tasks=$(sed -n 's/^#SBATCH --array=.*%//p' "$script")
for ((task = 0; task < ${tasks:-1}; task++)); do
    file=${output//%A_%a/${job}_$task} file=${file//%j/$job}
    SLURM_JOB_ID=$job SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$task \
        setsid bash "$script" >>"${file//%a/$task}" 2>&1 </dev/null &
    echo $! >>"$JOBS/$job/pids"
done
echo "$job"
""",
    "squeue": r"""
for option; do job=${option#--jobs=}; [[ $option != "$job" ]] && break; done
kill -0 $(<"$JOBS/$job/pids") 2>/dev/null && echo "RUNNING|None" || echo "COMPLETED|None"
""",
    "scancel": r"""
for job; do touch "$JOBS/$job/cancelled"; for pid in $(<"$JOBS/$job/pids"); do kill -TERM -- "-$pid"; done; done
""",
    "scontrol": "exit 1",
}
FIRST_JOB = random.SystemRandom().randrange(10**6, 6 * 10**7)
"""Number of the first job. The port of a run follows from it, and tests of other runs may be active."""
SHORT = ("--preset=cartpole", "--actors=2", "--spare=0", "--evaluation.episodes=2", "--no-check")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment variables with which the programs are found."""
    programs, jobs = tmp_path / "programs", tmp_path / "jobs"
    programs.mkdir()
    jobs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text.strip()}\n")
        (programs / name).chmod(0o755)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    variables = {"JOBS": str(jobs), "FIRST_JOB": str(FIRST_JOB), "SLURM_TMPDIR": str(scratch)}
    yield {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    for pid in (int(line) for path in jobs.glob("*/pids") for line in path.read_text().split()):
        for process in psutil.process_iter():
            if process.pid != os.getpid() and _session(process.pid) == pid:
                process.kill()


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def launched(cluster: dict[str, str], place: Path, *options: str, steps: int = 2048) -> Command:
    own = (f"--run-dir={place / 'run'}", f"--total-steps={steps}")
    return Command("launch", "slurm", *SHORT, *own, *options, environment=cluster, directory=place)


def array_is_cancelled(cluster: dict[str, str]) -> bool:
    return (Path(cluster["JOBS"]) / str(FIRST_JOB + 1) / "cancelled").exists()


def test_a_run_is_followed_to_its_end_and_leaves_everything_in_its_folder(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    folder, scratch = RunFolder(tmp_path / "run"), Path(cluster["SLURM_TMPDIR"])
    with launched(cluster, tmp_path) as command:
        end = end_of(command)
        wait_for_run(lambda: array_is_cancelled(cluster), "the array to be cancelled")
        wait_for_run(lambda: not list(scratch.iterdir()), "the store to be removed")
    assert (end.code, end.stderr) == (0, "")
    assert "\nended  by total_steps after " in end.stdout
    assert str(folder.root) in end.stdout.splitlines()[-1]
    assert folder.summary.exists() and folder.best_checkpoint.exists() and (folder.logs / "learner.log").exists()
    assert not folder.services.exists()


def test_ctrl_c_leaves_the_run_alone_and_tells_how_to_come_back(cluster: dict[str, str], tmp_path: Path) -> None:
    with launched(cluster, tmp_path, steps=10_000_000) as command:
        folder = RunFolder(tmp_path / "run")
        services = folder.services
        command.until(services.exists, "the services")
        assert folder.certified
        command.process.send_signal(signal.SIGINT)
        assert command.wait() == 0
        assert "the run goes on" in command.stdout
        assert command.stdout.splitlines()[-1].endswith(
            f"status run --watch, end it with scancel {FIRST_JOB} {FIRST_JOB + 1}"
        )
        assert services.exists()


def test_a_setting_that_a_service_refuses_ends_the_command_with_the_reason(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    with launched(cluster, tmp_path, "--replay.listen=192.0.2.1:7431") as command:
        end = end_of(command)
        wait_for_run(lambda: array_is_cancelled(cluster), "the array to be cancelled")
    assert end.code == 3
    ended = f"job {FIRST_JOB} is COMPLETED"
    assert f"the run ended without a summary, and {ended}: can't listen on 192.0.2.1:7431" in end.stderr
    assert len(end.stderr.splitlines()) == 1
