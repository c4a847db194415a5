"""Shares of collection: the shares themselves, and the windows that the gate grants by them."""

import random
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConfigurationError
from penstock.replay.admission import GRANTS_AHEAD, ActorKey, Gate
from penstock.types.replay import SamplingPlan, relative_shares
from tests.support.segments.segments import PLAN

# Shares


@given(st.lists(st.floats(0.0, 1e100), min_size=1, max_size=40).filter(any), st.floats(0.01, 1.0))
def test_shares_have_mean_1_and_a_minimum_and_keep_the_order_of_the_weights(weights: list[float], least: float) -> None:
    shares = relative_shares(weights, least)
    assert sum(shares) == pytest.approx(len(weights))
    assert min(shares) >= least
    above = [(weight, share) for weight, share in zip(weights, shares, strict=True) if share > least * (1.0 + 1e-9)]
    for weight, share in above:
        assert share / above[0][1] == pytest.approx(weight / above[0][0])


@pytest.mark.parametrize(
    ("weights", "least", "expected"),
    [
        ([3.0, 1.0], 0.2, [1.5, 0.5]),
        ([1.0, 0.0], 0.2, [1.8, 0.2]),
        ([7.0, 1.0, 0.0, 0.0], 0.2, [3.15, 0.45, 0.2, 0.2]),
        # The others' excess pushes the second below the minimum as well.
        ([90.0, 5.0, 0.0, 0.0], 0.5, [2.5, 0.5, 0.5, 0.5]),
        ([5.0, 1.0], 1.0, [1.0, 1.0]),
        ([0.0, 0.0], 0.2, [1.0, 1.0]),
        ([0.3, 0.3, 0.3], 0.2, [1.0, 1.0, 1.0]),
    ],
)
def test_shares_of_known_weights(weights: list[float], least: float, expected: list[float]) -> None:
    assert relative_shares(weights, least) == pytest.approx(expected)


# Grants


def actor(slot: int) -> ActorKey:
    return ActorKey(slot, 1)


def make_plan(*weights: float, fresh: int, degree: int = 1, least: float = 0.2) -> SamplingPlan:
    return replace(
        PLAN,
        batch_segments=fresh,
        fresh_segments=fresh,
        off_policy_degree=degree,
        slot_weights=weights,
        least_share=least,
    )


def make_gate(plan: SamplingPlan, actors: int, window: int = 1) -> Gate:
    gate = Gate(10.0, 64)
    for slot in range(actors):
        gate.connect(actor(slot), window, 0.0)
    gate.adopt(plan)
    return gate


class Training:
    """Training that is slower than collection: actors deliver all their windows before the next commit."""

    def __init__(self, gate: Gate, window: int = 1) -> None:
        self.gate, self.window = gate, window
        self.unseen, self.batch = 0, 0
        self.outstanding: deque[ActorKey] = deque()
        self.granted: list[int] = []

    def train(self, able: set[int] | None = None) -> None:
        """Fills the gate's room by the windows of the slots that can deliver, then trains a batch if there is one."""
        while True:
            for key, _ in self.gate.issue(self.unseen, self.batch):
                self.outstanding.append(key)
                self.granted.append(key.slot)
            ready = [key for key in self.outstanding if able is None or key.slot in able]
            if not ready:
                break
            self.outstanding.remove(ready[0])
            assert self.gate.spend(ready[0])
            self.unseen += self.window
        assert self.gate.plan is not None
        if self.unseen >= self.gate.plan.fresh_segments:
            self.unseen -= self.gate.plan.fresh_segments
            self.batch += 1

    def shares(self, first: int = 0) -> dict[int, float]:
        counts = Counter(self.granted[first:])
        return {slot: counts[slot] / counts.total() for slot in sorted(counts)}


