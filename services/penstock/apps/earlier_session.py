"""Log entries of a learner service about a folder that already holds a run, so that no run is continued by mistake.

Under Docker Compose a run is named by its preset unless `PENSTOCK_RUN` names it, so a second `docker compose up`
continues the first run.
"""

from pathlib import Path
from typing import Any

from penstock.config import Config, build, read_recorded
from penstock.errors import ConfigurationError
from penstock.learning.durable.checkpoints import Recovered
from penstock.runs.folder import RunFolder
from penstock.telemetry.logs import Logger

HOW_TO_BEGIN = "a new run needs another folder: PENSTOCK_RUN=NAME under Docker Compose, --run-dir FOLDER elsewhere"


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
        hint=HOW_TO_BEGIN,
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
