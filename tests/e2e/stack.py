"""The stack of docker-compose.yml as its operator sees it: `docker compose`, `docker`, and the answers of services."""

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

import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
_SCRAPED = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
METRICS_PORTS: dict[str, int] = {
    job["job_name"]: job["dns_sd_configs"][0]["port"] for job in _SCRAPED if "dns_sd_configs" in job
}
"""Ports of the services' metrics, at which tests/deploy checks that they serve."""
COMMAND_S = 3600.0
"""Limit of one command in seconds; the longest builds an image from nothing. Only a failing drill waits that long."""
ANSWER_S = 10.0
"""Limit of one answer in seconds. A service that needs longer is asked again."""


class Failure(Exception):
    """An expected change did not occur, or a command failed."""


def command(*arguments: str, environment: Mapping[str, str] | None = None, with_errors: bool = False) -> str:
    """Returns the standard output of a command. Raises `Failure` with all output if it fails."""
    # Settings of the caller's environment do not apply to this stack.
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
    """Metrics of one service at one moment."""

    def __init__(self, text: str) -> None:
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def sum(self, name: str, **labels: str) -> float:
        """Returns the sum of a metric over all labels except the given ones."""
        return sum(
            sample.value for sample in self._samples if sample.name == name and labels.items() <= sample.labels.items()
        )


@dataclass(frozen=True, slots=True)
class Container:
    """A replica of a service at the time of its inspection.

    Attributes:
        service: Name of the service.
        id: Id of the container, which is unchanged by restarts.
        address: IP address; empty while it does not run.
        started_at: Start time of its process as Docker writes it, which every restart changes.
        exit_code: Exit code of its last process; 0 while it runs.
        check: Shell command of its health check.
    """

    service: str
    id: str
    address: str
    started_at: str
    exit_code: int
    check: str

    def metrics(self) -> Metrics | None:
        """Returns the metrics; None while the service does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://{self.address}:{METRICS_PORTS[self.service]}/metrics", timeout=ANSWER_S
            ) as answer:
                return Metrics(answer.read().decode())
        except (OSError, ValueError, http.client.HTTPException):
            return None

    @property
    def ready(self) -> bool:
        """Whether the container passes its health check now."""
        try:
            command("docker", "exec", self.id, "sh", "-c", self.check)
        except Failure:
            return False
        return True


class Stack:
    """One project of `docker compose`."""

    def __init__(self, project: str, files: tuple[str, ...], environment: Mapping[str, str]) -> None:
        # The .env of this folder does not apply to this stack.
        self._command = ("docker", "compose", "--env-file=/dev/null", *(f"--file={file}" for file in files))
        self._environment = {**environment, "COMPOSE_PROJECT_NAME": project}

    def compose(self, *arguments: str, with_errors: bool = False) -> str:
        """Returns the output of `docker compose`. Raises `Failure` if it fails."""
        return command(*self._command, *arguments, environment=self._environment, with_errors=with_errors)

    def up(self, *, actors: int) -> None:
        """Runs `docker compose up`, also for a running stack."""
        self.compose("up", "--detach", "--no-build", f"--scale=actor={actors}")

    def containers(self, service: str) -> list[Container]:
        """Returns the existing replicas, running or not."""
        ids = self.compose("ps", "--all", "--quiet", service).split()
        return [_container(service, found) for found in json.loads(command("docker", "inspect", *ids))] if ids else []

    def one(self, service: str) -> Container:
        """Returns the first replica. Raises `Failure` if there is none."""
        containers = self.containers(service)
        if not containers:
            raise Failure(f"{service} has no container")
        return containers[0]

    def prometheus(self) -> str:
        """Returns the URL of Prometheus on this machine."""
        return "http://" + self.compose("port", "prometheus", "9090").strip()

    def events(self, service: str, event: str) -> list[dict[str, Any]]:
        """Returns a service's log entries of this name, oldest first."""
        lines = command("docker", "logs", self.one(service).id, with_errors=True).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in found if entry.get("event") == event]

    def traces(self, service: str) -> bool:
        """Returns whether the log of a replica has a traceback."""
        logs = (command("docker", "logs", each.id, with_errors=True) for each in self.containers(service))
        return any("Traceback (most recent call last)" in log for log in logs)


def look_again(container: Container) -> Container:
    """Inspects the same replica again."""
    return _container(container.service, json.loads(command("docker", "inspect", container.id))[0])


def _container(service: str, found: dict[str, Any]) -> Container:
    networks = found["NetworkSettings"]["Networks"].values()
    address = next((network["IPAddress"] for network in networks), "")
    state, (_, check) = found["State"], found["Config"]["Healthcheck"]["Test"]
    return Container(service, found["Id"], address, state["StartedAt"], state["ExitCode"], check)
