"""Evaluation tasks, their results, and summaries of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.types.location import UNKNOWN, Location
from penstock.types.run import PlayedVariant, Weights
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class EvaluatorHello:
    """The introduction of an evaluator to the learner; `spec` is the `environment` of the contract's EvaluatorHello."""

    spec: EnvironmentSpec
    location: Location = UNKNOWN
    run: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """A task for an evaluator, with the fields of the contract's EvaluationTask.

    `weights` belong to its version. Without a limit, `max_seconds` is infinite. `untimed_episode_steps` bounds episodes
    in place of `max_episode_steps` if it is lower and an environment has no time limit. `played` has the variants, as
    many as `variants`, of a run that may change them.
    """

    id: int
    weights: Weights
    episodes: int
    deterministic: bool
    seed: int
    variants: int = 1
    max_episode_steps: int = 2**31
    untimed_episode_steps: int = 2**31
    max_seconds: float = math.inf
    played: tuple[PlayedVariant, ...] = ()
    # The server of the task adds it.
    run: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class VariantReturns:
    """Statistics of the returns of an evaluation's episodes in one environment variant."""

    episodes: int
    return_mean: float
    return_std: float
    number: int = 0


@dataclass(frozen=True, slots=True)
class InfoValues:
    """Values of one key of the infos in each episode of an evaluation, NaN where an episode had none."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class InfoMetric:
    """A number that environments return in their infos (`environment.info_metrics`), over several episodes.

    Attributes:
        name: Key of the infos.
        episodes: Episodes that had the number.
        mean: Their mean, which is a rate for truth values; None without such episodes.
        missing: Episodes that did not have it.
    """

    name: str
    episodes: int = 0
    mean: float | None = None
    missing: int = 0

    @classmethod
    def of(cls, name: str, values: Iterable[float]) -> "InfoMetric":
        """Returns the metric over episodes with these values, NaN where an episode had none."""
        given = list(values)
        known = [value for value in given if not math.isnan(value)]
        mean = math.fsum(known) / len(known) if known else None
        return cls(name, len(known), mean, len(given) - len(known))

    def __str__(self) -> str:
        shown = "-" if self.mean is None else f"{self.mean:.4g}"
        return f"{self.name} {shown}" + (f" ({self.missing:,} episodes without it)" if self.missing else "")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluation task, with the fields of the contract's EvaluationResult."""

    id: int
    version: int
    returns: tuple[float, ...]
    steps: tuple[int, ...]
    seconds: float
    unfinished: int = 0
    out_of_time: bool = False
    failure: str = ""
    info: tuple[InfoValues, ...] = ()

    @property
    def info_metrics(self) -> tuple[InfoMetric, ...]:
        """The numbers of the infos over the episodes."""
        return tuple(InfoMetric.of(each.name, each.values) for each in self.info)

    @property
    def return_mean(self) -> float:
        """Mean return over the episodes."""
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation of the return over the episodes."""
        return float(np.std(self.returns))

    def by_variant(self, numbers: Sequence[int]) -> tuple[VariantReturns, ...]:
        """Returns statistics for each of the variants, given by number, between which episodes alternate.

        Variants without an episode are left out.
        """
        parts = [(number, self.returns[place :: len(numbers)]) for place, number in enumerate(numbers)]
        return tuple(
            VariantReturns(len(part), float(np.mean(part)), float(np.std(part)), number)
            for number, part in parts
            if part
        )


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Statistics of one evaluation, with the fields of the contract's EvaluationSummary.

    Attributes:
        version: Version of the policy, in trained batches.
        env_steps: Environment steps that it was trained on.
        episodes: Number of episodes.
        return_mean: Mean return of the episodes.
        return_std: Standard deviation of the return over the episodes.
        variants: Returns in each variant of the environment that was played; empty if there are none.
        unfinished: Episodes that were cut by a bound on steps or time, and count with their returns until then.
        info_metrics: Numbers of the infos over the episodes (`environment.info_metrics`).
    """

    version: int
    env_steps: int
    episodes: int
    return_mean: float
    return_std: float
    variants: tuple[VariantReturns, ...] = ()
    unfinished: int = 0
    info_metrics: tuple[InfoMetric, ...] = ()
