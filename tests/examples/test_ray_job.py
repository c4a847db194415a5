"""The example of a Ray job on a cluster of one node. It needs Ray: `pip install ray`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.runs.summary import Summary
from tests.support.machine.timing import start_patience_s, wait_for_run
from tests.support.services.processes import ROOT, WITH_HELPERS

pytest.importorskip("ray", reason="Ray is not installed")

ACTORS = 2


@contextmanager
def job(folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Submits the example to a Ray cluster that it starts itself, on loopback."""
    words = ["--actors", str(ACTORS), "--run-dir", str(folder), "--preset", "cartpole", *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "ray_job.py"), *words],
            env={**kept, **WITH_HELPERS, "RAY_NODE_IP_ADDRESS": "127.0.0.1", "RAY_USAGE_STATS_ENABLED": "0"},
            cwd=folder.parent,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        members = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        process.wait(start_patience_s())
        for member in members:
            if member.is_running():
                member.kill()


def actors_of(process: "subprocess.Popen[bytes]") -> Sequence[psutil.Process]:
    """Returns the running actors of the job."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if child.cmdline()[1:4] == ["-m", "penstock", "actor"]:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_run_trains_on_ray_and_all_its_processes_end(tmp_path: Path) -> None:
    with job(tmp_path / "run", "--run.total-steps=5000") as process:
        assert process.wait(start_patience_s()) == 0, (tmp_path / "run.log").read_text()
    assert Summary.read(tmp_path / "run/summary.json").env_steps >= 5_000


def test_ray_replaces_a_killed_actor(tmp_path: Path) -> None:
    with job(
        tmp_path / "run",
        "--run.total-steps=1000000000",
        "--env-id=Paced-v0",
        "--env-import=tests.support.environments.paced",
    ) as run:
        first = wait_for_run(lambda: [*found] if len(found := actors_of(run)) == ACTORS else None, "all actors run")
        os.kill(first[0].pid, signal.SIGKILL)
        known = {process.pid for process in first}
        wait_for_run(
            lambda: len(now := {process.pid for process in actors_of(run)}) == ACTORS and now != known,
            "another actor takes its place",
        )
