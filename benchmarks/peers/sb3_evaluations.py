"""Evaluations of Stable-Baselines3 between rollouts, and its linear schedule, for comparisons of learning."""

import time
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peers.loop_run import Course, Task

EPISODES = 20


def linear(initial: float) -> Any:
    """Returns a schedule that decreases linearly to zero."""
    return lambda remaining: remaining * initial


class Evaluations(BaseCallback):
    """Evaluates between rollouts, with the clock stopped."""

    def __init__(
        self, task: Task, envs: VecEnv, *, stops_at_threshold: bool = False, deterministic: bool = True
    ) -> None:
        """Evaluates in `envs`, by the most probable actions if `deterministic`, otherwise by sampled ones.

        `stops_at_threshold` ends the run at the first evaluation that reaches the threshold.
        """
        super().__init__()
        self._deterministic = deterministic
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
        mean, _ = evaluate_policy(self.model, self._envs, n_eval_episodes=EPISODES, deterministic=self._deterministic)
        return float(np.mean(mean))
