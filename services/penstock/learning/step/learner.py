"""The training step, from a batch to better parameters and new priorities.

`Learner.train` reads like the algorithm: estimate once, optimise for some epochs, update the normalisers, return
priorities. It does not depend on services, versions or files. No batch makes a parameter, a moment or a priority
non-finite: bad rows are left out, bad gradient steps are refused, and absurd values do not enter the normalisers.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo import advantages
from penstock.algo.advantages import Estimate
from penstock.algo.losses import SCHEDULED, LossSettings
from penstock.algo.network import Network
from penstock.algo.normalisation import BegunUpdate
from penstock.algo.own_policies import policy_of
from penstock.algo.parameters import beginning_of, flatten
from penstock.algo.policies import MomentsUpdates, end_moments
from penstock.algo.priorities import importance_weights, preferences
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig, Schedule
from penstock.config.replay_law import LEAST_STEPS
from penstock.errors import ConfigurationError, Diverged, TrainingFailed
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
    Objective,
    Optimizer,
    Steps,
    objective_of,
)
from penstock.learning.step.own.advantage import OwnAdvantage
from penstock.learning.step.own.auxiliary import STATISTIC, OwnAuxiliary
from penstock.learning.step.own.intrinsic import OwnIntrinsic
from penstock.learning.step.own.loss import OwnLoss
from penstock.learning.step.own.loss_check import Trial, try_loss
from penstock.learning.step.own.optimizer import OwnOptimizer
from penstock.learning.step.own.priority import OwnPriority
from penstock.learning.step.priority_gain import PriorityGain
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
        notices: One line each for the user about functions of the user's own; empty without any.
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
        of_users = {
            "learner.loss": loss,
            "learner.optimizer": optimizer,
            "ppo.advantage": ppo.advantage,
            "ppo.intrinsic_reward": ppo.intrinsic_reward,
        }
        given = [setting for setting, name in of_users.items() if name is not None]
        if self.policy.auxiliary_networks:
            given.append("the auxiliary loss of policy.module")
        chosen = ChosenExecution.of(execution, device, precision, threads, ranks, own=given)
        chosen.prepare(self.policy)
        self.parameters = flatten(self.policy)
        self._loss = None if loss is None else OwnLoss(loss)
        objective, trial = self._objective(precision)
        self._auxiliary: OwnAuxiliary | None = None
        if self.policy.auxiliary_networks:
            self._auxiliary = OwnAuxiliary(self.policy, precision, device, ppo.burn_in_steps)
            objective = self._auxiliary.added_to(objective)
        if trial is not None and trial.waits:
            chosen = chosen.without_capture(execution)
        rate, made = ppo.learning_rate, None
        if optimizer is not None:
            made = OwnOptimizer.of(optimizer, list(self.policy.parameters()), rate)
            chosen = made.executed(chosen, execution)
        self.optimizer: Optimizer = Adam(self.parameters, chosen.learning_rate(rate)) if made is None else made
        estimate, of_estimates = self._estimate_of_users(seed)
        self._priority = None if sampling.priority is None else OwnPriority(sampling.priority, device)
        of_loss: tuple[str, ...] = ()
        if self._loss is not None and trial is not None:
            of_loss = (self._loss.introduction(chosen.name, waits=trial.waits), *trial.warnings)
        self.notices = (
            *self.policy.notices,
            *of_loss,
            *(() if made is None else made.notices(chosen.name)),
            *(() if self._auxiliary is None else self._auxiliary.notices),
            *of_estimates,
            *(() if self._priority is None else self._priority.notices),
        )
        # All are updated in place. A walk over the modules would cost as much as the sums of these tensors.
        self._held = [self.parameters, *self.policy.buffers()]
        self._gain = PriorityGain(sampling.usual_alpha, sampling.epsilon, ppo.epochs * ppo.minibatches)
        self.generator = torch.Generator().manual_seed(seed)
        own = self.policy.own_value_network
        self._border = None if own is None else beginning_of(own)
        self.step = GradientStep(objective, self.parameters, self.optimizer, ppo.max_gradient_norm, self._border)
        self._execution = chosen.begin(self.policy, self.step, ppo, estimate)

    @property
    def _own_statistics(self) -> tuple[str, ...]:
        """Names of the user's own statistics of losses (`Losses.own`)."""
        of_loss = () if self._loss is None else self._loss.statistics
        return of_loss if self._auxiliary is None else (*of_loss, STATISTIC)

    @property
    def execution(self) -> str:
        """Name of the execution (`Execution.name`)."""
        return self._execution.name

    def _objective(self, precision: Precision) -> tuple[Objective, Trial | None]:
        """Returns the objective of gradient steps, and the trial of a loss of the user's own."""
        policy, device, burn_in = self.policy, self._device, self._ppo.burn_in_steps
        if self._loss is None:
            return objective_of(policy, precision, device, burn_in), None
        objective, settings = self._loss.objective(policy, precision, device, burn_in), loss_settings(self._ppo, 0.0)
        return objective, try_loss(self._loss, objective, policy, self.parameters, settings, burn_in)

    def _estimate_of_users(self, seed: int) -> tuple[Estimate | None, list[str]]:
        """Returns the estimate of advantages with functions of the user's own, if there are any, and their notices."""
        ppo, estimate, notices = self._ppo, None, []
        if ppo.advantage is not None:
            advantage = OwnAdvantage(ppo.advantage, self._device)
            estimate, notices = advantage.estimate, advantage.notices
        self._intrinsic: OwnIntrinsic | None = None
        if ppo.intrinsic_reward is not None:
            self._intrinsic = OwnIntrinsic(ppo.intrinsic_reward, self.policy, ppo, self._device, seed)
            estimate = self._intrinsic.around(estimate or advantages.estimate)
            notices = [*notices, *self._intrinsic.notices]
        return estimate, notices

    @property
    def intrinsic_state(self) -> dict[str, Tensor]:
        """Tensors of the intrinsic rewards that a checkpoint has; none without them."""
        return {} if self._intrinsic is None else self._intrinsic.state

    def load_intrinsic(self, state: Mapping[str, Tensor]) -> None:
        """Copies saved `intrinsic_state`. Raises `ConfigurationError` if it is that of other intrinsic rewards."""
        if self._intrinsic is not None:
            self._intrinsic.load(state)
        elif state:
            raise ConfigurationError(
                "it has intrinsic rewards, and ppo.intrinsic_reward is not set; resume with the setting it was trained"
                " with"
            )

    def train(self, batch: TrainingBatch, progress: float) -> TrainingOutcome:
        """Trains for some epochs on a batch on this learner's device. Schedules follow `progress`, 0 to 1.

        Raises `TrainingFailed` if the batch has segments but no valid row. Nothing was learnt from it.
        """
        settings = loss_settings(self._ppo, progress)
        # Before the estimates: the first rewards of a run or of a sparse task would be divided by a deviation of 0.
        returns = self._begin_returns(batch)
        estimated = self.estimate(batch, progress)
        stored = slice(None, batch.stored_segments)
        priority = (
            estimated.priority[stored] if self._priority is None else self._own_priority(batch, estimated, progress)
        )
        rate = scheduled(self._ppo.learning_rate, self._ppo.learning_rate_schedule, progress)
        self.optimizer.set_learning_rate(rate)
        intrinsic = {} if self._intrinsic is None else self._intrinsic.train(rate)
        if self._gain.is_due(batch.stored_segments - batch.fresh_segments):
            self._measure_gain(batch.replayed, progress)
        epochs = self._descend(batch, estimated.steps, settings)
        begun = self._begin_observations(batch), returns
        # All that leaves the device, in one transfer, because each would wait for it.
        further = [
            priority,
            estimated.error[stored],
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
            own=self._own_statistics,
        )
        if intrinsic:
            statistics = dataclasses.replace(statistics, own={**statistics.own, **intrinsic})
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

    def _own_priority(self, batch: TrainingBatch, estimated: Estimated, progress: float) -> Tensor:
        """Returns the priorities of a batch by the user's function (`OwnPriority.of`)."""
        assert self._priority is not None
        return self._priority.of(batch, estimated, self._importance(batch, progress), lambda: self._entropy(batch))

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
        if self._intrinsic is not None:
            self._intrinsic.begin(batch)
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


def scheduled(initial: float, schedule: Schedule, progress: float) -> float:
    """Returns a setting at `progress` in [0, 1]: constant, to zero in a line or half a cosine, or between points."""
    match schedule:
        case "constant":
            return initial
        case "linear":
            return initial * max(0.0, 1.0 - progress)
        case "cosine":
            return initial * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        case points:
            places, shares = np.array(points).T
            return initial * float(np.interp(progress, places, shares))


def importance_exponent(initial: float, final: float, progress: float) -> float:
    """Returns the exponent of the importance correction, linear over the run (Schaul et al. 2016)."""
    return initial + (final - initial) * min(1.0, progress)


def loss_settings(ppo: PPOConfig, progress: float) -> LossSettings:
    """Returns the loss's settings at `progress`, from the settings of the same names in [ppo]."""

    def value(name: str) -> float:
        setting: float = getattr(ppo, name)
        return scheduled(setting, getattr(ppo, SCHEDULED[name]), progress) if name in SCHEDULED else setting

    return LossSettings(**{each.name: value(each.name) for each in dataclasses.fields(LossSettings)})  # type: ignore[arg-type]
