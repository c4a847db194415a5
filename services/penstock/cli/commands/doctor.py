"""`penstock doctor`: checks whether this machine can run the settings; prints one line per check, with a remedy."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock.cli.containers import Finding, check_containers, check_passed_on
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import parse
from penstock.cli.screen.lines import Line, show
from penstock.config import Config
from penstock.config.exposure import check_listen, metrics_host
from penstock.config.foreign_code import code_settings
from penstock.errors import UNFIT, ConfigurationError
from penstock.local.environment_check import check_environment
from penstock.machine import extensions, extras, installation
from penstock.machine.addresses import Address, port_refusal
from penstock.machine.cores import usable_cores
from penstock.machine.file_systems import existing
from penstock.machine.module_imports import loading
from penstock.process.environment_process import arguments_for
from penstock.runs.folder import RunFolder
from penstock.runs.known import RUNS
from penstock.runs.store_place import choose_place

_BESIDE_STORE_BYTES = 200 * 2**20
"""Largest memory in bytes that a replay service needs in addition to its store."""
_ACTOR_BYTES = 350 * 2**20
_LEAST_SHARED_BYTES = 2**26
_LEAST_RUN_BYTES = 100 * 2**20
"""Space for the records of a long run and the checkpoints of a small policy."""


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    more = OneLineParser(add_help=False)
    more.add_argument("--settings-only", action="store_true", help="only read the settings, and look at nothing else")
    more.add_argument("--env-file", metavar="FILE", type=Path, help="file of Compose whose settings must all apply")
    options = parse(
        "penstock doctor",
        "Check whether this machine can run what `penstock train` would run.",
        arguments,
        trains=True,
        more=more,
        file_is_data=True,
    )
    file = options.more.env_file
    if file is not None and file.exists():
        if os.access(file, os.R_OK):
            check_passed_on(file)
        else:
            print(f"{file.name} is not checked for misspelt names, because user {os.geteuid()} may not read it")
    if options.more.settings_only:
        return 0
    console, fit = Console(highlight=False), True
    for finding in examine(options.config):
        # A table would fold: each check stays on one line, for grep.
        mark, style = {True: ("ok", "green"), False: ("no", "red"), None: ("-", "dim")}[finding.fit]
        show(console, Line(Text.assemble((f"{mark:<4}", style), f"{finding.subject:<18}", finding.detail), 22))
        fit &= finding.fit is not False
    return 0 if fit else UNFIT


def examine(config: Config) -> Iterator[Finding]:
    """Yields the finding of each check."""
    yield check_system()
    yield check_versions()
    yield check_processors(config)
    yield check_memory(config)
    yield check_disk(config)
    yield check_shared_memory()
    yield check_ports(config)
    yield check_gpu(config)
    yield check_environments(config)
    yield from check_extensions()
    if installation.kind() == "packages":
        yield from check_containers(Path.cwd())


def check_system(system: str = platform.system()) -> Finding:
    """Reports the operating system and processor; only Linux has been tried."""
    detail = f"{system} {platform.release()}, {platform.machine()}"
    if system == "Linux":
        return Finding("system", True, detail)
    return Finding(
        "system", None, f"{detail}: not tried; services load one by one, and streams move to ports, not to Unix sockets"
    )


def check_versions() -> Finding:
    """Checks whether the installed packages satisfy Penstock's requirements."""
    from packaging.requirements import Requirement

    wrong = []
    for line in importlib.metadata.requires("penstock") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            # Images for actors lack torch; `check_gpu` says so.
            wrong += [f"{requirement.name} is missing"] if requirement.name != "torch" else []
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} installed, but {requirement.specifier} is required")
    if wrong:
        return Finding("versions", False, f"{'; '.join(wrong)}; install the versions in requirements.lock")
    named = [
        name for name in ("penstock", "torch", "grpcio", "numpy") if name != "torch" or not extras.missing("torch")
    ]
    shown = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in named)
    return Finding("versions", True, f"Python {sys.version.split()[0]}, {shown}")


def check_processors(config: Config) -> Finding:
    """Checks whether there are at most two actors per core."""
    cores, actors = usable_cores(), config.train.actors
    detail = f"{cores} cores for a learner and {actors} {'actor' if actors == 1 else 'actors'}"
    if isinstance(actors, int) and actors > 2 * cores:
        return Finding("processors", False, f"{detail}; lower train.actors, or set it to auto")
    return Finding("processors", True, detail)


