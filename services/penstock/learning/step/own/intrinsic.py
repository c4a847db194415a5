"""Intrinsic rewards by a module of the user's own (`ppo.intrinsic_reward`), which the learner trains.

The module's output is the reward of a step, and its mean over the fresh steps of a batch is lowered by training, so
that what is seen often is rewarded less. A critic of its own learns the values of these rewards, and their advantages
are added to those of the task (Burda et al. 2018, "Exploration by Random Network Distillation", sections 2.3 and 2.4).
As with `own.advantage`, every execution takes the same gradient steps on the sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from penstock.algo import advantages
from penstock.algo.advantages import Estimate, Estimates, backward_sum
from penstock.algo.encoders import of_parts
from penstock.algo.normalisation import RunningMoments
from penstock.algo.own_modules import made_up_rows
from penstock.algo.parameters import clip_gradient, flatten
from penstock.algo.policies import Policy, value_network
from penstock.config import PPOConfig
from penstock.errors import ConfigurationError
from penstock.intrinsic import Experience
from penstock.learning.step.adam import Adam
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.gradient_steps import LARGEST_NORM
from penstock.learning.step.own.code import OwnFunction, before_training, shown
from penstock.machine import foreign_errors
from penstock.machine.module_imports import import_for

_SETTING, _EXAMPLES = "ppo.intrinsic_reward", "file.py:MyReward or my_package.my_module:MyReward"
_OPTIMIZER = "optimizer/"
_ROWS = 8


@dataclass(slots=True)
class _Batch:
    """A batch with its intrinsic rewards and values under the parameters before training.

    Attributes:
        parts: [B (T + 1), *shape] observations for the networks, one tensor per part.
        action: [B T, ...] actions, one tensor per leaf.
        fresh: <bool>[B, T] valid steps of fresh segments.
        reward: <float32>[B, T] rewards in the units of the values.
        value: <float32>[B, T + 1] values.
        mean: <float32>[] mean reward of the fresh steps, before it is scaled.
        estimates: Estimates from these rewards, once there are any.
    """

    parts: tuple[Tensor, ...]
    action: tuple[Tensor, ...]
    fresh: Tensor
    reward: Tensor
    value: Tensor
    mean: Tensor
    estimates: Estimates | None = None


class OwnIntrinsic:
    """Intrinsic rewards of a user's module, which was tried on made-up steps. Used by one thread.

    Attributes:
        notices: A line that these rewards are added.
    """

    def __init__(self, name: str, policy: Policy, ppo: PPOConfig, device: torch.device, seed: int) -> None:
        """Makes the module of this name and its critic, and calls the module for made-up steps.

        Raises `ConfigurationError` if it can't be made, or does not return <float>[N], finite, not negative, and with a
        gradient.
        """
        self._policy, self._ppo = policy, ppo
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._module = _made(name, [part.shape for part in policy.observer.preparations]).to(device)
            self._critic = value_network(policy).to(device)
        self._function = OwnFunction.of(_SETTING, name, self._module)
        with before_training():
            self._try(device)
        self._returns = RunningMoments(()).to(device)
        self._networks = nn.ModuleDict({"module": self._module, "critic": self._critic, "returns": self._returns})
        self._parameters = flatten(self._networks)
        self._optimizer = Adam(self._parameters, ppo.learning_rate)
        self._batch: _Batch | None = None
        self.notices = [
            f"{_SETTING} {name} adds intrinsic rewards: {ppo.intrinsic_coefficient:g} of their advantages"
            " (ppo.intrinsic_coefficient)"
        ]

    def around(self, estimate: Estimate) -> Estimate:
        """Returns a function that adds the advantages of the intrinsic rewards to those of `estimate`.

        For these rewards no episode ends: what is new is not worth less because the episode ends after it.
        """

        def estimated(**given: Any) -> Estimates:
            assert self._batch is not None
            never = torch.zeros_like(given["terminated"])
            own = advantages.estimate(
                **given
                | {
                    "value": self._batch.value,
                    "reward": self._batch.reward,
                    "terminated": never,
                    "truncated": never,
                    "discount": self._ppo.intrinsic_discount,
                }
            )
            self._batch.estimates = own
            of_task = estimate(**given)
            added = torch.where(of_task.sound, self._ppo.intrinsic_coefficient * own.advantage, 0.0)
            return replace(of_task, advantage=of_task.advantage + added)

        return estimated

    @torch.no_grad()
    def begin(self, batch: TrainingBatch) -> None:
        """Computes the rewards and values of a batch whose advantages are estimated next.

        Fresh segments, if there are any, update the scale of the rewards before.
        """
        valid, steps = batch.valid, batch.valid.shape[1]
        parts = tuple(part[:, -steps - 1 :].flatten(0, 1) for part in self._policy.prepared(batch.observation))
        action = tuple(leaf.flatten(0, 1) for leaf in batch.action)
        fresh = valid & (torch.arange(len(valid), device=valid.device) < batch.fresh_segments)[:, None]
        before = torch.arange(valid.numel(), device=valid.device)
        reward = self._novelty(parts, action, before, steps).view_as(valid)
        reward = torch.where(valid & reward.isfinite(), reward, 0.0)
        if batch.fresh_segments:
            self._returns.begin(self._discounted(reward)[fresh], at_once=True)
        value = self._critic(of_parts(parts)).view(len(valid), steps + 1)
        mean = torch.where(fresh, reward, 0.0).sum() / fresh.sum().clamp(min=1)
        self._batch = _Batch(parts, action, fresh, reward * self._returns.scale(), value, mean)

    def train(self, learning_rate: float) -> Mapping[str, float]:
        """Trains the module and its critic on the batch whose advantages were estimated, and returns statistics.

        The critic learns from every sound step, and the module from the fresh ones, in the passes and minibatches of
        [ppo]. A step without a finite gradient is refused.
        """
        batch, self._batch = self._batch, None
        assert batch is not None and batch.estimates is not None
        steps = batch.fresh.shape[1]
        known, target, fresh = batch.estimates.sound.flatten(), batch.estimates.target.flatten(), batch.fresh.flatten()
        rows = known.nonzero().squeeze(1)
        self._optimizer.set_learning_rate(learning_rate)
        # Its own shuffles, so that those of the policy are as without it. A resumed run repeats them.
        generator = torch.Generator().manual_seed(int(self._optimizer.state["step"]))
        errors = []
        for _ in range(self._ppo.epochs if len(rows) else 0):
            order = rows[torch.randperm(len(rows), generator=generator).to(rows.device)]
            for chosen in order.tensor_split(min(self._ppo.minibatches, len(rows))):
                novelty = self._novelty(batch.parts, batch.action, chosen, steps)
                trained = fresh[chosen]
                observed = tuple(part[_observations(chosen, steps)] for part in batch.parts)
                error = (self._critic(of_parts(observed)).squeeze(-1) - target[chosen]).square().mean()
                loss = 0.5 * error + torch.where(trained, novelty, 0.0).sum() / trained.sum().clamp(min=1)
                self._step(loss)
                errors.append(error.detach())
        found = torch.stack([batch.mean, torch.stack(errors).mean() if errors else torch.zeros_like(batch.mean)])
        return dict(zip(("intrinsic_reward", "intrinsic_value_error"), found.tolist(), strict=True))

    @property
    def state(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint has."""
        moments = {f"{_OPTIMIZER}{name}": each for name, each in self._optimizer.state.items()}
        return {name: each.detach() for name, each in self._networks.state_dict().items()} | moments

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies a saved state. Raises `ConfigurationError` if it is that of another module, or empty."""
        try:
            self._networks.load_state_dict({name: state[name] for name in state if not name.startswith(_OPTIMIZER)})
        except RuntimeError as error:
            fault = "it has no intrinsic rewards" if not state else " ".join(str(error).split())
            raise ConfigurationError(
                f"{fault}, which {_SETTING} {self._function.name} now computes; resume with the setting it was trained"
                " with, or begin a run with run.start_from"
            ) from error
        self._optimizer.load({n.removeprefix(_OPTIMIZER): state[n] for n in state if n.startswith(_OPTIMIZER)})

    def _step(self, loss: Tensor) -> None:
        gradient = self._parameters.grad
        assert gradient is not None
        gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_gradient(self._parameters, self._ppo.max_gradient_norm)
        self._optimizer.step((norm < LARGEST_NORM).logical_not().float())

    def _novelty(self, parts: tuple[Tensor, ...], action: tuple[Tensor, ...], rows: Tensor, steps: int) -> Tensor:
        """Returns the rewards, <float32>[N], of rows of [B T]."""
        first = _observations(rows, steps)
        actions = tuple(leaf[rows] for leaf in action)
        found = self._function(
            Experience(
                observation=tuple(part[first] for part in parts),
                next_observation=tuple(part[first + 1] for part in parts),
                action=actions[0] if len(actions) == 1 else actions,
            )
        )
        if not isinstance(found, Tensor) or found.shape != rows.shape or not found.is_floating_point():
            raise self._function.fault(f"returned {shown(found)}", f"return one reward per step, [{len(rows)}]")
        return found.float()

    def _discounted(self, reward: Tensor) -> Tensor:
        """Returns discounted sums of the rewards up to each step, which begin with their running mean, <float32>[B, T].

        Their deviation is the scale of the rewards.
        """
        decay = torch.full_like(reward, self._ppo.intrinsic_discount)
        earlier = self._returns.mean.float() * decay.cumprod(1)
        return backward_sum(reward.flip(1), decay).flip(1) + earlier

    def _try(self, device: torch.device) -> None:
        """Raises `TrainingFailed` if the module returns no useful rewards for made-up steps."""
        parts = tuple(part.to(device) for part in made_up_rows(self._policy.observer, _ROWS + 1))
        action = tuple(
            torch.zeros(_ROWS, *space.action_array[1], dtype=getattr(torch, space.action_array[0]), device=device)
            for space in self._policy.spec.action.spaces
        )
        reward = self._novelty(parts, action, torch.arange(_ROWS, device=device), _ROWS)
        if not bool((reward.isfinite() & (reward >= 0.0)).all()):
            raise self._function.fault("returned a reward that is negative or not finite", "return errors, squared")
        if not reward.requires_grad:
            raise self._function.fault(
                "returned rewards without a gradient", "return the error of a prediction with parameters to train"
            )


def _made(name: str, shapes: list[tuple[int, ...]]) -> nn.Module:
    """Makes the user's module. Raises `ConfigurationError` if there is none."""
    kind: Any = import_for(_SETTING, name, kind="class", examples=_EXAMPLES)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigurationError(f"{_SETTING} {name!r} is not a subclass of torch.nn.Module; name a class that is one")
    try:
        return kind(*shapes)
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        taken = ", ".join(str(tuple(shape)) for shape in shapes)
        raise ConfigurationError(
            f"{_SETTING} {name!r} can't be made for parts of the shapes {taken}: {foreign_errors.explain(error)};"
            " correct it"
        ) from error


def _observations(rows: Tensor, steps: int) -> Tensor:
    """Returns the numbers in [B (T + 1)] of the observations before rows of [B T]."""
    return rows + rows.div(steps, rounding_mode="floor")
