"""PufferLib's `PuffeRL` on the chain of examples/episode_ends.py, as it wraps any Gymnasium environment.

PufferLib clips rewards to [-1, 1], so the chain has half of its rewards here, and its values are doubled again. Other
than its defaults are the optimizer (Adam, to which the learning rate of all systems applies), minibatches drawn with
equal probability, and value targets without a clip.

`benchmarks.peers.pufferlib_environment` installs PufferLib.
"""

import sys
from contextlib import redirect_stdout
from typing import Any

import gymnasium
import pufferlib.emulation
import pufferlib.vector
import torch

from benchmarks.peers.ends_run import ENV_ID, ENVIRONMENTS, Task, observations, print_values
from benchmarks.peers.pufferlib_settings import defaults, trainer
from examples.episode_ends import DISCOUNT, REWARDS, STATES

SCALE = 1.0 / max(REWARDS)


class Policy(torch.nn.Module):
    """The interface that PuffeRL expects, with separate networks for policy and value."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self._network(2), self._network(1)

    def forward_eval(self, observation: torch.Tensor, state: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns logits and values."""
        observation = observation.float()
        return self.actor(observation), self.critic(observation)

    forward = forward_eval

    @staticmethod
    def _network(outputs: int) -> torch.nn.Sequential:
        return torch.nn.Sequential(
            torch.nn.Linear(STATES + 1, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, outputs),
        )


def make(buf: object = None, seed: int = 0) -> Any:
    """Returns the chain as PufferLib's emulation wraps it."""

    def halved() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TransformReward(gymnasium.make(ENV_ID), lambda reward: SCALE * float(reward))

    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=halved, buf=buf, seed=seed)


def main() -> None:
    """Trains, and prints the values."""
    task = Task.from_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(task.seed)
    batch = ENVIRONMENTS * task.segment_steps
    changes = {
        "env": ENV_ID,
        "seed": task.seed,
        "device": "cpu",
        "optimizer": "adam",
        "adam_eps": 1e-5,
        "use_rnn": False,
        "total_timesteps": task.total_steps,
        "learning_rate": task.learning_rate,
        "gamma": DISCOUNT,
        "gae_lambda": 0.0,
        "batch_size": batch,
        "minibatch_size": batch // 4,
        "bptt_horizon": task.segment_steps,
        "update_epochs": 10,
        "prio_alpha": 0.0,
        "vf_clip_coef": 100.0,
    }
    policy = Policy()
    with redirect_stdout(sys.stderr):
        envs = pufferlib.vector.make(make, num_envs=ENVIRONMENTS, backend=pufferlib.vector.Serial, seed=task.seed)
        learner = trainer({**defaults(), **changes}, envs, policy)
        while learner.global_step < task.total_steps:
            learner.evaluate()
            learner.train()
        # Its thread would keep the process alive.
        learner.utilization.stop()
    with torch.no_grad():
        values = policy.critic(torch.from_numpy(observations())) / SCALE
    print_values(values.numpy(), "pufferlib", "gymnasium")


if __name__ == "__main__":
    main()
