"""The outcome of a run, read from its folder, and the means of several runs that differ only by seed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.comparing.statistics import Estimate, interquartile_mean, log_ratios, stratified_bootstrap, t_interval
from penstock.errors import ConfigurationError
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import load_metrics
from penstock.runs.summary import ended_summary


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run that has ended.

    Attributes:
        folder: Folder of the run.
        seed: Seed of the run.
        final_return: Mean return of the best checkpoint on episodes not used to choose it; without a final evaluation,
            that of the last evaluation during training.
        steps_to_threshold: Environment steps at the first evaluation that reached the threshold; None if none did.
        env_steps: Environment steps trained.
        steps: Environment steps of the evaluations, <float64>[N].
        returns: Their mean returns, <float64>[N].
    """

    folder: str
    seed: int
    final_return: float
    steps_to_threshold: int | None
    env_steps: int
    steps: NDArray[np.float64]
    returns: NDArray[np.float64]

    def record(self) -> dict[str, object]:
        """Returns the numbers of the run for a table, without its curve, which its folder has."""
        names = ("folder", "seed", "final_return", "steps_to_threshold", "env_steps")
        return {name: getattr(self, name) for name in names}


def read_outcome(folder: Path) -> Outcome | None:
    """Reads the outcome of a run; None if it has not ended. Raises `ConfigurationError` if it has no evaluation."""
    summary = ended_summary(RunFolder(folder).summary)
    if summary is None:
        return None
    evaluation = load_metrics(folder).evaluation
    if not len(evaluation.get("env_steps", ())):
        raise ConfigurationError(
            f"the run in {folder} has no evaluation; shorten evaluation.interval_steps or lengthen the run"
        )
    final = summary.evaluation
    return Outcome(
        folder=str(folder),
        seed=summary.seed,
        final_return=float(evaluation["return_mean"][-1]) if final is None else final.return_mean,
        steps_to_threshold=summary.env_steps_to_threshold,
        env_steps=summary.env_steps,
        steps=evaluation["env_steps"],
        returns=evaluation["return_mean"],
    )


@dataclass(frozen=True, slots=True)
class Means:
    """Means of several runs with the same settings.

    Attributes:
        runs: Number of runs.
        final_return: Interquartile mean of the final returns, with a bootstrap interval, which is too narrow for few
            runs.
        steps_to_threshold: Geometric mean of the steps to the threshold, with a t interval. Runs that did not reach it
            count with the steps that they trained.
        reached: Number of runs that reached the threshold.
    """

    runs: int
    final_return: Estimate
    steps_to_threshold: Estimate
    reached: int


def means(outcomes: Sequence[Outcome]) -> Means:
    """Returns the means of at least one run."""
    returns = np.array([each.final_return for each in outcomes])
    steps = [each.steps_to_threshold for each in outcomes]
    trained = [(each.env_steps, each.env_steps) for each in outcomes]
    return Means(
        runs=len(outcomes),
        final_return=stratified_bootstrap([returns], interquartile_mean, rng=np.random.default_rng(0)),
        # Over one step, so that they are the logarithms of the steps.
        steps_to_threshold=t_interval(log_ratios([1] * len(steps), steps, trained=trained)).exponential(),
        reached=sum(each is not None for each in steps),
    )
