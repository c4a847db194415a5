import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.algo.losses import Losses, LossSettings, Movement, anchor, movement, ppo_loss, standardised

PLAIN = LossSettings(
    clip_range=0.2,
    value_clip_range=None,
    value_coefficient=0.5,
    entropy_coefficient=0.01,
    normalise_advantages=False,
    clip_anchor=0.0,
    behaviour_weight_clip=5.0,
)


@dataclasses.dataclass(frozen=True)
class Minibatch:
    log_prob: Tensor
    value: Tensor
    entropy: Tensor
    proximal_log_prob: Tensor
    proximal_value: Tensor
    behaviour_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor

    def replaced(self, **changes: Tensor) -> "Minibatch":
        return dataclasses.replace(self, **changes)

    def loss(self, settings: LossSettings = PLAIN, counted: Tensor | None = None) -> Losses:
        anchor_log_prob, weight = self.anchor(settings)
        return ppo_loss(
            settings,
            log_prob=self.log_prob,
            value=self.value,
            entropy=self.entropy,
            anchor_log_prob=anchor_log_prob,
            proximal_value=self.proximal_value,
            advantage=self.advantage,
            target=self.target,
            importance=self.importance,
            policy_weight=self.importance * weight,
            counted=counted,
        )

    def movement(self, settings: LossSettings = PLAIN) -> Movement:
        anchor_log_prob, _ = self.anchor(settings)
        return movement(
            settings,
            log_prob=self.log_prob,
            anchor_log_prob=anchor_log_prob,
            proximal_log_prob=self.proximal_log_prob,
        )

    def anchor(self, settings: LossSettings) -> tuple[Tensor, Tensor]:
        return anchor(settings, proximal_log_prob=self.proximal_log_prob, behaviour_log_prob=self.behaviour_log_prob)


FIELDS = dataclasses.fields(Minibatch)


def random_minibatch(seed: int, steps: int = 12) -> Minibatch:
    generator = np.random.default_rng(seed)

    def normal(deviation: float) -> Tensor:
        return torch.from_numpy(generator.normal(0.0, deviation, steps))

    proximal_log_prob, proximal_value = normal(0.5) - 1.0, normal(1.0)
    return Minibatch(
        log_prob=proximal_log_prob + normal(0.3),
        value=proximal_value + normal(0.5),
        entropy=normal(1.0).abs(),
        proximal_log_prob=proximal_log_prob,
        proximal_value=proximal_value,
        behaviour_log_prob=proximal_log_prob + normal(1.5),
        advantage=normal(1.0),
        target=normal(1.0),
        importance=normal(1.0).abs(),
    )


def one_step(ratio: float, advantage: float, *, behaviour_weight: float = 1.0, importance: float = 1.0) -> Minibatch:
    zero = torch.zeros(1)
    return Minibatch(
        log_prob=torch.tensor([math.log(ratio)], requires_grad=True),
        value=zero,
        entropy=zero,
        proximal_log_prob=zero,
        proximal_value=zero,
        behaviour_log_prob=torch.tensor([-math.log(behaviour_weight)]),
        advantage=torch.tensor([advantage]),
        target=zero,
        importance=torch.tensor([importance]),
    )


def textbook_ppo(minibatch: Minibatch, settings: LossSettings) -> float:
    """Computes equations 7 and 9 of Schulman et al. (2017) step by step, clipped around the behaviour policy."""
    policy, value, entropy = 0.0, 0.0, 0.0
    clip_range, entropy_coefficient = float(settings.clip_range), float(settings.entropy_coefficient)
    steps = len(minibatch.advantage)
    for t in range(steps):
        ratio = math.exp(minibatch.log_prob[t] - minibatch.behaviour_log_prob[t])
        advantage = minibatch.advantage[t].item()
        clipped = min(max(ratio, 1.0 - clip_range), 1.0 + clip_range)
        policy += min(ratio * advantage, clipped * advantage) / steps
        value += 0.5 * (minibatch.value[t] - minibatch.target[t]).item() ** 2 / steps
        entropy += minibatch.entropy[t].item() / steps
    return -policy + settings.value_coefficient * value - entropy_coefficient * entropy


