"""Batches and training of which only the numbers matter, for whoever counts them."""

import numpy as np

from helpers.segments import SCHEMA
from penstock.learning.training_statistics import TrainingStatistics
from penstock.types import Batch, StoreCounts

TRAINING = TrainingStatistics(
    policy_loss=0.1,
    value_loss=0.2,
    entropy=0.6,
    approximate_kl=0.01,
    clipped_share=0.1,
    gradient_norm=0.5,
    learning_rate=1e-3,
    effective_sample_share=0.8,
    fresh_effective_share=0.9,
    explained_variance=0.4,
    staleness_mean=3.0,
    staleness_max=7,
    fresh_lag_mean=1.0,
    fresh_lag_max=2,
)


def counted_batch(counts: StoreCounts | None = None, *, segments: int = 4, fresh: int = 2) -> Batch:
    """A batch of which only sizes and the store's numbers matter."""
    return Batch(
        number=0,
        fresh_segments=fresh,
        keys=np.arange(segments, dtype=np.uint64),
        versions=np.zeros(segments, np.int64),
        priorities=np.zeros(segments),
        probabilities=np.ones(segments),
        counts=counts or StoreCounts(),
        columns=SCHEMA.empty(0),
    )
