"""metrics.jsonl: what happened in a run, a JSON object a line, for plots and for people with jq."""

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
"""Records kept for a disk that takes none now: some hours of them."""


class Journal:
    """Appends records, each line whole; what can't be written now is written later. Used by one thread."""

    def __init__(self, path: Path, *, resumed_at: int, writes: RetriedWrites, notice: Callable[[str], None]) -> None:
        """Opens the journal of a run that goes on at environment step `resumed_at`.

        Records past it, of a future that was lost, are dropped. Lines that are no records are moved to a file beside
        the journal and told: the last line of a process that was killed, or a damaged one.
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
        """Notes how training goes; `times` are means since the record before."""
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
        """Notes an evaluation; the final one is of the best checkpoint."""
        record = {"kind": "final_evaluation" if final else "evaluation", "training_s": round(training_s, 3)}
        values = {name: value for name, value in dataclasses.asdict(evaluation).items() if name != "variants"}
        self._append({**record, **values, **_of_variants(evaluation.variants)})

    def _append(self, record: dict[str, object]) -> None:
        self._waiting.append((json_of(record) + "\n").encode())
        self._writes.write(self._path.name, self._write)

    def _write(self) -> None:
        """Writes what is waiting. A write that fails half way is overwritten by the next. Raises `OSError`."""
        if self._rewritten is not None:
            write_atomically(self._path, self._rewritten)
            self._rewritten = None
        data = b"".join(self._waiting)
        self._written = _append(self._path, data, at=self._written)
        self._waiting.clear()


def _of_variants(variants: Sequence[VariantStatus | VariantReturns]) -> dict[str, object]:
    """Nothing where the run has no variants."""
    return {"variants": [dataclasses.asdict(variant) for variant in variants]} if variants else {}


def _append(path: Path, data: bytes, *, at: int | None = None) -> int:
    """Writes at this byte, or at the end of a file that is shorter; returns where it ends. Raises `OSError`."""
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
    """The environment steps of a record; None if the line is none."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return None


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
