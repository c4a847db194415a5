"""The containers that each engine's files describe, in one form, so that tests can compare them.

An engine is a function in `ENGINES` that returns a `Container` for every service. Files are read as without variables
of the shell and without .env; the run has the name that Compose gives it by default.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from penstock.cli.options import parse
from penstock.config import Config
from tests.deploy import manifests

ROOT = Path(__file__).parents[2]
SERVICES = ("replay", "learner", "actor", "evaluator")
RUN = "cartpole"
CERTIFICATES = "/etc/penstock"
"""Folder of a container in which its certificate, its key and the authority are."""
_STACK_NAME = '{{index .Service.Labels "com.docker.stack.namespace"}}'
_UNITS = {"g": 2**30, "m": 2**20, "s": 1}


@dataclass(frozen=True, slots=True)
class Container:
    """One service's container.

    Attributes:
        engine: Key of `ENGINES`.
        service: Name of the service.
        host: Name by which the others reach it.
        image: Name of the image without registry and tag.
        arguments: Arguments of the image's entry point; the first is the command.
        environment: Environment variables.
        probe: Command of the health check, for a shell; empty if gRPC's health service is asked.
        volumes: Name of the volume by path, with ":ro" if it can't be written, without that of the certificate.
        certificate: Name of what has the certificate that it mounts.
        memory_bytes: Limit of its memory.
        grace_s: Seconds from SIGTERM to SIGKILL.
        user: User and group.
        read_only: Whether its root file system is read-only.
        dropped: Capabilities that it does not have.
        published: Ports that can be reached from outside of the engine's network.
    """

    engine: str
    service: str
    host: str
    image: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    probe: str
    volumes: Mapping[str, str]
    certificate: str
    memory_bytes: int
    grace_s: float
    user: str
    read_only: bool
    dropped: tuple[str, ...]
    published: tuple[str, ...]

    @property
    def config(self) -> Config:
        """Settings with which the service starts. Raises `ConfigurationError` if it would refuse them."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        with mock.patch.dict(os.environ, {**others, **self.environment}, clear=True):
            command, *options = self.arguments
            return parse(f"penstock {command}", "", options, trains=False).config

    def __str__(self) -> str:
        return f"{self.engine}-{self.service}"


def interpolated(path: str) -> Any:
    """Reads a YAML file as Docker does without variables. Defaults may be nested once."""
    text = (ROOT / path).read_text().replace("!reset null", "null")
    for _ in range(2):
        text = re.sub(r"\$\{\w+:?[-?]([^{}]*)\}", r"\1", text)
    return yaml.safe_load(text)


def compose() -> dict[str, Container]:
    """Returns the containers of docker-compose.yml."""
    services = interpolated("docker-compose.yml")["services"]
    return {
        name: _container(
            "compose",
            name,
            services[name],
            environment=services[name]["environment"],
            memory=services[name]["mem_limit"],
        )
        for name in SERVICES
    }


def swarm() -> dict[str, Container]:
    """Returns the containers of deploy/swarm/stack.yml."""
    services = interpolated("deploy/swarm/stack.yml")["services"]
    containers = {}
    for name in SERVICES:
        definition = services[name]
        environment: dict[str, str] = {}
        for file in definition["env_file"]:
            lines = (ROOT / "deploy/swarm" / file).read_text().splitlines()
            environment |= dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        environment |= definition["environment"]
        containers[name] = _container(
            "swarm",
            name,
            definition,
            environment={key: str(value).replace(_STACK_NAME, RUN) for key, value in environment.items()},
            memory=definition["deploy"]["resources"]["limits"]["memory"],
        )
    return containers


def kubernetes() -> dict[str, Container]:
    """Returns the containers of deploy/kubernetes."""
    objects = manifests.rendered()
    found = {pod.component: pod for pod in manifests.pods(objects)}
    return {name: _of_pod(name, found[name], objects) for name in SERVICES}


ENGINES: dict[str, Callable[[], dict[str, Container]]] = {
    "compose": compose,
    "swarm": swarm,
    "kubernetes": kubernetes,
}
"""By name; the first is the one to which others are compared."""


def amount(text: str) -> int:
    """Parses a size such as 2g, in bytes, or a duration such as 30s, in seconds."""
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def _container(
    engine: str, name: str, definition: dict[str, Any], *, environment: Mapping[str, object], memory: str
) -> Container:
    kind, probe = definition["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    volumes = dict(_volume(each) for each in definition.get("volumes", ()) if isinstance(each, str))
    return Container(
        engine=engine,
        service=name,
        host=name,
        image=definition["image"].rpartition("/")[2].partition(":")[0],
        arguments=tuple(definition["command"]),
        environment={key: str(value) for key, value in environment.items()},
        probe=probe.replace("$$", "$"),
        certificate=volumes.pop(CERTIFICATES, ""),
        volumes=volumes,
        memory_bytes=amount(memory),
        grace_s=amount(definition["stop_grace_period"]),
        user=definition["user"],
        read_only=definition["read_only"],
        dropped=tuple(definition["cap_drop"]),
        published=tuple(map(str, definition.get("ports", ()))),
    )


def _of_pod(name: str, pod: manifests.Pod, objects: list[manifests.Object]) -> Container:
    container = pod.container
    claims = {volume["name"]: volume for volume in pod.spec["volumes"] if "persistentVolumeClaim" in volume}
    volumes = {
        mount["mountPath"]: mount["name"]
        for mount in container["volumeMounts"]
        if mount["name"] in claims.keys() | pod.claims.keys()
    }
    held = {volume["name"]: volume["secret"]["secretName"] for volume in pod.spec["volumes"] if "secret" in volume}
    secrets = {
        mount["mountPath"]: held[mount["name"]] + (":ro" if mount.get("readOnly") else "")
        for mount in container["volumeMounts"]
        if mount["name"] in held
    }
    return Container(
        engine="kubernetes",
        service=name,
        host=pod.hostnames[0] if pod.hostnames else pod.name,
        image=container["image"].rpartition("/")[2].partition(":")[0],
        arguments=tuple(manifests.arguments(pod, objects)),
        environment=manifests.environment(pod, objects),
        probe="",
        volumes=volumes,
        certificate=secrets.get(CERTIFICATES, ""),
        memory_bytes=manifests.size(container["resources"]["limits"]["memory"]),
        grace_s=pod.spec["terminationGracePeriodSeconds"],
        user=f"{pod.spec['securityContext']['runAsUser']}:{pod.spec['securityContext']['runAsGroup']}",
        read_only=container["securityContext"]["readOnlyRootFilesystem"],
        dropped=tuple(container["securityContext"]["capabilities"]["drop"]),
        published=tuple(str(port["hostPort"]) for port in container["ports"] if "hostPort" in port),
    )


def _volume(text: str) -> tuple[str, str]:
    name, path, *options = text.split(":")
    return path, ":".join([name, *options])
