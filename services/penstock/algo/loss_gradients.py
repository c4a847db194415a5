"""Gradients of PPO's loss with respect to the outputs of a small network, in compiled loops.

`losses.ppo_loss` with the distributions of `algo.distributions` is the definition; tests compare the two. A row whose
numbers are not finite makes the gradients NaN, as there.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.limits import LOG_STD_RANGE
from penstock.algo.losses import LossSettings
from penstock.algo.policies import Policy
from penstock.algo.ratios import LARGEST_LOG

ROWS = ("anchor_log_prob", "proximal_value", "advantage", "target", "importance", "policy_weight")
"""Columns of the rows that the loss reads, in this order; see `losses.ppo_loss`."""

Floats = NDArray[np.float32]
Actions = NDArray[np.int64] | NDArray[np.float32]

_ANCHOR = 0
_PROXIMAL_VALUE = 1
_ADVANTAGE = 2
_TARGET = 3
_IMPORTANCE = 4
_WEIGHT = 5
_LOG_TWO_PI = np.log(2.0 * np.pi)


@numba.njit(nogil=True, error_model="numpy")
def _scale(rows, normalise):  # type: ignore[no-untyped-def]
    """Returns the mean to subtract from the advantages and the factor to multiply them by."""
    if not normalise:
        return np.float32(0.0), np.float32(1.0)
    count = rows.shape[0]
    mean = 0.0
    for row in range(count):
        mean += rows[row, _ADVANTAGE]
    mean /= count
    square = 0.0
    for row in range(count):
        square += (rows[row, _ADVANTAGE] - mean) ** 2
    return np.float32(mean), np.float32(1.0 / (math.sqrt(square / count) + 1e-8))


@numba.njit(nogil=True, error_model="numpy")
def _surrogate(log_prob, anchor, advantage, weight, clip_range, largest_log):  # type: ignore[no-untyped-def]
    """Returns w min(r A, clip(r) A) and its derivative by the log probability."""
    log_ratio = log_prob - anchor
    ratio = math.exp(min(max(log_ratio, -largest_log), largest_log)) if log_ratio == log_ratio else log_ratio
    plain = ratio * advantage
    clipped = min(max(ratio, 1.0 - clip_range), 1.0 + clip_range) * advantage
    # Every comparison with NaN is false, and then the result is NaN.
    if clipped < plain:
        return weight * clipped, 0.0
    if abs(log_ratio) > largest_log:
        return weight * plain, 0.0
    return weight * plain, weight * plain


@numba.njit(
    "float64(float32[:, ::1], float32[:, ::1], float32[:, ::1], float64, float64)",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _value_loss(values, rows, gradients, clip_range, coefficient):  # type: ignore[no-untyped-def]
    """Returns the value loss, and writes its gradients, times its coefficient, by the values, <float32>[N, 1]."""
    count, total = rows.shape[0], 0.0
    for row in range(count):
        value, target, proximal = values[row, 0], rows[row, _TARGET], rows[row, _PROXIMAL_VALUE]
        error, change = value - target, value - proximal
        squared, slope = error * error, error
        if abs(change) > clip_range:
            clipped = proximal + math.copysign(clip_range, change) - target
            if clipped * clipped > squared:
                squared, slope = clipped * clipped, 0.0
        total += rows[row, _IMPORTANCE] * 0.5 * squared
        gradients[row, 0] = coefficient * rows[row, _IMPORTANCE] * slope / count
    return total / count


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _normaliser(logits, legal, row, begin, end, probabilities):  # type: ignore[no-untyped-def]
    """Returns the log of the sum of exponentials of the legal logits of one choice.

    Writes the probabilities of the choice, whose first is at `begin`.
    """
    largest, total = np.float32(-np.inf), 0.0
    for column in range(begin, end):
        if legal.shape[0] == 0 or legal[row, column]:
            largest = max(largest, logits[row, column])
    for column in range(begin, end):
        possible = legal.shape[0] == 0 or legal[row, column]
        # In float32, because the exponential in float64 takes twice the time.
        probabilities[column] = math.exp(logits[row, column] - largest) if possible else np.float32(0.0)
        total += probabilities[column]
    for column in range(begin, end):
        probabilities[column] /= total
    return largest + math.log(total)


@numba.njit(
    "void(float32[:, ::1], boolean[:, ::1], int64[::1], int64[:, ::1], float32[::1])",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _choice_log_probs(logits, legal, ends, actions, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities of choices; the arguments are those of `_choice_loss`."""
    probabilities = np.empty(logits.shape[1], np.float32)
    for row in range(actions.shape[0]):
        log_prob, begin = 0.0, 0
        for choice in range(ends.size):
            chosen = begin + actions[row, choice]
            possible = legal.shape[0] == 0 or legal[row, chosen]
            normaliser = _normaliser(logits, legal, row, begin, ends[choice], probabilities)
            log_prob += logits[row, chosen] - normaliser if possible else -math.inf
            begin = ends[choice]
        log_probs[row] = log_prob