def anchored(clip_anchor: float) -> LossSettings:
    return dataclasses.replace(PLAIN, clip_anchor=clip_anchor)


@given(seed=st.integers(0, 10_000), clip_anchor=st.floats(0.0, 1.0))
def test_the_loss_is_textbook_ppo_if_the_proximal_policy_acted(seed: int, clip_anchor: float) -> None:
    minibatch = random_minibatch(seed)
    minibatch = minibatch.replaced(
        behaviour_log_prob=minibatch.proximal_log_prob, importance=torch.ones_like(minibatch.importance)
    )
    loss = minibatch.loss(anchored(clip_anchor))
    assert loss.total.item() == pytest.approx(textbook_ppo(minibatch, PLAIN), abs=1e-9)
    # No bit depends on the anchor, as tests/exactness requires.
    assert torch.equal(loss.total, minibatch.loss().total)


@given(seed=st.integers(0, 10_000))
def test_the_loss_anchored_at_the_behaviour_policy_is_textbook_ppo_at_any_age(seed: int) -> None:
    minibatch = random_minibatch(seed)
    minibatch = minibatch.replaced(importance=torch.ones_like(minibatch.importance))
    assert minibatch.loss(anchored(1.0)).total.item() == pytest.approx(textbook_ppo(minibatch, PLAIN), abs=1e-9)


def decoupled(minibatch: Minibatch, settings: LossSettings) -> float:
    """Computes equation 2 of Hilton, Cobbe & Schulman (2021) step by step, with the anchor as proximal policy."""
    policy, steps = 0.0, len(minibatch.advantage)
    for t in range(steps):
        mu, proximal, pi = (
            math.exp(log_probs[t])
            for log_probs in (minibatch.behaviour_log_prob, minibatch.proximal_log_prob, minibatch.log_prob)
        )
        anchor = proximal ** (1.0 - settings.clip_anchor) * mu**settings.clip_anchor
        clipped = min(max(pi / anchor, 1.0 - settings.clip_range), 1.0 + settings.clip_range)
        advantage = minibatch.advantage[t].item()
        weight = min(anchor / mu, settings.behaviour_weight_clip) * minibatch.importance[t].item()
        policy += weight * min(pi / anchor * advantage, clipped * advantage) / steps
    return -policy


@given(seed=st.integers(0, 10_000), clip_anchor=st.floats(0.0, 1.0))
def test_the_loss_between_both_policies_is_the_decoupled_objective_around_the_anchor(
    seed: int, clip_anchor: float
) -> None:
    minibatch, settings = random_minibatch(seed), anchored(clip_anchor)
    assert minibatch.loss(settings).policy.item() == pytest.approx(decoupled(minibatch, settings), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("clip_anchor", "moves"), [(0.0, True), (0.5, True), (1.0, False)])
def test_an_anchor_near_the_behaviour_policy_stops_the_policy_earlier(clip_anchor: float, moves: bool) -> None:
    # The action's probability has risen by 30% since it was taken.
    minibatch = one_step(1.0, 2.0, behaviour_weight=1.3)
    torch.autograd.backward(minibatch.loss(anchored(clip_anchor)).total)
    assert minibatch.log_prob.grad is not None
    assert (minibatch.log_prob.grad.item() != 0.0) == moves


@pytest.mark.parametrize("clip_anchor", [0.0, 0.5, 1.0])
def test_the_kl_is_measured_from_the_proximal_policy_for_every_anchor(clip_anchor: float) -> None:
    minibatch = random_minibatch(6)
    assert torch.equal(minibatch.movement(anchored(clip_anchor)).approximate_kl, minibatch.movement().approximate_kl)


