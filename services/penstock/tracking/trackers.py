"""The trackers: W&B, MLflow and Trackio, each of which an extra installs. Their packages are imported when they open.

Numbers have the names that TensorBoard shows (`runs.metrics.tag_of`), over environment steps, and the settings of the
run are its hyperparameters.
"""

import errno
import hashlib
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlparse

from penstock.config.recorded import texts
from penstock.config.setting_types import read_scalar
from penstock.errors import ConfigurationError
from penstock.machine import extras, foreign_errors
from penstock.machine.environment_names import split
from penstock.machine.files import make_folder
from penstock.machine.module_imports import import_named
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder, kept_identity
from penstock.runs.metrics import KINDS, tag_of
from penstock.tracking.following import Mark, Tracker

_STEPS = "env_steps"
_MLFLOW_METRICS, _MLFLOW_PARAMETERS, _MLFLOW_CHARACTERS = 1000, 100, 500
"""Most metrics and parameters of one request to MLflow, and characters of a parameter in its oldest supported store."""

_MLFLOW_DEFAULTS = {
    # MLflow refuses a folder otherwise, because it maintains that store no longer; others need all of MLflow.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    # By default it tries for minutes, in which the end of the run would wait.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_WANDB_INIT_S = 20
"""Seconds to reach W&B, after which the records are kept on this machine."""

_RUN_TAG = "penstock.run"
"""Tag by which MLflow finds a run again."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run and its place in a tracker.

    Attributes:
        folder: Folder of the run.
        project: Project of the tracker.
        id: Number of the run in hexadecimal, under which a tracker finds it again.
    """

    folder: RunFolder
    project: str
    id: str

    @classmethod
    def of(cls, folder: RunFolder, project: str) -> "TrackedRun":
        """Returns a run that has begun. Runs of earlier releases are known by their folder."""
        identity = kept_identity(folder.identity)
        of_path = hashlib.sha256(str(folder.root.absolute()).encode()).hexdigest()[:16]
        return cls(folder, project, f"{identity.number:016x}" if identity else of_path)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.root.absolute().name

    @property
    def settings(self) -> dict[str, object]:
        """Values of all settings, as section.key."""
        found = texts(self.folder.config)
        return {name: _number(read_scalar(text), text) for name, text in found.items()}


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """Opens the run in the tracker of this name.

    Raises `ConfigurationError` if its package or a folder is missing, or any exception of the package.
    """
    if name not in _TRACKERS:
        return _own(name, run)
    extras.require(name, f"--to {name}")
    return _TRACKERS[name](run)


class Wandb:
    """A run in W&B: sent to its server, or kept in the run's folder without a login or the network.

    The files that are kept are written anew whenever they are opened, because nothing can read back which records
    files of a killed process have. They can be uploaded with `wandb sync`.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.last: Mapping[str, Mark] = {}
        _check_writable(run.folder.wandb, "remove it, or make the run's folder writable")
        offline = _why_offline()
        if not offline:
            try:
                self._run = self._opened(run, "online")
            except Exception as error:
                offline = foreign_errors.describe(error)
                # Its server process would keep the run that could not be opened.
                wandb.teardown()
        if not offline:
            seen = self._run.summary
            names = {kind: (f"{kind}/{_STEPS}", tag_of(kind, "training_s")) for kind in KINDS}
            self.last = {
                kind: Mark(int(seen[steps]), float(seen[seconds]))
                for kind, (steps, seconds) in names.items()
                if seen.get(steps) is not None and seen.get(seconds) is not None
            }
            self.place = f"the records go to {self._run.url}"
            return
        for left in run.folder.wandb.glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(left)
        self._run = self._opened(run, "offline")
        made = Path(self._run.settings.sync_dir)
        shown = os.path.relpath(made) if made.is_relative_to(Path.cwd()) else str(made)
        self.place = (
            f"the records stay on this machine, because {offline}; `wandb sync {shlex.quote(shown)}` uploads them"
        )

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Implements `Tracker`."""
        for record in records:
            steps = record[_STEPS]
            self._run.log({**_numbers(record), _STEPS: steps, f"{record['kind']}/{_STEPS}": steps})

    def close(self) -> None:
        """Implements `Tracker`."""
        self._run.finish()

    def _opened(self, run: TrackedRun, mode: Literal["online", "offline"]) -> Any:
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            init_timeout=_WANDB_INIT_S,
            disable_git=True,
            disable_code=True,
            # Its figures of this process say nothing about the run.
            x_disable_stats=True,
        )
        opened = wandb.init(
            project=run.project,
            id=run.id,
            name=run.name,
            dir=str(run.folder.root.absolute()),
            config=run.settings,
            resume="allow" if mode == "online" else None,
            mode=mode,
            settings=settings,
        )
        opened.define_metric("*", step_metric=_STEPS)
        return opened


