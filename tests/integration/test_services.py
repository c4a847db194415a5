"""Each service alone, as in a container: its configuration, health, metrics, logs and end."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import BY_SIGNAL
from penstock.rpc.health import is_serving
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, Ended, end_in_time, listening, run

SERVICES = ("replay", "learner", "actor", "evaluator")
PEERS = {"learner": "replay_addresses", "actor": "learner_address", "evaluator": "learner_address"}
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Alone:
    """Observations of a service that ran alone.

    Attributes:
        serving: Whether it reported that it serves.
        metrics: Response of its metrics port.
        end: Its result after a signal.
        stopped_by: Name of the signal that stopped the service.
        ports: Its ports.
        others: Ports of overridden settings on which it listens nevertheless.
    """

    serving: bool
    metrics: str
    end: Ended
    stopped_by: str
    ports: set[int]
    others: set[int]


def start(stack: ExitStack, place: Path, service: str, ports: list[int]) -> Command:
    """Starts a service. Option, variable and file each set a port that no overriding source sets."""
    grpc, metrics, other_grpc, other_metrics, missing_peer = ports
    section = "evaluation" if service == "evaluator" else service
    settings = [f"[{section}]", f'listen = "{HOST}:{other_grpc}"', f"metrics_port = {other_metrics}"]
    settings.append(f'{PEERS[service]} = "{HOST}:{missing_peer}"' if service in PEERS else "capacity_bytes = 3_000_000")
    file = place / f"{service}.toml"
    file.write_text("\n".join(settings))
    variables = {
        f"PENSTOCK__{section.upper()}__LISTEN": f"{HOST}:{other_grpc}",
        f"PENSTOCK__{section.upper()}__METRICS_PORT": str(metrics),
    }
    options = [f"--config={file}", f"--run-dir={place / service}", f"--{section}.listen={HOST}:{grpc}"]
    return stack.enter_context(Command(service, *options, environment=variables, directory=place))


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=PATIENCE_S) as response:
        return str(response.read().decode())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Alone]]:
    """Runs every service without the others, at the same time."""
    place, seen = tmp_path_factory.mktemp("alone"), {}
    ports = free_ports(5 * len(SERVICES))
    with ExitStack() as stack:
        started = {}
        for index, service in enumerate(SERVICES):
            started[service] = start(stack, place, service, ports[5 * index : 5 * index + 5])
        for index, (service, command) in enumerate(started.items()):
            grpc, metrics, *others = ports[5 * index : 5 * index + 5]
            serving = command.until(partial(is_serving, f"{HOST}:{grpc}", 5.0), "the service to be ready")
            text = fetch(metrics)
            taken = listening(set(others))
            # One receives a terminal's signal, the others that of a container runtime.
            number = signal.SIGINT if service == "evaluator" else signal.SIGTERM
            command.process.send_signal(number)
            seen[service] = Alone(serving, text, end_in_time(command), number.name, {grpc, metrics}, taken)
    yield seen


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_alone_reports_that_it_is_serving(alone: dict[str, Alone], service: str) -> None:
    assert alone[service].serving


@pytest.mark.parametrize(
    ("service", "metric"),
    [
        ("replay", "penstock_replay_segments"),
        ("replay", "grpc_server_handled_total"),
        ("learner", "penstock_learner_policy_version"),
        ("actor", "penstock_actor_environment_steps_total"),
        ("evaluator", "penstock_evaluator_seconds_total"),
    ],
)
def test_a_service_exposes_its_metrics_over_http(alone: dict[str, Alone], service: str, metric: str) -> None:
    assert f"# TYPE {metric} " in alone[service].metrics


@pytest.mark.parametrize("service", SERVICES)
def test_options_override_variables_and_variables_override_the_file(alone: dict[str, Alone], service: str) -> None:
    assert alone[service].serving and alone[service].metrics
    assert alone[service].others == set()


def test_the_file_overrides_the_defaults(alone: dict[str, Alone]) -> None:
    (serving,) = [event for event in events_of(alone["replay"]) if event["event"] == "serving"]
    assert serving["capacity_bytes"] == 3_000_000


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_stops_in_time_after_a_signal(alone: dict[str, Alone], service: str) -> None:
    end = alone[service].end
    # Code 0 would say that the run is done.
    assert end.code == BY_SIGNAL + signal.Signals[alone[service].stopped_by], end.stderr
    assert end.left_behind == []
    assert listening(alone[service].ports) == set()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_logs_only_one_json_object_per_line(alone: dict[str, Alone], service: str) -> None:
    events = events_of(alone[service])
    assert {event["service"] for event in events} == {service}
    assert all({"event", "level", "timestamp"} <= set(event) for event in events)
    assert events[-1]["event"] == "stopped"
    assert events[-1]["stopped_by"] == alone[service].stopped_by
    assert alone[service].end.stdout == ""


@pytest.mark.nightly
@pytest.mark.parametrize("service", ["actor", "evaluator"])
def test_a_service_logs_the_peer_that_it_waits_for(service: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        *_, missing_peer = ports = free_ports(5)
        command = start(stack, tmp_path, service, ports)
        command.until(lambda: f":{missing_peer} can't be reached" in command.stderr, "the log of the missing peer")


@pytest.mark.nightly
def test_a_learner_service_lists_its_address_in_the_runs_folder_while_it_serves(tmp_path: Path) -> None:
    listed = tmp_path / "learner" / "services.json"
    with ExitStack() as stack:
        grpc, *_, missing_peer = ports = free_ports(5)
        command = start(stack, tmp_path, "learner", ports)
        command.until(listed.exists, "the list of addresses")
        addresses = json.loads(listed.read_text())
        assert int(addresses.pop("identity"), 16) > 0
        assert addresses == {"replay": f"{HOST}:{missing_peer}", "learner": f"{HOST}:{grpc}"}
        status = run("status", str(listed.parent))
        assert status.code == 0, status.stderr
        command.process.send_signal(signal.SIGTERM)
        assert end_in_time(command).code == BY_SIGNAL + signal.SIGTERM
    assert not listed.exists()


def test_status_of_a_learner_that_starts_says_that_it_is_not_listening_yet() -> None:
    (port,) = free_ports(1)
    status = run("status", f"{HOST}:{port}")
    reason = f"the learner at {HOST}:{port} can't be reached: it is not listening yet, or it has ended; see its log"
    assert status.stderr == f"penstock: {reason}\n"


def test_health_reports_a_missing_service_as_not_serving(alone: dict[str, Alone]) -> None:
    (port, *_) = alone["replay"].ports
    end = run("health", f"{HOST}:{port}")
    assert (end.code, end.stdout, end.stderr) == (1, "not serving\n", "")


def events_of(seen: Alone) -> list[dict[str, object]]:
    return [json.loads(line) for line in seen.end.stderr.splitlines()]
