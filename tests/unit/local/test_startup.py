"""The states of the services of a run that starts, with real processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.children import Children, service_command
from penstock.local.startup import Startup
from penstock.local.template import Template
from penstock.types.status import RunStatus
from tests.support.machine.timing import wait_for_run
from tests.support.services.ports import free_ports

BEGINNING = RunStatus(environment_id="A-v0")


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    with Template() as template:
        wait_for_run(lambda: not template.pending, "the imports")
        yield template


def serving(children: Children, names: list[str], folder: Path) -> dict[str, str]:
    """Starts a service that becomes ready under each name; returns their addresses."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    for name, address in addresses.items():
        command = service_command("replay", f"--replay.listen={address}", "--replay.metrics-port=0")
        children.add(name, command, folder / name)
    return addresses


def test_the_states_are_those_of_the_processes(template: Template, tmp_path: Path) -> None:
    startup = Startup(BEGINNING, template, replays=1, actors=2)
    status = startup.status("checking")
    assert (status.phase, status.environment_id) == ("checking", "A-v0")
    assert status.waiting_for == "replay loaded · learner loaded · actors 0/2 · evaluator loaded"
    with Children(9, template) as children:
        startup.started(children, serving(children, ["replay", "learner", "evaluator"], tmp_path))
        assert startup.status().waiting_for == "replay starting · learner starting · actors 0/2 · evaluator starting"
        wait_for_run(lambda: not startup.look(), "all services")
        unchanged_s = startup.unchanged_s
        assert unchanged_s > 0.0
        assert startup.status().waiting_for == "replay ready · learner ready · actors 0/2 · evaluator ready"
        assert startup.unchanged_s < unchanged_s

        evaluator = children.find("evaluator")
        assert evaluator.group is not None
        os.killpg(evaluator.group.pid, signal.SIGKILL)
        wait_for_run(lambda: evaluator.exit_code is not None, "its end")
        assert startup.status().waiting_for.endswith("evaluator ended")
        children.revive()
        # What the former process said does not hold for its successor.
        assert startup.status().waiting_for.endswith("evaluator starting")
        wait_for_run(lambda: not startup.look(), "its successor")
        assert startup.status().waiting_for.endswith("evaluator ready")

        for learner, said in {
            RunStatus(environment_id="A-v0", actors=1, waiting_for="actors"): "learner waiting for actors · actors 1/2",
            RunStatus(environment_id="A-v0", actors=2): "learner ready · actors 2/2",
            RunStatus("training", "A-v0", actors=2): "learner training its first batch · actors 2/2",
            RunStatus("evaluating", "A-v0", actors=2): "learner evaluating · actors 2/2",
        }.items():
            assert said in startup.status(learner=learner).waiting_for


def test_several_replay_services_are_counted(template: Template, tmp_path: Path) -> None:
    startup = Startup(BEGINNING, template, replays=2, actors=1)
    assert startup.status().waiting_for.startswith("replay 0/2 · ")
    with Children(9, template) as children:
        startup.started(children, serving(children, ["replay-0", "replay-1", "learner"], tmp_path))
        wait_for_run(lambda: not startup.look(), "all services")
        assert startup.status().waiting_for.startswith("replay 2/2 · ")


@pytest.mark.nightly
def test_services_that_are_commands_of_their_own_are_not_loaded_before() -> None:
    with Template() as lost:
        lost._lose()
        startup = Startup(BEGINNING, lost, replays=1, actors=2)
        assert (
            startup.status().waiting_for
            == "replay not started · learner not started · actors 0/2 · evaluator not started"
        )
