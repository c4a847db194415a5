import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.algo import advantages
from penstock.algo.advantages import Estimates, estimate, one_row_later, scanned


@dataclass(frozen=True)
class Rollout:
    value: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    log_ratio: Tensor
    usable: Tensor | None = None
    """Rows that may be used; None for all rows."""

    def estimate(
        self, *, discount: float = 0.9, trace_decay: float = 0.8, rho_clip: float = 1.0, trace_clip: float = 1.0
    ) -> Estimates:
        return estimate(
            value=self.value,
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            usable=torch.ones_like(self.terminated) if self.usable is None else self.usable,
            log_ratio=self.log_ratio,
            discount=discount,
            trace_decay=trace_decay,
            rho_clip=rho_clip,
            trace_clip=trace_clip,
        )


def random_rollout(seed: int, *, segments: int = 3, steps: int = 9, on_policy: bool = False) -> Rollout:
    generator = np.random.default_rng(seed)
    ends = generator.choice(4, (segments, steps), p=[0.6, 0.15, 0.15, 0.1])
    log_ratio = np.zeros((segments, steps)) if on_policy else generator.normal(0.0, 0.7, (segments, steps))
    return Rollout(
        value=torch.from_numpy(generator.normal(size=(segments, steps + 1))),
        reward=torch.from_numpy(generator.normal(size=(segments, steps))),
        terminated=torch.from_numpy((ends == 1) | (ends == 3)),
        truncated=torch.from_numpy(ends >= 2),
        log_ratio=torch.from_numpy(log_ratio),
    )


def one_segment(
    value: Sequence[float], reward: Sequence[float], terminated: Sequence[int] = (), truncated: Sequence[int] = ()
) -> Rollout:
    steps = len(reward)
    return Rollout(
        value=torch.tensor([value]),
        reward=torch.tensor([reward]),
        terminated=torch.tensor([[step in terminated for step in range(steps)]]),
        truncated=torch.tensor([[step in truncated for step in range(steps)]]),
        log_ratio=torch.zeros(1, steps),
    )


def estimate_slowly(
    rollout: Rollout, segment: int, *, gamma: float, lambda_: float, rho_bar: float, c_bar: float
) -> tuple[list[float], list[float]]:
    """Computes D_t and the advantage one step at a time, with the equations of ALGORITHM.md."""
    v, r = rollout.value[segment].tolist(), rollout.reward[segment].tolist()
    terminated, truncated = rollout.terminated[segment].tolist(), rollout.truncated[segment].tolist()
    ratio = rollout.log_ratio[segment].exp().tolist()
    steps = len(r)
    d, advantage = [0.0] * (steps + 1), [0.0] * steps
    for t in reversed(range(steps)):
        rho, c = min(rho_bar, ratio[t]), min(c_bar, ratio[t])
        n = (1 - terminated[t]) * (1 - truncated[t])
        delta = r[t] + gamma * (1 - terminated[t]) * v[t + 1] - v[t]
        d[t] = rho * delta + gamma * lambda_ * c * n * d[t + 1]
        advantage[t] = delta + gamma * lambda_ * n * d[t + 1]
    return d[:-1], advantage


def temporal_differences(rollout: Rollout, segment: int, gamma: float) -> list[float]:
    rows = zip(
        rollout.reward[segment],
        rollout.value[segment],
        rollout.value[segment][1:],
        rollout.terminated[segment],
        strict=False,
    )
    return [float(r + (0.0 if end else gamma * after) - v) for r, v, after, end in rows]


def last_of_episode(rollout: Rollout, segment: int, start: int) -> int:
    """Returns the row at which the recursion from `start` stops."""
    ended = (rollout.terminated | rollout.truncated)[segment].tolist()
    return next((t for t in range(start, len(ended)) if ended[t]), len(ended) - 1)


@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(-1.0, 1.0),
    lambda_=st.floats(0.0, 1.0),
    rho_bar=st.floats(0.2, 3.0),
    c_bar=st.floats(0.2, 3.0),
)
def test_estimates_follow_the_equations(seed: int, gamma: float, lambda_: float, rho_bar: float, c_bar: float) -> None:
    rollout = random_rollout(seed)
    estimates = rollout.estimate(discount=gamma, trace_decay=lambda_, rho_clip=rho_bar, trace_clip=c_bar)
    for segment in range(rollout.reward.shape[0]):
        correction, advantage = estimate_slowly(
            rollout, segment, gamma=gamma, lambda_=lambda_, rho_bar=rho_bar, c_bar=c_bar
        )
        np.testing.assert_allclose(estimates.correction[segment], correction, atol=1e-6)
        np.testing.assert_allclose(estimates.advantage[segment], advantage, atol=1e-6)
        np.testing.assert_allclose(estimates.target[segment] - rollout.value[segment, :-1], correction, atol=1e-6)


