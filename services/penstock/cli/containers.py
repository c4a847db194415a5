"""Checks whether this machine can run docker-compose.yml: engine, Compose, NVIDIA's toolkit, published ports."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import setting_names
from penstock.errors import ConfigurationError
from penstock.local.variables import SETTING_PREFIX, check_variable, meant_by
from penstock.machine.addresses import port_refusal

_TIMEOUT_S = 20.0
_NO_ANSWER = 127
_LEAST_COMPOSE = (2, 24)
"""Oldest version with `!reset`, as in compose.cpu.yaml."""

_HOOK = "nvidia-container-runtime-hook"
"""Program on the engine's path that provides the device driver "nvidia", which docker-compose.yml requests."""

COMPOSE_FILE, VARIABLES_FILE = "docker-compose.yml", ".env"
PUBLISHED = (("PROMETHEUS_PORT", "9090-9099"), ("GRAFANA_PORT", "3000-3009"))
"""Variable and default of each host port that docker-compose.yml publishes: a number, or a range to choose from."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of `penstock doctor`: its subject, and the result and remedy in one line.

    `fit` is whether the check passed; None if the subject is missing and may not be needed, or can't be examined.
    """

    subject: str
    fit: bool | None
    detail: str


def check_containers(folder: Path) -> Iterator[Finding]:
    """Yields a finding for each requirement of docker-compose.yml, which would be started from `folder`."""
    try:
        info = json.loads(_docker("info", "--format", "{{json .}}").stdout)
    except json.JSONDecodeError:
        yield Finding("Docker", None, "`penstock train` does not need it; not installed or not responding")
        return
    if not info.get("ServerVersion"):
        yield Finding("Docker", None, _without_engine(" ".join((info.get("ServerErrors") or ["no answer"])[0].split())))
        return
    yield Finding("Docker", True, f"engine {info['ServerVersion']}")
    yield _check_compose()
    yield _check_toolkit(info)
    compose = folder / COMPOSE_FILE
    # Another project's file publishes other ports.
    if compose.exists() and PUBLISHED[0][0] in compose.read_text(errors="replace"):
        yield _check_published(folder)


def check_passed_on(file: Path) -> None:
    """Checks that each setting in a file of Compose is in this process's environment, as in the environments of all
    services.

    Compose passes on the settings that docker-compose.yml names, and nothing else of the file. Raises
    `ConfigurationError` for a line without effect.
    """
    for name, text in _read_variables(file).items():
        if name in os.environ or not name.startswith("PENSTOCK"):
            continue
        check_variable(name, name, text)
        section, *keys = name.removeprefix(SETTING_PREFIX).split("__")
        if len(keys) > 1 and f"{section}.{keys[0]}".lower() in setting_names():
            whole = f"{SETTING_PREFIX}{section}__{keys[0]}"
            raise ConfigurationError(
                f"{file.name}: Compose does not pass on {name}; set the whole table, as JSON in one line: {whole}="
                f'{{"{keys[1].lower()}": ...}}'
            )
        if name.startswith(SETTING_PREFIX):
            raise ConfigurationError(f"{file.name}: {name} is not a setting{meant_by(name) or '; correct the name'}")


def _without_engine(reason: str) -> str:
    if "permission denied" in reason.lower():
        todo = "this user has no access to the engine; add it to the group docker, and log in again"
    else:
        todo = "the engine is not running; start it"
    return f"`penstock train` does not need it; for Docker Compose: {todo} ({reason})"


def _check_compose() -> Finding:
    least = ".".join(map(str, _LEAST_COMPOSE))
    answer = _docker("compose", "version", "--short")
    if answer.returncode == _NO_ANSWER:
        return Finding("Compose", False, "not responding; restart the engine")
    version = answer.stdout.strip().removeprefix("v")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if answer.returncode or numbers < _LEAST_COMPOSE:
        return Finding("Compose", False, f"{version or 'not installed'}; install version {least} or later")
    return Finding("Compose", True, version)


def _check_toolkit(info: Mapping[str, Any]) -> Finding:
    """Checks the NVIDIA Container Toolkit, which a host needs only if it has NVIDIA's driver."""
    devices, runtimes = info.get("DiscoveredDevices") or [], info.get("Runtimes") or {}
    if (
        any(each.get("ID", "").startswith("nvidia.com/") for each in devices)
        or "nvidia" in runtimes
        or shutil.which(_HOOK)
    ):
        return Finding("NVIDIA toolkit", True, "containers can use the GPU")
    fit = None if shutil.which("nvidia-smi") is None else False
    return Finding(
        "NVIDIA toolkit",
        fit,
        "not installed, so containers can't use a GPU; install nvidia-container-toolkit and restart the engine, or add"
        " compose.cpu.yaml to train on the CPU",
    )


def _check_published(folder: Path) -> Finding:
    given = {**_read_variables(folder / VARIABLES_FILE), **os.environ}
    ports = {name: given.get(name) or default for name, default in PUBLISHED}
    if wrong := [f"{name} is {port!r}" for name, port in ports.items() if not _numbers(port)]:
        return Finding("host ports", False, f"{' and '.join(wrong)}; set it to a port number in {VARIABLES_FILE}")
    own = _ports_of_this_project(folder)
    taken = [
        name
        for name, port in ports.items()
        if all(f":{number}->" not in own and port_refusal("127.0.0.1", number) for number in _numbers(port))
    ]
    if taken:
        shown = ", ".join(f"{ports[name]} ({name})" for name in taken)
        todo = f"set {' and '.join(taken)} to another port in {VARIABLES_FILE}"
        return Finding("host ports", False, f"in use: {shown}; {todo}")
    return Finding("host ports", True, f"free, or used by this project: {', '.join(ports.values())}")


def _numbers(port: str) -> range:
    """Returns the ports of a number, 0 for any free port, or of a range such as 9090-9099; none if it is neither."""
    ends = port.split("-")
    if len(ends) > 2 or not all(end.isdecimal() for end in ends):
        return range(0)
    numbers = range(int(ends[0]), int(ends[-1]) + 1)
    return numbers if numbers and numbers[-1] < 65536 else range(0)


def _ports_of_this_project(folder: Path) -> str:
    """Returns the published ports of the containers that were started from this folder."""
    label = f"label=com.docker.compose.project.working_dir={folder.resolve()}"
    return _docker("ps", "--filter", label, "--format", "{{.Ports}}").stdout


def _read_variables(path: Path) -> dict[str, str]:
    """Reads NAME=value lines as Compose does; returns an empty dictionary if there is no file."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    pairs = (line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#"))
    named = ((name.strip().removeprefix("export "), value.partition(" #")[0]) for name, _, value in pairs)
    return {name: value.strip().strip("'\"") for name, value in named}


def _docker(*words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a docker command. Returns no output, and `_NO_ANSWER`, if it is not installed or does not respond."""
    try:
        return subprocess.run(
            ["docker", *words], env=os.environ.copy(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(words, _NO_ANSWER, "", "")
