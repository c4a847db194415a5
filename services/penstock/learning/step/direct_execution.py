"""Execution of small networks on a CPU without autograd, in compiled code.

Its results equal the results of `TorchExecution` up to rounding.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.algo.advantages import LARGEST_LOG, LARGEST_SPREAD
from penstock.algo.losses import LossSettings, Movement
from penstock.algo.policies import Inputs
from penstock.config import PPOConfig
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.gradient_steps import LARGEST_NORM, Descended, Estimated, GradientStep, Steps
from penstock.learning.step.torch_execution import TorchExecution
from penstock.small.compiled import losses
from penstock.small.compiled.adam import ClippedSteps
from penstock.small.compiled.estimates import ESTIMATE, EstimateSettings, SegmentRows, estimates_of
from penstock.small.compiled.losses import Coefficients, Rows
from penstock.small.compiled.minibatch import MinibatchGradient
from penstock.small.compiled.passes import Floats
from penstock.small.compiled.row_losses import ROW


class DirectExecution:
    """Execution without autograd. Implements `Execution`."""

    name = "direct"

    def __init__(
        self,
        step: GradientStep,
        gradient: MinibatchGradient,
        ppo: PPOConfig,
        ranks: Ranks,
        by_torch: TorchExecution | None = None,
    ) -> None:
        """Takes the steps of `step`, whose objective belongs to the policy of `gradient`.

        `by_torch` estimates in place of the compiled loops, with advantages of the user's own.
        """
        self._by_torch = by_torch
        self._gradient, self._ppo, self._ranks, self._optimizer = gradient, ppo, ranks, step.optimizer
        self._hidden = [each.numpy() for each in step.hidden]
        self._take_step = ClippedSteps(
            step.parameters,
            step.optimizer.state,
            most=step.max_gradient_norm,
            largest=LARGEST_NORM,
            border=step.border,
        )

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Implements `Execution`."""
        log_prob, value = self._gradient.evaluate(inputs, actions)
        return torch.from_numpy(log_prob), torch.from_numpy(value)

    def estimate(
        self,
        batch: TrainingBatch,
        settings: LossSettings,
        *,
        log_prob: Tensor,
        value: Tensor,
        reward: Tensor,
        importance: Tensor,
    ) -> Estimated:
        """Implements `Execution`."""
        if self._by_torch is not None:
            return self._by_torch.estimate(
                batch, settings, log_prob=log_prob, value=value, reward=reward, importance=importance
            )
        columns = (batch.behaviour_log_prob, reward, batch.terminated, batch.truncated, batch.valid)
        found = estimates_of(
            SegmentRows(value.numpy(), log_prob.numpy(), *(column.contiguous().numpy() for column in columns)),
            importance.numpy(),
            EstimateSettings(
                discount=self._ppo.discount,
                trace_decay=self._ppo.trace_decay,
                rho_clip=self._ppo.rho_clip,
                trace_clip=self._ppo.trace_clip,
                v_trace=float(self._ppo.v_trace),
                clip_anchor=settings.clip_anchor,
                behaviour_weight_clip=settings.behaviour_weight_clip,
                largest_log=LARGEST_LOG,
                largest_spread=LARGEST_SPREAD,
            ),
        )
        numbers = {name: torch.from_numpy(found.rows[name]) for name in ESTIMATE.fields or ()}
        behaviour_weight = numbers.pop("behaviour_weight")
        of_rows, of_observations = torch.from_numpy(found.index)

        def of(values: Tensor, chosen: Tensor = of_rows) -> Tensor:
            return values.flatten(0, 1).index_select(0, chosen)

        inputs = Inputs(
            observation=tuple(of(leaf, of_observations) for leaf in batch.observation),
            mask=None if batch.action_mask is None else of(batch.action_mask),
        )
        return Estimated(
            usable=torch.from_numpy(found.usable),
            stored_count=int(np.count_nonzero(found.usable[: batch.stored_segments])),
            fresh_count=int(np.count_nonzero(found.usable[: batch.fresh_segments])),
            steps=Steps(inputs=inputs, action=tuple(map(of, batch.action)), **numbers, usable=None),
            correction=torch.from_numpy(found.correction),
            priority=torch.from_numpy(found.priority),
            error=torch.from_numpy(found.error),
            behaviour_weight=behaviour_weight,
        )

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`."""
        self._rows = self._arranged(steps)
        self._anchor = steps.anchor_log_prob.contiguous().numpy()
        self._proximal = steps.proximal_log_prob.contiguous().numpy()
        self._coefficients = Coefficients.of(settings)

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        rate = self._optimizer.learning_rate
        assert isinstance(rate, float)
        rows, count = self._rows.take(order.numpy()), len(order)
        log_probs, numbers = np.empty(count, np.float32), np.empty((5, minibatches), np.float32)
        begin = 0
        for minibatch in range(minibatches):
            part = slice(begin, begin + count // minibatches + (minibatch < count % minibatches))
            sums = self._write_gradient(self._coefficients, rows.part(part), log_probs[part], self._ranks)
            norm, refused = self._take_step(rate)
            numbers[:, minibatch] = *sums, norm, refused
            begin = part.stop
        return Descended(torch.from_numpy(log_probs), *torch.from_numpy(numbers))

    def movement(self, order: Tensor, log_prob: Tensor) -> Movement:
        """Implements `Execution`."""
        moved = losses.movement(
            self._coefficients,
            log_prob=log_prob.numpy(),
            order=order.numpy(),
            anchor_log_prob=self._anchor,
            proximal_log_prob=self._proximal,
        )
        return Movement(*torch.tensor(moved))

    def gradients(self, steps: Steps, settings: LossSettings) -> Callable[[slice], None]:
        """Implements `Descent`."""
        rows, coefficients = self._arranged(steps), Coefficients.of(settings)

        def write(part: slice) -> None:
            log_probs = np.empty(part.stop - part.start, np.float32)
            self._write_gradient(coefficients, rows.part(part), log_probs, ALONE)

        return write

    def _write_gradient(
        self, coefficients: Coefficients, rows: Rows, log_probs: Floats, ranks: Ranks
    ) -> tuple[float, float, float]:
        """Computes the gradient of the loss with the ranks. Returns the losses of policy and value, and the entropy."""
        own, count = ranks.own(len(log_probs)), len(log_probs)
        totals = self._gradient.write(coefficients.of_minibatch(rows.numbers), rows, own, log_probs)
        if not ranks.alone:
            totals = self._sum_over(ranks, log_probs, own, totals)
        self._gradient.finish()
        for each in self._hidden:
            each[:] = 0.0
        policy, value, entropy = (total / count for total in totals)
        return policy, value, entropy

    def _sum_over(self, ranks: Ranks, log_probs: Floats, own: slice, totals: list[float]) -> list[float]:
        """Adds the other ranks' parts to the gradient and the log probabilities. Returns the sums of totals."""
        gradient = self._gradient.gradient
        whole = np.zeros(gradient.size + len(totals) + len(log_probs), np.float32)
        summed, numbers, of_rows = np.split(whole, np.cumsum([gradient.size, len(totals)]))
        summed[:], numbers[:], of_rows[own] = gradient, totals, log_probs[own]
        ranks.add(torch.from_numpy(whole))
        gradient[:], log_probs[:] = summed, of_rows
        return list(numbers.tolist())

    def _arranged(self, steps: Steps) -> Rows:
        return self._gradient.arranged(steps.inputs, steps.action, [getattr(steps, name) for name in ROW.fields or ()])