@pytest.mark.parametrize("value_clip_range", [None, 0.3])
@pytest.mark.parametrize("normalise_advantages", [False, True])
def test_the_gradient_matches_finite_differences(value_clip_range: float | None, normalise_advantages: bool) -> None:
    settings = dataclasses.replace(PLAIN, value_clip_range=value_clip_range, normalise_advantages=normalise_advantages)
    minibatch = random_minibatch(1)

    def total(log_prob: Tensor, value: Tensor, entropy: Tensor) -> Tensor:
        return minibatch.replaced(log_prob=log_prob, value=value, entropy=entropy).loss(settings).total

    inputs = [tensor.requires_grad_() for tensor in (minibatch.log_prob, minibatch.value, minibatch.entropy)]
    assert torch.autograd.gradcheck(total, inputs)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, 2.0), (0.7, -2.0)])
def test_a_ratio_beyond_the_clip_range_gets_no_gradient(ratio: float, advantage: float) -> None:
    minibatch = one_step(ratio, advantage)
    torch.autograd.backward(minibatch.loss().total)
    assert minibatch.log_prob.grad is not None
    assert minibatch.log_prob.grad.item() == 0.0


@pytest.mark.parametrize(("ratio", "advantage"), [(1.3, -2.0), (0.7, 2.0), (1.1, 2.0), (0.9, -2.0)])
def test_a_ratio_that_is_not_clipped_gets_the_whole_gradient(ratio: float, advantage: float) -> None:
    minibatch = one_step(ratio, advantage)
    torch.autograd.backward(minibatch.loss().total)
    assert minibatch.log_prob.grad is not None
    assert minibatch.log_prob.grad.item() == pytest.approx(-ratio * advantage)


@pytest.mark.parametrize(("proximal_over_behaviour", "weight"), [(0.25, 0.25), (1.0, 1.0), (3.0, 3.0), (40.0, 5.0)])
def test_a_step_is_weighted_by_its_bounded_behaviour_weight(proximal_over_behaviour: float, weight: float) -> None:
    loss = one_step(1.1, 2.0, behaviour_weight=proximal_over_behaviour).loss()
    assert loss.policy.item() == pytest.approx(-weight * 1.1 * 2.0)


def test_importance_weighs_policy_and_value_but_not_entropy() -> None:
    minibatch = random_minibatch(2)
    double = minibatch.replaced(importance=2.0 * minibatch.importance)
    torch.testing.assert_close(double.loss().policy, 2.0 * minibatch.loss().policy)
    torch.testing.assert_close(double.loss().value, 2.0 * minibatch.loss().value)
    assert torch.equal(double.loss().entropy, minibatch.loss().entropy)


def test_a_step_with_importance_0_does_not_affect_policy_and_value_losses() -> None:
    minibatch = random_minibatch(3)
    importance = minibatch.importance.clone()
    importance[4] = 0.0
    target, log_prob = minibatch.target.clone(), minibatch.log_prob.clone()
    target[4], log_prob[4] = 1e3, 1.0
    ignored = minibatch.replaced(importance=importance)
    changed = ignored.replaced(target=target, log_prob=log_prob)
    assert torch.equal(ignored.loss().total, changed.loss().total)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.1, 100.0), shift=st.floats(-10.0, 10.0))
