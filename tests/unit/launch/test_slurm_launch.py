"""`penstock launch slurm`: what it writes and submits, and its refusals, each in one line that names the remedy.

Programs that note how they were called take the place of Slurm's commands. `make e2e-slurm` uses a real Slurm.
"""

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from penstock.cli.commands import launch, tune
from penstock.config import Config, load_toml
from penstock.errors import ConfigurationError, PenstockError
from penstock.launch import slurm
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.security.authority import files_of, issue
from penstock.security.certificate import read
from penstock.security.roles import ROLES
from tests.support.machine.timing import start_patience_s

COMMAND = """#!/bin/bash
name=$(basename "$0")
echo "$name $*" >>"$SLURM_FAKE/calls"
env | grep ^PENSTOCK >>"$SLURM_FAKE/variables"
locale charmap >>"$SLURM_FAKE/encodings"
if [ -e "$SLURM_FAKE/$name.error" ] && grep -q "$(basename "${@: -1}")" "$SLURM_FAKE/$name.error"; then
    echo "$name: error: Batch job submission failed: No such thing" >&2
    exit 1
fi
case "$name $*" in
sbatch*services.sh) echo 41 ;;
sbatch*actors.sh) echo "42;cluster" ;;
sbatch*slurm.sh) echo 43 ;;
*) cat "$SLURM_FAKE/$name" 2>/dev/null ;;
esac
exit 0
"""


