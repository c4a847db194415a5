"""The training step, from a batch to better parameters and new priorities.

`Learner.train` reads like the algorithm: estimate once, optimise for some epochs, update the normalisers, return
priorities. It does not depend on services, versions or files. No batch makes a parameter, a moment or a priority
non-finite: bad rows are left out, bad gradient steps are refused, and absurd values do not enter the normalisers.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.losses import LossSettings
from penstock.algo.network import Network
from penstock.algo.normalisation import BegunUpdate
from penstock.algo.own_policies import policy_of
from penstock.algo.parameters import beginning_of, flatten
from penstock.algo.policies import MomentsUpdates, end_moments
from penstock.algo.priorities import importance_weights, preferences
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig
from penstock.config.replay_law import LEAST_STEPS
from penstock.errors import Diverged, TrainingFailed
from penstock.learning.ranks.ranks import ALONE, Ranks, evaluated
from penstock.learning.step import training_statistics
from penstock.learning.step.adam import Adam
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.chosen_execution import ChosenExecution
from penstock.learning.step.devices import send
from penstock.learning.step.gradient_steps import (
    Epoch,
    Estimated,
    GradientStep,
    Optimizer,
    Steps,
)
from penstock.learning.step.own.functions import OwnFunctions
from penstock.learning.step.priority_gain import PriorityGain
from penstock.learning.step.schedules import importance_exponent, loss_settings, scheduled
from penstock.learning.step.segment_gradients import squared_gradients
from penstock.learning.step.training_statistics import TrainingStatistics
from penstock.machine import installation
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Results of training on one batch.

    Attributes:
        priorities: <float64>[S] raw priorities of the segments of the store.
        fresh_errors: <float64>[F] mean absolute errors of the fresh segments (`algo.priorities.mean_errors`).
        fresh_steps: Valid steps in the fresh segments.
        fresh_episodes: Episodes that end in the fresh segments.
        updates: Gradient steps taken.
        refused_steps: Gradient steps refused because their gradients had no finite norm.
        refused_priorities: Priorities replaced by 0 because they were not finite or negative.
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
    refused_priorities: int
    unsound_rows: int
    moments: MomentsUpdates
    statistics: TrainingStatistics


class Learner:
    """Policy with its optimizer. Used by one thread.

    Attributes:
        policy: The policy.
        parameters: Its flat parameters.
        own: The functions of the user's own.
        notices: One line each for the user about these functions; empty without any.
    """

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
        loss: str | None = None,
        optimizer: str | None = None,
    ) -> None:
        """Builds a policy for these spaces, initialised from `seed`, whose direct steps use this number of threads.

        The `ranks` train on the same batches together. The precision holds for all learners of the process
        (`use_precision`). `loss` and `optimizer` name functions of the user's own, which are imported, as are
        `ppo.advantage` and `sampling.priority`. Raises `ConfigurationError` if the spaces are not supported, the device
        or the ranks do not support this execution or precision, or a function of the user's own can't be used.
        """
        self._ppo, self._sampling, self._device, self._ranks = ppo, sampling, device, ranks
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = policy_of(spec, network).to(device)
        named = OwnFunctions.parameters_depend_on(self.policy, ppo, loss, optimizer)
        chosen = ChosenExecution.of(execution, device, precision, threads, ranks, own=named)
        chosen.prepare(self.policy)
        self.parameters = flatten(self.policy)
        self.own = OwnFunctions(
            self.policy,
            self.parameters,
            chosen,
            ppo=ppo,
            sampling=sampling,
            loss=loss,
            optimizer=optimizer,
            execution=execution,
            seed=seed,
        )
        self.notices = (*self.policy.notices, *self.own.notices)
        chosen = self.own.chosen
        adam = chosen.learning_rate(ppo.learning_rate)
        self.optimizer: Optimizer = self.own.optimizer or Adam(self.parameters, adam)
        # All are updated in place. A walk over the modules would cost as much as the sums of these tensors.
        self._held = [self.parameters, *self.policy.buffers()]
        self._gain = PriorityGain(sampling.usual_alpha, sampling.epsilon, ppo.epochs * ppo.minibatches)
        self.generator = torch.Generator().manual_seed(seed)
        own = self.policy.own_value_network
        self._border = None if own is None else beginning_of(own)
        self.step = GradientStep(
            self.own.objective,
            self.parameters,
            self.optimizer,
            ppo.max_gradient_norm,
            self._border,
            self.policy.hidden_gradients,
        )
        self._execution = chosen.begin(self.policy, self.step, ppo, self.own.estimate)

    @property
    def execution(self) -> str:
        """Name of the execution (`Execution.name`)."""
        return self._execution.name

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        """Trains for some epochs on a batch on this learner's device. Schedules follow `progress`, 0 to 1.

        Raises `TrainingFailed` if the batch has segments but no valid row. Nothing was learnt from it.
        """
        settings = loss_settings(self._ppo, progress)
        # Before the estimates: the first rewards of a run or of a sparse task would be divided by a deviation of 0.
        returns = self._begin_returns(batch)
        estimated = self.estimate(batch, progress)
        priority = self.own.priorities(
            batch, estimated, partial(self._importance, batch, progress), partial(self._entropy, batch)
        )
        rate = scheduled(self._ppo.learning_rate, self._ppo.learning_rate_schedule, progress)
        self.optimizer.set_learning_rate(rate)
        beside = self.own.train(rate)
        if self._gain.is_due(batch.stored_segments - batch.fresh_segments):
            self._measure_gain(batch.replayed, progress)
        epochs = self._descend(batch, estimated.steps, settings)
        begun = self._begin_observations(batch), returns
        # All that leaves the device, in one transfer, because each would wait for it.
        further = [
            priority,
            estimated.error[: batch.stored_segments],
            estimated.usable.sum()[None],
            *(each.findings for each in begun if each),
        ]
        statistics, refused, (raw, error, sound, *findings) = training_statistics.measure(
            batch,
            estimated,
            epochs,
            learning_rate=rate,
            priority_gain=self._gain.gain,
            limits=self.policy.action_limits,
            further=[each.double() for each in further],
            own=self.own.statistics,
        )
        if beside:
            statistics = dataclasses.replace(statistics, own={**statistics.own, **beside})
        counts = batch.counts
        # Some of the segments of a batch with refused steps caused the refusal, and would otherwise be drawn again for
        # the following batches.
        numbers = torch.stack([raw, error]).numpy()
        # A user's own priority may be negative too.
        known = np.isfinite(numbers) & (numbers >= 0.0)
        priorities, errors = np.where(known & (refused == 0), numbers, 0.0)
        return TrainingOutcome(
            priorities=priorities,
            fresh_errors=errors[: batch.fresh_segments],
            fresh_steps=counts.fresh_steps,
            fresh_episodes=counts.fresh_episodes,
            updates=sum(len(epoch.done.refused) for epoch in epochs) - refused,
            refused_steps=refused,
            refused_priorities=int(np.count_nonzero(~known[0])),
            unsound_rows=counts.valid - int(sound.item()),
            moments=end_moments(begun, findings),
            statistics=statistics,
        )

    def squared_gradients(self, batch: TrainingBatch, progress: float) -> NDArray[np.float64]:
        """Returns the squared norms of the gradients of single segments, <float64>[B, parts] (`squared_gradients`)."""
        settings = loss_settings(self._ppo, progress)
        # Without the host's facts about the rows, because single segments need their exact rows.
        estimated = self.estimate(dataclasses.replace(batch, rows=None), progress)
        squared = squared_gradients(self._execution, self.parameters, estimated, settings, self._border)
        result: NDArray[np.float64] = squared.cpu().numpy()
        return result

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
        return preferences(batch.probabilities, ages, self._sampling.half_life)

    def check_finite(self) -> None:
        """Raises `Diverged` if a parameter, or a moment of the normalisers or the optimizer, is not finite.

        `train` never produces such values, but a damaged checkpoint or a faulty device can.
        """
        check_sums(self.sums())

    @torch.no_grad()
    def sums(self) -> Tensor:
        """Returns a sum that is finite for each finite tensor that the learner holds, <float64>[N] on the device."""
        # The sum of finite float32 values is finite in double precision.
        held = (*self._held, *self.optimizer.state.values())
        return torch.stack([each.sum(dtype=torch.float64) for each in held])

    def _entropy(self, batch: TrainingBatch) -> Tensor:
        distribution, _ = self.policy.evaluate(batch.inputs, burn_in=self._ppo.burn_in_steps, bootstraps=True)
        return distribution.entropy()

    def _importance(self, batch: TrainingBatch, progress: float) -> Tensor:
        sampling = self._sampling
        exponent = importance_exponent(sampling.beta, sampling.final_beta, progress)
        weights = importance_weights(self._preferences(batch), batch.fresh_segments, exponent)
        if batch.demonstrations:
            weights = torch.cat([weights, weights.new_ones(batch.demonstrations)])
        return weights

    @torch.no_grad()
    def estimate(self, batch: TrainingBatch, progress: float) -> Estimated:
        """Computes advantages, targets and weights under the current parameters, which are the proximal policy."""
        settings = loss_settings(self._ppo, progress)
        self.own.begin(batch)
        reward = self.policy.scale_rewards(batch.reward, batch.terminated, self._ppo.discount)
        importance = self._importance(batch, progress)
        log_prob, value = evaluated(self._ranks, self._execution.evaluate, batch.inputs, batch.action)
        if batch.demonstrations:
            # An action whose probability is unknown counts as one of the policy's own.
            taken = batch.behaviour_log_prob
            batch = dataclasses.replace(batch, behaviour_log_prob=torch.where(taken.isnan(), log_prob, taken))
        return self._execution.estimate(
            batch, settings, log_prob=log_prob, value=value, reward=reward, importance=importance
        )

    def _orders(self, count: int, *, at_once: bool) -> Iterator[Tensor]:
        """Yields the numbers of all rows, <int64>[count] on the device, shuffled for each epoch.

        Those of all epochs are drawn and sent `at_once` or, for the same shuffles of the next batch however many epochs
        this one has, one by one.
        """
        orders = (torch.randperm(count, generator=self.generator) for _ in range(self._ppo.epochs))
        if at_once:
            yield from send(torch.stack(list(orders)), self._device).unbind()
        else:
            for order in orders:
                yield send(order, self._device)

    def _descend(self, batch: TrainingBatch, steps: Steps, settings: LossSettings) -> list[Epoch]:
        """Trains for some epochs on these steps of a batch, unless there are none. Raises as `train`."""
        ppo, count = self._ppo, steps.advantage.shape[0]
        orders = self._orders(count, at_once=batch.rows is not None)
        if not count:
            if batch.valid.numel() and not bool(batch.valid.any()):
                raise TrainingFailed(
                    f"none of the {batch.valid.numel()} rows of a batch is valid, so nothing can be learnt from it: the"
                    " replay service does not store the data that the actors collected; check its log, and the file"
                    " system of replay.folder"
                )
            return []
        most = max(batch.stored_segments, self._sampling.batch_segments) + batch.demonstrations
        if self.policy.memory_shape is None:
            most *= batch.valid.shape[1]
        self._execution.begin(steps, settings, most)
        epochs: list[Epoch] = []
        for order in orders:
            epochs.append(self._train_epoch(steps, settings, order))
            if ppo.target_kl is not None and float(epochs[-1].movement.approximate_kl) > ppo.target_kl:
                break
        return epochs

    def _train_epoch(self, steps: Steps, settings: LossSettings, order: Tensor) -> Epoch:
        """Trains on every row of the steps once, in this order, in minibatches of nearly equal size.

        Of a batch with few usable rows there are fewer, with half of `LEAST_STEPS` or more.
        """
        count = steps.advantage.shape[0]
        least = LEAST_STEPS if self._ppo.normalise_advantages and self.policy.memory_shape is None else 1
        # An empty minibatch has no mean, so its losses would be NaN. Advantages over few steps would be almost 0.
        minibatches = min(self._ppo.minibatches, -(-count // least))
        done = self._execution.descend(order, minibatches)
        return Epoch(done, self._execution.movement(order, done.log_prob))

    def _begin_returns(self, batch: TrainingBatch) -> BegunUpdate | None:
        """Begins to update the normaliser of returns with the fresh segments.

        Segments that arrived too late to be fresh never enter: replay would count some of them twice, and the moments
        do not need every segment.
        """
        return self.policy.begin_returns(batch.fresh_rows(batch.discounted_return))

    def _begin_observations(self, batch: TrainingBatch) -> BegunUpdate | None:
        """Begins to update the normaliser of observations with the fresh segments.

        It runs after the last epoch, so that the inputs of the networks are constant within a batch.
        """
        if not self.policy.network.normalise_observations:
            return None
        burn_in = self._ppo.burn_in_steps
        return self.policy.begin_observations(tuple(batch.fresh_rows(leaf, burn_in) for leaf in batch.observation))


def check_sums(sums: Tensor) -> None:
    """Raises `Diverged` if one of `Learner.sums` is not finite."""
    if not bool(sums.isfinite().all()):
        raise Diverged(
            "a value of the policy or its optimizer is not finite, so they are neither published nor saved; resume"
            f" from the newest checkpoint with {installation.how_to_resume('--resume')}"
        )