class MLflow:
    """A run in MLflow: on the server of MLFLOW_TRACKING_URI, or in the folder mlruns beside the run.

    A record's seconds of training are its last number, so that the record is complete if MLflow has them. In a folder,
    a killed process may have written some numbers of a record; they are not written again.
    """

    def __init__(self, run: TrackedRun) -> None:
        for name, value in _MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or str(run.folder.root.absolute().parent / "mlruns")
        is_folder = urlparse(place).scheme in ("", "file")
        if is_folder:
            _check_writable(
                Path(unquote(urlparse(place).path)), "set MLFLOW_TRACKING_URI to a server or another folder"
            )
        self._client = MlflowClient(place)
        self._run = self._found(run)
        self.last: Mapping[str, Mark] = {
            kind: max(Mark(each.step, each.value) for each in history)
            for kind in KINDS
            if (history := self._history(tag_of(kind, "training_s")))
        }
        self._begun = dict.fromkeys(KINDS, True)
        shows = f"`MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place}` shows them"
        reason = (
            "MLFLOW_TRACKING_URI names no server; " if is_folder and "MLFLOW_TRACKING_URI" not in os.environ else ""
        )
        self.place = f"the records go to {place}" + (f" ({reason}{shows})" if is_folder else "")

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Implements `Tracker`."""
        from mlflow.entities import Metric

        began_s, batch = time.time() - float(records[-1].get("training_s") or 0.0), list[Any]()
        for record in records:
            numbers, steps = _numbers(record), int(record[_STEPS])
            seconds = tag_of(record["kind"], "training_s")
            at_ms = int((began_s + numbers.setdefault(seconds, 0.0)) * 1000.0)
            numbers[seconds] = numbers.pop(seconds)
            if self._begun.pop(record["kind"], False):
                numbers = {name: value for name, value in numbers.items() if not self._has(name, record)}
            if len(batch) + len(numbers) > _MLFLOW_METRICS:
                self._client.log_batch(self._run, metrics=batch)
                batch = []
            batch += [Metric(name, value, at_ms, steps) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=batch)

    def close(self) -> None:
        """Implements `Tracker`."""
        self._client.set_terminated(self._run)

    def _found(self, run: TrackedRun) -> str:
        """Returns the number of the run in MLflow, with all its settings that MLflow lacks."""
        from mlflow.entities import Param, ViewType

        known = self._client.get_experiment_by_name(run.project)
        experiment = known.experiment_id if known else self._client.create_experiment(run.project)
        tagged = self._client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{run.id}'", ViewType.ALL)
        if tagged:
            found = tagged[0]
            self._client.update_run(found.info.run_id, status="RUNNING")
        else:
            found = self._client.create_run(experiment, run_name=run.name, tags={_RUN_TAG: run.id})
        # MLflow refuses another value of a parameter, which a resumed run may have.
        lacking = {name: text for name, text in texts(run.folder.config).items() if name not in found.data.params}
        parameters = [Param(name, text[:_MLFLOW_CHARACTERS]) for name, text in lacking.items()]
        for start in range(0, len(parameters), _MLFLOW_PARAMETERS):
            self._client.log_batch(found.info.run_id, params=parameters[start : start + _MLFLOW_PARAMETERS])
        return str(found.info.run_id)

    def _history(self, name: str) -> list[Any]:
        return list(self._client.get_metric_history(self._run, name))

    def _has(self, name: str, record: Mapping[str, Any]) -> bool:
        """Returns whether MLflow has this number of the first record after the last complete one of its kind."""
        last = self.last.get(record["kind"])
        return any(
            each.step == record[_STEPS] and (last is None or each.step > last.env_steps) for each in self._history(name)
        )


class Trackio:
    """A run in the store of Trackio on this machine, which writes all numbers of some records in one transaction."""

    def __init__(self, run: TrackedRun) -> None:
        # Its function `log` returns before the records are stored.
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import TRACKIO_DIR

        self._store, self._run = SQLiteStorage, run
        _check_writable(Path(TRACKIO_DIR), "set TRACKIO_DIR to another folder")
        logs = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
        marks = [
            (kind, Mark(log["step"], log[seconds]))
            for log in logs
            for kind in KINDS
            if (seconds := tag_of(kind, "training_s")) in log
        ]
        self.last: Mapping[str, Mark] = {
            kind: max(mark for each, mark in marks if each == kind) for kind in dict(marks)
        }
        self.place = (
            f"the records go to {TRACKIO_DIR}; `trackio show --project {run.project}` shows them, and `trackio sync"
            f" --project {run.project} --space-id NAME` uploads them"
        )

    def send(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Implements `Tracker`."""
        began_s = time.time() - float(records[-1].get("training_s") or 0.0)
        at = [datetime.fromtimestamp(began_s + float(each.get("training_s") or 0.0), UTC) for each in records]
        self._store.bulk_log(
            self._run.project,
            self._run.name,
            [_numbers(each) for each in records],
            steps=[int(each[_STEPS]) for each in records],
            timestamps=[each.isoformat() for each in at],
            config=self._run.settings,
            run_id=self._run.id,
        )

    def close(self) -> None:
        """Implements `Tracker`."""


