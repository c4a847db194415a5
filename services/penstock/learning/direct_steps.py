"""Gradient steps of small networks on a CPU, in compiled code.

They are the steps of `GradientStep`, which autograd takes for all other networks, up to rounding. A minibatch has parts
with a gradient each, which are added in their order, so that the result does not depend on the number of threads.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo import direct_gradients, policy_losses
from penstock.algo.direct_gradients import BLOCK, ROWS
from penstock.algo.flat_networks import FlatNetwork
from penstock.algo.losses import LossSettings, Movement
from penstock.algo.masks import unpack
from penstock.algo.policies import Inputs, Policy
from penstock.algo.policy_losses import Coefficients, Rows
from penstock.learning.adam import ClippedSteps
from penstock.learning.gradient_steps import LARGEST_NORM, Descended, GradientStep, Steps
from penstock.learning.part_threads import PartThreads
from penstock.learning.ranks import ALONE, Ranks

_LEAST_ROWS = 2 * BLOCK
"""Rows of the smallest part but the last. Waking a thread takes as long as a quarter of it."""

_MOST_PARTS = 16
"""Bound on the parts of a minibatch, each of which has a gradient in memory."""


class DirectSteps:
    """Execution of gradient steps without autograd. Implements `execution.Descent`."""

    def __init__(self, step: GradientStep, policy: Policy, threads: int, ranks: Ranks) -> None:
        """Takes the steps of `step`, whose objective is that of this policy, in this number of threads of each rank."""
        self._ranks = ranks
        self._policy, self._network = policy, FlatNetwork(policy, step.parameters)
        self._loss = policy_losses.policy_loss(policy, self._network)
        self._threads = PartThreads(threads)
        self._rooms = [self._network.room() for _ in range(threads)]
        gradient = step.parameters.grad
        assert gradient is not None
        self._gradient: NDArray[np.float32] = gradient.numpy()
        self._of_parts = np.empty((1, self._network.size), np.float32)
        self._take_step = ClippedSteps(
            step.optimizer,
            step.parameters,
            most=step.max_gradient_norm,
            largest=LARGEST_NORM,
            border=step.border,
        )

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`."""
        self._rows = self._arranged(steps)
        self._anchor = steps.anchor_log_prob.contiguous().numpy()
        self._proximal = steps.proximal_log_prob.contiguous().numpy()
        self._coefficients = Coefficients.of(settings)

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        rows, count = self._rows.take(order.numpy()), len(order)
        log_probs, numbers = np.empty(count, np.float32), np.empty((5, minibatches), np.float32)
        begin = 0
        for minibatch in range(minibatches):
            part = slice(begin, begin + count // minibatches + (minibatch < count % minibatches))
            losses = self._write_gradient(self._coefficients, rows.part(part), log_probs[part], self._ranks)
            norm, refused = self._take_step()
            numbers[:, minibatch] = *losses, norm, refused
            begin = part.stop
        return Descended(torch.from_numpy(log_probs), *torch.from_numpy(numbers))

    def movement(self, order: Tensor, log_prob: Tensor) -> Movement:
        """Returns what `losses.movement` does for an epoch in this order, whose log probabilities are <float32>[N]."""
        moved = policy_losses.movement(
            self._coefficients,
            log_prob=log_prob.numpy(),
            order=order.numpy(),
            anchor_log_prob=self._anchor,
            proximal_log_prob=self._proximal,
        )
        return Movement(*torch.tensor(moved))

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Returns log probabilities, <float32>[B, T], and values, <float32>[B, T + 1], of whole segments.

        They are those of `Policy.evaluate`. The last row of the inputs, [B, T + 1, ...], has no action.
        """
        features = self._network.features(inputs.observation)
        segments, rows = features.shape[:2]
        outputs, values = self._outputs_of(features.flatten(0, 1).contiguous().numpy())
        of_actions = np.ascontiguousarray(outputs.reshape(segments, rows, -1)[:, :-1]).reshape(-1, outputs.shape[1])
        legal = self._legal(None if inputs.mask is None else inputs.mask.flatten(0, 1))
        arranged = self._loss.arranged(tuple(leaf.flatten(0, 1) for leaf in actions))
        log_probs = self._loss.log_probs(of_actions, legal, arranged)
        return torch.from_numpy(log_probs).view(segments, rows - 1), torch.from_numpy(values).view(segments, rows)

    def gradients(self, steps: Steps, settings: LossSettings) -> Callable[[slice], None]:
        """Implements `Descent`."""
        rows, coefficients = self._arranged(steps), Coefficients.of(settings)

        def write(part: slice) -> None:
            log_probs = np.empty(part.stop - part.start, np.float32)
            self._write_gradient(coefficients, rows.part(part), log_probs, ALONE)

        return write

    def _write_gradient(
        self, coefficients: Coefficients, rows: Rows, log_probs: NDArray[np.float32], ranks: Ranks
    ) -> tuple[float, float, float]:
        """Computes the gradient of the loss with the ranks. Returns the losses of policy and value, and the entropy."""
        settings, count = coefficients.of_minibatch(rows.numbers), len(log_probs)
        own = ranks.own(count)
        parts = [slice(own.start + part.start, own.start + part.stop) for part in _parts_of(own.stop - own.start)]
        sums, of_parts = [(0.0, 0.0, 0.0)] * len(parts), self._room_of_parts(len(parts))

        def compute(thread: int, number: int) -> None:
            part, room = parts[number], self._rooms[thread]
            sums[number] = self._loss.gradient(room, rows.part(part), settings, of_parts[number], log_probs[part])

        self._threads.run(compute, len(parts))
        if len(parts) != 1:
            direct_gradients.add_parts(of_parts, self._gradient)
        totals = [sum(each[number] for each in sums) for number in range(3)]
        if not ranks.alone:
            totals = self._sum_over(ranks, log_probs, own, totals)
        self._loss.finish(self._gradient)
        policy, value, entropy = (total / count for total in totals)
        return policy, value, entropy

    def _sum_over(self, ranks: Ranks, log_probs: NDArray[np.float32], own: slice, totals: list[float]) -> list[float]:
        """Completes the gradient and the log probabilities by those of the other ranks. Returns the sums of totals."""
        whole = np.zeros(self._gradient.size + len(totals) + len(log_probs), np.float32)
        gradient, numbers, of_rows = np.split(whole, np.cumsum([self._gradient.size, len(totals)]))
        gradient[:], numbers[:], of_rows[own] = self._gradient, totals, log_probs[own]
        ranks.add(torch.from_numpy(whole))
        self._gradient[:], log_probs[:] = gradient, of_rows
        return list(numbers.tolist())

    def _room_of_parts(self, parts: int) -> NDArray[np.float32]:
        """Returns memory for the gradients of parts, <float32>[parts, P]; a single one is the gradient itself."""
        if parts == 1:
            return self._gradient[None]
        if len(self._of_parts) != parts:
            self._of_parts = np.empty((parts, self._network.size), np.float32)
        return self._of_parts

    def _outputs_of(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Returns the outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1]."""
        outputs = np.empty((len(features), self._network.outputs), np.float32)
        values, parts = np.empty((len(features), 1), np.float32), _parts_of(len(features))

        def compute(thread: int, number: int) -> None:
            part, room = parts[number], self._rooms[thread]
            direct_gradients.outputs_of(self._network.layout, room, features[part], outputs[part], values[part])

        self._threads.run(compute, len(parts))
        return outputs, values

    def _arranged(self, steps: Steps) -> Rows:
        features = self._network.features(steps.inputs.observation).contiguous().numpy()
        numbers = torch.stack([getattr(steps, name) for name in ROWS], 1).numpy()
        return Rows(features, numbers, self._loss.arranged(steps.action), self._legal(steps.inputs.mask))

    def _legal(self, mask: Tensor | None) -> NDArray[np.bool_]:
        return np.empty((0, 0), np.bool_) if mask is None else unpack(mask, self._policy.spec.mask_bits).numpy()


def _parts_of(count: int) -> list[slice]:
    """Returns the parts of this number of rows, which do not depend on the number of threads."""
    blocks = -(-count // BLOCK)
    rows = max(_LEAST_ROWS, -(-blocks // _MOST_PARTS) * BLOCK)
    return [slice(begin, min(begin + rows, count)) for begin in range(0, count, rows)]


def direct_steps(policy: Policy, step: GradientStep, threads: int = 1, ranks: Ranks = ALONE) -> DirectSteps | None:
    """Returns the direct execution of a policy's gradient steps on a CPU in float32; None if there is none."""
    if not (policy_losses.applies_to(policy) and FlatNetwork.applies_to(policy)):
        return None
    return DirectSteps(step, policy, threads, ranks)
