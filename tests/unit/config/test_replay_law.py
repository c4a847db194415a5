"""The reasons that the law of replay returns, and the masses that its bounds leave."""

import math

import numpy as np
import pytest

from penstock.config import build
from penstock.config.replay_law import (
    EPSILONS,
    LARGEST_ALPHA,
    LEAST_STEPS,
    decay_conflict,
    first_replay_age,
    minibatch_conflict,
    staleness_conflict,
)
from penstock.errors import ConfigurationError
from penstock.replay.masses import MassFunction


def test_segments_are_as_old_at_their_first_replay_as_degree_publications_and_prefetched_batches_permit() -> None:
    # At degree 0, batch k is collected with version k, and may be replayed in batch k + 1.
    assert first_replay_age(fresh=8, degree=0, publish_interval=1, prefetched=3) == 1
    # At degree 1, batch k may be collected with version k - 1, and batch k + 1 is drawn while it is trained.
    assert first_replay_age(fresh=8, degree=1, publish_interval=1, prefetched=1) == 3
    assert first_replay_age(fresh=8, degree=4, publish_interval=3, prefetched=2) == 9
    assert first_replay_age(fresh=0, degree=4, publish_interval=3, prefetched=2) == 3


@pytest.mark.parametrize("age", [1, 3, 66, 1000])
def test_a_conflict_names_the_least_value_that_has_none(age: int) -> None:
    assert staleness_conflict(age, age) is None
    reason = staleness_conflict(age - 1, age)
    assert reason is not None and f"set sampling.max_staleness to {age} or more" in reason
    reason = decay_conflict(1e-9, age)
    assert reason is not None
    least = float(reason.split("sampling.half_life to ")[1].split()[0])
    assert decay_conflict(least, age) is None
    assert decay_conflict(0.9 * age / 32, age) is not None
    assert decay_conflict(math.inf, age) is None


def test_a_batch_has_a_step_or_with_memory_a_segment_for_every_minibatch() -> None:
    def conflict(minibatches: int, segments: int = 4, unroll_length: int = 16, **kind: bool) -> str | None:
        kind = {"recurrent": False, "normalise": False} | kind
        return minibatch_conflict(minibatches=minibatches, segments=segments, unroll_length=unroll_length, **kind)

    assert conflict(64) is None
    assert conflict(65) == (
        "ppo.minibatches 65 divides the 64 steps of a batch (sampling.batch_segments 4, actor.unroll_length 16) into"
        " parts of fewer than 1; set ppo.minibatches to auto, or to 64 or less"
    )
    assert conflict(4, recurrent=True) is None
    assert "to 4 or less" in str(conflict(5, recurrent=True))


@pytest.mark.parametrize(("segments", "unroll_length"), [(4, 16), (5, 7), (64, 32), (1, 8), (3, 2), (2, 5), (8, 4)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_standardised_advantages_need_eight_steps_in_every_minibatch(
    segments: int, unroll_length: int, recurrent: bool
) -> None:
    def smallest(minibatches: int, segments: int) -> int:
        parts = segments if recurrent else segments * unroll_length
        return parts // minibatches * (unroll_length if recurrent else 1)

    def conflict(minibatches: int, segments: int) -> str | None:
        sizes = {"segments": segments, "unroll_length": unroll_length}
        return minibatch_conflict(minibatches=minibatches, **sizes, recurrent=recurrent, normalise=True)

    for minibatches in range(1, 100):
        assert (conflict(minibatches, segments) is None) == (smallest(minibatches, segments) >= LEAST_STEPS)
    reason = str(conflict(1000, segments))
    remedy, value = reason.split("set ")[1].split()[0], int(reason.split(" or ")[-2].split()[-1])
    assert conflict(*((1, value) if remedy == "sampling.batch_segments" else (value, segments))) is None


@pytest.mark.parametrize("degree", [0, 1, 8, 64])
@pytest.mark.parametrize("alpha", [0.0, 0.6, LARGEST_ALPHA])
def test_every_permitted_setting_leaves_mass_and_the_order_of_ages(degree: int, alpha: float) -> None:
    """Masses of priorities from 0 to 10^6, over 1,000 versions with rebases."""
    for epsilon in EPSILONS:
        half_life = least_half_life(degree)
        function = MassFunction(alpha, epsilon, half_life, reference=0)
        age = first_replay_age(fresh=8, degree=degree, publish_interval=1, prefetched=1)
        for version in range(1000):
            function, _ = function.rebased(version)
            masses = function.masses(np.array([0.0, 0.0, 1e6]), np.array([version - age, version - age + 1, version]))
            assert np.isfinite(1e9 * masses.sum())
            # A segment that is replayed in the batch after that still has mass, even if all masses are rebased.
            assert (masses * function.rebased(version + 1)[1] > 1e-250).all(), (epsilon, version)
            assert masses[1] == pytest.approx(masses[0] * 2.0 ** (1.0 / half_life))


def least_half_life(degree: int) -> float:
    """Returns the least half-life that is accepted with this degree."""
    values: dict[str, object] = {"off_policy_degree": degree, "half_life": 1e-12, "max_staleness": 10**6}
    with pytest.raises(ConfigurationError) as caught:
        build({"sampling": values})
    values["half_life"] = str(caught.value).split("sampling.half_life to ")[1].split()[0]
    return build({"sampling": values}).sampling.half_life
