"""Headroom: how much drawing by each signal changes the second moment of the gradient estimate, during a run.

At some versions of a run with replay, the gradients of the segments that could be replayed, under the current
parameters, give the ratio of `algo.second_moments` for draws by each signal and age, relative to draws by age alone:

- stored: the priority as it was committed, by which the store draws
- current: the priority of the same segment under the current parameters, the mean of |A|
- mixture: 0.9 times the largest |D| and 0.1 times the mean, as in R2D2
- mean: the mean of |D|
- bound: the sum over steps of the norms of the loss's gradient at the outputs of the networks (Katharopoulos & Fleuret
  2018)
- best: the norm of the gradient itself, by which the ratio is smallest

`live` is the ratio of stored priorities that training estimates from its batches (`learning.priority_gain`).
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.study.estimates import rank_correlation
from benchmarks.study.experiments import REPLAY, Setting
from benchmarks.study.pool import Pool
from benchmarks.study.rules import error_priorities
from benchmarks.study.tasks import TASKS
from helpers.single_process import train
from penstock.algo import weights as policy_weights
from penstock.algo.second_moments import moments
from penstock.config import Config
from penstock.files import write_json
from penstock.learning import schedules
from penstock.learning.assembly import learner_of
from penstock.learning.gradient_steps import Estimated
from penstock.learning.learner import Learner
from penstock.learning.segment_gradients import alike
from penstock.run_folder import RunFolder
from penstock.types.replay import Batch
from penstock.types.run import Weights

SIGNALS = ("stored", "current", "mixture", "mean", "bound", "best")

POINTS = 8
"""Measurements of the pool in a run."""

_POOL = 256
"""Largest number of segments that are measured."""

_CPU = torch.device("cpu")


def configuration(task: str, seed: int) -> Config:
    """Returns the configuration of the runs: those with prioritized replay of the study of replay."""
    return REPLAY.configuration(TASKS[task], Setting("prioritized"), seed)


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements at one version.

    Attributes:
        version: The version.
        segments: Number of segments.
        ratios: Ratio by signal, mean over the parts of the gradient.
        policy: Ratio by signal for the first part alone, the policy's.
        correlations: Rank correlation of each signal with the norm of the gradient.
    """

    version: int
    segments: int
    ratios: Mapping[str, float]
    policy: Mapping[str, float]
    correlations: Mapping[str, float]


