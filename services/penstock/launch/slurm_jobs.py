"""The jobs of a run on Slurm: prepared, submitted, found again, and changed in number.

In the run's folder, `launch/` has both scripts, the settings that all services share, and the numbers of the jobs.
"""

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Config
from penstock.config.settings.security import SecurityConfig
from penstock.errors import ConfigurationError
from penstock.launch import slurm
from penstock.launch.slurm_scripts import SlurmRun, actors_script, services_script
from penstock.machine.files import make_folder, write_atomically
from penstock.runs.folder import RunFolder
from penstock.security.authority import DAYS, issue, run_of
from penstock.security.roles import run_name_of

_SERVICES, _ACTORS = "services", "actors"


@dataclass(frozen=True, slots=True)
class Jobs:
    """Numbers of a run's two jobs: the one with the services, and the array of actors."""

    services: int
    actors: int

    def __str__(self) -> str:
        return f"{self.services} {self.actors}"


def settings_file(folder: RunFolder) -> Path:
    """Returns the path of the settings of a launched run."""
    return folder.launch / "settings.toml"


def job_file(folder: RunFolder, name: str) -> Path:
    """Returns the path of the number of the job of `services` or `actors`."""
    return folder.launch / f"{name}.job"


def settings_to_resume(root: Path) -> Path:
    """Returns the file with the settings of a run, launched or not. Raises `ConfigurationError` if there is none."""
    folder = RunFolder(root)
    for file in (settings_file(folder), folder.config):
        if file.exists():
            return file
    raise ConfigurationError(f"{root} is not a run folder, because it has no config.toml; choose one with a run")


def shared_settings(config: Config) -> Config:
    """Returns the configuration with settings for services on different hosts, where the user has not chosen them.

    The folders of the run, the store and the snapshots are options in the scripts.
    """
    plain = Config()
    changes: dict[str, dict[str, object]] = {
        "run": {"dir": None},
        "replay": {"stop_with_run": True, "folder": None, "snapshot_folder": None},
    }
    for section, key, value in (
        ("replay", "metrics_port", "auto"),
        ("learner", "listen", "0.0.0.0:0"),
        ("learner", "metrics_port", "auto"),
        ("telemetry", "metrics_host", "0.0.0.0"),
    ):
        if getattr(getattr(config, section), key) == getattr(getattr(plain, section), key):
            changes.setdefault(section, {})[key] = value
    return config.changed(changes).repeatable()


def refuse_other_protection(security: SecurityConfig) -> None:
    """Raises `ConfigurationError` if the user has chosen how services are protected; a launched run has its way."""
    plain = SecurityConfig()
    chosen = [name for name in SecurityConfig.model_fields if getattr(security, name) != getattr(plain, name)]
    if chosen:
        raise ConfigurationError(
            f"a launched run has certificates of its own, and security.{chosen[0]} is {getattr(security, chosen[0])};"
            " unset it, or write scripts of your own after the ones of --print"
        )


def check_folder(folder: RunFolder, *, resume: bool) -> None:
    """Raises `ConfigurationError` if a folder holds a run that is not to be resumed, or one that is not over."""
    if not resume and (folder.config.exists() or folder.launch.exists()):
        raise ConfigurationError(
            f"{folder.root} already contains a run; resume it with --resume {shlex.quote(str(folder.root))}, or choose"
            " another --run-dir"
        )
    jobs = None
    with contextlib.suppress(ConfigurationError):
        jobs = jobs_of(folder)
    if jobs is not None and not slurm.state_of(jobs.services).ended:
        raise ConfigurationError(
            f"the run in {folder.root} is still active as job {jobs.services}; wait for its end, or end it with scancel"
            f" {jobs}"
        )


def prepare(run: SlurmRun, *, now: float) -> None:
    """Writes settings, scripts and certificates, as far as these are missing or due, into the run's folder.

    `now` is the Unix time in seconds. Raises `ConfigurationError` if that is not possible.
    """
    # Before anything is written: a script may be impossible.
    contents = {
        "settings.toml": run.settings,
        "services.sh": services_script(run),
        "actors.sh": actors_script(run),
    }
    run.folder.create()
    certificates = run.folder.certificates
    issue(certificates, run_of(certificates) or run_name_of(run.folder.root.name), days=DAYS, hosts={}, now=now)
    make_folder(run.folder.launch)
    for name in (_SERVICES, _ACTORS):
        job_file(run.folder, name).unlink(missing_ok=True)
    for name, text in contents.items():
        write_atomically(run.folder.launch / name, text.encode())


def submit_services(folder: RunFolder, variables: Mapping[str, str]) -> int:
    """Submits the job with the services and returns its number.

    `variables` are the environment variables that the job inherits. Raises `ConfigurationError` with Slurm's reason if
    it is refused.
    """
    return _submit(folder, _SERVICES, variables)


def submit_actors(folder: RunFolder, services: int, variables: Mapping[str, str]) -> Jobs:
    """Submits the array of actors, which waits until the services' job has started, and returns both numbers.

    `variables` are the environment variables that its tasks inherit. Raises `ConfigurationError` with Slurm's reason if
    it is refused; the services' job is cancelled then.
    """
    try:
        return Jobs(services, _submit(folder, _ACTORS, variables, f"--dependency=after:{services}"))
    except BaseException:
        slurm.cancel(services)
        raise


def jobs_of(folder: RunFolder) -> Jobs:
    """Returns the jobs of a launched run. Raises `ConfigurationError` if it was not launched on Slurm."""
    try:
        return Jobs(*(int(job_file(folder, name).read_text()) for name in (_SERVICES, _ACTORS)))
    except (OSError, ValueError):
        raise ConfigurationError(f"{folder.root} is not the folder of a run that was started on Slurm") from None


def set_tasks(array: int, tasks: int) -> None:
    """Changes how many tasks of an array run. Superfluous tasks end, the youngest first, and wait in the queue.

    Raises `ConfigurationError` if the array is too small, and `PenstockError` if Slurm refuses.
    """
    size = slurm.size_of(array)
    if tasks > size:
        raise ConfigurationError(
            f"array {array} has {size} tasks, and {tasks} are wanted; start the run with a larger --spare"
        )
    slurm.set_limit(array, tasks)
    for task in slurm.running_tasks(array)[tasks:]:
        slurm.requeue(task)


def _submit(folder: RunFolder, name: str, variables: Mapping[str, str], *options: str) -> int:
    job = slurm.submit(folder.launch / f"{name}.sh", variables, *options)
    write_atomically(job_file(folder, name), f"{job}\n".encode())
    return job
