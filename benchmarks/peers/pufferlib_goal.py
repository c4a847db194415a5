"""PufferLib's PuffeRL with its defaults, judged until it is stopped.

Settings are those of its default.ini, which has runs of ten million steps. Its default minibatch of 8,192 steps needs
128 environments of its default horizon, 64; two processes step them. The policy is the one of its classic_control
package. PuffeRL clips rewards to [-1, 1].
"""

import functools
from typing import Any

import gymnasium
import numpy as np
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.vector
import torch
from numpy.typing import NDArray

from benchmarks.peers.judge import Goal, Judge
from benchmarks.peers.pufferlib_settings import defaults, trainer

ENVIRONMENTS = 128
WORKERS = 2
HIDDEN = 64


def make(env_id: str, buf: object = None, seed: int = 0) -> Any:
    """Returns an environment as PufferLib's emulation wraps it."""
    return pufferlib.emulation.GymnasiumPufferEnv(
        env_creator=functools.partial(gymnasium.make, env_id), buf=buf, seed=seed
    )


def main() -> None:
    """Trains."""
    goal = Goal.from_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(goal.seed)
    settings = {**defaults(), "env": goal.env_id, "seed": goal.seed, "device": "cpu", "use_rnn": False}
    environments = pufferlib.vector.make(
        functools.partial(make, goal.env_id),
        num_envs=ENVIRONMENTS,
        num_workers=WORKERS,
        batch_size=ENVIRONMENTS,
        backend=pufferlib.vector.Multiprocessing,
        seed=goal.seed,
    )
    policy = pufferlib.models.Default(environments.driver_env, hidden_size=HIDDEN)
    learner, judge = trainer(settings, environments, policy), Judge(goal)

    @torch.no_grad()
    def act(observation: NDArray[np.float32]) -> NDArray[np.generic]:
        output = policy.forward_eval(torch.from_numpy(observation))[0]
        if isinstance(output, torch.distributions.Normal):
            space: Any = environments.single_action_space
            clipped: NDArray[np.generic] = np.clip(output.loc.numpy(), space.low, space.high)
            return clipped
        chosen: NDArray[np.generic] = output.argmax(dim=1).numpy()
        return chosen

    # Its threads and processes would keep the program alive.
    try:
        while learner.global_step < settings["total_timesteps"]:
            learner.evaluate()
            learner.train()
            judge.look(learner.global_step, act)
    finally:
        learner.utilization.stop()
        environments.close()


if __name__ == "__main__":
    main()