class Probe:
    """Watches a run and measures it at regular versions."""

    def __init__(self, config: Config) -> None:
        """Begins with an empty pool."""
        sampling = config.sampling
        self._config, self._sampling = config, sampling
        self._kept = Pool(sampling.max_staleness)
        self._learner: Learner | None = None
        self._weights: Weights | None = None
        steps = config.actor.unroll_length * sampling.fresh_segments
        assert config.run.total_steps is not None
        self._last = config.run.total_steps // steps
        self._at = {self._last * (point + 1) // (POINTS + 1) for point in range(POINTS)}
        self.points: list[Point] = []

    def see_weights(self, weights: Weights) -> None:
        """Keeps the newest version."""
        self._weights = weights

    def see(self, batch: Batch) -> None:
        """Measures a batch before it is trained."""
        if batch.number in self._at and self._kept.segments:
            self._measure(batch.number, min(1.0, batch.number / self._last))

    def see_commit(self, batch: Batch, priorities: NDArray[np.float64]) -> None:
        """Keeps the segments of a batch that was trained."""
        self._kept.see_commit(batch, priorities)

    def _measure(self, version: int, progress: float) -> None:
        kept = list(self._kept.segments.values())
        ages = np.array([version - each.version for each in kept])
        chance = np.exp2(-ages / self._sampling.half_life)
        random = np.random.default_rng([self._config.run.seed, version])
        drawn = random.choice(len(kept), _POOL, p=chance / chance.sum())
        # A segment that is drawn twice is measured once.
        numbers, counts = np.unique(drawn, return_counts=True)
        found = [kept[number] for number in numbers]
        learner, batch = self._current(), self._kept.batch(found, version)
        estimated = learner.estimate(batch, progress)
        squared = learner.squared_gradients(batch, progress)
        alpha, epsilon = self._sampling.usual_alpha, self._sampling.epsilon

        norm = np.sqrt(squared.sum(1))
        signals = {
            "stored": (np.array([each.priority for each in found]) + epsilon) ** alpha,
            "current": (estimated.priority.double().numpy() + epsilon) ** alpha,
            "mixture": (error_priorities(estimated, 0.9) + epsilon) ** alpha,
            "mean": (error_priorities(estimated, 0.0) + epsilon) ** alpha,
            "bound": (_output_norms(learner, estimated, self._config, progress) + 1e-12) ** alpha,
            # By the norm of each part relative to its mean, because the ratios of the parts are averaged.
            "best": np.sqrt((squared / (counts @ squared / counts.sum())).sum(1)) + 1e-12,
        }

        def ratios(part: slice) -> dict[str, float]:
            each = {name: moments(squared[:, part], score, repeats=counts) for name, score in signals.items()}
            return {name: found.ratio for name, found in each.items() if found is not None}

        self.points.append(
            Point(
                version,
                len(found),
                ratios(slice(None)),
                ratios(slice(1)),
                {name: rank_correlation(score, norm) for name, score in signals.items()},
            )
        )

    def _current(self) -> Learner:
        """Returns a learner with the newest policy."""
        assert self._weights is not None
        policy = policy_weights.load(self._weights)
        if self._learner is None:
            self._learner = learner_of(self._config, policy.spec, _CPU)
        policy_weights.load_into(self._learner.policy, self._weights)
        return self._learner


def _output_norms(learner: Learner, estimated: Estimated, config: Config, progress: float) -> NDArray[np.float64]:
    """Returns the sum over the rows of each segment of the norms of the loss's gradient at the networks' outputs."""
    settings = dataclasses.replace(schedules.loss_settings(config.ppo, progress), normalise_advantages=False)
    outputs: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        del module, inputs
        output.retain_grad()
        outputs.append(output)

    hooks = [module.register_forward_hook(keep) for module in (learner.policy.actor, learner.policy.critic)]
    steps = alike(estimated, schedules.loss_settings(config.ppo, progress))
    _, loss = learner.step.objective(steps, settings, None)
    loss.total.backward()  # type: ignore[no-untyped-call]
    learner.optimizer.zero_gradient()
    for hook in hooks:
        hook.remove()
    norm = torch.zeros(steps.advantage.shape, dtype=torch.float64)
    for output in outputs:
        assert output.grad is not None
        # Relative to its mean, as the parts of the gradient.
        size = output.grad.double().flatten(steps.advantage.ndim).norm(dim=-1)
        norm = norm + size / size.mean().clamp(min=1e-30)
    return _sums(estimated, norm)


def _sums(estimated: Estimated, values: Tensor) -> NDArray[np.float64]:
    """Returns the sums over the usable rows of each segment of values that have the shape of the steps."""
    counted = estimated.steps.usable
    segments = torch.zeros(estimated.usable.shape, dtype=torch.float64)
    segments[estimated.usable] = (values if counted is None else values[counted]).double()
    return np.asarray(segments.sum(1).numpy())


def measure_run(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """Returns the measurements of one run, from the folder if they are there."""
    path = folder / f"headroom-{task}-{seed}.json"
    if not path.exists():
        torch.set_num_threads(1)
        config = configuration(task, seed)
        probe = Probe(config)
        with tempfile.TemporaryDirectory(prefix="penstock-study-") as temporary:
            train(
                config,
                folder=Path(temporary),
                watch=probe.see,
                watch_weights=probe.see_weights,
                watch_commit=probe.see_commit,
            )
            live = _live(RunFolder(Path(temporary)).metrics)
        write_json(path, {"points": [asdict(point) for point in probe.points], "live": live})
    measured: dict[str, Any] = json.loads(path.read_text())
    return measured


def _live(metrics: Path) -> list[tuple[int, float]]:
    """Returns the versions and the ratios that training reported."""
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [
        (record["version"], 1.0 - record["priority_gain"])
        for record in records
        if record["kind"] == "training" and record["priority_gain"] is not None
    ]
