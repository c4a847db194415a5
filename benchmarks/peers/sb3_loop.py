"""Stable-Baselines3 PPO with rl-zoo's settings, and one torch thread, which is the fastest configuration here."""

import time
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peers.loop_run import Course, Task

EPISODES = 20


def linear(initial: float) -> Any:
    """Returns a schedule that decreases linearly to zero."""
    return lambda remaining: remaining * initial


SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": linear(0.001),
            "clip_range": linear(0.2),
        },
    ),
    "Pendulum-v1": (
        4,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
}
"""Number of environments, and arguments of PPO, by environment id."""


class Evaluations(BaseCallback):
    """Evaluates between rollouts, with the clock stopped."""

    def __init__(self, task: Task, envs: VecEnv, *, stops_at_threshold: bool = False) -> None:
        """Evaluates in `envs`. `stops_at_threshold` ends the run at the first evaluation that reaches the threshold."""
        super().__init__()
        self._envs, self._interval, self._due = envs, task.interval_steps, task.interval_steps
        self._apart_s, self._apart_cpu_s, self._goal = 0.0, 0.0, task.threshold if stops_at_threshold else float("inf")
        self._reached = False
        self.course = Course(task.threshold)

    def _on_training_start(self) -> None:
        self.course.add(time.perf_counter(), 0, cpu_s=time.process_time())

    def _on_step(self) -> bool:
        return not self._reached

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self._due:
            self._due = self.num_timesteps + self._interval
            self._evaluate()

    def _on_training_end(self) -> None:
        self._evaluate()

    def _evaluate(self) -> None:
        started, started_cpu = time.perf_counter(), time.process_time()
        mean = self._mean_return()
        self._reached = self._reached or mean >= self._goal
        self.course.add(started - self._apart_s, self.num_timesteps, mean, cpu_s=started_cpu - self._apart_cpu_s)
        self._apart_s += time.perf_counter() - started
        self._apart_cpu_s += time.process_time() - started_cpu

    def _mean_return(self) -> float:
        mean, _ = evaluate_policy(self.model, self._envs, n_eval_episodes=EPISODES, deterministic=True)
        return float(np.mean(mean))


def main() -> None:
    """Trains, and prints the result."""
    task = Task.from_arguments()
    torch.set_num_threads(1)
    count, settings = SETTINGS[task.env_id]
    model = PPO("MlpPolicy", make_vec_env(task.env_id, count, task.seed), seed=task.seed, **settings)
    evaluations = Evaluations(task, make_vec_env(task.env_id, 1))
    model.learn(task.total_steps, callback=evaluations)
    evaluations.course.outcome(
        f"{EPISODES} deterministic episodes",
        f"{count} environments, {settings['n_steps']} steps each, {settings['n_epochs']} epochs, minibatches of"
        f" {settings.get('batch_size', 64)}",
    ).print_json()


if __name__ == "__main__":
    main()
