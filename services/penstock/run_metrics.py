"""The metrics of a run as arrays, read from `metrics.jsonl` in its folder.

Each line of the file is one record in JSON: its kind, its environment step, and numbers by name. This module reads the
file, `learning.journal` writes it, and `learning.records` defines the numbers.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.run_folder import RunFolder

Columns = Mapping[str, NDArray[np.float64]]
"""Numbers by name, <float64>[N] each, in the order of the records; NaN where a record has no number."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a run.

    Example: `metrics.evaluation["return_mean"]` over `metrics.evaluation["env_steps"]`.

    Attributes:
        training: Columns of the records of training.
        evaluation: Columns of the records of evaluations during training.
        final_evaluation: Columns of the records of evaluations of the best checkpoint, one per session that ended.
    """

    training: Columns
    evaluation: Columns
    final_evaluation: Columns


def load_metrics(run: str | Path) -> Metrics:
    """Reads the metrics of a run from its folder. The run may still be active.

    Raises `ConfigurationError` if the folder has no metrics.
    """
    path = RunFolder(Path(run)).metrics
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"can't read the metrics {path}: {error.strerror}; choose the folder of a run that has begun to train"
        ) from None
    records = [record for line in lines if (record := _record(line)) is not None]
    return Metrics(
        *(
            _columns([record for record in records if record["kind"] == kind])
            for kind in ("training", "evaluation", "final_evaluation")
        )
    )


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
