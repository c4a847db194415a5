"""Sample Factory APPO in its fastest configuration on two cores.

It uses one worker of 64 environments, batches of 2,048, and no recurrence. With one epoch it is fastest, but does not
learn CartPole or Pendulum within 400,000 steps with any tried learning rate (3e-3, 1e-2) or scale of rewards. With four
epochs it learns both.
"""

import contextlib
import logging
import sys
import tempfile
import time

import gymnasium as gym
import numpy as np
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.peers.loop_run import Course, Task

EPISODES = 100
COMMON = {
    "algo": "APPO",
    "device": "cpu",
    "num_workers": 1,
    "num_envs_per_worker": 64,
    "worker_num_splits": 2,
    "rollout": 32,
    "recurrence": 1,
    "use_rnn": False,
    "batch_size": 2048,
    "with_vtrace": False,
    "decorrelate_experience_max_seconds": 0,
    "encoder_mlp_layers": [64, 64],
    "nonlinearity": "tanh",
    "save_every_sec": 100_000,
    "save_best_every_sec": 100_000,
    "stats_avg": EPISODES,
}
SETTINGS: dict[str, dict[str, object]] = {
    "CartPole-v1": {"learning_rate": 3e-3, "gamma": 0.98, "reward_scale": 0.1},
    "Pendulum-v1": {
        "learning_rate": 3e-3,
        "gamma": 0.9,
        "reward_scale": 0.1,
        "adaptive_stddev": False,
        "continuous_tanh_scale": 0.0,
        "exploration_loss_coeff": 0.0,
    },
}


def make_environment(name: str, *_: object, render_mode: str | None = None) -> gym.Env:
    """Creates one environment; the workers find this function by its name."""
    return gym.make(name, render_mode=render_mode)


class Watch(AlgoObserver):
    """Records the mean return of the last training episodes after every batch."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Records progress after a batch."""
        returns = runner.policy_avg_stats.get("reward", [[]])[0]
        mean = float(np.mean(returns)) if len(returns) == EPISODES else float("nan")
        self._course.add(time.perf_counter(), sum(runner.env_steps.values()), mean)


def main() -> None:
    """Trains, and prints the result."""
    task = Task.from_arguments()
    register_env(task.env_id, make_environment)
    settings = {**COMMON, **SETTINGS[task.env_id], "num_epochs": task.epochs}
    with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
        options = {
            **settings,
            "env": task.env_id,
            "seed": task.seed,
            "train_for_env_steps": task.total_steps,
            "train_dir": folder,
            "experiment": "loop",
        }
        argv = [f"--{name}={value}" for name, value in options.items() if not isinstance(value, list)]
        for name, value in options.items():
            if isinstance(value, list):
                argv += [f"--{name}", *map(str, value)]
        parser, _ = parse_sf_args(argv)
        course = Course(task.threshold)
        logging.disable(logging.WARNING)
        # The workers also print; stdout contains only the result.
        with contextlib.redirect_stdout(sys.stderr):
            _, runner = make_runner(parse_full_cfg(parser, argv))
            runner.register_observer(Watch(course))
            runner.init()
            runner.run()
    course.outcome(
        f"the last {EPISODES} training episodes",
        f"{COMMON['num_envs_per_worker']} environments, {COMMON['rollout']} steps each, {task.epochs} epochs,"
        f" minibatches of {COMMON['batch_size']}",
    ).print_json()


if __name__ == "__main__":
    main()
