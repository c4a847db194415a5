"""metrics.jsonl: what happened in a run, a JSON object a line, for plots and for people with jq."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

from penstock.files import write_atomically
from penstock.learning.learner import TrainingStatistics
from penstock.types import EvaluationSummary, MeanTimes, RunStatus, VariantReturns, VariantStatus


class Journal:
    """Appends records; every line is whole on disk before the next. Used by one thread."""

    def __init__(self, path: Path, *, resumed_at: int) -> None:
        """Opens the journal. Records past environment step `resumed_at`, of a future that was lost, are dropped."""
        if path.exists():
            kept = [line for line in path.read_bytes().splitlines(keepends=True) if _is_before(line, resumed_at)]
            write_atomically(path, b"".join(kept))
        self._file = path.open("a", encoding="utf-8")

    def training(self, status: RunStatus, statistics: TrainingStatistics, times: MeanTimes, training_s: float) -> None:
        """Notes how training goes; `times` are means since the record before."""
        coordinator = status.coordinator
        self._append(
            {
                "kind": "training",
                "env_steps": status.env_steps,
                "version": status.version,
                "training_s": round(training_s, 3),
                "env_steps_per_s": round(status.env_steps_per_s, 1),
                "updates_per_s": round(status.updates_per_s, 1),
                "episodes": status.episodes,
                "return_mean": status.return_mean,
                "replay_stored": status.replay_stored,
                "samples_per_insert": round(status.samples_per_insert, 3),
                "off_policy_degree": coordinator.off_policy_degree if coordinator else None,
                "late_segments": coordinator.drops.late_segments if coordinator else None,
                **{name: _rounded(value) for name, value in dataclasses.asdict(statistics).items()},
                **_of_variants(status.variants),
                **{name: _rounded(value) for name, value in dataclasses.asdict(times).items()},
            }
        )

    def evaluation(self, evaluation: EvaluationSummary, training_s: float, *, final: bool) -> None:
        """Notes an evaluation; the final one is of the best checkpoint."""
        record = {"kind": "final_evaluation" if final else "evaluation", "training_s": round(training_s, 3)}
        values = {name: value for name, value in dataclasses.asdict(evaluation).items() if name != "variants"}
        self._append({**record, **values, **_of_variants(evaluation.variants)})

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, record: dict[str, object]) -> None:
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def _of_variants(variants: Sequence[VariantStatus | VariantReturns]) -> dict[str, object]:
    """Nothing where the run has no variants."""
    return {"variants": [dataclasses.asdict(variant) for variant in variants]} if variants else {}


def _is_before(line: bytes, env_steps: int) -> bool:
    try:
        return int(json.loads(line)["env_steps"]) <= env_steps
    except (ValueError, KeyError, TypeError):
        # The last line of a process that was killed may be cut short.
        return False


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
