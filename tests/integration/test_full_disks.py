"""Whole runs on a disk that is full, without inodes or read-only, at each stage, with their logs on the same disk."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.rpc.health import is_serving
from penstock.runs.folder import RunFolder
from tests.support.machine.disks import make_full, make_read_only, mounted
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.ports import free_ports
from tests.support.services.processes import PENSTOCK, Command, EndedRun, Watch, end_in_time, end_of, run, watching
from tests.support.services.servers import gauge

pytestmark = pytest.mark.nightly

OPTIONS = (
    "--env-id=CartPole-v1 --actors=1 --envs-per-actor=8 --ppo.epochs=1 --stop-at-return=None"
    " --replay.capacity-bytes=8000000 --checkpoint.save-interval=2000"
    " --evaluation.episodes=5 --evaluation.interval-steps=5000"
)
LONG, SHORT = 80_000, 20_000
"""Steps of a run that outlives a fault, and of one that ends during it."""

FULL, READ_ONLY = "No space left on device", "Read-only file system"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "40m,nr_inodes=200")


def train(disk: Path, steps: int) -> Command:
    return Command("train", *OPTIONS.split(), f"--run-dir={disk / 'run'}", f"--total-steps={steps}")


def use_all_inodes(disk: Path, broken: bool) -> None:
    if not broken:
        for path in disk.glob("inode-*"):
            path.unlink()
        return
    # Services remove temporary files meanwhile.
    for number in range(400):
        try:
            (disk / f"inode-{number}").touch(exist_ok=False)
        except OSError:
            return


def make_full_with(log: Path) -> None:
    """Fills the disk, and the rest of the page in which this log ends."""
    with log.open("ab", buffering=0) as file:
        make_full(log.parent, True)
        with pytest.raises(OSError, match=FULL):
            for _ in range(5000):
                file.write(b"\n")


def has_trained(watch: Watch) -> None:
    watch.until(lambda status: status.env_steps > 3000, "training")


def assert_nothing_left(disk: Path) -> None:
    assert [path.name for path in disk.iterdir() if path.name not in ("ballast", "log")] == []


@pytest.mark.parametrize("breaks", [make_full, use_all_inodes])
def test_a_run_whose_disk_fails_for_a_while_goes_on_and_ends_with_its_summary(
    disk: Path, breaks: Callable[[Path, bool], None]
) -> None:
    with train(disk, LONG) as command:
        with watching(command, disk / "run") as watch:
            has_trained(watch)
            breaks(disk, True)
            command.until_output("can't write checkpoint; training continues and the write is retried")
            for name in ("learner", "actor"):
                command.children()[name].kill()
                command.until_output(f"{'actor-0' if name == 'actor' else name} ended with SIGKILL")
            breaks(disk, False)
        end = end_of(command)
    assert end.code == 0, end.stdout
    assert f"{FULL} (the file system {disk} has" in end.stdout
    assert "ended with exit code" not in end.stdout or FULL in end.stdout
    assert "Traceback" not in end.stdout + end.stderr
    summary = json.loads(RunFolder(disk / "run").summary.read_text())
    assert (summary["stopped"], summary["env_steps"] >= LONG) == ("total_steps", True)


def test_a_run_whose_disk_stays_full_ends_in_order_and_says_what_is_not_saved(disk: Path) -> None:
    with train(disk, SHORT) as command:
        with watching(command, disk / "run") as watch:
            has_trained(watch)
            make_full(disk, True)
        end = end_of(command)
    assert (end.code, end.left_behind) == (3, [])
    assert "ended with" not in end.stdout
    (line,) = end.stderr.splitlines()
    newest = RunFolder(disk / "run").numbered_checkpoints()[-1]
    for words in ("checkpoint", f"{FULL} (the file system {disk} has 0 bytes free); free space there", str(newest)):
        assert words in line, line
    assert "training after it is lost" in line and "train --resume" in line


@pytest.mark.parametrize(
    ("breaks", "words", "remedy"),
    [
        (make_full, FULL, "free space there"),
        (use_all_inodes, "no inodes for further files", "remove files there"),
        (make_read_only, READ_ONLY, "mount it writable"),
    ],
)
def test_a_start_on_a_failing_disk_is_refused_in_one_line_and_leaves_nothing(
    disk: Path, breaks: Callable[[Path, bool], None], words: str, remedy: str
) -> None:
    breaks(disk, True)
    try:
        with train(disk, SHORT) as command:
            end = end_of(command)
        assert end.code == 2
        (line,) = end.stderr.splitlines()
        assert words in line and f"the file system {disk}" in line, line
        assert f"{remedy}, or choose another" in line and "--run-dir" in line, line
    finally:
        breaks(disk, False)
    assert_nothing_left(disk)


def test_a_disk_without_room_for_the_store_is_refused_in_one_line(disk: Path) -> None:
    with (disk / "ballast").open("wb") as file:
        file.write(bytes(36 * 2**20))
    with train(disk, SHORT) as command:
        end = end_of(command)
    assert end.code == 2
    (line,) = end.stderr.splitlines()
    assert f"{FULL} (the file system {disk} has" in line
    assert "free space there, or lower replay.capacity_bytes, or choose another replay.folder" in line
    assert_nothing_left(disk)


def test_the_output_of_a_run_may_be_on_its_full_disk(disk: Path) -> None:
    program = ["sh", "-c", f'exec "$@" >> {disk / "log"} 2>&1', "sh", PENSTOCK]
    options = [*OPTIONS.split(), f"--run-dir={disk / 'run'}", f"--total-steps={LONG}"]
    with Command("train", *options, program=program) as command:
        with watching(command, disk / "run") as watch:
            has_trained(watch)
            make_full_with(disk / "log")
            first = watch.until(lambda status: len(status.notices) > 1, "a notice, which the launcher prints").env_steps
            watch.until(lambda status: status.env_steps > first + 5000, "more training")
            make_full(disk, False)
        end = end_of(command)
    assert end.code == 0
    assert "[penstock: log lines lost here: " in (disk / "log").read_text()


@pytest.mark.parametrize("name", ["replay", "learner"])
def test_a_service_whose_log_is_on_a_full_disk_serves_counts_lost_lines_and_stops_in_order(
    disk: Path, name: str
) -> None:
    port, metrics_port = free_ports(2)
    address, log = f"127.0.0.1:{port}", disk / "log"
    own = {"replay": f"--replay.folder={disk / 'store'}", "learner": f"--run-dir={disk / 'run'}"}[name]
    options = [own, f"--{name}.listen={address}", f"--{name}.metrics-port={metrics_port}"]
    size = ["--replay.capacity-bytes=8000000"] if name == "replay" else []
    program = ["sh", "-c", f'exec "$@" 2>> {log}', "sh", PENSTOCK]
    with Command(name, *options, *size, program=program) as command:
        command.until(lambda: is_serving(address, 5.0), "the service to be ready")
        make_full_with(log)
        command.until(lambda: gauge(metrics_port, "penstock_lost_log_lines_total") > 0, "a lost line")
        assert is_serving(address, PATIENCE_S)
        make_full(disk, False)
        command.until(lambda: "log lines lost here: " in log.read_text(), "the number of lost lines")
        command.terminate()
        assert end_in_time(command).code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    "command",
    [
        "certificates {disk}/run",
        "plot {run} --output {disk}/curve.png",
        "evaluate {run} --episodes 1 --output {disk}/film.mp4",
        "launch slurm --env-id CartPole-v1 --run-dir {disk}/run",
    ],
    ids=lambda command: command.partition(" ")[0],
)
def test_commands_name_a_full_disk_in_one_line(command: str, disk: Path, ended_run: EndedRun) -> None:
    make_full(disk, True)
    ended = run(*command.format(disk=disk, run=ended_run.folder).split())
    assert ended.code == 2, ended
    (line,) = ended.stderr.splitlines()
    assert re.search(rf"{FULL} \(the file system {disk} has [\d,]+ bytes free\); free space there", line), line
    assert [path.name for path in disk.rglob("*") if path.is_file()] == ["ballast"]
