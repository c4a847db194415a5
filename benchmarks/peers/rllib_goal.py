"""RLlib's PPO with the settings of its tuned examples, judged until it is stopped.

They are those of rllib/tuned_examples/ppo/cartpole_ppo.py and pendulum_ppo.py in Ray's repository. There is no example
for Acrobot-v1 or LunarLander-v3, which have the defaults of `PPOConfig`. The judge plays in the main process, between
two iterations.
"""

# Before RLlib, which imports Ray.
from benchmarks.peers import ray_start  # isort: skip

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers.judge import Goal, Judge

RUNNERS = 2


def config_of(env_id: str) -> PPOConfig:
    """Returns the settings of a task."""
    config = PPOConfig().environment(env_id).env_runners(num_env_runners=RUNNERS)
    if env_id == "CartPole-v1":
        network = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
        return config.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(model_config=network)
    if env_id == "Pendulum-v1":
        return (
            config.env_runners(num_envs_per_env_runner=20, env_to_module_connector=_filter)
            .training(train_batch_size_per_learner=1024, minibatch_size=128, lr=0.0002, gamma=0.95, lambda_=0.5)
            .rl_module(model_config=DefaultModelConfig(fcnet_activation="relu"))
        )
    return config


def _filter(env: Any = None, spaces: Any = None, device: Any = None) -> MeanStdFilter:
    return MeanStdFilter()


class Player:
    """The policy of an algorithm as the judge plays it."""

    def __init__(self, algorithm: Any, env_id: str) -> None:
        self._algorithm, self._space = algorithm, gymnasium.make(env_id).action_space

    @torch.no_grad()
    def act(self, observation: NDArray[np.float32]) -> NDArray[np.generic]:
        """Returns the most likely actions."""
        module = self._algorithm.learner_group._learner.module[DEFAULT_MODULE_ID]
        rows = torch.from_numpy(self._filtered(observation))
        output = module.forward_inference({"obs": rows})["action_dist_inputs"]
        space: Any = self._space
        if not space.shape:
            chosen: NDArray[np.generic] = output.argmax(dim=1).numpy()
            return chosen
        # RLlib's policies act in [-1, 1], which it maps to the bounds of the actions.
        mean = np.clip(output[:, : space.shape[0]].numpy(), -1.0, 1.0)
        action: NDArray[np.generic] = space.low + (mean + 1.0) / 2.0 * (space.high - space.low)
        return action.astype(np.float32)

    def _filtered(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Standardises observations as the runners do, if they do."""
        for connector in self._algorithm.env_runner._env_to_module.connectors:
            if isinstance(connector, MeanStdFilter):
                statistics = next(iter(connector._filters.values()))
                rows = [statistics(row, update=False) for row in observation]
                return np.asarray(rows, np.float32)
        return observation


def main() -> None:
    """Trains."""
    goal = Goal.from_arguments()
    ray_start.start(goal.journal.parent)
    config = config_of(goal.env_id).reporting(min_time_s_per_iteration=0).debugging(seed=goal.seed, log_level="ERROR")
    algorithm, judge = config.build_algo(), Judge(goal)
    player = Player(algorithm, goal.env_id)
    while True:
        results = algorithm.train()
        judge.look(int(results["env_runners"].get("num_env_steps_sampled_lifetime", 0)), player.act)


if __name__ == "__main__":
    main()