@given(seed=st.integers(0, 10_000))
def test_on_policy_estimates_equal_generalised_advantage_estimation(seed: int) -> None:
    rollout, gamma, lambda_ = random_rollout(seed, on_policy=True), 0.9, 0.8
    estimates = rollout.estimate(discount=gamma, trace_decay=lambda_)
    for segment in range(rollout.reward.shape[0]):
        delta = temporal_differences(rollout, segment, gamma)
        for t in range(len(delta)):
            stop = last_of_episode(rollout, segment, t) + 1
            gae = sum((gamma * lambda_) ** (k - t) * delta[k] for k in range(t, stop))
            assert estimates.advantage[segment, t].item() == pytest.approx(gae, abs=1e-6)
            assert estimates.correction[segment, t].item() == pytest.approx(gae, abs=1e-6)


def test_a_negative_discount_gives_each_of_two_players_what_the_game_brings_it() -> None:
    # The players take turns, and the last move wins.
    game = one_segment([0.3, -0.2, 0.1, 0.4, 9.0], [0.0, 0.0, 0.0, 1.0], terminated=[3])
    estimates = game.estimate(discount=-1.0, trace_decay=1.0)
    torch.testing.assert_close(estimates.target, torch.tensor([[-1.0, 1.0, -1.0, 1.0]]), check_dtype=False)


@given(seed=st.integers(0, 10_000))
def test_with_lambda_1_the_target_equals_that_of_impala(seed: int) -> None:
    rollout, gamma = random_rollout(seed), 0.9
    target = rollout.estimate(discount=gamma, trace_decay=1.0).target
    for segment in range(rollout.reward.shape[0]):
        delta = temporal_differences(rollout, segment, gamma)
        bounded = [min(1.0, ratio) for ratio in rollout.log_ratio[segment].exp().tolist()]
        for s in range(len(delta)):
            v_s = rollout.value[segment, s].item()
            for t in range(s, last_of_episode(rollout, segment, s) + 1):
                v_s += gamma ** (t - s) * float(np.prod(bounded[s:t])) * bounded[t] * delta[t]
            assert target[segment, s].item() == pytest.approx(v_s, abs=1e-6)


