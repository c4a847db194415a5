"""A run of which the learner alone has torch, as with the image of actors: its services and commands need none."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import BY_SIGNAL, USAGE_ERROR
from penstock.runs.folder import RunFolder
from tests.integration.test_services import HOST
from tests.support.machine.hidden_packages import hiding
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, Ended, end_in_time, end_of, run

pytestmark = pytest.mark.nightly

SETTINGS = """
[environment]
id = "CartPole-v1"
[run]
total_steps = 1_000_000_000
[evaluation]
interval_steps = 4096
episodes = 2
[replay]
capacity_bytes = 3_000_000
"""
IMAGE = "set PENSTOCK_TORCH=yes in .env, then docker compose build and docker compose up -d"


@dataclass(frozen=True, slots=True)
class WithoutTorch:
    """A run that has ended, and what ran without torch.

    Attributes:
        folder: The run's folder.
        variables: Environment variables with which torch is not found.
        options: Options of its services.
        during: Results of commands during the run.
        services: Results of the services without torch, after a signal.
    """

    folder: Path
    variables: dict[str, str]
    options: list[str]
    during: dict[str, Ended]
    services: dict[str, Ended]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutTorch]:
    """Trains with services of which the learner alone has torch, until both other kinds have worked."""
    place = tmp_path_factory.mktemp("without_torch")
    folder, file, variables = place / "run", place / "settings.toml", hiding(place, "torch")
    replay, learner = (f"{HOST}:{port}" for port in free_ports(2))
    file.write_text(SETTINGS)
    common = [f"--config={file}", f"--run-dir={folder}"]
    options = {
        "replay": [f"--replay.listen={replay}", f"--replay.snapshot-folder={folder / 'snapshots'}"],
        "learner": [f"--learner.listen={learner}", f"--learner.replay-addresses={replay}"],
        "actor": [f"--actor.listen={HOST}:0", f"--actor.learner-address={learner}"],
        "evaluator": [f"--evaluation.listen={HOST}:0", f"--evaluation.learner-address={learner}"],
    }
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                Command(
                    name,
                    *common,
                    *given,
                    f"--{'evaluation' if name == 'evaluator' else name}.metrics-port=auto",
                    environment={} if name == "learner" else variables,
                )
            )
            for name, given in options.items()
        }
        started["learner"].until(RunFolder(folder).best_checkpoint.exists, "an evaluated policy")
        commands = {
            "status": ["status", str(folder)],
            "snapshot": ["replay", "snapshot", "--run-dir", str(folder), "one"],
            "snapshots": ["replay", "snapshots", "--run-dir", str(folder)],
        }
        during = {name: run(*words, environment=variables) for name, words in commands.items()}
        for command in started.values():
            command.until(lambda: True, "the signal")
            command.process.send_signal(signal.SIGTERM)
        ends = {name: end_in_time(command) for name, command in started.items()}
        del ends["learner"]
    yield WithoutTorch(folder, variables, common, during, ends)


@pytest.mark.parametrize("service", ["replay", "actor", "evaluator"])
def test_a_service_with_a_small_policy_needs_no_torch(ended: WithoutTorch, service: str) -> None:
    end = ended.services[service]
    assert end.code == BY_SIGNAL + signal.SIGTERM, end.stderr
    assert "torch" not in end.stderr


@pytest.mark.parametrize("command", ["status", "snapshot", "snapshots"])
def test_a_command_during_the_run_needs_no_torch(ended: WithoutTorch, command: str) -> None:
    assert (ended.during[command].code, ended.during[command].stderr) == (0, "")


def test_commands_after_the_run_need_no_torch(ended: WithoutTorch, tmp_path: Path) -> None:
    for words in (
        ["evaluate", str(ended.folder), "--episodes=1"],
        ["replay", "restore", "one", "--run-dir", str(ended.folder), "--into", str(tmp_path / "restored")],
        ["certificates", str(tmp_path / "certificates")],
        ["status", str(ended.folder)],
    ):
        end = run(*words, environment=ended.variables)
        assert (end.code, end.stderr) == (0, ""), (words, end.stderr)


def test_doctor_says_that_it_did_not_look_for_a_gpu(ended: WithoutTorch) -> None:
    lines = run("doctor", *ended.options, environment=ended.variables).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("-   GPU"))
    assert line.endswith("torch, which a learner needs, is not installed")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--policy.memory=lstm"], "policy.memory is 'lstm'"),
        (["--policy.hidden-sizes=1024,1024"], "the network has 1,056,770 weights, more than 300,000"),
        (["--actor.inference=torch"], "actor.inference is torch"),
    ],
)
def test_an_actor_that_needs_torch_says_why_and_what_to_set(tmp_path: Path, options: list[str], reason: str) -> None:
    """The learner has torch and waits for the actor, whose container would start again and again."""
    replay, learner = (f"{HOST}:{port}" for port in free_ports(2))
    common = ["--env-id=CartPole-v1", "--preset=none", f"--run-dir={tmp_path / 'run'}", *options]
    given = {
        "replay": [f"--replay.listen={replay}", "--replay.metrics-port=auto"],
        "learner": [
            f"--learner.listen={learner}",
            f"--learner.replay-addresses={replay}",
            "--learner.metrics-port=auto",
        ],
    }
    with ExitStack() as stack:
        started = [stack.enter_context(Command(name, *common, *own)) for name, own in given.items()]
        variables = hiding(tmp_path, "torch") | {"PENSTOCK_INSTALLATION": "compose"}
        actor = stack.enter_context(
            Command(
                "actor",
                *common,
                f"--actor.listen={HOST}:0",
                f"--actor.learner-address={learner}",
                "--actor.metrics-port=auto",
                environment=variables,
            )
        )
        started[1].until(lambda: actor.process.poll() is not None, "the actor to end")
        end = end_of(actor)
    assert end.code == USAGE_ERROR
    assert end.stderr.splitlines()[-1].startswith(
        f"penstock: the policy of this run ({reason}) needs torch; {IMAGE}"
    ), end.stderr


def test_a_learner_without_torch_says_what_to_set(tmp_path: Path) -> None:
    variables = hiding(tmp_path, "torch") | {"PENSTOCK_INSTALLATION": "compose"}
    end = run("learner", f"--run-dir={tmp_path / 'run'}", environment=variables)
    assert end.code == USAGE_ERROR
    assert end.stderr.startswith(f"penstock: this command needs torch; {IMAGE}") and end.stderr.count("\n") == 1
