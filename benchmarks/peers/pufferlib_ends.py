"""PufferLib's `PuffeRL` on the chain of examples/episode_ends.py, as it wraps any Gymnasium environment.

PufferLib clips rewards to [-1, 1], so the chain has half of its rewards here, and its values are doubled again. Other
than its defaults are the optimizer (Adam, to which the learning rate of all systems applies), minibatches drawn with
equal probability, and value targets without a clip.

PufferLib 3.0.0 is on PyPI as source, whose setup.py needs changes to be built without its games. In an environment with
torch==2.13.0, "setuptools<80", wheel, Cython, ninja and psutil:

    NO_OCEAN=1 TMPDIR=SOURCE pip download --no-deps --no-build-isolation --no-clean pufferlib==3.0.0    # fails
    # In its setup.py, add `c_extension_paths = []` before the last `if not NO_OCEAN:`.
    NO_OCEAN=1 pip install --no-build-isolation --no-deps SOURCE/pip-download-*/pufferlib_*
    pip install gymnasium==1.4.0 rich rich_argparse pyro-ppl heavyball pettingzoo shimmy pynvml imageio
    pip install --no-deps gym==0.23.1 gym-notices

Gymnasium 1.4 is newer than its pin, 0.29.1.
"""

import configparser
import sys
from ast import literal_eval
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium
import pufferlib.emulation
import pufferlib.pufferl
import pufferlib.vector
import torch

from benchmarks.peers.ends_run import ENV_ID, ENVIRONMENTS, Task, observations, print_values
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


def defaults() -> dict[str, Any]:
    """Returns PufferLib's own settings of training."""
    parser = configparser.ConfigParser()
    parser.read(Path(pufferlib.pufferl.__file__).parent / "config" / "default.ini")
    found: dict[str, Any] = {}
    for name, text in parser["train"].items():
        try:
            found[name] = literal_eval(text)
        except (SyntaxError, ValueError):
            found[name] = text
    return found


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
    for unused in ("print_dashboard", "save_checkpoint"):
        setattr(pufferlib.pufferl.PuffeRL, unused, lambda self, **named: None)
    policy = Policy()
    with redirect_stdout(sys.stderr):
        envs = pufferlib.vector.make(make, num_envs=ENVIRONMENTS, backend=pufferlib.vector.Serial, seed=task.seed)
        trainer = pufferlib.pufferl.PuffeRL({**defaults(), **changes}, envs, policy)
        while trainer.global_step < task.total_steps:
            trainer.evaluate()
            trainer.train()
        # Its thread would keep the process alive.
        trainer.utilization.stop()
    with torch.no_grad():
        values = policy.critic(torch.from_numpy(observations())) / SCALE
    print_values(values.numpy(), "pufferlib", "gymnasium")


if __name__ == "__main__":
    main()