def check_memory(config: Config, meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Checks whether the stores and the actors fit into the available memory."""
    size = config.replay.store_size
    if size.unit != "bytes":
        return Finding("memory", None, f"not checked, because the bytes of {size} depend on the environment")
    stores = config.train.replay_shards * (size.amount + _BESIDE_STORE_BYTES)
    needed = stores + config.train.least_actors * _ACTOR_BYTES
    required = f"about {_gib(needed)} needed for replay and actors"
    if not meminfo.exists():
        return Finding("memory", None, f"unknown, because {meminfo} does not exist; {required}")
    lines = (line.split() for line in meminfo.read_text().splitlines())
    available = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}["MemAvailable"]
    detail = f"{_gib(available)} available, {required}"
    if needed > available:
        return Finding("memory", False, f"{detail}; lower replay.capacity_bytes or train.actors")
    return Finding("memory", True, detail)


def check_disk(config: Config) -> Finding:
    """Checks whether the configured folders can be written and have room for the store."""
    run, size = RunFolder(Path(config.run.dir or RUNS)), config.replay.store_size
    # The bytes of a store in segments or steps depend on the environment.
    needed = config.train.replay_shards * size.amount if size.unit == "bytes" else 0
    try:
        store = choose_place(run, config.replay.folder)
    except ConfigurationError as error:
        return Finding("disk", False, str(error))
    if store.root == run.replay:
        places = [(run.root, "run.dir", needed)]
    else:
        places = [(Path(config.replay.folder or store.root), "replay.folder", needed)]
        places += [(run.root, "run.dir", 0)] if config.run.dir or not config.replay.folder else []
    findings = [_check_folder(folder.absolute(), setting, size) for folder, setting, size in places]
    wrong = next((finding for finding in findings if not finding.fit), None)
    return wrong or Finding("disk", True, "; ".join([*(finding.detail for finding in findings), *store.notes]))


def _check_folder(folder: Path, setting: str, needed: int) -> Finding:
    present = existing(folder)
    read_only = bool(os.statvfs(present).f_flag & os.ST_RDONLY)
    # Services of docker-compose.yml share their volumes, of which each can write its own alone.
    of_another = read_only and installation.kind() == "compose"
    if not os.access(present, os.W_OK) and not of_another:
        if read_only:
            todo = f"is read-only; mount a volume on it (docker run -v NAME:{present}), or choose another {setting}"
        else:
            todo = f"is not writable by user {os.geteuid()}; change its owner, or choose another {setting}"
        return Finding("disk", False, f"{present} {todo}")
    segments = folder / "segments.bin"
    # An existing store already has part of the space.
    lacking = max(0, needed - (segments.stat().st_blocks * 512 if segments.exists() else 0))
    free = shutil.disk_usage(present).free
    detail = f"{_gib(free)} free in {present}" + (f", {_gib(lacking)} needed for the store" if needed else "")
    if not needed and free < _LEAST_RUN_BYTES and not of_another:
        what = f"{_gib(_LEAST_RUN_BYTES)} needed for checkpoints and records"
        return Finding("disk", False, f"{detail}, {what}; free some, or choose another {setting}")
    if of_another:
        detail += f"; read-only for this service, so another one writes {setting}"
    if lacking > free:
        return Finding("disk", False, f"{detail}; lower replay.capacity_bytes, or choose another {setting}")
    return Finding("disk", True, detail)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:
    """Checks whether processes can use shared memory, as torch's processes do."""
    if not folder.exists():
        return Finding("shared memory", None, f"unknown, because {folder} does not exist")
    if not os.access(folder, os.W_OK):
        return Finding("shared memory", False, f"{folder} is not writable; in a container, mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    detail = f"{_gib(free)} free in {folder}"
    if free < _LEAST_SHARED_BYTES:
        return Finding("shared memory", False, f"{detail}; increase it to at least 64 MiB (docker run --shm-size)")
    return Finding("shared memory", True, detail)


def check_ports(config: Config) -> Finding:
    """Checks whether services that are started individually could listen on their configured ports."""
    refused, checked = [], []
    for name in ("replay", "learner", "actor", "evaluation"):
        section = getattr(config, name)
        listen = Address.parse(section.listen)
        try:
            check_listen(f"{name}.listen", section.listen, config.security)
            watched = metrics_host(config.telemetry.metrics_host, listen, config.security)
        except ConfigurationError as error:
            return Finding("ports", False, str(error))
        places = {"listen": listen.at(listen.port)}
        if section.metrics_port != "auto":
            places["metrics_port"] = Address(watched, section.metrics_port)
        for setting, place in places.items():
            # A service with port 0 or auto chooses among the free ones when it starts.
            if place.port and (reason := port_refusal(place.host, place.port)):
                refused.append(f"{place} ({name}.{setting}) {reason}")
            checked += [place.port] if place.port else []
    if refused:
        return Finding("ports", False, f"{', '.join(refused)}; stop the servers on these ports, or choose other ports")
    return Finding("ports", True, f"free: {', '.join(map(str, sorted(checked)))}")


def check_gpu(config: Config) -> Finding:
    """Checks whether the learner can train on the configured device."""
    if extras.missing("torch"):
        return Finding("GPU", None, "not checked; torch, which a learner needs, is not installed")
    try:
        with loading():
            from penstock.cli.gpu import describe_gpu
    except ConfigurationError as error:
        return Finding("GPU", False, str(error))
    fit, detail = describe_gpu()
    if fit is None and installation.kind() == "compose":
        detail += "; the learner alone has the GPU: docker compose run --rm learner doctor"
    elif fit is None and config.learner.device.startswith("cuda"):
        return Finding("GPU", False, f"{detail}, but learner.device is {config.learner.device}")
    return Finding("GPU", fit, detail)


def check_environments(config: Config) -> Finding:
    """Checks the configured environment in the same way as `penstock train` before each run."""
    messages: list[str] = []
    try:
        with arguments_for(config.environment.id):
            check_environment(config, messages.append)
    except ConfigurationError as error:
        return Finding("environment", False, str(error))
    warnings = [line for line in dict.fromkeys(messages) if line.startswith("warning: ")]
    return Finding(
        "environment", True, "; ".join([f"{config.environment.short_name} was created, reset and stepped", *warnings])
    )


def check_extensions() -> Iterator[Finding]:
    """Yields the names that installed packages register, for each setting; nothing is imported."""
    groups = {setting: mark.group for setting, mark in code_settings().items()}
    for setting, group in {**groups, "environment.id": extensions.ENVIRONMENTS}.items():
        if group is not None and (found := extensions.extensions(group)):
            yield Finding("extensions", True, f"{setting} may be {', '.join(map(str, found))}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