class Slurm:
    """The commands of Slurm, as far as this test defines what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prints(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def refuses(self, script: str) -> None:
        (self.folder / "sbatch.error").write_text(script)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    for name in [name for name in os.environ if name.startswith("PENSTOCK")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "slurm"
    folder.mkdir()
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (commands / name).write_text(COMMAND)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("SLURM_FAKE", str(folder))
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return Slurm(folder)


def launched(*arguments: str) -> int:
    return launch.command(["slurm", "--preset=cartpole", "--no-check", "--detach", "--run-dir=runs/a", *arguments])


def test_both_jobs_are_submitted_and_the_array_waits_for_the_services(cluster: Slurm, tmp_path: Path) -> None:
    assert launched("--actors=8") == 0
    scripts = tmp_path / "runs" / "a" / "launch"
    assert cluster.calls() == [
        f"sbatch --parsable {scripts}/services.sh",
        f"sbatch --parsable --dependency=after:41 {scripts}/actors.sh",
    ]
    assert (scripts / "services.job").read_text() == "41\n"
    assert (scripts / "actors.job").read_text() == "42\n"


def test_it_prints_both_numbers_and_how_to_come_back(cluster: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    launched()
    *_, numbers, return_by = capsys.readouterr().out.splitlines()
    assert numbers.startswith(
        "job 41: the services; job 42: an array with 2 tasks at a time, and 1 more in their place;"
    )
    assert return_by.endswith("status runs/a --watch, end it with scancel 41 42")


def test_the_settings_let_the_services_be_on_different_hosts(cluster: Slurm) -> None:
    launched("--ppo.epochs=7", "--replay.folder=/scratch/store", "--learner.listen=10.0.0.1:4000")
    settings = Config(**load_toml(Path("runs/a/launch/settings.toml")))
    assert settings.ppo.epochs == 7
    assert not settings.security.insecure and settings.replay.stop_with_run
    assert settings.telemetry.metrics_host == "0.0.0.0"
    assert settings.learner.listen == "10.0.0.1:4000"
    # The folders are options in the script, so that another run can use these settings.
    assert settings.replay.folder is settings.run.dir is None
    assert "store=/scratch/store\n" in Path("runs/a/launch/services.sh").read_text()


def test_every_role_of_the_run_gets_a_certificate_which_a_resumed_run_keeps(cluster: Slurm) -> None:
    launched()
    files = [files_of(RunFolder(Path("runs/a")).certificates / role) for role in ROLES]
    found = [read(each, role, now=time.time()) for each, role in zip(files, ROLES, strict=True)]
    assert {each.identity.run for each in found} == {"a"}
    cluster.prints("squeue", "TIMEOUT|None\n")
    launch.command(["slurm", "--resume=runs/a", "--no-check", "--detach"])
    assert [read(each, None, now=time.time()) for each in files] == found


def test_certificates_that_expire_soon_are_renewed_when_a_run_is_resumed(cluster: Slurm) -> None:
    launched()
    folder = RunFolder(Path("runs/a"))
    issue(folder.certificates, "a", days=90, hosts={}, now=time.time() - 80 * 86_400, renew=True)
    former = files_of(folder.certificates / "actor").certificate.read_bytes()
    cluster.prints("squeue", "TIMEOUT|None\n")
    launch.command(["slurm", "--resume=runs/a", "--no-check", "--detach"])
    assert files_of(folder.certificates / "actor").certificate.read_bytes() != former


@pytest.mark.parametrize(
    "chosen", ["insecure=true", "certificate=/etc/penstock/certificate.pem", "server-names=address"]
)
def test_other_protection_than_the_certificates_of_the_run_is_refused(cluster: Slurm, chosen: str) -> None:
    name = chosen.partition("=")[0].replace("-", "_")
    with pytest.raises(ConfigurationError, match=rf"has certificates of its own, and security\.{name} is .*; unset it"):
        launched(f"--security.{chosen}")
    assert not Path("runs").exists()


def test_jobs_inherit_no_settings(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK__PPO__EPOCHS", "9")
    launched()
    assert Config(**load_toml(Path("runs/a/launch/settings.toml"))).ppo.epochs == 9
    assert (cluster.folder / "variables").read_text() == ""


def test_jobs_inherit_an_encoding_that_has_every_path(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    launched()
    assert set((cluster.folder / "encodings").read_text().split()) == {"UTF-8"}


def test_print_submits_and_writes_nothing(cluster: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    launched("--print")
    assert capsys.readouterr().out.count("#!/bin/bash\n") == 2
    assert not cluster.calls() and not Path("runs").exists()


def test_a_machine_without_slurm_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no sbatch on this machine; .* --print"):
        launched()


def test_a_refused_script_is_reported_in_the_words_of_slurm(cluster: Slurm) -> None:
    cluster.refuses("services.sh")
    with pytest.raises(
        ConfigurationError, match=r"sbatch refused services.sh: Batch job submission failed: No such thing"
    ):
        launched()


def test_nothing_is_left_in_the_queue_if_the_array_is_refused(cluster: Slurm) -> None:
    cluster.refuses("actors.sh")
    with pytest.raises(ConfigurationError, match=r"sbatch refused actors.sh"):
        launched()
    assert cluster.calls()[-1] == "scancel 41"


@pytest.mark.parametrize(
    ("has_log", "reason"),
    [
        (False, r"there is no log in .*/runs/a/logs; .*: choose a --run-dir that all nodes share"),
        (True, r"see the logs in .*/runs/a/logs"),
    ],
)
def test_a_folder_that_the_nodes_do_not_share_is_named_if_the_job_fails(
    cluster: Slurm, tmp_path: Path, has_log: bool, reason: str
) -> None:
    cluster.prints("squeue", "FAILED|NonZeroExitCode\n")
    if has_log:
        # Slurm creates it on the job's node.
        (tmp_path / "runs" / "a" / "logs").mkdir(parents=True)
        (tmp_path / "runs" / "a" / "logs" / "services.log").touch()
    with pytest.raises(PenstockError, match=rf"^the run ended without a summary, and job 41 is FAILED: {reason}$"):
        launch.command(["slurm", "--preset=cartpole", "--no-check", "--run-dir=runs/a"])


def test_a_folder_with_a_run_needs_resume(cluster: Slurm) -> None:
    launched()
    with pytest.raises(ConfigurationError, match=r"already contains a run; resume it with --resume "):
        launched()


def test_an_active_run_is_not_resumed(cluster: Slurm) -> None:
    launched()
    cluster.prints("squeue", "RUNNING|None\n")
    with pytest.raises(
        ConfigurationError, match=r"still active as job 41; wait for its end, or end it with scancel 41 42"
    ):
        launch.command(["slurm", "--resume=runs/a", "--no-check", "--detach"])


def test_an_ended_run_is_resumed_with_its_settings(cluster: Slurm) -> None:
    launched("--ppo.epochs=7")
    cluster.prints("squeue", "TIMEOUT|None\n")
    assert launch.command(["slurm", "--resume=runs/a", "--no-check", "--detach", "--seed=3"]) == 0
    settings = Config(**load_toml(Path("runs/a/launch/settings.toml")))
    assert (settings.ppo.epochs, settings.run.seed) == (7, 3)


def test_a_finished_run_is_not_resumed(cluster: Slurm) -> None:
    launched()
    folder = RunFolder(Path("runs/a"))
    Summary("a", "CartPole-v1", 0, 30_000, 9.0, 3e3, None, None, None, 25, 1.5, 2.0, "total_steps").write(
        folder.summary
    )
    with pytest.raises(ConfigurationError, match=r"its result is in "):
        launch.command(["slurm", "--resume=runs/a", "--no-check", "--detach"])


def test_the_number_of_tasks_is_changed_and_the_youngest_return_to_the_queue(cluster: Slurm) -> None:
    launched("--actors=3")
    cluster.prints("squeue", "2026-01-01T00:00:03 42_2\n2026-01-01T00:00:01 42_0\n2026-01-01T00:00:02 42_1\n")
    assert launch.command(["slurm-actors", "runs/a", "1"]) == 0
    changes = [call for call in cluster.calls() if call.startswith("scontrol")]
    assert changes == ["scontrol update JobId=42 ArrayTaskThrottle=1", "scontrol requeue 42_1", "scontrol requeue 42_2"]


def test_more_tasks_than_the_array_has_are_refused(cluster: Slurm) -> None:
    launched()
    cluster.prints("squeue", "2026-01-01T00:00:01 42_0\n")
    with pytest.raises(ConfigurationError, match=r"has 1 tasks, and 2 are wanted; start the run with a larger --spare"):
        launch.command(["slurm-actors", "runs/a", "2"])


def test_a_run_that_was_not_launched_has_no_tasks(cluster: Slurm) -> None:
    Path("runs/b").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"is not the folder of a run that was started on Slurm"):
        launch.command(["slurm-actors", "runs/b", "2"])


@pytest.mark.parametrize(
    ("printed", "state", "ended"),
    [("PENDING|Priority\n", "PENDING", False), ("RUNNING|None\n", "RUNNING", False), ("", "COMPLETED", True)],
)
def test_the_state_of_a_job(cluster: Slurm, printed: str, state: str, ended: bool) -> None:
    cluster.prints("squeue", printed)
    found = slurm.state_of(41)
    assert (found.state, found.ended) == (state, ended)


def test_actors_that_follow_the_learner_need_their_largest_number(cluster: Slurm) -> None:
    with pytest.raises(ConfigurationError, match=r"set --learner.most-wanted-actors to their largest number"):
        launched("--actors=auto")
    launched("--actors=auto", "--learner.most-wanted-actors=12", "--actors-per-task=2")
    assert "#SBATCH --array=0-5%1\n" in Path("runs/a/launch/actors.sh").read_text()
    services = Path("runs/a/launch/services.sh").read_text()
    assert 'launch slurm-actors "$run" auto --actors-per-task=2' in services


def test_several_replay_services_are_refused(cluster: Slurm) -> None:
    with pytest.raises(ConfigurationError, match=r"has one replay service, and train.replay_shards is 2; set it to 1"):
        launched("--train.replay-shards=2")


def test_a_study_is_trained_by_jobs_that_repeat_its_command(
    cluster: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cartpole", "--trials", "8", "--parallel", "2", "--on", "slurm", "--jobs", "5", "--sbatch=--qos=high"]
    assert tune.command([*words, "--print"]) == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n# Trials of the study")
    assert cluster.calls() == []
    assert tune.command(words) == 0
    script = tmp_path / "tune" / "cartpole" / "slurm.sh"
    assert cluster.calls() == [f"sbatch --parsable {script}"]
    shown = capsys.readouterr().out
    assert "job 43: an array of 5 tasks" in shown and "scancel 43" in shown
    text = script.read_text()
    assert "#SBATCH --qos=high" in text
    (line,) = [each for each in text.splitlines() if '}" tune ' in each]
    given = shlex.split(line.removesuffix(" &"))[2:]
    # The jobs run this command, which refuses an option that is given twice.
    assert tune.parser().parse_args(given) == tune.parser().parse_args(["cartpole", *words[1:5]])


@pytest.mark.nightly
def test_a_job_of_a_study_trains_its_trials(cluster: Slurm, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[environment]\nid = "CartPole-v1"\n')
    assert tune.command(["own.toml", "--trials", "2", "--steps", "3000", "--on=slurm", "--no-pruning"]) == 0
    script = tmp_path / "tune" / "own" / "slurm.sh"
    ended = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, timeout=start_patience_s(), check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "trial 1: " in ended.stdout