@pytest.mark.parametrize("fresh", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("window", [1, 2])
def test_weights_of_3_and_1_yield_windows_of_3_to_1_at_every_point_of_a_long_run(fresh: int, window: int) -> None:
    training = Training(make_gate(make_plan(3.0, 1.0, fresh=fresh * window), 2, window), window)
    while len(training.granted) < 4000:
        training.train()
    first = 0
    for count, slot in enumerate(training.granted, 1):
        first += slot == 0
        assert abs(first - 0.75 * count) <= 1.0
    assert Counter(training.granted[:4000]) == {0: 3000, 1: 1000}


def test_a_share_far_above_an_equal_one_is_granted_although_other_actors_wait() -> None:
    # The first gets 8 (1 - 7 * 0.2 / 8) = 6.6 windows of each batch of 8, more than two grants at a time allow.
    training = Training(make_gate(make_plan(1.0, *[0.0] * 7, fresh=8), 8))
    for _ in range(500):
        training.train()
    shares = training.shares()
    assert shares[0] == pytest.approx(1.0 - 7 * 0.2 / 8, abs=0.01)
    assert all(shares[slot] == pytest.approx(0.2 / 8, abs=0.01) for slot in range(1, 8))


def test_actors_beyond_the_weights_begin_again_at_the_first() -> None:
    training = Training(make_gate(make_plan(3.0, 1.0, fresh=8), 4))
    for _ in range(200):
        training.train()
    assert list(training.shares().values()) == pytest.approx([0.375, 0.125, 0.375, 0.125], abs=0.01)


@given(
    actors=st.integers(1, 6),
    fresh=st.integers(1, 9),
    degree=st.integers(0, 3),
    weight=st.floats(0.1, 9.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_weights_change_no_grant(actors: int, fresh: int, degree: int, weight: float, seed: int) -> None:
    plain = Training(make_gate(make_plan(fresh=fresh, degree=degree), actors))
    weighted = Training(make_gate(make_plan(*[weight] * 3, fresh=fresh, degree=degree), actors))
    for training in (plain, weighted):
        chance = random.Random(seed)
        for _ in range(30):
            training.train(able={slot for slot in range(actors) if chance.random() < 0.7})
    assert weighted.granted == plain.granted


def test_degree_0_ignores_weights() -> None:
    plain = Training(make_gate(make_plan(fresh=6, degree=0), 3))
    weighted = Training(make_gate(make_plan(9.0, 1.0, 0.0, fresh=6, degree=0), 3))
    for training in (plain, weighted):
        for _ in range(20):
            training.train()
    assert weighted.granted == plain.granted == [0, 1, 2] * 40


def test_an_actor_that_is_too_slow_for_its_share_delays_neither_training_nor_the_others() -> None:
    training = Training(make_gate(make_plan(9.0, 1.0, fresh=4), 2))
    for _ in range(50):
        # The first actor delivers nothing. Its grants remain outstanding.
        training.train(able={1})
    assert training.batch >= 20
    held = Counter(key.slot for key in training.outstanding)
    assert held[0] == 4 > GRANTS_AHEAD


def test_an_actor_that_was_too_slow_for_its_share_does_not_exclude_the_others_later() -> None:
    training = Training(make_gate(make_plan(3.0, 1.0, fresh=4, degree=2), 2))
    for _ in range(200):
        training.train(able={1})
    since = len(training.granted)
    for _ in range(20):
        training.train()
    # After at most one room of 12 windows, the shares are those of the plan.
    assert training.granted[since : since + 16].count(1) >= 1
    assert training.shares(since + 16)[0] == pytest.approx(0.75, abs=0.05)


def test_an_actor_that_joins_or_returns_begins_with_its_share() -> None:
    training = Training(make_gate(make_plan(1.0, 1.0, 2.0, fresh=4), 2))
    for _ in range(100):
        training.train()
    training.gate.connect(actor(2), 1, 0.0)
    since = len(training.granted)
    for _ in range(100):
        training.train()
    assert training.granted[since : since + 12].count(2) <= 7
    assert list(training.shares(since).values()) == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_grants_of_a_silent_actor_do_not_count_for_its_share() -> None:
    gate = make_gate(make_plan(3.0, 1.0, fresh=2), 2)
    assert [key.slot for key, _ in gate.issue(0, 0)] == [0, 1, 0, 1]
    gate.heard(actor(1), 11.0)
    gate.expire(11.0, 0)
    assert gate.granted == 2
    assert gate.spend(actor(1))
    # The other one is alone, so that it collects everything.
    assert [key.slot for key, _ in gate.issue(1, 0)] == [1]
    gate.heard(actor(0), 11.0)
    assert gate.spend(actor(1))
    assert gate.spend(actor(1))
    assert [key.slot for key, _ in gate.issue(0, 1)] == [0, 1, 0, 1]


def test_changed_weights_apply_to_the_next_grants() -> None:
    training = Training(make_gate(make_plan(3.0, 1.0, fresh=8), 2))
    for _ in range(100):
        training.train()
    since = len(training.granted)
    training.gate.adjust(make_plan(1.0, 3.0, fresh=8))
    for _ in range(100):
        training.train()
    assert training.shares(since)[1] == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("least", [0.0, -0.5, 1.5])
def test_shares_that_exclude_a_slot_are_refused_in_one_line(least: float) -> None:
    reason = r"sampling.least_share .* would exclude slots .*above 0 and at most 1, such as 0.2"
    gate = make_gate(make_plan(fresh=4), 1)
    for change in (gate.adopt, gate.adjust):
        with pytest.raises(ConfigurationError, match=reason):
            change(make_plan(1.0, 0.0, fresh=4, least=least))
    assert gate.plan == make_plan(fresh=4)
    # Without weights, as from an older learner, there is nothing to exclude.
    gate.adopt(make_plan(fresh=4, least=least))
