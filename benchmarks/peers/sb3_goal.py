"""Stable-Baselines3's PPO with rl-zoo's settings, judged until the run is stopped or its steps are done."""

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.peers.judge import Goal, Judge
from benchmarks.peers.loop_run import Task
from benchmarks.peers.zoo_loop import environments_of, model_of
from benchmarks.peers.zoo_settings import SETTINGS


class Judged(BaseCallback):
    """Lets the judge look at the policy before each rollout and at the end."""

    def __init__(self, judge: Judge, envs: VecEnv) -> None:
        super().__init__()
        self._judge, self._envs = judge, envs

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._judge.look(self.num_timesteps, self._act)

    def _on_training_end(self) -> None:
        self._judge.look(self.num_timesteps, self._act)

    def _act(self, observation: NDArray[np.float32]) -> NDArray[np.generic]:
        # With rl-zoo's settings, some tasks are normalised.
        if isinstance(self._envs, VecNormalize):
            observation = self._envs.normalize_obs(observation)
        action: NDArray[np.generic] = self.model.predict(observation, deterministic=True)[0]
        return action


def main() -> None:
    """Trains."""
    goal = Goal.from_arguments()
    torch.set_num_threads(1)
    settings = SETTINGS[goal.env_id]
    task = Task(goal.env_id, float("inf"), settings.total_steps, goal.interval_steps, goal.seed)
    envs, _ = environments_of(settings, task)
    model_of(settings, envs, goal.seed).learn(settings.total_steps, callback=Judged(Judge(goal), envs))


if __name__ == "__main__":
    main()
