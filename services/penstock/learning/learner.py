"""The training step, from a batch to better parameters and new priorities.

`Learner.train` reads like the algorithm: estimate once, optimise for some epochs, update the normalisers, return
priorities. It does not depend on services, versions or files. No batch makes a parameter, a moment or a priority
non-finite: bad rows are left out, bad gradient steps are refused, and absurd values do not enter the normalisers.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock import installation
from penstock.algo import advantages, losses, priorities
from penstock.algo.advantages import Estimates
from penstock.algo.losses import LossSettings
from penstock.algo.memory import lstm_by_sequences
from penstock.algo.network import Network
from penstock.algo.normalisation import BegunUpdate
from penstock.algo.parameters import beginning_of, flatten
from penstock.algo.policies import Inputs, MomentsUpdates, Policy, end_moments
from penstock.algo.ratios import LARGEST_SPREAD, ratio_of
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig
from penstock.config.replay_law import LEAST_STEPS
from penstock.errors import Diverged, TrainingFailed
from penstock.learning import direct_estimates, schedules, training_statistics
from penstock.learning.adam import Adam
from penstock.learning.batches import TrainingBatch
from penstock.learning.devices import autocast, check_execution, send, use_precision
from penstock.learning.direct_steps import direct_steps
from penstock.learning.execution import descent_by
from penstock.learning.gradient_steps import Epoch, Estimated, GradientStep, Objective, Steps, objective_of
from penstock.learning.priority_gain import PriorityGain
from penstock.learning.ranks import ALONE, Ranks, evaluated
from penstock.learning.segment_gradients import squared_gradients
from penstock.learning.training_statistics import TrainingStatistics
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Results of training on one batch.

    Attributes:
        priorities: <float64>[B] raw priorities.
        fresh_errors: <float64>[F] mean absolute errors of the fresh segments (`algo.priorities.mean_errors`).
        fresh_steps: Valid steps in the fresh segments.
        fresh_episodes: Episodes that end in the fresh segments.
        updates: Gradient steps taken.
        refused_steps: Gradient steps refused because their gradients had no finite norm.
        unsound_rows: Valid rows left out because a number in them or in their estimates was absurd.
        moments: Effect of the batch on the normalisers.
        statistics: Statistics for monitoring.
    """

    priorities: NDArray[np.float64]
    fresh_errors: NDArray[np.float64]
    fresh_steps: int
    fresh_episodes: int
    updates: int
    refused_steps: int
    unsound_rows: int
    moments: MomentsUpdates
    statistics: TrainingStatistics


