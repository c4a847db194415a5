"""PufferLib's PuffeRL on the work of `benchmarks.peers.equal_work`.

It draws whole segments for each minibatch, here all with the same probability, and without replacement only within a
minibatch. It computes the advantages of the whole batch again for each minibatch. It clips rewards to [-1, 1], and
trains also on the row in which an environment resets itself.
"""

from typing import Any

import numpy as np
import pufferlib
import pufferlib.vector
import torch
from numpy.typing import NDArray
from torch.distributions import Normal

from benchmarks.peers import equal_work
from benchmarks.peers.equal_work import Work
from benchmarks.peers.pufferlib_settings import defaults, trainer


class Environments(pufferlib.PufferEnv):
    """A vector environment of Gymnasium as one environment of PufferLib with as many agents."""

    def __init__(self, work: Work, buf: object = None, seed: int = 0) -> None:
        self._envs = work.make()
        self.num_agents = self._envs.num_envs
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self._discrete = not self.single_action_space.shape
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """Begins all episodes."""
        self.observations[:] = self._envs.reset(seed=seed)[0]
        return self.observations, []

    def step(self, actions: NDArray[Any]) -> Any:
        """Steps all environments, and writes into the shared buffers."""
        action = actions.astype(np.int64) if self._discrete else actions
        observation, self.rewards[:], self.terminals[:], self.truncations[:], _ = self._envs.step(action)
        self.observations[:] = observation
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()


class Policy(torch.nn.Module):
    """Separate networks for policy and value, with the interface that PuffeRL expects."""

    def __init__(self, environments: Environments, hidden: tuple[int, ...]) -> None:
        super().__init__()
        observations = int(np.prod(environments.single_observation_space.shape or ()))
        self._continuous = bool(environments.single_action_space.shape)
        space: Any = environments.single_action_space
        outputs = int(space.shape[0]) if self._continuous else int(space.n)
        self.actor, self.critic = (_network(observations, n, hidden) for n in (outputs, 1))
        self.log_std = torch.nn.Parameter(torch.zeros(1, outputs), requires_grad=self._continuous)

    def forward_eval(self, observation: torch.Tensor, state: object = None) -> tuple[Any, torch.Tensor]:
        """Returns logits or the distribution of continuous actions, and values."""
        output = self.actor(observation)
        distribution = Normal(output, self.log_std.exp().expand_as(output)) if self._continuous else output
        return distribution, self.critic(observation)

    forward = forward_eval


def _network(inputs: int, outputs: int, hidden: tuple[int, ...]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for width in hidden:
        layers += [torch.nn.Linear(inputs, width), torch.nn.Tanh()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(inputs, outputs))


def main() -> None:
    """Trains until it is stopped."""
    work = Work.from_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(work.seed)
    settings = {
        **defaults(),
        "env": work.env_id,
        "seed": work.seed,
        "device": "cpu",
        "optimizer": "adam",
        "torch_deterministic": False,
        "anneal_lr": False,
        "use_rnn": False,
        "total_timesteps": equal_work.ENDLESS_STEPS,
        "learning_rate": equal_work.LEARNING_RATE,
        "gamma": equal_work.DISCOUNT,
        "gae_lambda": equal_work.TRACE_DECAY,
        "clip_coef": equal_work.CLIP_RANGE,
        "ent_coef": equal_work.ENTROPY_COEFFICIENT,
        "vf_coef": equal_work.VALUE_COEFFICIENT,
        "vf_clip_coef": 1e6,
        "max_grad_norm": equal_work.MAX_GRADIENT_NORM,
        "batch_size": equal_work.BATCH,
        "bptt_horizon": equal_work.SEGMENT_STEPS,
        "minibatch_size": work.minibatch,
        "update_epochs": equal_work.EPOCHS,
        "prio_alpha": 0.0,
    }

    def make(buf: object = None, seed: int = 0) -> Environments:
        return Environments(work, buf, seed)

    environments = pufferlib.vector.make(make, num_envs=1, backend=pufferlib.vector.Serial, seed=work.seed)
    learner, journal = (
        trainer(settings, environments, Policy(environments.driver_env, work.hidden)),
        work.open_journal(),
    )
    while True:
        learner.evaluate()
        learner.train()
        journal.trained(learner.global_step)


if __name__ == "__main__":
    main()
