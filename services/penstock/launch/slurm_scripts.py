"""The two batch scripts of a run on Slurm: one job with the services, and an array of actors.

`launch.slurm_jobs` submits them, and `sbatch` of the scripts in the run's folder does the same.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.launch import slurm_templates as templates
from penstock.runs.folder import RunFolder

_RESTARTS = 20
"""Starts of a crashing service or actor, with growing pauses, until its job fails; as train.max_restarts."""

_SERVICE_CORES = 4
"""Processor cores of the services by default: one each for learner, replay service and evaluator, and one to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Resources that a job requests from Slurm.

    Attributes:
        partition, time, account: Options of sbatch of these names; None: the cluster's default.
        gpus: GPUs of the node as in --gres=gpu:GPUS, such as 1 or a100:1; None: none.
        more: Further options of sbatch, each as --name=value. They override those above.
    """

    partition: str | None = None
    time: str | None = None
    account: str | None = None
    gpus: str | None = None
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRun:
    """A run on Slurm.

    Attributes:
        folder: Folder of the run, which all nodes share, with an absolute path.
        settings: Settings of all services, as TOML.
        store: Folder of the store on the services' node; None: local scratch, removed at the end.
        snapshots: Folder of snapshots of the store; None: one in the run's folder.
        listen: Address of the replay service; None: any free port.
        actors: Actors at a time.
        spare: Further actors that wait in the queue, and take the place of preempted ones.
        actors_per_task: Actors of each task of the array.
        scales: Whether the learner's judgement changes the number of actors.
        services, array: Resources of the two jobs.
        setup: Shell lines that prepare a node, such as `module load cuda`.
        penstock: Command that runs Penstock.
    """

    folder: RunFolder
    settings: str
    store: str | None
    snapshots: str | None
    listen: str | None
    actors: int
    spare: int
    actors_per_task: int
    scales: bool
    services: JobOptions
    array: JobOptions
    setup: tuple[str, ...]
    penstock: tuple[str, ...]

    @property
    def tasks(self) -> int:
        """Tasks of the array that run at a time."""
        return -(-self.actors // self.actors_per_task)

    @property
    def all_tasks(self) -> int:
        """Tasks of the array, with those that wait."""
        return -(-(self.actors + self.spare) // self.actors_per_task)


def services_script(run: SlurmRun) -> str:
    """Returns the script of the job with replay service, learner and evaluator."""
    folder = run.folder
    directives = _directives(
        f"--job-name=penstock-{folder.root.name}",
        _output(run, "services.log"),
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={_SERVICE_CORES}",
        *_asked(run.services),
    )
    parts = [
        f"#!/bin/bash\n# The services of the run {folder.root}, on one node.\n# Written by `penstock launch slurm`.",
        directives,
        _preparation(run, templates.SERVICES_JOB, *_places(run)),
        templates.KEEP.format(restarts=_RESTARTS),
        templates.SERVICES.format(
            scaling=templates.SCALING.format(actors_per_task=run.actors_per_task) if run.scales else "",
            remove=templates.REMOVE_STORE if run.store is None else "",
        ),
    ]
    return "\n\n".join(parts)


def actors_script(run: SlurmRun) -> str:
    """Returns the script of the array of actors."""
    folder = run.folder
    directives = _directives(
        f"--job-name=penstock-{folder.root.name}-actors",
        f"--array=0-{run.all_tasks - 1}%{run.tasks}",
        _output(run, "actors-%a.log"),
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={run.actors_per_task}",
        *_asked(run.array),
    )
    parts = [
        f"#!/bin/bash\n# Actors of the run {folder.root}, each of which may be taken away at any time.\n"
        "# Written by `penstock launch slurm`.",
        directives,
        _preparation(run, templates.TASK),
        templates.KEEP.format(restarts=_RESTARTS),
        templates.ACTORS.format(numbers=f"{{1..{run.actors_per_task}}}"),
    ]
    return "\n\n".join(parts)


def tuning_script(
    folder: Path,
    arguments: Sequence[str],
    *,
    jobs: int,
    cores: int,
    options: JobOptions,
    setup: Sequence[str],
    penstock: Sequence[str],
) -> str:
    """Returns the script of an array of jobs, each of which trains trials of one study.

    Args:
        folder: Folder of the study, which all nodes share, with an absolute path.
        arguments: Arguments of `penstock tune`, which the jobs run in the present folder.
        jobs: Number of jobs.
        cores: Processor cores of each job.
        options: Resources of each job.
        setup: Shell lines that prepare a node.
        penstock: Command that runs Penstock.

    Raises:
        ConfigurationError: An option or the path can't be written into a script.
    """
    directives = _directives(
        f"--job-name=penstock-{folder.name}",
        f"--array=0-{jobs - 1}",
        _output_in(folder / "logs", "slurm-%a.log"),
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={cores}",
        *_asked(options),
    )
    command = " ".join(map(shlex.quote, penstock))
    parts = [
        f"#!/bin/bash\n# Trials of the study {folder}.\n# Written by `penstock tune --on slurm`.",
        directives,
        "\n".join([*setup, templates.TASK, f"penstock=({command})"]),
        templates.KEEP.format(restarts=_RESTARTS),
        templates.TUNING.format(arguments=shlex.join(arguments)),
    ]
    return "\n\n".join(parts)


def _directives(*options: str) -> str:
    common = ("--open-mode=append", "--requeue", "--signal=B:TERM@30")
    return "\n".join(f"#SBATCH {_quoted(option)}" for option in (*common, *options))


def _asked(job: JobOptions) -> Iterable[str]:
    for name in ("partition", "time", "account"):
        if (value := getattr(job, name)) is not None:
            yield f"--{name}={value}"
    if job.gpus is not None:
        yield f"--gres=gpu:{job.gpus}"
    yield from job.more


def _quoted(option: str) -> str:
    """Returns an option as sbatch reads it from a script. Raises `ConfigurationError` if a script can't hold it."""
    if any(not character.isprintable() for character in option):
        raise ConfigurationError(
            f"sbatch can't read {option!r} from a script; leave out line breaks and other controls"
        )
    if not option.startswith("-"):
        raise ConfigurationError(f"{option!r} is not an option of sbatch; write it as --sbatch=--name=value")
    if not any(character.isspace() or character in "\"'\\#" for character in option):
        return option
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _output(run: SlurmRun, name: str) -> str:
    """Returns the option for a file of output. Raises `ConfigurationError` if Slurm would write to another one."""
    return _output_in(run.folder.logs, name)


def _output_in(logs: Path, name: str) -> str:
    if "%" in str(logs) or "\\" in str(logs):
        raise ConfigurationError(
            f"Slurm replaces % and \\ in paths, and the logs are in {logs}; choose another --run-dir or --name"
        )
    return f"--output={logs / name}"


def _preparation(run: SlurmRun, job: str, *more: str) -> str:
    command = " ".join(map(shlex.quote, run.penstock))
    lines = [
        *run.setup,
        job,
        f"run={shlex.quote(str(run.folder.root))}",
        f"penstock=({command})",
        'settings=(--config="$run/launch/settings.toml" --run-dir="$run" --telemetry.job="$job")',
        *more,
    ]
    return "\n".join(lines)


def _places(run: SlurmRun) -> Iterable[str]:
    """Yields the lines that choose the folders of store and snapshots, and the address of the replay service."""
    yield templates.STORE if run.store is None else f"store={shlex.quote(run.store)}"
    yield 'snapshots="$run/snapshots"' if run.snapshots is None else f"snapshots={shlex.quote(run.snapshots)}"
    yield templates.FREE_PORT if run.listen is None else f"replay={shlex.quote(run.listen)}"
