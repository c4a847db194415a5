"""The scripts of SkyPilot's task files, run on this machine as SkyPilot runs them on others."""

import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.runs.summary import Summary
from tests.support.machine.timing import start_patience_s, wait_for_run
from tests.support.services.ports import free_ports
from tests.support.services.processes import PENSTOCK, ROOT

EXAMPLES = ROOT / "examples" / "skypilot"
OPTIONS = (
    # An actor that starts after the end of the run would wait for another learner.
    "--preset cartpole --train.actors 2 --train.await-actors all --run.total-steps 3000 --evaluation.episodes 2"
    " --replay.metrics-port 0 --learner.metrics-port 0"
)


PORTS = ("7431", "7432")


def task(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return loaded


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Returns the variables of a machine on which `setup` has run, with two cores and the address 127.0.0.1."""
    (tmp_path / "home/penstock").mkdir(parents=True)
    (tmp_path / "home/penstock/bin").symlink_to(Path(PENSTOCK).parent)
    (tmp_path / "bin").mkdir()
    for command, output in {"hostname": "127.0.0.1 10.0.0.7", "nproc": "2"}.items():
        (tmp_path / "bin" / command).write_text(f"#!/bin/sh\necho {output}\n")
        (tmp_path / "bin" / command).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    return {**kept, "HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.nightly
def test_actors_find_the_services_and_all_tasks_end_when_the_run_is_over(
    machine: dict[str, str], tmp_path: Path
) -> None:
    log, ports = tmp_path / "services.log", dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    with ExitStack() as stack, log.open("wb") as output:

        def started(name: str, **variables: str) -> "subprocess.Popen[bytes]":
            script = task(name)["run"]
            for usual, free in ports.items():
                script = script.replace(usual, str(free))
            process = subprocess.Popen(
                ["bash", "-c", script],
                env={**machine, "OPTIONS": OPTIONS, **variables},
                cwd=tmp_path,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            stack.callback(_kill_group, process.pid)
            return process

        services = started("services")
        (address,) = wait_for_run(lambda: re.findall(r"LEARNER=(\S+)", log.read_text()), "the learner's address")
        actors = started("actors", LEARNER=address)
        assert (services.wait(start_patience_s()), actors.wait(start_patience_s())) == (0, 0), log.read_text()
    assert Summary.read(tmp_path / "home/run/summary.json").env_steps >= 3_000


@pytest.mark.parametrize("name", ["services", "actors"])
def test_a_task_declares_the_variables_that_its_script_uses(name: str) -> None:
    used = set(re.findall(r"\$([A-Z]+)", task(name)["run"])) - {"HOME"}
    assert used == set(task(name)["envs"])


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, 9)
    except ProcessLookupError:
        return
    time.sleep(0.1)
