"""The metrics of a run as arrays, read from `metrics.jsonl` in its folder.

Each line of the file is one record in JSON: its kind, its environment step, and numbers by name.
`learning.durable.records` defines the numbers.
"""

import functools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder

_TRAINING, _BEGINNING = b'"kind": "training"', 40
"""Text by which a record of training is known without parsing, and the bytes of a line that may contain it."""

KINDS = ("training", "evaluation", "final_evaluation")
"""Kinds of records. The final evaluation is of the best checkpoint, one per session that ended."""

_GROUPS = {
    "return": ("return_mean", "episode_return_mean", "episodes"),
    "loss": ("policy_loss", "value_loss", "entropy", "approximate_kl", "clipped_share", "explained_variance"),
    "gradient": ("gradient_norm", "learning_rate", "effective_sample_share", "fresh_effective_share"),
    "age": (
        "staleness_mean",
        "staleness_max",
        "fresh_lag_mean",
        "fresh_lag_max",
        "replayed_age_mean",
        "replayed_age_90",
    ),
    "replay": ("replay_stored", "samples_per_insert", "late_segments", "drawn_priority", "priority_gain"),
    "speed": ("env_steps_per_s", "updates_per_s", "env_steps_taken", "training_s"),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}
"""Groups of a tracker's page by the names of numbers of training. Others are in `time` or `training`."""

OWN_STATISTIC = "loss_"
"""Beginning of the names of numbers that a loss of the user's own returns (`learner.loss`)."""

OWN_NUMBER = "callback_"
"""Beginning of the names of numbers that a callback of the user's own logs (`learner.callbacks`)."""

INFO_METRIC = "info_"
"""Beginning of the names of numbers that environments return in their infos (`environment.info_metrics`)."""

Columns = Mapping[str, NDArray[np.float64]]
"""Numbers by name, <float64>[N] each, in the order of the records; NaN where a record has no number."""


@functools.cache
def tag_of(kind: str, name: str) -> str:
    """Returns the name of a number of a record, such as loss/policy_loss, in TensorBoard and in other trackers."""
    if name.startswith(OWN_STATISTIC):
        return f"loss/{name.removeprefix(OWN_STATISTIC)}"
    if name.startswith(OWN_NUMBER):
        return f"{'callback' if kind == 'training' else kind}/{name.removeprefix(OWN_NUMBER)}"
    if name.startswith(INFO_METRIC):
        return f"{'info' if kind == 'training' else kind}/{name.removeprefix(INFO_METRIC)}"
    group = kind if kind != "training" else _GROUP_OF.get(name, "time" if name.endswith("_s") else "training")
    return f"{group}/{name}"


def return_text(mean: float, std: float | None = None) -> str:
    """Returns a return, or the mean and the standard deviation of several, as text.

    It has one decimal, or as many as show three digits of the larger number: rewards of some tasks are far below 1.
    """
    largest = max(abs(mean), std or 0.0)
    small = 0.0 < largest < 10.0
    decimals = min(2 - math.floor(math.log10(largest)), 9) if small else 1
    shown = f"{mean:.{decimals}f}"
    return shown if std is None else f"{shown} ± {std:.{decimals}f}"


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a run.

    For example::

        metrics = penstock.load_metrics("runs/first")
        steps, returns = metrics.evaluation["env_steps"], metrics.evaluation["return_mean"]
        print(steps[returns.argmax()], metrics.training["entropy"][-1])

    Attributes:
        training: Columns of the records of training.
        evaluation: Columns of the records of evaluations during training.
        final_evaluation: Columns of the records of evaluations of the best checkpoint, one per session that ended.
    """

    training: Columns
    evaluation: Columns
    final_evaluation: Columns


def load_metrics(run: str | os.PathLike[str], most_training: int | None = None) -> Metrics:
    """Reads the metrics of a run from its folder. The run may still be active.

    For example::

        evaluation = penstock.load_metrics("runs/first").evaluation
        steps, returns = evaluation["env_steps"], evaluation["return_mean"]  # <float64>[N] each

    Args:
        run: Folder of the run, or a `Run`.
        most_training: Most records of training to read, evenly over the run, with the first and the last two; None:
            all. The longest files take seconds.

    Raises:
        ConfigurationError: The folder has no metrics.
    """
    path = RunFolder(Path(run)).metrics
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"can't read the metrics {path}: "
            + in_words(error, path, "choose the folder of a run that has begun to train")
        ) from None
    if most_training is not None:
        lines = _thinned(lines, most_training)
    records = records_in(lines)
    return Metrics(*(_columns([record for record in records if record["kind"] == kind]) for kind in KINDS))


def records_of(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a journal that are whole, as dicts by name. Raises `OSError` if it can't be read."""
    return records_in(path.read_bytes().splitlines())


def records_in(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """Returns the records in lines of a journal, without damaged lines."""
    return [record for line in lines if (record := _record(line.decode(errors="replace"))) is not None]


class JournalLines:
    """Reads the lines of a run's journal as it grows. The journal need not exist yet."""

    def __init__(self, run: str | Path) -> None:
        """Begins with the first line of the journal in the folder of a run."""
        self._path = RunFolder(Path(run)).metrics
        self._offset, self._inode = 0, -1

    def read(self) -> tuple[bool, list[bytes]]:
        """Returns whether the file is new, and its complete lines since the last call, or all lines of a new file.

        A resumed run replaces the file by one without the records that it repeats, and a long run by one with fewer
        records.
        """
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                # A third file may have the number of the first one.
                replaced = found.st_ino != self._inode or found.st_size < self._offset
                if replaced:
                    self._inode, self._offset = found.st_ino, 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False, []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return replaced, data[:end].splitlines()


class RecordReader:
    """Reads the records that a run writes from now on, as dicts by name."""

    def __init__(self, run: str | Path) -> None:
        """Begins after the records that are in the folder already. There may be none, and no folder."""
        self._lines = JournalLines(run)
        # A file that is replaced has its other records once more. Numbers in place of lines, which take ten times the
        # memory.
        self._known = set[int]()
        self.read()

    def read(self) -> list[dict[str, Any]]:
        """Returns the records that were written since the last call."""
        replaced, lines = self._lines.read()
        new = [line for line in lines if hash(line) not in self._known]
        self._known = {hash(line) for line in lines} | (set() if replaced else self._known)
        return records_in(new)


def _thinned(lines: list[bytes], most_training: int) -> list[bytes]:
    """Returns lines with `most_training` of the records of training, evenly over them, and all other records."""
    trained = [index for index, line in enumerate(lines) if _TRAINING in line[:_BEGINNING]]
    if len(trained) <= most_training:
        return lines
    # The very last line may be incomplete.
    kept = {*np.linspace(0, len(trained) - 1, most_training - 1).round().astype(int).tolist(), len(trained) - 2}
    left_out = {index for position, index in enumerate(trained) if position not in kept}
    return [line for index, line in enumerate(lines) if index not in left_out]


def _record(line: str) -> dict[str, Any] | None:
    """Returns the record in a line; None for a damaged one, such as the last line of an active run."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"kind", "env_steps"} <= record.keys() else None


def _columns(records: Sequence[dict[str, Any]]) -> Columns:
    # Records of variants are nested, and have no column.
    names = dict.fromkeys(
        name for record in records for name, value in record.items() if value is None or isinstance(value, (int, float))
    )
    return {name: np.array([_number(record.get(name)) for record in records], np.float64) for name in names}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("nan")
