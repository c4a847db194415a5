"""PPO's loss for each kind of action of a small network, by compiled code."""

import math
from dataclasses import dataclass, fields
from typing import Protocol, assert_never

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.advantages import LARGEST_LOG
from penstock.algo.losses import LossSettings
from penstock.algo.network import LOG_STD_RANGE
from penstock.algo.policies import Policy
from penstock.small.compiled import gradients, row_losses
from penstock.small.compiled.flat_network import FlatNetwork
from penstock.small.compiled.passes import Floats
from penstock.small.compiled.row_losses import MinibatchSettings
from penstock.types.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space

_ELSEWHERE = {"normalise_advantages", "clip_anchor", "behaviour_weight_clip"}
"""Fields of `LossSettings` that `MinibatchSettings` lacks: the first decides how advantages are scaled, and the others
decide the inputs of the loss (`estimates`)."""

Actions = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Settings of the loss as the compiled functions take them.

    Attributes:
        normalise: Whether advantages are normalised.
        settings: All settings, except the settings of a single minibatch.
    """

    normalise: bool
    settings: MinibatchSettings

    @classmethod
    def of(cls, settings: LossSettings) -> "Coefficients":
        """Returns the coefficients of these settings, whose scheduled ones are numbers.

        Raises `NotImplementedError` if `LossSettings` has a field that the compiled loss does not have.
        """
        if missing := {each.name for each in fields(settings)} - {*MinibatchSettings._fields, *_ELSEWHERE}:
            raise NotImplementedError(f"small.compiled.row_losses lacks settings of the loss: {', '.join(missing)}")
        return cls(
            settings.normalise_advantages,
            MinibatchSettings(
                clip_range=float(settings.clip_range),
                value_clip_range=math.inf if settings.value_clip_range is None else float(settings.value_clip_range),
                value_coefficient=float(settings.value_coefficient),
                entropy_coefficient=float(settings.entropy_coefficient),
                largest_log=LARGEST_LOG,
                advantage_mean=0.0,
                advantage_factor=1.0,
                rows=0.0,
            ),
        )

    def of_minibatch(self, rows: NDArray[np.void]) -> MinibatchSettings:
        """Returns the settings for a minibatch, <ROW>[N]."""
        mean, factor = row_losses.scale_of(rows) if self.normalise else (0.0, 1.0)
        # `_replace` takes several times as long.
        return MinibatchSettings(*self.settings[:-3], mean, factor, float(len(rows)))


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of which the loss is the mean.

    Attributes:
        features: <float32>[N, F] inputs of the first layer.
        numbers: <ROW>[N] the other numbers that the loss reads.
        actions: [N, elements] actions, as `PolicyLoss.arranged` returns them.
        legal: <bool>[N, bits] legal alternatives; [0, 0]: all are.
    """

    features: Floats
    numbers: NDArray[np.void]
    actions: Actions
    legal: NDArray[np.bool_]

    def take(self, order: NDArray[np.int64]) -> "Rows":
        """Returns the chosen rows in this order."""
        # `take` copies rows several times as fast as an index.
        legal = self.legal.take(order, 0) if self.legal.size else self.legal
        return Rows(self.features.take(order, 0), self.numbers.take(order, 0), self.actions.take(order, 0), legal)

    def part(self, rows: slice) -> "Rows":
        """Returns views of some rows."""
        legal = self.legal[rows] if self.legal.size else self.legal
        return Rows(self.features[rows], self.numbers[rows], self.actions[rows], legal)


class PolicyLoss(Protocol):
    """Loss of a policy with one kind of action, and of its value."""

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Returns the actions of N rows, one tensor per leaf, as an array [N, elements]."""

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Returns the log probabilities of the actions, <float32>[N], from outputs, <float32>[N, outputs]."""

    def gradient(
        self, room: Floats, rows: Rows, settings: MinibatchSettings, gradient: Floats, log_probs: Floats
    ) -> tuple[float, float, float]:
        """Returns the sums over some rows of a minibatch of the policy losses, the value losses, and the entropies.

        Threads may call it at once, each with its own memory.

        Args:
            room: Memory (`FlatNetwork.room`).
            rows: The rows.
            settings: Settings of the whole minibatch (`Coefficients.of_minibatch`).
            gradient: <float32>[P] receives the gradient of the parameters.
            log_probs: <float32>[N] receives the log probabilities of the actions.
        """

    def finish(self, gradient: Floats) -> None:
        """Completes the sum of the gradients of a minibatch's parts, in place."""


