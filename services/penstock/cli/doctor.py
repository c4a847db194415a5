"""`penstock doctor`: whether this machine can do what the settings ask of it; a line a thing, with what to do."""

import errno
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.cli.exit_codes import UNFIT
from penstock.cli.options import parse
from penstock.config import Config

_DOCKER_TIMEOUT_S = 20.0
_LEAST_COMPOSE = (2, 24)
"""Of which docker-compose.yml uses optional env files, and compose.cpu.yaml `!reset`."""
_BESIDE_STORE_BYTES = 200 * 2**20
"""Of a replay service, at most."""
_ACTOR_BYTES = 350 * 2**20


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing.

    Attributes:
        subject: The thing.
        fit: Whether it does; None where it is not there and may not be needed.
        says: What was found, and what to do.
    """

    subject: str
    fit: bool | None
    says: str


def command(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    options = parse(
        "penstock doctor",
        "Check whether this machine can do what the settings ask of it.",
        arguments,
        trains=False,
    )
    console, table, fit = Console(highlight=False), Table(box=None, show_header=False, pad_edge=False), True
    for finding in examine(options.config):
        mark = {True: "[green]ok[/]", False: "[red]no[/]", None: "[dim]-[/]"}[finding.fit]
        table.add_row(mark, finding.subject, finding.says)
        fit &= finding.fit is not False
    console.print(table)
    return 0 if fit else UNFIT


def examine(config: Config) -> Iterator[Finding]:
    """Looks at everything."""
    yield check_versions()
    yield check_processors(config)
    yield check_memory(config)
    yield check_disk(config)
    yield check_shared_memory()
    yield check_ports(config)
    yield check_gpu(config)
    yield from check_docker()


def check_versions() -> Finding:
    """Whether the packages that are installed are those that Penstock asks for."""
    from packaging.requirements import Requirement

    wrong = []
    for line in importlib.metadata.requires("penstock") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} where {requirement.specifier} is asked for")
    if wrong:
        return Finding("versions", False, f"{'; '.join(wrong)}; install with requirements.lock")
    shown = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("penstock", "torch", "grpcio", "numpy"))
    return Finding("versions", True, f"Python {sys.version.split()[0]}, {shown}")


def check_processors(config: Config) -> Finding:
    """Whether there is about a core for each process that computes."""
    cores, actors = len(os.sched_getaffinity(0)), config.train.actors
    says = f"{cores} cores for a learner and {actors} actors"
    if isinstance(actors, int) and actors > 2 * cores:
        return Finding("processors", False, f"{says}; lower train.actors, or choose auto")
    return Finding("processors", True, says)


def check_memory(config: Config) -> Finding:
    """Whether the store and the actors find room."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    available = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}["MemAvailable"]
    stores = config.train.replay_shards * (int(config.replay.capacity_bytes) + _BESIDE_STORE_BYTES)
    needed = stores + config.train.least_actors * _ACTOR_BYTES
    says = f"{_gib(available)} available, about {_gib(needed)} needed for replay and actors"
    if needed > available:
        return Finding("memory", False, f"{says}; lower replay.capacity_bytes or train.actors")
    return Finding("memory", True, says)


def check_disk(config: Config) -> Finding:
    """Whether the store's folder can be written and holds the store."""
    folder = Path(config.replay.folder or config.run.dir or ".").absolute()
    present = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not os.access(present, os.W_OK):
        return Finding("disk", False, f"{present} can't be written; choose another folder, or change who owns it")
    free, needed = shutil.disk_usage(present).free, config.train.replay_shards * int(config.replay.capacity_bytes)
    says = f"{_gib(free)} free in {present}, {_gib(needed)} needed for the store"
    if needed > free:
        return Finding("disk", False, f"{says}; lower replay.capacity_bytes, or choose another folder")
    return Finding("disk", True, says)


def check_shared_memory() -> Finding:
    """Whether processes can map the same memory, as torch's do."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        return Finding("shared memory", False, f"{folder} can't be written; in a container, mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    says = f"{_gib(free)} free in {folder}"
    return Finding("shared memory", free >= 2**26, says if free >= 2**26 else f"{says}; give it at least 64 MiB")


def check_ports(config: Config) -> Finding:
    """Whether the services, started by themselves, could listen."""
    taken, looked_at = [], []
    for name in ("replay", "learner", "actor", "evaluation"):
        section = getattr(config, name)
        host, _, port = section.listen.rpartition(":")
        for setting, number in (("listen", int(port)), ("metrics_port", section.metrics_port)):
            looked_at.append(number)
            if number and _is_taken(host, number):
                taken.append(f"{host}:{number} ({name}.{setting})")
    if taken:
        return Finding("ports", False, f"in use: {', '.join(taken)}; stop what listens there, or choose others")
    return Finding("ports", True, f"free: {', '.join(map(str, sorted(looked_at)))}")


def _is_taken(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE


def check_gpu(config: Config) -> Finding:
    """Whether the learner can train on what it is told to."""
    from penstock.apps.gpu import describe_gpu

    fit, says = describe_gpu()
    if fit is None and config.learner.device.startswith("cuda"):
        return Finding("GPU", False, f"{says}; learner.device asks for one")
    return Finding("GPU", fit, says)


def check_docker() -> Iterator[Finding]:
    """Whether docker-compose.yml can be run here, with a GPU and without."""
    try:
        info = json.loads(_ask_docker("info", "--format", "{{json .}}").stdout)
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        yield Finding("Docker", None, "not there; `penstock train` does without")
        return
    if not info.get("ServerVersion"):
        reason = (info.get("ServerErrors") or ["it does not answer"])[0]
        yield Finding(
            "Docker", None, f"the engine does not run, or can't be asked ({reason}); `penstock train` does without"
        )
        return
    yield Finding("Docker", True, f"engine {info['ServerVersion']}")
    yield _check_compose()
    if "nvidia" in info.get("Runtimes", {}) or any(
        "nvidia" in str(device) for device in info.get("DiscoveredDevices") or []
    ):
        yield Finding("NVIDIA's toolkit", True, "containers can have the GPU")
    else:
        yield Finding(
            "NVIDIA's toolkit",
            None,
            "not there: install nvidia-container-toolkit, or start with compose.cpu.yaml on top",
        )


def _check_compose() -> Finding:
    asked = _ask_docker("compose", "version", "--short")
    version = asked.stdout.strip().removeprefix("v")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    least = ".".join(map(str, _LEAST_COMPOSE))
    if asked.returncode or numbers < _LEAST_COMPOSE:
        return Finding("Compose", False, f"{version or 'not there'}; install version {least} or later")
    return Finding("Compose", True, version)


def _ask_docker(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=_DOCKER_TIMEOUT_S, check=False)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