_TRACKERS: dict[str, Callable[[TrackedRun], Tracker]] = {"wandb": Wandb, "mlflow": MLflow, "trackio": Trackio}


def _own(name: str, run: TrackedRun) -> Tracker:
    """Makes a user's tracker, a class that takes the run, or a function that returns a `Tracker`."""
    place, attribute = split(name)
    found: Any = import_named(place, attribute)
    if not callable(found):
        raise ConfigurationError(
            f"the tracker {name!r} does not name a class of {place}; correct the part after the colon"
        )
    tracker: Tracker = found(run)
    missing = [each for each in ("place", "last", "send", "close") if not hasattr(tracker, each)]
    if missing:
        raise ConfigurationError(
            f"the tracker {name!r} has no {missing[0]}; penstock.tracking.following.Tracker has all"
        )
    return tracker


def _why_offline() -> str:
    """Returns why the records can't go to W&B; empty if there is a login."""
    # Its output would be taken for lines of this process.
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode = os.environ.get("WANDB_MODE", "online")
    if mode != "online":
        return f"WANDB_MODE is {mode}"
    try:
        found = wandb.login(prompt=False, verify=False)
    except Exception as error:
        return foreign_errors.describe(error)
    return "" if found else "there is no login (`wandb login`)"


def _check_writable(folder: Path, remedy: str) -> None:
    """Makes a folder if it is missing. Raises `ConfigurationError` if this process can't write there."""
    try:
        make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise ConfigurationError(f"can't write {folder}: {in_words(error, folder)}; {remedy}") from None


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the known numbers of a record by the names that trackers show."""
    return {
        tag_of(record["kind"], name): value
        for name, value in record.items()
        if name != _STEPS and isinstance(value, int | float)
    }


def _number(value: object, text: str) -> object:
    """Returns a value if it is a number that JSON has; otherwise the text."""
    return value if isinstance(value, bool | int | float) and math.isfinite(value) else text
