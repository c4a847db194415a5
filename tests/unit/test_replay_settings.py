"""The effect of each replay setting on the trained batches, in whole runs within one process."""

import math
from collections.abc import Sequence

import numpy as np

from penstock.config import build
from penstock.types.replay import Batch
from tests.support.training.single_process import train

BATCHES = 40
FRESH = 8


def batches_of(lag: int = 0, batches: int = BATCHES, **sampling: object) -> list[Batch]:
    """Returns the batches of a short run on CartPole, by default with 8 fresh and 8 replayed segments each."""
    config = build(
        {
            "run": {"total_steps": batches * FRESH * 8 - 1, "seed": 5},
            "environment": {"id": "CartPole-v1"},
            "policy": {"hidden_sizes": [8], "normalise_observations": False, "normalise_returns": False},
            "ppo": {"epochs": 1, "minibatches": 1},
            "actor": {"environments": FRESH, "unroll_length": 8},
            "evaluation": {"interval_steps": 10**9, "episodes": 1},
            "sampling": {
                "batch_segments": 2 * FRESH,
                "fresh_fraction": 0.5,
                "min_replay_segments": FRESH,
                "half_life": 8.0,
                **sampling,
            },
        }
    )
    seen: list[Batch] = []
    train(config, lag, watch=seen.append)
    return seen


def replayed(batches: Sequence[Batch], values: str) -> np.ndarray:
    return np.concatenate([getattr(batch, values)[batch.fresh_segments :] for batch in batches])


def ages(batches: Sequence[Batch]) -> np.ndarray:
    return np.concatenate([batch.number - batch.head.versions[batch.fresh_segments :] for batch in batches])


def test_fresh_fraction_is_the_share_of_segments_trained_for_the_first_time() -> None:
    for fraction, fresh in ((1.0, 16), (0.5, 8), (0.25, 4)):
        last = batches_of(fresh_fraction=fraction, off_policy_degree=4)[-1]
        assert (last.fresh_segments, last.keys.size) == (fresh, 16)


def test_min_replay_segments_are_trained_before_any_is_replayed() -> None:
    for least in (8, 33):
        sizes = [batch.keys.size for batch in batches_of(min_replay_segments=least)]
        alone = -(-least // FRESH)
        assert sizes == [FRESH] * alone + [2 * FRESH] * (len(sizes) - alone)


def test_alpha_draws_segments_of_high_priority_more_often() -> None:
    means = [float(np.log(replayed(batches_of(alpha=alpha), "priorities")).mean()) for alpha in (0.0, 0.6, 1.5)]
    assert means[0] < means[1] < means[2]


def test_neither_priority_nor_age_replays_uniformly() -> None:
    for batch in batches_of(alpha=0.0, half_life=math.inf)[2:]:
        assert np.ptp(batch.head.probabilities[batch.fresh_segments :]) < 1e-12


def test_a_large_epsilon_makes_probabilities_similar() -> None:
    spreads = []
    for epsilon in (1e-3, 1000.0):
        last = batches_of(epsilon=epsilon, half_life=math.inf, alpha=1.0)[-1]
        spreads.append(float(np.ptp(np.log(last.head.probabilities[last.fresh_segments :]))))
    assert spreads[1] < 0.1 * spreads[0]


def test_half_life_prefers_young_segments() -> None:
    for alpha in (0.0, 0.6):
        means = [float(ages(batches_of(half_life=each, alpha=alpha)).mean()) for each in (0.8, 6.0, math.inf)]
        assert means[0] < 0.5 * means[1] < 0.5 * means[2]


def test_max_staleness_is_never_exceeded() -> None:
    for limit in (1, 3, 10):
        stalenesses = ages(batches_of(max_staleness=limit, half_life=math.inf, off_policy_degree=0))
        assert stalenesses.max() == limit


def test_off_policy_degree_bounds_the_age_of_fresh_segments() -> None:
    for degree in (1, 3):
        lags = [
            int(batch.number - batch.head.versions[: batch.fresh_segments].min())
            for batch in batches_of(lag=degree, off_policy_degree=degree)
        ]
        assert lags[degree:] == [degree] * (len(lags) - degree)


def test_a_longer_publish_interval_gives_actors_older_weights() -> None:
    lags = [
        int(batch.number - batch.head.versions[: batch.fresh_segments].min())
        for batch in batches_of(publish_interval=4)
    ]
    assert lags[:9] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
