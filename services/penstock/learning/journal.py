"""The journal of a run, metrics.jsonl: one JSON object per line, for plots and for jq."""

import contextlib
import dataclasses
import json
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from penstock.files import json_of, write_atomically
from penstock.learning.retried_writes import RetriedWrites
from penstock.learning.training_statistics import TrainingStatistics
from penstock.run_folder import damaged_lines_of
from penstock.types import EvaluationSummary, MeanTimes, RunStatus, VariantReturns, VariantStatus

_MAX_WAITING = 10_000
"""Records kept while the disk accepts none: some hours of records."""


class Journal:
    """Journal of whole lines. Records that can't be written now are written later. Used by one thread."""

    def __init__(self, path: Path, *, resumed_at: int, writes: RetriedWrites, notice: Callable[[str], None]) -> None:
        """Opens the journal of a run that resumes at environment step `resumed_at`.

        Drops records after that step, because training resumed before them. Lines that are not records are moved to a
        file beside the journal, with a notice: damaged lines, and the last line of a process that was killed.
        """
        self._path, self._writes = path, writes
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._rewritten: bytes | None = None
        self._written = 0
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            notice(f"can't read {path}: {error.strerror or error}; new records are added to its end")
            lines = []
            with contextlib.suppress(OSError):
                self._written = path.stat().st_size
        records = [(line, _steps(line)) for line in lines]
        kept = b"".join(line for line, steps in records if steps is not None and steps <= resumed_at)
        strays = [line.rstrip(b"\n") + b"\n" for line, steps in records if steps is None]
        if strays:
            aside = damaged_lines_of(path)
            notice(f"{len(strays)} lines of {path} are damaged or cut short; they are kept in {aside.name}")
            self._writes.write(aside.name, partial(_append, aside, b"".join(strays)))
        if lines:
            self._written = len(kept)
            if len(kept) < sum(len(line) for line in lines):
                self._rewritten = kept
                self._writes.write(path.name, self._write)

    def training(self, status: RunStatus, statistics: TrainingStatistics, times: MeanTimes, training_s: float) -> None:
        """Records the state of training. `times` are means since the previous record."""
        coordinator = status.coordinator
        self._append(
            {
                "kind": "training",
                "env_steps": status.env_steps,
                "env_steps_taken": status.env_steps_taken,
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
        """Records an evaluation. The final one is of the best checkpoint."""
        record = {"kind": "final_evaluation" if final else "evaluation", "training_s": round(training_s, 3)}
        values = {name: value for name, value in dataclasses.asdict(evaluation).items() if name != "variants"}
        self._append({**record, **values, **_of_variants(evaluation.variants)})

    def _append(self, record: dict[str, object]) -> None:
        self._waiting.append((json_of(record) + "\n").encode())
        self._writes.write(self._path.name, self._write)

    def _write(self) -> None:
        """Writes the waiting records. The next write overwrites one that failed halfway. Raises `OSError`."""
        if self._rewritten is not None:
            write_atomically(self._path, self._rewritten)
            self._rewritten = None
        data = b"".join(self._waiting)
        self._written = _append(self._path, data, at=self._written)
        self._waiting.clear()


def _of_variants(variants: Sequence[VariantStatus | VariantReturns]) -> dict[str, object]:
    """Returns the field for the variants; empty if the run has none."""
    return {"variants": [dataclasses.asdict(variant) for variant in variants]} if variants else {}


def _append(path: Path, data: bytes, *, at: int | None = None) -> int:
    """Truncates a file to at most `at` bytes and appends data. Returns its new size in bytes. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        position = size if at is None else min(at, size)
        os.ftruncate(descriptor, position)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, position)
            rest, position = rest[written:], position + written
        return position
    finally:
        os.close(descriptor)


def _steps(line: bytes) -> int | None:
    """Returns the environment steps of a record; None if the line is not a record."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return None


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