class ChoiceLoss:
    """Loss of actions that are choices alone, with or without masks."""

    def __init__(self, policy: Policy, network: FlatNetwork) -> None:
        self._layout = network.layout
        counts = [count for space in policy.spec.action.spaces for count in space.choices]
        self._choices = np.cumsum(np.array(counts, np.int64))

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Implements `PolicyLoss`."""
        leaves = [action.reshape(len(action), -1).numpy() for action in actions]
        return np.ascontiguousarray(leaves[0] if len(leaves) == 1 else np.concatenate(leaves, 1), np.int64)

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Implements `PolicyLoss`."""
        result = np.empty(len(actions), np.float32)
        row_losses.choice_log_probs(outputs, legal, self._choices, actions, result)
        return result

    def gradient(
        self, room: Floats, rows: Rows, settings: MinibatchSettings, gradient: Floats, log_probs: Floats
    ) -> tuple[float, float, float]:
        """Implements `PolicyLoss`."""
        sums: tuple[float, float, float] = gradients.choice_gradient(
            tuple(self._layout),
            room,
            rows.features,
            (rows.legal, self._choices, rows.actions),
            rows.numbers,
            tuple(settings),
            (gradient, log_probs),
        )
        return sums

    def finish(self, gradient: Floats) -> None:
        """Implements `PolicyLoss`."""


class GaussianLoss:
    """Loss of an action that is one vector of real numbers."""

    def __init__(self, policy: Policy, network: FlatNetwork) -> None:
        self._layout, log_std = network.layout, policy.log_std
        begin = 0 if log_std is None else int(log_std.storage_offset())
        self._log_std = (begin, begin + (0 if log_std is None else log_std.numel()))

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Implements `PolicyLoss`."""
        (action,) = actions
        return np.ascontiguousarray(action.numpy())

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Implements `PolicyLoss`."""
        result = np.empty(len(actions), np.float32)
        log_std = self._layout.parameters[slice(*self._log_std)]
        row_losses.gaussian_log_probs(outputs, log_std, actions, LOG_STD_RANGE, result)
        return result

    def gradient(
        self, room: Floats, rows: Rows, settings: MinibatchSettings, gradient: Floats, log_probs: Floats
    ) -> tuple[float, float, float]:
        """Implements `PolicyLoss`."""
        sums: tuple[float, float, float] = gradients.gaussian_gradient(
            tuple(self._layout),
            room,
            rows.features,
            (rows.actions, LOG_STD_RANGE, self._log_std),
            rows.numbers,
            tuple(settings),
            (gradient, log_probs),
        )
        return sums

    def finish(self, gradient: Floats) -> None:
        """Implements `PolicyLoss`."""
        row_losses.stop_outwards(self._layout.parameters, gradient, self._log_std, LOG_STD_RANGE)


def policy_loss(policy: Policy, network: FlatNetwork) -> PolicyLoss | None:
    """Returns the loss of a policy; None if its actions have none here (`obstacle_of_actions`)."""
    return None if obstacle_of_actions(policy) else _kind_of(policy.spec.action.spaces[0])(policy, network)


def obstacle_of_actions(policy: Policy) -> str:
    """Returns why actions have no loss here; empty for choices alone, and for one vector that is not squashed."""
    spaces = policy.spec.action.spaces
    if GaussianLoss not in map(_kind_of, spaces):
        return ""
    if len(spaces) > 1:
        return "the action has a vector of numbers beside other parts"
    return "policy.squash_actions is true" if policy.network.squash_actions else ""


def _kind_of(space: Space) -> type[ChoiceLoss] | type[GaussianLoss]:
    match space:
        case DiscreteSpace() | MultiDiscreteSpace() | MultiBinarySpace():
            return ChoiceLoss
        case BoxSpace():
            return GaussianLoss
        case _:
            assert_never(space)


@numba.njit(
    "UniTuple(float64, 2)(float32[::1], int64[::1], float32[::1], float32[::1], float64, float64)",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _movement(log_probs, order, anchor, proximal, clip_range, largest_log):  # type: ignore[no-untyped-def]
    count, divergence, clipped = order.size, 0.0, 0
    # A ratio is compared by its log, which saves an exponential.
    most = min(math.log(1.0 + clip_range), largest_log)
    least = max(math.log(1.0 - clip_range), -largest_log) if clip_range < 1.0 else -math.inf
    for position in range(count):
        log_prob, row = log_probs[position], order[position]
        moved = log_prob - proximal[row]
        bounded = min(max(moved, -largest_log), largest_log) if moved == moved else moved
        divergence += (math.exp(np.float64(bounded)) - 1.0) - moved
        change = log_prob - anchor[row]
        clipped += change > most or change < least
    return divergence / count, clipped / count


def movement(
    coefficients: Coefficients,
    *,
    log_prob: Floats,
    order: NDArray[np.int64],
    anchor_log_prob: Floats,
    proximal_log_prob: Floats,
) -> tuple[float, float]:
    """Returns the approximate KL divergence and the share of clipped steps, as `losses.movement`.

    Args:
        coefficients: Coefficients of the loss.
        log_prob: <float32>[N] log probabilities of the actions under the policy being trained.
        order: <int64>[N] the row of each.
        anchor_log_prob: <float32>[N] log probabilities of the actions of the rows in the anchor of the clip range.
        proximal_log_prob: <float32>[N] the same before the batch.
    """
    clip_range, largest_log = coefficients.settings.clip_range, LARGEST_LOG
    divergence, clipped = _movement(log_prob, order, anchor_log_prob, proximal_log_prob, clip_range, largest_log)
    return divergence, clipped
