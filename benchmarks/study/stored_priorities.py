"""How well stored priorities rank segments by age, with and without reanalysis, and what reanalysis costs.

At some versions of a run with replay, the priority of each segment that may be replayed is computed under the current
parameters, which is the priority that training on it at once would commit. The rank correlation with the stored
priorities, by which the store draws, is measured for segments of similar age.
"""

import json
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.study.estimates import rank_correlation
from benchmarks.study.pool import Pool
from benchmarks.study.rules import Around, ReanalysedSource, Reanalysis, recomputed
from benchmarks.study.running import Run
from helpers.rule import Rule
from helpers.single_process import train
from penstock.config import Config
from penstock.files import write_json
from penstock.learning.learner import Learner
from penstock.learning.protocols import BatchSource
from penstock.types.replay import Batch, CommitOutcome
from penstock.types.spaces import EnvironmentSpec

AGES = ((1, 4), (5, 16), (17, 64))
"""First and last age, in versions, of the segments that are compared with each other."""

POINTS = Reanalysis().interval
"""Measurements in a run: one at each number of batches since priorities were recomputed."""

_LEAST_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements at one version.

    Attributes:
        version: The version.
        correlations: Rank correlation of stored and current priorities, by ages; None with too few segments.
    """

    version: int
    correlations: Mapping[str, float | None]


def name_of(ages: tuple[int, int]) -> str:
    """Returns the name of a range of ages."""
    return f"{ages[0]}-{ages[1]}"


def points_of(config: Config) -> set[int]:
    """Returns the versions of the measurements, as evenly spread over the run as their phases permit.

    Each has another remainder by `POINTS`, because priorities are exact just after they were recomputed. Remainders do
    not ascend with the versions, because priorities change faster at the beginning of a run.
    """
    assert config.run.total_steps is not None
    last = config.run.total_steps // (config.actor.unroll_length * config.sampling.fresh_segments)
    even = {5 * point % POINTS: last * (point + 1) / (POINTS + 1) for point in range(POINTS)}
    return {phase + POINTS * max(1, round((version - phase) / POINTS)) for phase, version in even.items()}


class Probe(Around):
    """Measures the segments before some batches are trained. Any reanalysis is around it.

    Attributes:
        points: The measurements.
        training_s: CPU time of this thread from the batches to their commits, with reanalysis.
    """

    learner: Learner

    def __init__(self, source: BatchSource, config: Config) -> None:
        """Begins without measurements. `learner` is set before the first batch."""
        super().__init__(source)
        self._pool, self._size = Pool(config.sampling.max_staleness), config.sampling.batch_segments
        self._at = points_of(config)
        self.points: list[Point] = []
        self.training_s = 0.0

    def next(self, timeout_s: float) -> Batch | None:
        """Implements `BatchSource`."""
        batch = super().next(timeout_s)
        if batch is not None and batch.number in self._at:
            self.points.append(self._measure(batch.number))
        self._began = time.thread_time()
        return batch

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Implements `BatchSource`."""
        self.training_s += time.thread_time() - self._began
        self._pool.see_commit(batch, priorities)
        return super().commit(batch, priorities)

    def _measure(self, version: int) -> Point:
        segments = list(self._pool.segments.values())
        stored = np.array([kept.priority for kept in segments])
        ages = np.array([version - kept.version for kept in segments])
        current = recomputed(self.learner, self._pool, segments, version, self._size)
        correlations = {}
        for first, last in AGES:
            among = (ages >= first) & (ages <= last)
            enough = np.count_nonzero(among) >= _LEAST_SEGMENTS
            correlations[name_of((first, last))] = rank_correlation(stored[among], current[among]) if enough else None
        return Point(version, correlations)


@dataclass(frozen=True)
class Probed(Rule):
    """Another rule, for one run, with a probe around the source of batches.

    Attributes:
        rule: The other rule.
        made: The probe, and the source around it from which the learner gets batches, once there are any.
    """

    rule: Rule
    made: list[tuple[Probe, BatchSource]] = field(default_factory=list)

    def parts(
        self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource
    ) -> tuple[Learner, BatchSource]:
        """Implements `Rule`."""
        probe = Probe(source, config)
        probe.learner, outermost = self.rule.parts(config, spec, device, probe)
        self.made.append((probe, outermost))
        return probe.learner, outermost


def measure_run(run: Run, folder: Path) -> dict[str, Any]:
    """Returns the measurements of a run, from the folder if they are there."""
    path = folder / f"stored-priorities-{run.path(folder).name}"
    if not path.exists():
        probed = Probed(run.setting.rule)
        train(run.config, run.setting.lag, rule=probed)
        ((probe, outermost),) = probed.made
        spent_s = outermost.seconds if isinstance(outermost, ReanalysedSource) else 0.0
        points = [asdict(point) for point in probe.points]
        write_json(path, {"points": points, "reanalysis_share": spent_s / probe.training_s})
    measured: dict[str, Any] = json.loads(path.read_text())
    return measured
