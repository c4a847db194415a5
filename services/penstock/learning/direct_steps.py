"""Gradient steps of small networks on a CPU, with the backward pass written out.

They are the steps of `GradientStep`, which autograd takes for all other networks, up to rounding. A step makes some 25
calls instead of 140.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo import loss_gradients
from penstock.algo.flat_networks import FlatNetwork
from penstock.algo.loss_gradients import ROWS, Coefficients, PolicyLoss, Rows
from penstock.algo.losses import LossSettings, Movement
from penstock.algo.masks import unpack
from penstock.algo.policies import Inputs, Policy
from penstock.learning.adam import ClippedSteps
from penstock.learning.gradient_steps import LARGEST_NORM, Descended, GradientStep, Steps


class DirectSteps:
    """Execution of gradient steps without autograd. Implements `execution.Descent`."""

    def __init__(self, step: GradientStep, policy: Policy, network: FlatNetwork, loss: PolicyLoss) -> None:
        """Takes the steps of `step`, whose objective is that of this policy, by this network and this loss."""
        self._policy, self._network, self._loss = policy, network, loss
        self._take_step = ClippedSteps(
            step.optimizer,
            step.parameters,
            most=step.max_gradient_norm,
            largest=LARGEST_NORM,
            border=step.border,
        )

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`."""
        self._features, self._rows = self._arranged(steps)
        self._proximal = steps.proximal_log_prob.contiguous().numpy()
        self._coefficients = Coefficients.of(settings)

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        features, rows, count = self._features.index_select(0, order), self._rows.take(order.numpy()), len(order)
        log_probs, numbers = np.empty(count, np.float32), np.empty((5, minibatches), np.float32)
        begin = 0
        for minibatch, own_features in enumerate(torch.tensor_split(features, minibatches)):
            part = slice(begin, begin + count // minibatches + (minibatch < count % minibatches))
            losses = self._gradient(self._coefficients, own_features, rows.part(part), log_probs[part])
            norm, refused = self._take_step()
            numbers[:, minibatch] = *losses, norm, refused
            begin = part.stop
        return Descended(torch.from_numpy(log_probs), *torch.from_numpy(numbers))

    def movement(self, order: Tensor, log_prob: Tensor) -> Movement:
        """Returns what `losses.movement` does for an epoch in this order, whose log probabilities are <float32>[N]."""
        moved = loss_gradients.movement(
            self._coefficients, log_prob.numpy(), order.numpy(), self._rows.numbers, self._proximal
        )
        return Movement(*torch.tensor(moved))

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns log probabilities, <float32>[B, T], and values, <float32>[B, T + 1], of whole segments.

        They are those of `Policy.evaluate`. The last row of the inputs, [B, T + 1, ...], has no action.
        """
        features = self._network.features(inputs.observation)
        segments, rows = features.shape[:2]
        outputs, values = self._network.outputs_of(features.flatten(0, 1))
        of_actions = np.ascontiguousarray(outputs.reshape(segments, rows, -1)[:, :-1]).reshape(-1, outputs.shape[1])
        legal = self._legal(None if inputs.mask is None else inputs.mask.flatten(0, 1))
        arranged = self._loss.arranged(tuple(leaf.flatten(0, 1) for leaf in actions))
        log_probs = self._loss.log_probs(of_actions, legal, arranged)
        return log_probs.reshape(segments, rows - 1), values.reshape(segments, rows)

    def gradients(self, steps: Steps, settings: LossSettings) -> Callable[[slice], None]:
        """Implements `Descent`."""
        (features, rows), coefficients = self._arranged(steps), Coefficients.of(settings)

        def write(part: slice) -> None:
            log_probs = np.empty(part.stop - part.start, np.float32)
            self._gradient(coefficients, features[part], rows.part(part), log_probs)

        return write

    def _gradient(
        self, coefficients: Coefficients, features: Tensor, rows: Rows, log_probs: NDArray[np.float32]
    ) -> tuple[float, float, float]:
        """Computes the gradient of the loss. Returns the losses of policy and value, and the entropy."""
        outputs, values = self._network.forward(features)
        of_outputs, of_values = self._network.gradients_of_outputs(len(log_probs))
        policy, entropy = self._loss.gradients(coefficients, outputs, rows, of_outputs, log_probs)
        value = loss_gradients.value_loss(coefficients, values, rows.numbers, of_values)
        self._network.backward(len(log_probs))
        return policy, value, entropy

    def _arranged(self, steps: Steps) -> tuple[Tensor, Rows]:
        numbers = torch.stack([getattr(steps, name) for name in ROWS], 1).numpy()
        rows = Rows(numbers, self._loss.arranged(steps.action), self._legal(steps.inputs.mask))
        return self._network.features(steps.inputs.observation), rows

    def _legal(self, mask: Tensor | None) -> NDArray[np.bool_]:
        return np.empty((0, 0), np.bool_) if mask is None else unpack(mask, self._policy.spec.mask_bits).numpy()


def direct_steps(policy: Policy, step: GradientStep) -> DirectSteps | None:
    """Returns the direct execution of a policy's gradient steps on a CPU in float32; None if there is none."""
    loss = loss_gradients.policy_loss(policy)
    if loss is None or not FlatNetwork.applies_to(policy):
        return None
    return DirectSteps(step, policy, FlatNetwork(policy, step.parameters), loss)