def test_a_segment_with_both_kinds_of_end_and_reset_rows_matches_a_manual_calculation() -> None:
    # Rows 2 and 5 only reset: their values are those of the final observations.
    rollout = one_segment(
        value=[2.0, 4.0, 100.0, 6.0, 8.0, 10.0, 12.0],
        reward=[1.0, 2.0, 0.0, 3.0, 5.0, 0.0],
        terminated=[1],
        truncated=[4],
    )
    estimates = rollout.estimate(discount=0.5, trace_decay=0.5)
    valid = [0, 1, 3, 4]
    # delta: 1 + 2 - 2, 2 - 4, 3 + 4 - 6, 5 + 5 - 8. D_t adds a quarter of the next D of the same episode.
    assert estimates.correction[0, valid].tolist() == [0.5, -2.0, 1.5, 2.0]
    assert estimates.advantage[0, valid].tolist() == [0.5, -2.0, 1.5, 2.0]
    assert estimates.target[0, valid].tolist() == [2.5, 2.0, 7.5, 10.0]


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("log_ratio", [-1.0, 0.0, 1.0])
def test_true_values_of_a_markov_reward_process_need_no_correction(trace_decay: float, log_ratio: float) -> None:
    # States a -> b -> end with rewards 1 and 2 and discount 0.5: V(b) = 2, V(a) = 1 + 0.5 * 2 = 2.
    a, b, final = 2.0, 2.0, 77.0
    rollout = one_segment(
        value=[a, b, final, a, b, a],  # a whole episode, its reset row, an episode truncated at b, its reset row
        reward=[1.0, 2.0, 0.0, 1.0, 0.0],
        terminated=[1],
        truncated=[3],
    )
    rollout = Rollout(
        rollout.value, rollout.reward, rollout.terminated, rollout.truncated, rollout.log_ratio + log_ratio
    )
    estimates = rollout.estimate(discount=0.5, trace_decay=trace_decay)
    assert estimates.correction[0, [0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    assert estimates.advantage[0, [0, 1, 3]].tolist() == [0.0, 0.0, 0.0]


def test_with_lambda_1_targets_are_returns_even_if_values_are_wrong() -> None:
    rollout = one_segment(value=[9.0, -5.0, 3.0, 44.0], reward=[1.0, 2.0, 4.0], terminated=[2])
    target = rollout.estimate(discount=0.5, trace_decay=1.0).target
    assert target.tolist() == [[1.0 + 0.5 * 2.0 + 0.25 * 4.0, 2.0 + 0.5 * 4.0, 4.0]]


def test_truncation_keeps_the_bootstrap() -> None:
    rollout = one_segment(value=[1.0, 10.0], reward=[3.0], truncated=[0])
    assert rollout.estimate(discount=0.5).advantage.item() == 3.0 + 0.5 * 10.0 - 1.0


def test_termination_removes_the_bootstrap() -> None:
    rollout = one_segment(value=[1.0, 10.0], reward=[3.0], terminated=[0])
    assert rollout.estimate(discount=0.5).advantage.item() == 3.0 - 1.0


def test_a_step_that_is_both_terminated_and_truncated_has_no_bootstrap() -> None:
    rollout = one_segment(value=[1.0, 10.0], reward=[3.0], terminated=[0], truncated=[0])
    assert rollout.estimate(discount=0.5).advantage.item() == 3.0 - 1.0


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_rows_after_an_end_do_not_affect_rows_before_it(end: str) -> None:
    quiet = one_segment([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0], **{end: [0]})
    loud = one_segment([1.0, 2.0, 3.0, 900.0], [1.0, 500.0, -700.0], **{end: [0]})
    assert torch.equal(quiet.estimate().correction[:, 0], loud.estimate().correction[:, 0])
    assert torch.equal(quiet.estimate().advantage[:, 0], loud.estimate().advantage[:, 0])


def test_the_advantage_does_not_depend_on_the_ratio_of_its_own_step() -> None:
    rollout = random_rollout(3, steps=1)
    assert rollout.log_ratio.abs().min() > 0.01
    on_policy = Rollout(
        rollout.value, rollout.reward, rollout.terminated, rollout.truncated, torch.zeros_like(rollout.log_ratio)
    )
    assert torch.equal(rollout.estimate().advantage, on_policy.estimate().advantage)
    assert not torch.equal(rollout.estimate().correction, on_policy.estimate().correction)


def test_ratios_that_overflow_a_float_give_finite_estimates() -> None:
    rollout = random_rollout(5)
    wild = Rollout(rollout.value, rollout.reward, rollout.terminated, rollout.truncated, rollout.log_ratio.sign() * 1e4)
    estimates = wild.estimate(rho_clip=math.inf, trace_clip=math.inf)
    assert estimates.target.isfinite().all()
    assert estimates.advantage.isfinite().all()


BAD = [math.nan, math.inf, -math.inf, 3e38, 1e30]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reward_excludes_its_row_and_ends_the_window_for_the_rows_before(bad: float) -> None:
    rollout = random_rollout(4, segments=1, steps=6)
    no_rows = torch.zeros_like(rollout.terminated)
    rollout = replace(rollout, terminated=no_rows, truncated=no_rows)
    reward = rollout.reward.clone()
    reward[0, 3] = bad
    disturbed, alone = replace(rollout, reward=reward).estimate(), rollout.estimate()
    assert disturbed.sound.tolist() == [[True, True, True, False, True, True]]
    assert torch.equal(disturbed.target[0, 4:], alone.target[0, 4:])
    before = Rollout(
        value=rollout.value[:, :4],
        reward=rollout.reward[:, :3],
        terminated=no_rows[:, :3],
        truncated=no_rows[:, :3],
        log_ratio=rollout.log_ratio[:, :3],
    ).estimate()
    for name in ("advantage", "target", "correction"):
        torch.testing.assert_close(getattr(disturbed, name)[:, :3], getattr(before, name))
        assert getattr(disturbed, name).isfinite().all()


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_value_excludes_the_two_rows_that_use_it(bad: float) -> None:
    rollout = random_rollout(5, segments=1, steps=6)
    no_rows = torch.zeros_like(rollout.terminated)
    value = rollout.value.clone()
    value[0, 3] = bad
    estimates = replace(rollout, value=value, terminated=no_rows, truncated=no_rows).estimate()
    assert estimates.sound.tolist() == [[True, True, False, False, True, True]]


@pytest.mark.parametrize("bad", BAD)
def test_bad_numbers_after_the_end_of_an_episode_do_not_affect_it(bad: float) -> None:
    rollout = one_segment([1.0, 2.0, bad, 4.0, 5.0], [1.0, 1.0, bad, 1.0], terminated=[1])
    alone = one_segment([1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 1.0, 0.0, 1.0], terminated=[1])
    usable = torch.tensor([[True, True, False, True]])
    disturbed, expected = (replace(each, usable=usable).estimate() for each in (rollout, alone))
    assert disturbed.sound.tolist() == usable.tolist()
    assert torch.equal(disturbed.target, expected.target)


def test_the_first_reward_of_a_sparse_task_is_sound() -> None:
    estimates = one_segment([0.0] * 8, [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]).estimate()
    assert estimates.sound.all()


def test_unusable_rows_do_not_raise_the_limit_for_large_numbers() -> None:
    rollout = one_segment([0.0] * 8, [1e12] * 4 + [1e9, 1.0, 1.0])
    usable = torch.tensor([[False] * 4 + [True] * 3])
    assert replace(rollout, usable=usable).estimate().sound.tolist() == [[False] * 5 + [True] * 2]


def test_large_numbers_are_sound_if_the_others_are_as_large() -> None:
    rollout = random_rollout(6)
    assert replace(rollout, reward=rollout.reward * 1e12).estimate().sound.all()
    rare = rollout.reward.clone()
    rare[1, 4] = 1e5
    assert replace(rollout, reward=rare).estimate().sound.all()


def test_the_recursion_of_devices_gives_the_same_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = [random_rollout(seed, segments=5, steps=steps) for seed, steps in enumerate((1, 2, 9, 32, 33))]
    expected = [rollout.estimate() for rollout in rollouts]
    monkeypatch.setattr(advantages, "_by_loop", advantages._by_scan)
    for rollout, theirs in zip(rollouts, expected, strict=True):
        ours = rollout.estimate()
        for name in ("advantage", "target", "correction"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-12, atol=1e-12)
        assert torch.equal(ours.sound, theirs.sound)


def by_rows(weighted: Tensor, gain: Tensor) -> Tensor:
    result, later = torch.zeros_like(weighted), torch.zeros_like(weighted[:, 0])
    for row in reversed(range(weighted.shape[1])):
        later = result[:, row] = weighted[:, row] + gain[:, row] * later
    return result


@given(steps=st.integers(1, 70), segments=st.integers(0, 4), seed=st.integers(0, 2**31))
def test_a_scan_computes_the_recursion(steps: int, segments: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weighted = torch.randn(segments, steps, generator=generator, dtype=torch.float64)
    gain = torch.rand(segments, steps, generator=generator, dtype=torch.float64)
    gain = gain * (torch.rand(segments, steps, generator=generator) > 0.1)
    torch.testing.assert_close(scanned(weighted, gain), by_rows(weighted, gain), rtol=1e-12, atol=1e-12)


def test_a_scan_of_hand_worked_numbers() -> None:
    weighted, gain = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.9]])
    # 5; 4 + 5/2; 3 + 0; 2 + 3/2; 1 + 3.5/2
    assert scanned(weighted, gain).tolist() == [[2.75, 3.5, 3.0, 6.5, 5.0]]
    assert one_row_later(weighted).tolist() == [[2.0, 3.0, 4.0, 5.0, 0.0]]


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are not views."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        self.count += not function.is_view
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("steps", "rounds"), [(1, 0), (2, 1), (32, 5), (33, 6), (64, 6), (128, 7)])
def test_the_number_of_operations_of_a_scan_grows_with_the_logarithm_of_the_rows(steps: int, rounds: int) -> None:
    with Launches() as launches:  # type: ignore[no-untyped-call]
        scanned(torch.ones(4, steps), torch.full((4, steps), 0.9))
    # One more for the inputs of both.
    assert launches.count <= 5 * rounds + 2
