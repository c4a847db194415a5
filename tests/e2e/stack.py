"""The stack of docker-compose.yml as its operator sees it: `docker compose`, `docker`, and what services answer."""

import http.client
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.config import Config
from penstock.rpc.health import is_serving

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "replay": Config().replay,
    "learner": Config().learner,
    "actor": Config().actor,
    "evaluator": Config().evaluation,
}
"""By which docker-compose.yml's ports go, as tests/deploy holds."""
COMMAND_S = 3600.0
"""Limit of one command, of which the longest builds an image from nothing. Only a drill that fails waits that long."""
ANSWER_S = 10.0
"""Limit of one answer. A service that needs longer is asked again."""


class Failure(Exception):
    """Something did not come about, or a command failed; the text says what."""


def command(*arguments: str, environment: Mapping[str, str] | None = None, with_errors: bool = False) -> str:
    """What a command writes to its standard output. Raises `Failure` with all that it wrote, if it fails."""
    # What whoever calls has set for runs of theirs is not for this one.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK", "COMPOSE_"))}
    try:
        ended = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**own, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.PIPE,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise Failure(str(expired)) from None
    if ended.returncode:
        raise Failure(f"`{' '.join(arguments)}` ended with {ended.returncode}:\n{ended.stdout}{ended.stderr or ''}")
    return ended.stdout


class Metrics:
    """What one service's metrics were at one moment."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a metric over all labels but those given."""
        return sum(
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass(frozen=True, slots=True)
class Container:
    """A replica of a service, where it was when somebody looked.

    Attributes:
        id: Of the container; stays over restarts.
        address: Its IP address; empty while it does not run.
        started_at: When its process was started, as Docker writes it; another one after each restart.
    """

    service: str
    id: str
    address: str
    started_at: str

    def metrics(self) -> Metrics | None:
        """None while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{SECTIONS[self.service].metrics_port}/metrics", timeout=ANSWER_S
            ) as answer:
                return Metrics(answer.read().decode())
        except (OSError, ValueError, http.client.HTTPException):
            return None

    @property
    def ready(self) -> bool:
        """Whether it says of itself, by gRPC, that it is."""
        port = SECTIONS[self.service].listen.rpartition(":")[2]
        return bool(self.address) and is_serving(f"{self.address}:{port}", ANSWER_S)


class Stack:
    """One project of `docker compose`."""

    def __init__(self, project: str, files: tuple[str, ...], environment: Mapping[str, str]) -> None:
        # What this folder's .env says is for its owner's runs.
        self._command = ("docker", "compose", "--env-file=/dev/null", *(f"--file={file}" for file in files))
        self._environment = {**environment, "COMPOSE_PROJECT_NAME": project}

    def compose(self, *arguments: str, with_errors: bool = False) -> str:
        """What `docker compose` writes. Raises `Failure` if it fails."""
        return command(*self._command, *arguments, environment=self._environment, with_errors=with_errors)

    def up(self, *, actors: int) -> None:
        """As an operator does it, whether anything runs already or not."""
        self.compose("up", "--detach", "--no-build", f"--scale=actor={actors}")

    def containers(self, service: str) -> list[Container]:
        """The replicas that there are, running or not."""
        ids = self.compose("ps", "--all", "--quiet", service).split()
        return [_container(service, found) for found in json.loads(command("docker", "inspect", *ids))] if ids else []

    def one(self, service: str) -> Container:
        """The first replica. Raises `Failure` if there is none."""
        containers = self.containers(service)
        if not containers:
            raise Failure(f"{service} has no container")
        return containers[0]

    def prometheus(self) -> str:
        """Where it answers on this machine."""
        return "http://" + self.compose("port", "prometheus", "9090").strip()

    def events(self, service: str, event: str) -> list[dict[str, Any]]:
        """What a service logged under this name, oldest first."""
        lines = command("docker", "logs", self.one(service).id, with_errors=True).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in found if entry.get("event") == event]


def look_again(container: Container) -> Container:
    """The same replica as it is now."""
    return _container(container.service, json.loads(command("docker", "inspect", container.id))[0])


def _container(service: str, found: dict[str, Any]) -> Container:
    networks = found["NetworkSettings"]["Networks"].values()
    address = next((network["IPAddress"] for network in networks), "")
    return Container(service, found["Id"], address, found["State"]["StartedAt"])
