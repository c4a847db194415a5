"""Ages and priorities of replayed segments, compared with manual calculations and with the whole population."""

from dataclasses import replace

import numpy as np
import pytest

from penstock.learning.report.replayed import RecentlyReplayed
from penstock.types.replay import Batch
from penstock.types.statistics import Replayed
from tests.support.segments.statistics import counted_batch
from tests.support.tiers import gate_of

HALF_LIFE = 3.0


def batch_of(ages: object, priorities: object, probabilities: object = 0.5, fresh: int = 0) -> Batch:
    """Returns a batch of segments with these ages and priorities, the first of which are fresh."""
    ages = np.asarray(ages)
    batch = counted_batch(segments=ages.size, fresh=fresh)
    head = replace(
        batch.head,
        versions=-ages,
        priorities=np.array(priorities, np.float64),
        probabilities=np.broadcast_to(np.asarray(probabilities, np.float64), ages.shape),
    )
    return replace(batch, head=head)


def means_of(*batches: Batch) -> Replayed:
    recent = RecentlyReplayed(len(batches))
    for batch in batches:
        recent.add(batch, HALF_LIFE)
    means = recent.means()
    assert means is not None
    return means


def test_there_are_no_means_before_a_segment_was_replayed() -> None:
    recent = RecentlyReplayed(100)
    recent.add(batch_of([1, 1], [0.0, 0.0], fresh=2), HALF_LIFE)
    assert recent.means() is None


def test_fresh_segments_do_not_count() -> None:
    means = means_of(batch_of([50, 3, 3], [9.0, 2.0, 2.0], fresh=1))
    assert (means.age_mean, means.age_90) == (3.0, 3.0)
    assert means.drawn_priority == pytest.approx(1.0)


def test_ages_are_means_over_segments() -> None:
    means = means_of(batch_of([1], [1.0]), batch_of(range(11), np.ones(11)))
    assert means.age_mean == (1 + 55) / 12
    assert means.age_90 == pytest.approx((1 + 11 * 9.0) / 12)


def test_the_drawn_priority_is_computed_from_pairs_of_draws() -> None:
    # The probabilities are proportional to the priority, and half of that at the age of a half-life.
    means = means_of(batch_of([0, 3], [1.0, 4.0], [0.1, 0.2]))
    weights = (1.0 / 0.1, 0.5 / 0.2)
    pairs = (1.0 * weights[1] + 4.0 * weights[0]) / 2
    assert means.drawn_priority == pytest.approx(pairs / ((1.0 * weights[0] + 4.0 * weights[1]) / 2))


@pytest.mark.parametrize(
    "batch",
    [batch_of([1, 1], [0.0, 0.0]), batch_of([1], [4.0]), batch_of([1, 1], [1.0, 2.0], 0.0)],
    ids=["without a priority", "of one segment", "without a probability"],
)
def test_a_batch_that_says_nothing_about_priorities_is_left_out(batch: Batch) -> None:
    known = batch_of([0, 3], [1.0, 4.0], [0.1, 0.2])
    assert means_of(batch).drawn_priority is None
    assert means_of(batch, known).drawn_priority == means_of(known).drawn_priority


def test_only_the_last_batches_count() -> None:
    recent = RecentlyReplayed(2)
    for age in (90, 1, 3):
        recent.add(batch_of([age], [1.0]), HALF_LIFE)
    means = recent.means()
    assert means is not None and means.age_mean == 2.0


@pytest.mark.parametrize("segments", gate_of(1, [2, 16]))
@pytest.mark.parametrize("alpha", gate_of(1, [0.6, 0.0, 1.0]))
def test_batches_estimate_the_drawn_priority_of_the_whole_store_at_any_size(segments: int, alpha: float) -> None:
    """The oracle takes both means over all stored segments. Priorities shrink to 1% after half of the batches."""
    random = np.random.default_rng(3)
    priorities, ages = random.lognormal(size=500), random.integers(1, 20, size=500)
    by_age = 2.0 ** (-ages / HALF_LIFE)
    drawn = by_age * priorities**alpha
    probabilities = drawn / drawn.sum()
    batches = []
    for scale in (1.0, 0.01):
        for _ in range(20_000 // segments):
            rows = random.choice(500, size=segments, p=probabilities)
            batches.append(batch_of(ages[rows], scale * priorities[rows], probabilities[rows]))
    exact = np.average(priorities, weights=drawn) / np.average(priorities, weights=by_age)
    assert means_of(*batches).drawn_priority == pytest.approx(exact, rel=0.05)
    assert exact == pytest.approx(1.0) if alpha == 0.0 else exact > 1.5
