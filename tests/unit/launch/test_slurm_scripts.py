"""The scripts for Slurm: bash accepts and runs them with any values, and they end and restart what they must.

`make e2e-slurm` submits them to a real Slurm. Here, a small program takes Penstock's place, since the scripts' own
work is tested, and the commands of Slurm that the scripts call write down how they were called.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.launch.slurm_scripts import JobOptions, SlurmRun, actors_script, services_script, tuning_script
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import PATIENCE_S, wait_for

PROGRAM = """#!/bin/bash
echo "$*" >>"$CALLS.arguments"
[ "$1" != certificates ] || exit 0
trap 'echo "$1" >>"$CALLS.stopped"; exit 0' TERM
echo "$1" >>"$CALLS.started"
code=$(eval echo "\\$CODE_$1")
# One that ends waits for the others, which could otherwise be stopped before their trap is set.
until [ -z "$code" ] || [ "$(wc -l <"$CALLS.started")" -ge "${STARTED:-1}" ]; do sleep 0.05; done
[ -z "$code" ] || exit "$code"
while :; do sleep 0.05; done
"""
SLURM_COMMAND = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLS.slurm"
case "$(basename "$0")" in
squeue) echo "$JOB_STATE" ;;
scontrol) [ -z "$SIGNALLED" ] || kill -TERM $$ ;;
esac
"""

Change = Callable[..., SlurmRun]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "a 'run' of \"mine\" $HOME #1 é")
    folder.create()
    folder.launch.mkdir()
    (folder.launch / "actors.job").write_text("78\n")
    return folder


@pytest.fixture
def made(folder: RunFolder, tmp_path: Path) -> Change:
    program = tmp_path / "penstock of mine"
    program.write_text(PROGRAM)
    program.chmod(0o755)

    def make(**changes: object) -> SlurmRun:
        values: dict[str, object] = {
            "folder": folder,
            "settings": "[run]\nseed = 1\n",
            "store": None,
            "snapshots": None,
            "listen": None,
            "actors": 5,
            "spare": 2,
            "actors_per_task": 2,
            "scales": False,
            "services": JobOptions(),
            "array": JobOptions(),
            "setup": (),
            "penstock": (str(program),),
        }
        return SlurmRun(**(values | changes))  # type: ignore[arg-type]

    return make


