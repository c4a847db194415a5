"""The section [sampling]."""

from typing import Annotated

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from penstock.config import replay_law
from penstock.config.code_names import RULES, CodeName, Rule
from penstock.config.setting_types import AUTO_DEGREE, DemonstrationFile, DerivedCount, DerivedDegree, UnitInterval
from penstock.config.settings.section import Section
from penstock.gate_law import share_conflict

_ALPHA = 0.6
"""Exponent of Schaul et al. 2016."""


class SamplingConfig(Section):
    """[sampling] The composition of training batches and the age of their segments."""

    batch_segments: DerivedCount = 0
    """Segments in a training batch once replay has begun. 0 or auto: so many that its fresh segments are a window of
    every actor, but at most two windows or 512 steps, or as many as off_policy_degree needs for all actors to collect;
    and at least 32, but with off_policy_degree 0 and fresh_fraction 1."""
    fresh_fraction: UnitInterval = 0.25
    """Share of fresh segments in a batch, which were not trained yet; the rest is replayed by priority. By default each
    segment is used four times, which needs fewer environment steps than twice (docs/RESULTS.md). 1: no replay. 0: all
    segments are replayed as soon as they are stored, and collection is not limited."""
    off_policy_degree: DerivedDegree = AUTO_DEGREE
    """Batches that collection may run ahead of training. 0: synchronous. -1 or auto: 1 and, while the learner waits for
    segments, up to so many that every actor can collect a window, at most 32."""
    publish_interval: PositiveInt = 1
    """Batches from one publication of the weights to the next."""
    alpha: Annotated[float, Field(ge=0.0, le=replay_law.LARGEST_ALPHA)] = _ALPHA
    """Exponent of the priority in the draw, at most 10; 0: priority does not matter."""
    priority: Annotated[str, CodeName.of_function("my_priority", "priority", "penstock.priorities")] | None = None
    """Your own priority: file.py:my_priority or my_package.my_module:my_priority. It is a function of the segments of a
    batch that returns one number per segment, or a class whose instance is such a function
    (docs/change-the-algorithm.md). Unset: the mean absolute advantage."""
    beta: UnitInterval = 0.4
    """Exponent of the importance correction at the start, as in Schaul et al. 2016."""
    final_beta: UnitInterval = 1.0
    """Exponent of the importance correction at the end of the run; it changes linearly."""
    epsilon: Annotated[float, Field(ge=replay_law.EPSILONS[0], le=replay_law.EPSILONS[1])] = 1e-3
    """Constant added to every priority, so that every segment can be drawn."""
    half_life: Annotated[float, Field(gt=0.0, allow_inf_nan=True)] = 3.0
    """Age in versions that halves a segment's probability; inf: age does not matter up to max_staleness."""
    max_staleness: PositiveInt = 64
    """Age in versions above which segments are no longer replayed."""
    min_replay_segments: NonNegativeInt = 64
    """Segments that must have been trained before any is replayed."""
    demonstrations: DemonstrationFile | None = None
    """File of demonstrations, segments of which are added to each batch (docs/demonstrations.md). Unset: none."""
    demonstration_fraction: Annotated[float, Field(gt=0.0, le=16.0)] = 0.25
    """Demonstrated segments that are added to each batch, as a share of batch_segments; at least one segment."""
    collection: Rule = "equal"
    """Rule by which environment.variants share collection. equal: every actor collects as much as any other. error: by
    the mean absolute advantage in a variant's newest segments. return: by how far a variant's mean return is below
    evaluation.threshold or, without one, below the best variant's. learnability: by p (1 - p), with p the share of a
    variant's newest episodes that reach the threshold or, without one, exceed the median of all. Your own curriculum:
    file.py:my_curriculum, a function of the variants and the run's progress that returns a weight for each
    (docs/change-the-algorithm.md). Has no effect while the learner waits for segments."""
    least_share: float = 0.2
    """Smallest share of collection of an actor, relative to an equal share; above 0 and at most 1. Enough for the
    statistics of a variant that is easy now to show that it was forgotten."""

    @property
    def fresh_segments(self) -> int:
        """Number of fresh segments in every batch (F)."""
        return round(self.batch_segments * self.fresh_fraction)

    @property
    def curriculum(self) -> str | None:
        """Name of the user's own rule of collection; None: it is one of Penstock's."""
        return None if self.collection in RULES else self.collection

    @property
    def usual_alpha(self) -> float:
        """Exponent for which the gain of draws by priority is estimated: the default if `alpha` is 0."""
        return self.alpha or _ALPHA

    @pydantic.model_validator(mode="after")
    def _check_share(self) -> "SamplingConfig":
        if reason := share_conflict(self.least_share):
            raise ValueError(reason)
        return self

    @pydantic.model_validator(mode="after")
    def _check_fresh(self) -> "SamplingConfig":
        if self.batch_segments and self.fresh_fraction > 0.0 and self.fresh_segments < 1:
            raise ValueError(
                f"sampling.batch_segments {self.batch_segments} times sampling.fresh_fraction {self.fresh_fraction}"
                " leaves no fresh segment; set sampling.batch_segments to auto, or sampling.fresh_fraction to"
                f" {1.0 / self.batch_segments:.3g} or more"
            )
        return self
