"""The folder of a learner, which continues the run that earlier sessions left there.

The log says so, so that no run is continued by mistake: under Docker Compose a run is named by its preset unless
`PENSTOCK_RUN` names it, so a second `docker compose up` continues the first run.
"""

from pathlib import Path
from typing import Any

from penstock.apps.session_end import announce_end
from penstock.config import Config, build, read_recorded
from penstock.errors import ConfigurationError
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Recovered
from penstock.learning.run.assembly import open_session
from penstock.learning.run.session import Session
from penstock.machine.files import remove_leftovers
from penstock.process.service import Service
from penstock.runs import remote_copies
from penstock.runs.end import obstacle, read_end
from penstock.runs.folder import RunFolder
from penstock.runs.summary import nothing_left
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger

_HOW_TO_BEGIN = "a new run needs another folder: PENSTOCK_RUN=NAME under Docker Compose, --run-dir FOLDER elsewhere"


def prepared_folder(config: Config, service: Service) -> RunFolder | None:
    """Returns the run's folder without leftovers of earlier processes; None if the run is complete."""
    if config.run.dir is None:
        raise ConfigurationError("the learner needs a folder for the run; name one with --run-dir")
    folder = RunFolder(Path(config.run.dir))
    if reason := nothing_left(folder.summary, config.run):
        # The learner was killed after the run's end, or started again: the results must not be replaced.
        changes = changed_settings(folder.config, config)
        metrics.LEARNER_RUN_FINISHED.set(1)
        service.logger.warning("run already finished", reason=reason, unused_settings=changes, hint=_HOW_TO_BEGIN)
        announce_end(config, service, read_end(folder))
        return None
    folder.create()
    for leftover in [*remove_leftovers(folder.root), *remove_leftovers(folder.checkpoints)]:
        service.logger.warning("partly written file removed", file=str(leftover))
    return folder


def opened_session(config: Config, folder: RunFolder, service: Service) -> Session:
    """Opens the run in its folder, at the newest sound checkpoint if there is one, and logs where it resumes."""
    copy_to = config.checkpoint.copy_to
    # A storage that fails for a while must not keep a run from its continuation.
    if copy_to is not None and not service.supervised and folder.newest_checkpoint_steps() is None:
        remote_copies.check(copy_to)
    session = open_session(config, folder, checkpoints.recover(folder, config.policy.module))
    if not service.supervised:
        log_resumed(folder, session.recovered, config, service.logger)
        if reason := obstacle(config.run.on_end):
            service.logger.warning("the end would not be announced", reason=reason)
    return session


def log_resumed(folder: RunFolder, recovered: Recovered, config: Config, logger: Logger) -> None:
    """Logs that the run in the folder continues, if it does; as a warning if its settings have changed since."""
    if recovered.path is None:
        return
    changes = changed_settings(folder.config, config)
    (logger.warning if changes else logger.info)(
        "run resumed",
        folder=str(folder.root),
        env_steps=recovered.progress.env_steps,
        checkpoint=recovered.path.name,
        changed_settings=changes,
        hint=_HOW_TO_BEGIN,
    )


def changed_settings(recorded: Path, config: Config) -> list[str]:
    """Returns the settings that differ from the recorded `config.toml`, as "ppo.epochs: 4, was 8".

    Returns none if there is no record, or one that this release can't read.
    """
    try:
        before = _by_name(build(read_recorded(recorded).values))
    except ConfigurationError:
        return []
    now = _by_name(config)
    return [f"{name}: {value}, was {before[name]}" for name, value in now.items() if value != before[name]]


def _by_name(config: Config) -> dict[str, Any]:
    sections = config.repeatable().model_dump(mode="json")
    return {f"{section}.{key}": value for section, settings in sections.items() for key, value in settings.items()}
