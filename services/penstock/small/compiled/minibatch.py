"""The gradient of a small network's loss over a minibatch, whose parts threads compute at once.

The gradients of the parts are added in the order of the parts, so that the result does not depend on the number of
threads.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.algo.distributions import unpack_mask
from penstock.algo.policies import Inputs, Policy
from penstock.algo.published import Description
from penstock.small.compiled import gradients, passes
from penstock.small.compiled.flat_network import FlatNetwork, sgemm_address
from penstock.small.compiled.losses import PolicyLoss, Rows, obstacle_of_actions, policy_loss
from penstock.small.compiled.part_threads import PartThreads
from penstock.small.compiled.passes import BLOCKS, Floats
from penstock.small.compiled.row_losses import ROW, MinibatchSettings
from penstock.small.network import obstacle

_LEAST_ROWS = max(BLOCKS)
"""Rows of the smallest part but the last, and whole blocks. Waking a thread takes as long as a quarter of it."""

_MOST_PARTS = 16
"""Bound on the parts of a minibatch, each of which has a gradient in memory."""


class MinibatchGradient:
    """Computation of a policy's outputs, log probabilities and gradients. Used by one thread, which others help."""

    def __init__(self, policy: Policy, parameters: nn.Parameter, network: FlatNetwork, loss: PolicyLoss, threads: int):
        """Makes room for this number of threads. The flat parameters have their gradient."""
        assert parameters.grad is not None
        self._network, self._loss, self._bits = network, loss, policy.spec.mask_bits
        self._threads, self._rooms = PartThreads(threads), [network.room() for _ in range(threads)]
        self.gradient: Floats = parameters.grad.numpy()
        self._of_parts = np.empty((1, network.size), np.float32)

    @classmethod
    def of(cls, policy: Policy, parameters: nn.Parameter, threads: int) -> "MinibatchGradient | None":
        """Returns the computation for a policy on a CPU in float32; None for other networks and actions."""
        network = FlatNetwork.of(policy, parameters)
        loss = None if network is None else policy_loss(policy, network)
        return None if network is None or loss is None else cls(policy, parameters, network, loss, threads)

    def arranged(self, inputs: Inputs, actions: tuple[Tensor, ...], columns: Sequence[Tensor]) -> Rows:
        """Returns N rows. The `columns`, <float32>[N] each, are the fields of `ROW`."""
        features = self._network.features(inputs.observation).contiguous().numpy()
        numbers = torch.stack([*columns], 1).numpy().view(ROW)[:, 0]
        return Rows(features, numbers, self._loss.arranged(actions), self._legal(inputs.mask))

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Floats, Floats]:
        """Returns log probabilities, <float32>[B, T], and values, <float32>[B, T + 1], of whole segments.

        They equal the results of `Policy.evaluate`. The last row of the inputs, [B, T + 1, ...], has no action.
        """
        features = self._network.features(inputs.observation)
        segments, rows = features.shape[:2]
        outputs, values = self._outputs_of(features.flatten(0, 1).contiguous().numpy())
        of_actions = np.ascontiguousarray(outputs.reshape(segments, rows, -1)[:, :-1]).reshape(-1, outputs.shape[1])
        legal = self._legal(None if inputs.mask is None else inputs.mask.flatten(0, 1))
        arranged = self._loss.arranged(tuple(leaf.flatten(0, 1) for leaf in actions))
        log_probs = self._loss.log_probs(of_actions, legal, arranged)
        return log_probs.reshape(segments, rows - 1), values.reshape(segments, rows)

    def write(self, settings: MinibatchSettings, rows: Rows, own: slice, log_probs: Floats) -> list[float]:
        """Computes the gradient of the parameters, up to `finish`, for the `own` rows of a minibatch.

        Returns the sums over these rows of the losses of policy and value, and of the entropies. `log_probs`,
        <float32>[N], receive the log probabilities of their actions. `settings` hold for the whole minibatch.
        """
        parts = [slice(own.start + part.start, own.start + part.stop) for part in _parts_of(own.stop - own.start)]
        sums, of_parts = [(0.0, 0.0, 0.0)] * len(parts), self._room_of_parts(len(parts))

        def compute(thread: int, number: int) -> None:
            part, room = parts[number], self._rooms[thread]
            sums[number] = self._loss.gradient(room, rows.part(part), settings, of_parts[number], log_probs[part])

        self._network.transpose()
        self._threads.run(compute, len(parts))
        if len(parts) != 1:
            gradients.add_parts(of_parts, self.gradient)
        return [sum(each[number] for each in sums) for number in range(3)]

    def finish(self) -> None:
        """Completes the gradient, once it is the sum over all rows of the minibatch."""
        self._loss.finish(self.gradient)

    def _room_of_parts(self, parts: int) -> Floats:
        """Returns memory for the gradients of parts, <float32>[parts, P]; a single one is the gradient itself."""
        if parts == 1:
            return self.gradient[None]
        if len(self._of_parts) != parts:
            self._of_parts = np.empty((parts, self._network.size), np.float32)
        return self._of_parts

    def _outputs_of(self, features: Floats) -> tuple[Floats, Floats]:
        """Returns the outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1]."""
        outputs = np.empty((len(features), self._network.outputs), np.float32)
        values, parts = np.empty((len(features), 1), np.float32), _parts_of(len(features))
        network = tuple(self._network.layout)

        def compute(thread: int, number: int) -> None:
            part, room = parts[number], self._rooms[thread]
            passes.outputs_of(network, room, features[part], outputs[part], values[part])

        self._network.transpose()
        self._threads.run(compute, len(parts))
        return outputs, values

    def _legal(self, mask: Tensor | None) -> NDArray[np.bool_]:
        return np.empty((0, 0), np.bool_) if mask is None else unpack_mask(mask, self._bits).numpy()


def obstacle_of(policy: Policy) -> str:
    """Returns why `MinibatchGradient.of` returns None for a policy; empty if it does not."""
    if sgemm_address() is None:
        return "the product of matrices was not found in NumPy's library"
    return obstacle(Description(policy.spec, policy.network)) or obstacle_of_actions(policy)


def _parts_of(count: int) -> list[slice]:
    """Returns the parts of this number of rows, which do not depend on the number of threads."""
    rows = max(1, -(-count // (_MOST_PARTS * _LEAST_ROWS))) * _LEAST_ROWS
    return [slice(begin, min(begin + rows, count)) for begin in range(0, count, rows)]
