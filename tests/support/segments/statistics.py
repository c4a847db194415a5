"""Batches and statistics of training, for tests of counts and means."""

from dataclasses import replace

import numpy as np

from penstock.learning.step.training_statistics import TrainingStatistics
from penstock.types.records import plain
from penstock.types.replay import Batch, BatchHead, StoreCounts
from penstock.types.statistics import LearningNumbers
from tests.support.segments.segments import SCHEMA

TRAINING = TrainingStatistics(
    learning=LearningNumbers(
        effective_sample_share=0.8,
        fresh_effective_share=0.9,
        clipped_share=0.1,
        approximate_kl=0.01,
        entropy=0.6,
        explained_variance=0.4,
        gradient_norm=0.5,
        priority_gain=0.12,
        policy_loss=0.1,
        value_loss=0.2,
        actions_at_bound=0.3,
    ),
    learning_rate=1e-3,
    staleness_mean=3.0,
    staleness_max=7,
    fresh_lag_mean=1.0,
    fresh_lag_max=2,
)


def learnt(**numbers: float | None) -> TrainingStatistics:
    """Returns statistics of a batch with these numbers."""
    return replace(TRAINING, learning=replace(TRAINING.learning, **numbers))


def all_finite(statistics: TrainingStatistics) -> bool:
    """Returns whether every statistic of a batch is a finite number.

    The gain of priorities is one of many batches, and only continuous actions have bounds.
    """
    values = plain(statistics)
    learning, own = values.pop("learning"), values.pop("own")
    del learning["priority_gain"], learning["actions_at_bound"]
    return all(
        value is not None and np.isfinite(value) for value in (*learning.values(), *own.values(), *values.values())
    )


def counted_batch(counts: StoreCounts | None = None, *, segments: int = 4, fresh: int = 2) -> Batch:
    """Returns a batch with these sizes and counts of the store, and without columns."""
    return Batch(
        BatchHead(
            number=0,
            fresh_segments=fresh,
            keys=np.arange(segments, dtype=np.uint64),
            versions=np.zeros(segments, np.int64),
            priorities=np.zeros(segments),
            probabilities=np.ones(segments),
            counts=counts or StoreCounts(),
        ),
        SCHEMA.empty(0),
    )