def test_normalisation_removes_scale_and_offset_of_advantages(seed: int, scale: float, shift: float) -> None:
    settings = dataclasses.replace(PLAIN, normalise_advantages=True)
    minibatch = random_minibatch(seed)
    moved = minibatch.replaced(advantage=scale * minibatch.advantage + shift)
    torch.testing.assert_close(moved.loss(settings).total, minibatch.loss(settings).total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_moments_of_advantages_do_not_depend_on_the_scale_of_the_weights(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    advantage, importance = torch.randn(9, generator=generator), torch.rand(9, generator=generator) + 0.1
    expected = standardised(advantage, importance, None)
    torch.testing.assert_close(standardised(advantage, importance * scale, None), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("value", "squared_error"),
    [
        (1.1, 0.81),  # inside the clip range: unclipped
        (1.5, 0.64),  # moved by 0.5 towards the target of 2, clipped to 0.2: (1.2 - 2)^2
        (0.5, 2.25),  # moved away from the target: the larger, unclipped error
    ],
)
def test_a_value_is_credited_for_at_most_the_clip_range(value: float, squared_error: float) -> None:
    settings = dataclasses.replace(PLAIN, value_clip_range=0.2)
    minibatch = one_step(1.0, 0.0).replaced(
        value=torch.tensor([value]), proximal_value=torch.tensor([1.0]), target=torch.tensor([2.0])
    )
    assert minibatch.loss(settings).value.item() == pytest.approx(0.5 * squared_error)


def test_reported_ratios_match_a_manual_calculation() -> None:
    minibatch = random_minibatch(4, steps=4)
    ratios = torch.tensor([0.5, 1.0, 1.1, 2.0], dtype=torch.float64)
    moved = minibatch.replaced(log_prob=minibatch.proximal_log_prob + ratios.log()).movement()
    assert moved.clipped_share.item() == 0.5
    kl = sum(ratio - 1.0 - math.log(ratio) for ratio in ratios.tolist()) / 4
    assert moved.approximate_kl.item() == pytest.approx(kl)


def test_log_ratios_that_overflow_a_float_give_a_finite_loss() -> None:
    minibatch = random_minibatch(5)
    wild = minibatch.replaced(log_prob=minibatch.log_prob + 1e4, behaviour_log_prob=minibatch.behaviour_log_prob - 1e4)
    assert wild.loss().total.isfinite()


@given(seed=st.integers(0, 10_000), filling=st.integers(0, 9), value_clip_range=st.none() | st.just(0.2))
def test_rows_that_are_not_counted_do_not_affect_loss_and_gradient(
    seed: int, filling: int, value_clip_range: float | None
) -> None:
    settings = dataclasses.replace(PLAIN, normalise_advantages=True, value_clip_range=value_clip_range)
    whole = random_minibatch(seed)
    counted = torch.arange(12) >= filling
    alone, filled = (
        minibatch.replaced(
            **{name: getattr(minibatch, name).clone().requires_grad_() for name in ("log_prob", "value", "entropy")}
        )
        for minibatch in (Minibatch(*(getattr(whole, each.name)[counted] for each in FIELDS)), whole)
    )
    expected, loss = alone.loss(settings), filled.loss(settings, counted)
    torch.autograd.backward([expected.total, loss.total])
    for name in ("total", "policy", "value", "entropy"):
        assert getattr(loss, name).item() == pytest.approx(getattr(expected, name).item(), abs=1e-12)
    for name in ("log_prob", "value", "entropy"):
        gradient, reference = getattr(filled, name).grad, getattr(alone, name).grad
        torch.testing.assert_close(gradient[counted], reference, rtol=1e-9, atol=1e-12)
        assert not gradient[~counted].any()


def test_settings_may_be_scalar_tensors() -> None:
    minibatch = random_minibatch(3)
    tensors = dataclasses.replace(
        PLAIN,
        clip_range=torch.tensor(PLAIN.clip_range, dtype=torch.float64),
        entropy_coefficient=torch.tensor(PLAIN.entropy_coefficient, dtype=torch.float64),
    )
    assert torch.equal(minibatch.loss(tensors).total, minibatch.loss().total)


def test_the_clipped_share_counts_ratios_to_the_anchor() -> None:
    # The proximal policy takes the actions exp(0.6) times as often as the behaviour policy, and the anchor is halfway
    # between them. The ratios to it are exp(0.3), which is outside the clip range of 0.2, and 1, which is inside.
    minibatch = random_minibatch(4, steps=2)
    proximal = minibatch.proximal_log_prob
    moved = minibatch.replaced(
        behaviour_log_prob=proximal - 0.6, log_prob=proximal + torch.tensor([0.0, -0.3]).double()
    )
    assert moved.movement(anchored(0.5)).clipped_share.item() == 0.5
    # The ratios to the proximal policy are 1 and exp(-0.3), those to the behaviour policy exp(0.6) and exp(0.3).
    assert moved.movement(anchored(1.0)).clipped_share.item() == 1.0
    both = minibatch.replaced(behaviour_log_prob=proximal - 0.6, log_prob=proximal)
    assert [both.movement(anchored(share)).clipped_share.item() for share in (0.0, 0.5)] == [0.0, 1.0]