class Learner:
    """Policy with its optimizer. Used by one thread."""

    def __init__(
        self,
        spec: EnvironmentSpec,
        network: Network,
        *,
        ppo: PPOConfig,
        sampling: SamplingConfig,
        device: torch.device,
        seed: int,
        precision: Precision = "float32",
        execution: Execution = "auto",
        threads: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds a policy for these spaces, initialised from `seed`, whose direct steps use this number of threads.

        The `ranks` are those that train on the same batches together. The precision holds for all learners of the
        process (`use_precision`). Raises `ConfigurationError` if the spaces are not supported, or the device or the
        ranks do not support this execution or precision.
        """
        self._ppo, self._sampling, self._device, self._precision = ppo, sampling, device, precision
        if execution == "auto" and device.type == "cuda" and ranks.alone:
            execution = "graphed"
        self._execution, self._ranks = execution, ranks
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = Policy(spec, network).to(device)
        if execution == "auto" and network.memory == "lstm" and device.type == "cpu" and precision == "float32":
            self.policy.unroll = lstm_by_sequences
        self.parameters = flatten(self.policy)
        check_execution(device, execution, ranks)
        use_precision(device, precision)
        if execution == "compiled" and self.policy.memory is not None:
            self.policy.memory.leave_out_of_compilation()
        graphed = execution == "graphed"
        # A CUDA graph would capture a number as a constant.
        rate = torch.tensor(ppo.learning_rate, device=device) if graphed else ppo.learning_rate
        self.optimizer = Adam(self.parameters, rate)
        # All are updated in place. A walk over the modules would cost as much as the sums of these tensors.
        self._held = [self.parameters, *self.policy.buffers(), *self.optimizer.state.values()]
        self._gain = PriorityGain(sampling.usual_alpha, sampling.epsilon, ppo.epochs * ppo.minibatches)
        self.generator = torch.Generator().manual_seed(seed)
        own = self.policy.own_value_network
        self._border = None if own is None else beginning_of(own)
        self.step = GradientStep(self.objective(), self.parameters, self.optimizer, ppo.max_gradient_norm, self._border)
        self._direct = direct_steps(self.policy, self.step, threads, ranks) if self._is_direct(execution) else None
        self._descent = self._direct or descent_by(
            execution, self.step, minibatches=ppo.minibatches, whole=self.policy.memory is None, ranks=ranks
        )

    @property
    def execution(self) -> str:
        """How gradient steps are executed: `learner.execution`, with "direct" for `direct_steps`."""
        return self._execution if self._direct is None else "direct"

    def _is_direct(self, execution: Execution) -> bool:
        return execution == "auto" and self._device.type == "cpu" and self._precision == "float32"

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        """Trains for some epochs on a batch on this learner's device. Schedules follow `progress`, 0 to 1.

        Raises `TrainingFailed` if the batch has segments but no valid row. Nothing was learnt from it.
        """
        ppo = self._ppo
        settings = schedules.loss_settings(ppo, progress)
        # Before the estimates: the first rewards of a run or of a sparse task would be divided by a deviation of 0.
        returns = self._begin_returns(batch)
        estimated = self.estimate(batch, progress)
        rate = self.learning_rate(estimated, progress)
        self.optimizer.set_learning_rate(rate)
        if self._gain.is_due(batch.valid.shape[0] - batch.fresh_segments):
            self._measure_gain(batch.replayed, progress)
        largest = max(batch.valid.shape[0], self._sampling.batch_segments)
        if self.policy.memory is None:
            largest *= batch.valid.shape[1]
        epochs: list[Epoch] = []
        orders = self._orders(estimated.steps.advantage.shape[0], at_once=batch.rows is not None)
        if count := estimated.steps.advantage.shape[0]:
            self._descent.begin(estimated.steps, settings, largest)
        elif batch.valid.numel() and not bool(batch.valid.any()):
            raise TrainingFailed(
                f"none of the {batch.valid.numel()} rows of a batch is valid, so nothing can be learnt from it: the"
                " replay service does not store the data that the actors collected; check its log, and the file system"
                " of replay.folder"
            )
        for _ in range(ppo.epochs if count else 0):
            epochs.append(self._train_epoch(estimated.steps, settings, next(orders)))
            if ppo.target_kl is not None and float(epochs[-1].movement.approximate_kl) > ppo.target_kl:
                break
        begun = self._begin_observations(batch), returns
        # All that leaves the device, in one transfer, because each would wait for it.
        further = [
            estimated.priority,
            estimated.error,
            estimated.usable.sum()[None],
            *(each.findings for each in begun if each),
        ]
        statistics, refused, (priority, error, sound, *findings) = training_statistics.measure(
            batch,
            estimated,
            epochs,
            learning_rate=rate,
            priority_gain=self._gain.gain,
            limits=self.policy.action_limits,
            further=[each.double() for each in further],
        )
        valid_rows, fresh_steps, fresh_episodes = _counts_of(batch)
        raw, errors = self.priorities_of(dataclasses.replace(estimated, priority=priority, error=error), refused)
        return TrainingOutcome(
            priorities=raw,
            fresh_errors=errors[: batch.fresh_segments],
            fresh_steps=fresh_steps,
            fresh_episodes=fresh_episodes,
            updates=sum(len(epoch.done.refused) for epoch in epochs) - refused,
            refused_steps=refused,
            unsound_rows=valid_rows - int(sound.item()),
            moments=end_moments(begun, findings),
            statistics=statistics,
        )

    def squared_gradients(self, batch: TrainingBatch, progress: float) -> NDArray[np.float64]:
        """Returns the squared norms of the gradients of single segments, <float64>[B, parts] (`squared_gradients`)."""
        settings = schedules.loss_settings(self._ppo, progress)
        # Without what the host knows, because single segments need their exact rows.
        estimated = self.estimate(dataclasses.replace(batch, rows=None), progress)
        squared = squared_gradients(self._descent, self.parameters, estimated, settings, self._border)
        result: NDArray[np.float64] = squared.cpu().numpy()
        return result

    def objective(self) -> Objective:
        """Returns the objective of the gradient steps."""
        return objective_of(self.policy, self._precision, self._device, self._ppo.burn_in_steps)

    def learning_rate(self, estimated: Estimated, progress: float) -> float:
        """Returns the learning rate for a batch with these estimates."""
        del estimated
        return schedules.scheduled(self._ppo.learning_rate, self._ppo.learning_rate_schedule, progress)

    def priorities_of(
        self, estimated: Estimated, refused_steps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the priorities and the mean errors of the segments, <float64>[B] each, all finite.

        In a batch with refused steps they are all 0. Some of its segments caused the refusal and would otherwise be
        drawn again for the following batches.
        """
        both = torch.stack([estimated.priority, estimated.error]).double().cpu().numpy()
        raw, mean_errors = np.where(np.isfinite(both) & (refused_steps == 0), both, 0.0)
        return raw, mean_errors

    def _measure_gain(self, batch: TrainingBatch, progress: float) -> None:
        preference = self._preferences(batch)
        self._gain.observe(
            self.squared_gradients(batch, progress),
            batch.priorities.cpu().numpy(),
            # Relative to the largest, so that none overflows.
            torch.exp(preference - preference.amax()).clamp(min=1e-300).cpu().numpy(),
        )

    def _preferences(self, batch: TrainingBatch) -> Tensor:
        ages = send(torch.from_numpy(batch.staleness), self._device)
        return priorities.preferences(batch.probabilities, ages, self._sampling.half_life)

    def check_finite(self) -> None:
        """Raises `Diverged` if a parameter, or a moment of the normalisers or the optimizer, is not finite.

        `train` never produces such values, but a damaged checkpoint or a faulty device can.
        """
        check_sums(self.sums())

    @torch.no_grad()
    def sums(self) -> Tensor:
        """Returns a sum that is finite for each finite tensor that the learner holds, <float64>[N] on the device."""
        # The sum of finite float32 values is finite in double precision.
        return torch.stack([each.sum(dtype=torch.float64) for each in self._held])

    @torch.no_grad()
    def estimate(self, batch: TrainingBatch, progress: float) -> Estimated:
        """Computes advantages, targets and weights under the current parameters, which are the proximal policy."""
        settings, sampling = schedules.loss_settings(self._ppo, progress), self._sampling
        reward = self.policy.scale_rewards(batch.reward, batch.terminated, self._ppo.discount)
        importance = priorities.importance_weights(
            self._preferences(batch),
            batch.fresh_segments,
            schedules.beta(sampling.beta, sampling.final_beta, progress),
        )
        proximal_log_prob, proximal_value = evaluated(self._ranks, self._evaluate, batch.inputs, batch.action)
        if self._direct is not None:
            return direct_estimates.estimated(
                batch,
                log_prob=proximal_log_prob.numpy(),
                value=proximal_value.numpy(),
                reward=reward,
                importance=importance,
                ppo=self._ppo,
                settings=settings,
            )
        log_ratio = proximal_log_prob - batch.behaviour_log_prob
        # No policy chose the action of a reset row. `<=` is false for NaN.
        known = batch.valid & (log_ratio.abs() <= LARGEST_SPREAD)
        estimates = advantages.estimate(
            value=proximal_value,
            reward=reward,
            terminated=batch.terminated,
            truncated=batch.truncated,
            usable=known,
            log_ratio=torch.where(known, log_ratio, 0.0) if self._ppo.v_trace else torch.zeros_like(log_ratio),
            discount=self._ppo.discount,
            trace_decay=self._ppo.trace_decay,
            rho_clip=self._ppo.rho_clip,
            trace_clip=self._ppo.trace_clip,
        )
        usable = estimates.sound
        if self.policy.memory is not None:
            # A state after an unsound row is unsound too, and so is its gradient.
            usable = usable & ~(batch.valid & ~usable).any(1, keepdim=True)
        steps = _steps_of(
            batch,
            estimates,
            usable,
            settings=settings,
            proximal_log_prob=proximal_log_prob,
            proximal_value=proximal_value,
            importance=importance,
        )
        rows, chosen = batch.rows, usable if batch.rows is None else batch.rows.steps
        moved = proximal_log_prob[chosen] - batch.behaviour_log_prob[chosen]
        weight = ratio_of(moved).clamp(max=settings.behaviour_weight_clip)
        counted = None if rows is None else usable[chosen]
        return Estimated(
            usable=usable,
            fresh_count=int(usable[: batch.fresh_segments].sum()) if rows is None else rows.fresh_steps,
            steps=steps,
            correction=estimates.correction,
            priority=priorities.segment_priorities(estimates.advantage, usable),
            error=priorities.mean_errors(estimates.correction, usable),
            behaviour_weight=weight if counted is None else torch.where(counted, weight, 0.0),
            counted=counted,
        )

    def _evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Returns log probabilities of actions, <float32>[B, T], and values, <float32>[B, T + 1], of whole segments."""
        if self._direct is not None:
            return self._direct.evaluate(inputs, actions)
        # In the precision of the gradient steps, so that their ratios begin at 1.
        with autocast(self._device, self._precision):
            distribution, value = self.policy.evaluate(inputs, burn_in=self._ppo.burn_in_steps, bootstraps=True)
        return distribution.log_prob(actions), value

    def _orders(self, count: int, *, at_once: bool) -> Iterator[Tensor]:
        """Yields the numbers of all rows, <int64>[count] on the device, shuffled for each epoch.

        Those of all epochs are drawn and sent `at_once` or, for the same shuffles of the next batch however many epochs
        this one has, one by one.
        """
        orders = (torch.randperm(count, generator=self.generator) for _ in range(self._ppo.epochs))
        if at_once:
            yield from send(torch.stack(list(orders)), self._device).unbind()
        for order in orders:
            yield send(order, self._device)

    def _train_epoch(self, steps: Steps, settings: LossSettings, order: Tensor) -> Epoch:
        """Trains on every row of the steps once, in this order, in minibatches of nearly equal size.

        Of a batch with few usable rows there are fewer, with half of `LEAST_STEPS` or more.
        """
        count = steps.advantage.shape[0]
        least = LEAST_STEPS if self._ppo.normalise_advantages and self.policy.memory is None else 1
        # An empty minibatch has no mean, so its losses would be NaN. Advantages over few steps would be almost 0.
        minibatches = min(self._ppo.minibatches, -(-count // least))
        done = self._descent.descend(order, minibatches)
        if self._direct is not None:
            return Epoch(done, self._direct.movement(order, done.log_prob))
        movement = losses.movement(
            settings,
            log_prob=done.log_prob,
            anchor_log_prob=steps.anchor_log_prob.index_select(0, order),
            proximal_log_prob=steps.proximal_log_prob.index_select(0, order),
            counted=None if steps.usable is None else steps.usable.index_select(0, order),
        )
        return Epoch(done, movement)

    def _begin_returns(self, batch: TrainingBatch) -> BegunUpdate | None:
        """Begins to update the normaliser of returns with the fresh segments.

        Segments that arrived too late to be fresh never enter: replay would count some of them twice, and the moments
        do not need every segment.
        """
        fresh, rows = slice(None, batch.fresh_segments), batch.rows
        returns = batch.discounted_return
        return self.policy.begin_returns(returns[fresh][batch.valid[fresh]] if rows is None else returns[rows.fresh()])

    def _begin_observations(self, batch: TrainingBatch) -> BegunUpdate | None:
        """Begins to update the normaliser of observations with the fresh segments.

        It runs after the last epoch, so that the inputs of the networks are constant within a batch.
        """
        if not self.policy.network.normalise_observations:
            return None
        burn_in, rows, fresh = self._ppo.burn_in_steps, batch.rows, slice(None, batch.fresh_segments)
        if rows is not None:
            return self.policy.begin_observations(tuple(leaf[rows.fresh(burn_in)] for leaf in batch.observation))
        valid = batch.valid[fresh]
        return self.policy.begin_observations(tuple(leaf[fresh, burn_in:-1][valid] for leaf in batch.observation))


def check_sums(sums: Tensor) -> None:
    """Raises `Diverged` if one of `Learner.sums` is not finite."""
    if not bool(sums.isfinite().all()):
        raise Diverged(
            "a value of the policy or its optimizer is not finite, so they are neither published nor saved; resume"
            f" from the newest checkpoint with {installation.how_to_resume('--resume')}"
        )


def _counts_of(batch: TrainingBatch) -> tuple[int, int, int]:
    """Returns the numbers of valid rows, of those in fresh segments, and of episodes whose last step is in one."""
    if batch.rows is not None:
        return len(batch.rows.segment), batch.rows.fresh_steps, batch.rows.fresh_episodes
    fresh = slice(None, batch.fresh_segments)
    ended = ((batch.terminated | batch.truncated) & batch.valid)[fresh]
    return int(batch.valid.sum()), int(batch.valid[fresh].sum()), int(ended.sum())


def _steps_of(
    batch: TrainingBatch,
    estimates: Estimates,
    usable: Tensor,
    *,
    settings: LossSettings,
    proximal_log_prob: Tensor,
    proximal_value: Tensor,
    importance: Tensor,
) -> Steps:
    """Returns the usable rows, <bool>[B, T], of a batch or, with memory, the segments that have some.

    Where only the device knows which these are, the steps are the valid rows or their segments, with `Steps.usable`.
    """
    recurrent, index = batch.memory is not None, _index_of(batch, usable)

    def of(value: Tensor) -> Tensor:
        return (value if recurrent else value.flatten(0, 1)).index_select(0, index)

    proximal, behaviour = of(proximal_log_prob), of(batch.behaviour_log_prob)
    anchor, weight = losses.anchor(settings, proximal_log_prob=proximal, behaviour_log_prob=behaviour)
    importance = of(importance[:, None].expand_as(usable))
    return Steps(
        inputs=Inputs(
            observation=tuple(of(leaf[:, :-1]) for leaf in batch.observation),
            mask=None if batch.action_mask is None else of(batch.action_mask),
            state=None if batch.memory is None else of(batch.memory),
            begun=None if batch.begun is None else of(batch.begun[:, :-1]),
        ),
        action=tuple(of(leaf) for leaf in batch.action),
        proximal_log_prob=proximal,
        proximal_value=of(proximal_value[:, :-1]),
        anchor_log_prob=anchor,
        advantage=of(estimates.advantage),
        target=of(estimates.target),
        importance=importance,
        policy_weight=importance * weight,
        usable=of(usable) if recurrent or batch.rows is not None else None,
    )


def _index_of(batch: TrainingBatch, usable: Tensor) -> Tensor:
    """Returns the numbers, <int64>[N], of the rows in [B * T] or, with memory, of the segments that `_steps_of` takes.

    A mask in their place would be counted for each column.
    """
    rows = batch.rows
    if batch.memory is not None:
        return usable.any(1).nonzero().squeeze(1) if rows is None else rows.segments
    return usable.flatten().nonzero().squeeze(1) if rows is None else rows.segment * usable.shape[1] + rows.step