@numba.njit(
    "UniTuple(float64, 2)(float32[:, ::1], boolean[:, ::1], int64[::1], int64[:, ::1], float32[:, ::1],"
    " UniTuple(float64, 4), Tuple((float32[:, ::1], float32[::1])))",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _choice_loss(logits, legal, ends, actions, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the policy loss and the mean entropy of choices.

    Writes the gradients and the log probabilities, which are the two `results`. Choice c is among the logits from
    `ends[c - 1]` to `ends[c]`. Without masks `legal` has no rows. `settings` are those of `Coefficients.policy`.
    """
    normalise, clip_range, entropy_coefficient, largest_log = settings
    gradients, log_probs = results
    count, loss, entropies = rows.shape[0], 0.0, 0.0
    mean, factor = _scale(rows, normalise != 0.0)
    normalisers = np.empty(ends.size)
    for row in range(count):
        own, log_prob, begin = gradients[row], 0.0, 0
        for choice in range(ends.size):
            end = ends[choice]
            # The probabilities take the place of the gradients until the latter are known.
            normalisers[choice] = _normaliser(logits, legal, row, begin, end, own)
            chosen = begin + actions[row, choice]
            possible = legal.shape[0] == 0 or legal[row, chosen]
            log_prob += logits[row, chosen] - normalisers[choice] if possible else -math.inf
            begin = end
        advantage = (rows[row, _ADVANTAGE] - mean) * factor
        term, slope = _surrogate(log_prob, rows[row, _ANCHOR], advantage, rows[row, _WEIGHT], clip_range, largest_log)
        loss -= term
        log_probs[row] = log_prob
        slope, begin = -slope / count, 0
        for choice in range(ends.size):
            end, entropy = ends[choice], 0.0
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[row, column]:
                    entropy -= own[column] * (logits[row, column] - normalisers[choice])
            entropies += entropy
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[row, column]:
                    spread = logits[row, column] - normalisers[choice] + entropy
                    own[column] *= entropy_coefficient / count * spread - slope
            own[begin + actions[row, choice]] += slope
            begin = end
    return loss / count, entropies / count


@numba.njit(
    "void(float32[:, ::1], float32[::1], float32[:, ::1], UniTuple(float64, 2), float32[::1])",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gaussian_log_probs(outputs, log_std, actions, bounds, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities under a Gaussian; the arguments are those of `_gaussian_loss`."""
    lowest, highest = bounds
    elements = actions.shape[1]
    for row in range(actions.shape[0]):
        log_prob = 0.0
        for element in range(elements):
            raw = log_std[element] if log_std.size else outputs[row, elements + element]
            bounded = min(max(raw, lowest), highest) if raw == raw else raw
            scaled = (actions[row, element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
        log_probs[row] = log_prob


@numba.njit(
    "UniTuple(float64, 2)(float32[:, ::1], float32[::1], float32[:, ::1], float32[:, ::1], UniTuple(float64, 6),"
    " Tuple((float32[:, ::1], float32[::1], float32[::1])))",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gaussian_loss(outputs, log_std, actions, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the policy loss and the mean entropy of a Gaussian.

    Writes the gradients by outputs and by `log_std`, and the log probabilities, which are the three `results`.
    `log_std` is empty if the log standard deviations are outputs, after the means. They are bounded as by
    `action_heads.bound`. `settings` are those of `Coefficients.policy`,
    and the bounds.
    """
    normalise, clip_range, entropy_coefficient, largest_log, lowest, highest = settings
    gradients, log_std_gradient, log_probs = results
    count, elements, loss, entropies = rows.shape[0], actions.shape[1], 0.0, 0.0
    mean, factor = _scale(rows, normalise != 0.0)
    own_std = log_std.size > 0
    log_std_gradient[:] = np.float32(0.0)
    for row in range(count):
        log_prob, entropy = 0.0, 0.0
        for element in range(elements):
            raw = log_std[element] if own_std else outputs[row, elements + element]
            bounded = min(max(raw, lowest), highest) if raw == raw else raw
            scaled = (actions[row, element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
            entropy += bounded + 0.5 * (1.0 + _LOG_TWO_PI)
        entropies += entropy
        advantage = (rows[row, _ADVANTAGE] - mean) * factor
        term, slope = _surrogate(log_prob, rows[row, _ANCHOR], advantage, rows[row, _WEIGHT], clip_range, largest_log)
        loss -= term
        log_probs[row] = log_prob
        slope = -slope / count
        for element in range(elements):
            raw = log_std[element] if own_std else outputs[row, elements + element]
            bounded = min(max(raw, lowest), highest) if raw == raw else raw
            inverse = math.exp(-bounded)
            scaled = (actions[row, element] - outputs[row, element]) * inverse
            gradients[row, element] = slope * scaled * inverse
            gradient = slope * (scaled * scaled - 1.0) - entropy_coefficient / count
            if own_std:
                log_std_gradient[element] += gradient
            else:
                outwards = (raw > highest and gradient < 0.0) or (raw < lowest and gradient > 0.0)
                gradients[row, elements + element] = 0.0 if outwards else gradient
    for element in range(log_std.size):
        raw, gradient = log_std[element], log_std_gradient[element]
        if (raw > highest and gradient < 0.0) or (raw < lowest and gradient > 0.0):
            log_std_gradient[element] = 0.0
    return loss / count, entropies / count


@numba.njit(
    "UniTuple(float64, 2)(float32[::1], int64[::1], float32[:, ::1], float32[::1], float64, float64)",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _movement(log_probs, order, rows, proximal, clip_range, largest_log):  # type: ignore[no-untyped-def]
    count, divergence, clipped = order.size, 0.0, 0
    # A ratio is compared by its log, which saves an exponential.
    most = min(math.log(1.0 + clip_range), largest_log)
    least = max(math.log(1.0 - clip_range), -largest_log) if clip_range < 1.0 else -math.inf
    for position in range(count):
        log_prob, row = log_probs[position], order[position]
        moved = log_prob - proximal[row]
        bounded = min(max(moved, -largest_log), largest_log) if moved == moved else moved
        divergence += (math.exp(np.float64(bounded)) - 1.0) - moved
        change = log_prob - rows[row, _ANCHOR]
        clipped += change > most or change < least
    return divergence / count, clipped / count


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Settings of the loss as the compiled functions take them.

    Attributes:
        policy: Whether advantages are normalised, the clip range, the coefficient of the entropy, and the bound on log
            ratios. The compiled functions use nothing of other modules, because numba does not compile them again when
            another module changes.
        value: The clip range and the coefficient of the value loss.
    """

    policy: tuple[float, float, float, float]
    value: tuple[float, float]

    @classmethod
    def of(cls, settings: LossSettings) -> "Coefficients":
        """Returns the coefficients of these settings, whose scheduled ones are numbers."""
        normalise = float(settings.normalise_advantages)
        clip_range = math.inf if settings.value_clip_range is None else settings.value_clip_range
        return cls(
            (normalise, float(settings.clip_range), float(settings.entropy_coefficient), LARGEST_LOG),
            (clip_range, settings.value_coefficient),
        )


def value_loss(coefficients: Coefficients, values: Floats, rows: Floats, gradients: Floats) -> float:
    """Returns the value loss of N rows, and writes its gradients by the values, <float32>[N, 1]."""
    loss: float = _value_loss(values, rows, gradients, *coefficients.value)
    return loss


def movement(
    coefficients: Coefficients,
    log_probs: Floats,
    order: NDArray[np.int64],
    rows: Floats,
    proximal_log_prob: Floats,
) -> tuple[float, float]:
    """Returns the approximate KL divergence and the share of clipped steps, as `losses.movement`.

    Args:
        coefficients: Coefficients of the loss.
        log_probs: <float32>[N] log probabilities of the actions under the policy being trained.
        order: <int64>[N] the row of each.
        rows: <float32>[N, 6] the columns `ROWS`.
        proximal_log_prob: <float32>[N] log probabilities of the actions of the rows before the batch.
    """
    _, clip_range, _, largest_log = coefficients.policy
    divergence, clipped = _movement(log_probs, order, rows, proximal_log_prob, clip_range, largest_log)
    return divergence, clipped


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of which the loss is the mean.

    Attributes:
        numbers: <float32>[N, 6] the columns `ROWS`.
        actions: [N, elements] actions, as `PolicyLoss.arranged` returns them.
        legal: <bool>[N, bits] legal alternatives; [0, 0]: all are.
    """

    numbers: Floats
    actions: Actions
    legal: NDArray[np.bool_]

    def take(self, order: NDArray[np.int64]) -> "Rows":
        """Returns the chosen rows in this order."""
        # `take` copies rows several times as fast as an index.
        legal = self.legal.take(order, 0) if self.legal.size else self.legal
        return Rows(self.numbers.take(order, 0), self.actions.take(order, 0), legal)

    def part(self, rows: slice) -> "Rows":
        """Returns views of some rows."""
        return Rows(self.numbers[rows], self.actions[rows], self.legal[rows] if self.legal.size else self.legal)


class PolicyLoss(Protocol):
    """Policy loss of one kind of action."""

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Returns the actions of N rows, one tensor per leaf, as an array [N, elements]."""

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Returns the log probabilities of the actions, <float32>[N]; the arguments are those of `gradients`."""

    def gradients(
        self, coefficients: Coefficients, outputs: Floats, rows: Rows, gradients: Floats, log_probs: Floats
    ) -> tuple[float, float]:
        """Returns the policy loss of N rows and their mean entropy.

        Writes the gradients of the policy loss, less the entropy times its coefficient.

        Args:
            coefficients: Coefficients of the loss.
            outputs: <float32>[N, outputs] outputs of the policy's network.
            rows: The other inputs of the loss.
            gradients: <float32>[N, outputs] receives the gradients by the outputs.
            log_probs: <float32>[N] receives the log probabilities of the actions.
        """


class ChoiceLoss:
    """Policy loss of actions that are choices alone, with or without masks."""

    def __init__(self, policy: Policy) -> None:
        counts = [count for space in policy.spec.action.spaces for count in space.choices]
        self._ends = np.cumsum(np.array(counts, np.int64))

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Implements `PolicyLoss`."""
        leaves = [action.reshape(len(action), -1).numpy() for action in actions]
        return np.ascontiguousarray(leaves[0] if len(leaves) == 1 else np.concatenate(leaves, 1), np.int64)

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Implements `PolicyLoss`."""
        result = np.empty(len(actions), np.float32)
        _choice_log_probs(outputs, legal, self._ends, actions, result)
        return result

    def gradients(
        self, coefficients: Coefficients, outputs: Floats, rows: Rows, gradients: Floats, log_probs: Floats
    ) -> tuple[float, float]:
        """Implements `PolicyLoss`."""
        losses: tuple[float, float] = _choice_loss(
            outputs,
            rows.legal,
            self._ends,
            rows.actions,
            rows.numbers,
            coefficients.policy,
            (gradients, log_probs),
        )
        return losses


class GaussianLoss:
    """Policy loss of an action that is one vector of real numbers."""

    def __init__(self, policy: Policy) -> None:
        log_std = policy.log_std
        self._log_std = np.empty(0, np.float32) if log_std is None else log_std.detach().numpy()
        gradient = None if log_std is None else log_std.grad
        self._gradient = np.empty(0, np.float32) if gradient is None else gradient.numpy()

    def arranged(self, actions: tuple[Tensor, ...]) -> Actions:
        """Implements `PolicyLoss`."""
        (action,) = actions
        return np.ascontiguousarray(action.numpy())

    def log_probs(self, outputs: Floats, legal: NDArray[np.bool_], actions: Actions) -> Floats:
        """Implements `PolicyLoss`."""
        result = np.empty(len(actions), np.float32)
        _gaussian_log_probs(outputs, self._log_std, actions, LOG_STD_RANGE, result)
        return result

    def gradients(
        self, coefficients: Coefficients, outputs: Floats, rows: Rows, gradients: Floats, log_probs: Floats
    ) -> tuple[float, float]:
        """Implements `PolicyLoss`. Writes the gradient by the parameter `log_std` too, if there is one."""
        losses: tuple[float, float] = _gaussian_loss(
            outputs,
            self._log_std,
            rows.actions,
            rows.numbers,
            (*coefficients.policy, *LOG_STD_RANGE),
            (gradients, self._gradient, log_probs),
        )
        return losses


def policy_loss(policy: Policy) -> PolicyLoss | None:
    """Returns the policy loss for the actions of a policy with flat parameters; None if there is none."""
    spaces = policy.spec.action.spaces
    if all(space.choices for space in spaces):
        return ChoiceLoss(policy)
    if len(spaces) == 1 and not policy.network.squash_actions:
        return GaussianLoss(policy)
    return None