class Job:
    """A script while bash runs it as Slurm would."""

    def __init__(self, script: str, folder: Path, **variables: str) -> None:
        self._calls = folder / "calls"
        commands = folder / "commands"
        commands.mkdir()
        for name in ("squeue", "scontrol", "scancel"):
            (commands / name).write_text(SLURM_COMMAND)
            (commands / name).chmod(0o755)
        (folder / "script.sh").write_text(script)
        environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "CALLS": str(self._calls),
            "SLURM_JOB_ID": "77",
            "SLURM_ARRAY_JOB_ID": "77",
            "SLURM_ARRAY_TASK_ID": "3",
            "SLURM_TMPDIR": str(folder / "scratch"),
            "JOB_STATE": "RUNNING",
            **variables,
        }
        self._process = subprocess.Popen(["bash", str(folder / "script.sh")], env=environment)

    def until_started(self, *names: str) -> None:
        wait_for(lambda: sorted(self.lines("started")) == sorted(names), f"the start of {names}")

    def warn(self) -> None:
        """Sends the signal that Slurm sends to the script alone."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        return self._process.wait(PATIENCE_S)

    def lines(self, kind: str) -> list[str]:
        path = self._calls.with_suffix(f".{kind}")
        return path.read_text().splitlines() if path.exists() else []


def tuning(folder: Path, **changes: object) -> str:
    program = folder / "penstock of mine"
    values: dict[str, object] = {"jobs": 3, "cores": 4, "options": JobOptions(more=("--time=1:00",)), "setup": ()}
    words = ["my 'base'.toml", "--parallel", "2"]
    return tuning_script(folder / "a study", words, **(values | {"penstock": (str(program),)} | changes))  # type: ignore[arg-type]


def test_jobs_of_a_study_run_its_command_and_want_another_turn_when_they_are_preempted(
    made: Change, tmp_path: Path
) -> None:
    script = tuning(tmp_path)
    assert "#SBATCH --array=0-2\n" in script and "#SBATCH --cpus-per-task=4\n#SBATCH --time=1:00\n" in script
    made()
    job = Job(script, tmp_path)
    job.until_started("tune")
    assert job.lines("arguments") == ["tune my 'base'.toml --parallel 2"]
    job.warn()
    assert job.end() == 0
    assert job.lines("stopped") == ["tune"]
    assert job.lines("slurm") == ["squeue --noheader --jobs=77_3 --format=%T", "scontrol requeue 77_3"]


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_of_a_study_ends_with_the_code_of_its_command(made: Change, tmp_path: Path, code: int) -> None:
    script = tuning(tmp_path)
    made()
    assert Job(script, tmp_path, CODE_tune=str(code)).end() == code


@pytest.mark.parametrize("name", ["50%j", "a\\b"])
def test_a_study_whose_name_slurm_would_change_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="choose another --run-dir or --name"):
        tuning(tmp_path / name)


def test_bash_accepts_both_scripts(made: Change) -> None:
    run = made(scales=True, setup=("module load cuda",))
    for script in (services_script(run), actors_script(run)):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(made: Change, tmp_path: Path) -> None:
    run = made(folder=RunFolder(tmp_path), scales=True, penstock=("penstock",))
    for script in (services_script(run), actors_script(run)):
        checked = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False)
        assert checked.stdout == ""


def test_each_service_gets_the_certificate_of_its_role(made: Change, folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "actors").mkdir()
    services = Job(services_script(made()), tmp_path / "services", CODE_learner="0", STARTED="3")
    actors = Job(actors_script(made()), tmp_path / "actors", CODE_actor="0")
    assert (services.end(), actors.end()) == (0, 0)
    first, *others = services.lines("arguments")
    assert first == f"certificates {folder.root}"
    for line in (*others, *actors.lines("arguments")):
        role = line.split()[0]
        assert line.endswith(f" --security.certificate={folder.certificates / role / 'certificate.pem'}")


def test_the_job_ends_with_the_learner_and_cancels_the_actors(made: Change, tmp_path: Path) -> None:
    job = Job(services_script(made()), tmp_path, CODE_learner="0", STARTED="3")
    assert job.end() == 0
    assert sorted(job.lines("stopped")) == ["evaluator", "replay"]
    assert job.lines("slurm") == ["scancel 78"]


def test_the_store_keeps_its_snapshots_in_the_run_or_where_the_user_wants_them(
    made: Change, folder: RunFolder, tmp_path: Path
) -> None:
    for snapshots, expected in ((None, f"{folder.root}/snapshots"), ("/scratch/my $HOME", "/scratch/my $HOME")):
        place = tmp_path / str(snapshots is None)
        place.mkdir()
        job = Job(services_script(made(snapshots=snapshots)), place, CODE_learner="0", STARTED="3")
        assert job.end() == 0
        (replay,) = [line for line in job.lines("arguments") if line.startswith("replay ")]
        assert f" --replay.snapshot-folder={expected} " in replay


def test_a_crashed_service_is_started_again(made: Change, tmp_path: Path) -> None:
    job = Job(services_script(made()), tmp_path, CODE_evaluator="139")
    wait_for(lambda: job.lines("started").count("evaluator") >= 2, "another start of the evaluator")
    assert job.lines("started").count("replay") == job.lines("started").count("learner") == 1
    job.warn()
    job.end()


def test_a_service_that_fails_for_good_ends_the_run_with_its_code(made: Change, tmp_path: Path) -> None:
    job = Job(services_script(made()), tmp_path, CODE_replay="3", STARTED="3")
    assert job.end() == 3
    assert sorted(job.lines("stopped")) == ["evaluator", "learner"]
    assert job.lines("slurm") == ["scancel 78"]


def test_a_warning_of_slurm_stops_the_learner_first_and_asks_for_another_turn(made: Change, tmp_path: Path) -> None:
    job = Job(services_script(made()), tmp_path)
    job.until_started("learner", "replay", "evaluator")
    job.warn()
    assert job.end() == 0
    assert job.lines("stopped")[0] == "learner"
    assert len(job.lines("stopped")) == 3
    assert job.lines("slurm")[1:] == ["scontrol requeue 77"]


def test_the_signal_that_follows_the_request_may_also_end_the_command_that_makes_it(
    made: Change, tmp_path: Path
) -> None:
    """Slurm signals all processes of a job that it requeues. The array must not be cancelled then."""
    job = Job(services_script(made()), tmp_path, SIGNALLED="yes")
    job.until_started("learner", "replay", "evaluator")
    job.warn()
    assert job.end() == 0
    assert job.lines("slurm")[1:] == ["scontrol requeue 77"]


def test_a_cancelled_job_cancels_the_actors_and_asks_for_nothing(made: Change, tmp_path: Path) -> None:
    job = Job(services_script(made()), tmp_path, JOB_STATE="COMPLETING")
    job.until_started("learner", "replay", "evaluator")
    job.warn()
    job.end()
    assert job.lines("slurm")[1:] == ["scancel 78"]


@pytest.mark.parametrize("state", ["RUNNING", "SIGNALING"])
def test_a_task_of_actors_asks_for_another_turn_after_a_warning(made: Change, tmp_path: Path, state: str) -> None:
    job = Job(actors_script(made()), tmp_path, JOB_STATE=state)
    job.until_started("actor", "actor")
    job.warn()
    assert job.end() == 0
    assert job.lines("stopped") == ["actor", "actor"]
    # Not the number of the job, which for one of the tasks is that of all.
    assert job.lines("slurm")[1:] == ["scontrol requeue 77_3"]


def test_a_task_of_actors_ends_with_the_run(made: Change, tmp_path: Path) -> None:
    job = Job(actors_script(made()), tmp_path, CODE_actor="0")
    assert job.end() == 0
    assert not job.lines("slurm")


def test_a_task_whose_actors_give_up_fails(made: Change, tmp_path: Path) -> None:
    assert Job(actors_script(made()), tmp_path, CODE_actor="3").end() == 3


def test_only_scratch_of_the_run_is_removed_at_the_end(made: Change, tmp_path: Path) -> None:
    own, named = tmp_path / "scratch" / "penstock-77-store", tmp_path / "my store"
    for store, scratch_remains in ((None, False), (str(named), True)):
        own.mkdir(parents=True, exist_ok=True)
        named.mkdir(exist_ok=True)
        place = tmp_path / f"job-{scratch_remains}"
        place.mkdir()
        job = Job(services_script(made(store=store)), place, CODE_learner="0", SLURM_TMPDIR=str(own.parent))
        assert job.end() == 0
        assert own.exists() is scratch_remains
        assert named.exists()


def test_the_array_has_room_for_spare_actors_and_is_limited_to_those_wanted(made: Change) -> None:
    assert "#SBATCH --array=0-3%3\n" in actors_script(made(actors=5, spare=2, actors_per_task=2))
    assert "#SBATCH --array=0-63%64\n" in actors_script(made(actors=64, spare=0, actors_per_task=1))


def test_options_of_the_site_come_last(made: Change) -> None:
    job = JobOptions(
        partition="gpu", time="1:00:00", account="me", gpus="a100:1", more=("--cpus-per-task=9", "--qos=x")
    )
    script = services_script(made(services=job))
    directives = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert directives[-6:] == [
        "--partition=gpu",
        "--time=1:00:00",
        "--account=me",
        "--gres=gpu:a100:1",
        "--cpus-per-task=9",
        "--qos=x",
    ]


@pytest.mark.parametrize(
    ("option", "written"),
    [
        ("--qos=high", "--qos=high"),
        ("--comment=a b", '"--comment=a b"'),
        ("--comment='a' \"b\" \\c", '"--comment=\'a\' \\"b\\" \\\\c"'),
        ("--comment=a#b", '"--comment=a#b"'),
    ],
)
def test_options_are_quoted_as_sbatch_reads_them(made: Change, option: str, written: str) -> None:
    """A real sbatch was seen to read these four back unchanged."""
    assert f"#SBATCH {written}\n" in services_script(made(services=JobOptions(more=(option,))))


@pytest.mark.parametrize(
    ("option", "message"), [("--comment=a\nrm", "leave out line breaks"), ("qos=x", "is not an option of sbatch")]
)
def test_an_option_that_a_script_cannot_hold_is_refused(made: Change, option: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        services_script(made(services=JobOptions(more=(option,))))


@pytest.mark.parametrize("name", ["50%j", "a\\b"])
def test_a_folder_whose_name_slurm_would_change_is_refused(made: Change, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="choose another --run-dir"):
        actors_script(made(folder=RunFolder(tmp_path / name)))
