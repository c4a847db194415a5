"""All functions of the user's own in a learner, as one record: what they replace, and what a batch needs of them."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from penstock import config
from penstock.algo import advantages
from penstock.algo.advantages import Estimate
from penstock.algo.policies import Policy
from penstock.config import PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.chosen_execution import ChosenExecution
from penstock.learning.step.gradient_steps import Estimated, Objective, objective_of
from penstock.learning.step.own.advantage import OwnAdvantage
from penstock.learning.step.own.auxiliary import STATISTIC, OwnAuxiliary
from penstock.learning.step.own.intrinsic import OwnIntrinsic
from penstock.learning.step.own.loss import OwnLoss
from penstock.learning.step.own.loss_check import try_loss
from penstock.learning.step.own.optimizer import OwnOptimizer
from penstock.learning.step.own.priority import OwnPriority
from penstock.learning.step.schedules import loss_settings


class OwnFunctions:
    """The functions that the settings of a learner name, each of which was tried. Used by one thread.

    Attributes:
        chosen: The execution with which they can be trained.
        objective: The objective of gradient steps, with the loss and the auxiliary losses of the user if there are any.
        estimate: Estimate of advantages with those of the user; None: there are none.
        optimizer: The optimizer in place of Adam; None: there is none.
        notices: Lines about them for the user.
    """

    def __init__(
        self,
        policy: Policy,
        parameters: nn.Parameter,
        chosen: ChosenExecution,
        *,
        ppo: PPOConfig,
        sampling: SamplingConfig,
        loss: str | None,
        optimizer: str | None,
        execution: config.Execution,
        seed: int,
    ) -> None:
        """Imports the functions and tries each on made-up data. Leaves the policy and its `parameters` unchanged.

        `execution` is the setting from which `chosen` follows. Raises `ConfigurationError` if one can't be used.
        """
        device, precision, burn_in = chosen.device, chosen.precision, ppo.burn_in_steps
        self.notices: list[str] = []
        self._loss = None if loss is None else OwnLoss(loss)
        if self._loss is None:
            self.objective: Objective = objective_of(policy, precision, device, burn_in)
        else:
            self.objective = self._loss.objective(policy, precision, device, burn_in)
            trial = try_loss(self._loss, self.objective, policy, parameters, loss_settings(ppo, 0.0), burn_in)
            chosen = chosen.without_capture(execution) if trial.waits else chosen
        self._auxiliary: OwnAuxiliary | None = None
        if policy.auxiliary_networks:
            self._auxiliary = OwnAuxiliary(policy, precision, device, burn_in)
            self.objective = self._auxiliary.added_to(self.objective)
        self.optimizer: OwnOptimizer | None = None
        if optimizer is not None:
            self.optimizer = OwnOptimizer.of(optimizer, list(policy.parameters()), ppo.learning_rate)
            chosen = self.optimizer.executed(chosen, execution)
        self.chosen = chosen
        if self._loss is not None:
            self.notices += [self._loss.introduction(chosen.name, waits=trial.waits), *trial.warnings]
        if self.optimizer is not None:
            self.notices += self.optimizer.notices(chosen.name)
        if self._auxiliary is not None:
            self.notices += self._auxiliary.notices
        self.estimate: Estimate | None = None
        if ppo.advantage is not None:
            advantage = OwnAdvantage(ppo.advantage, device)
            self.estimate = advantage.estimate
            self.notices += advantage.notices
        self._intrinsic: OwnIntrinsic | None = None
        if ppo.intrinsic_reward is not None:
            self._intrinsic = OwnIntrinsic(ppo.intrinsic_reward, policy, ppo, device, seed)
            self.estimate = self._intrinsic.around(self.estimate or advantages.estimate)
            self.notices += self._intrinsic.notices
        self._priority: OwnPriority | None = None
        if sampling.priority is not None:
            self._priority = OwnPriority(sampling.priority, device)
            self.notices += self._priority.notices

    @staticmethod
    def parameters_depend_on(policy: Policy, ppo: PPOConfig, loss: str | None, optimizer: str | None) -> list[str]:
        """Returns the settings that name functions on which the parameters depend, and the losses of networks."""
        settings = {
            "learner.loss": loss,
            "learner.optimizer": optimizer,
            "ppo.advantage": ppo.advantage,
            "ppo.intrinsic_reward": ppo.intrinsic_reward,
            "the auxiliary loss of policy.module": policy.auxiliary_networks or None,
        }
        return [setting for setting, function in settings.items() if function is not None]

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the user's own statistics of losses (`Losses.own`)."""
        of_loss = () if self._loss is None else self._loss.statistics
        return of_loss if self._auxiliary is None else (*of_loss, STATISTIC)

    def begin(self, batch: TrainingBatch) -> None:
        """Prepares the estimate of a batch."""
        if self._intrinsic is not None:
            self._intrinsic.begin(batch)

    def priorities(
        self,
        batch: TrainingBatch,
        estimated: Estimated,
        importance: Callable[[], Tensor],
        entropy: Callable[[], Tensor],
    ) -> Tensor:
        """Returns the priorities of the segments of the store, <float32>[S].

        `importance` and `entropy` return the weights and the entropies, as `OwnPriority.of` has them.
        """
        if self._priority is None:
            return estimated.priority[: batch.stored_segments]
        return self._priority.of(batch, estimated, importance(), entropy)

    def train(self, learning_rate: float) -> Mapping[str, float]:
        """Trains what learns beside the policy on the batch that was estimated; returns statistics by their names."""
        return {} if self._intrinsic is None else self._intrinsic.train(learning_rate)

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
