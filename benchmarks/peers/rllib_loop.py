"""RLlib APPO in its fastest configuration on two cores: one runner of 32 environments, and one learner."""

import contextlib
import os
import sys
import time

os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray
from ray.rllib.algorithms.appo import APPOConfig

from benchmarks.peers.loop_run import Course, Task

ENVIRONMENTS = 32
BATCH = 1024
EPISODES = 100
SETTINGS = {
    "CartPole-v1": {"lr": 1e-3, "gamma": 0.98, "num_epochs": 6},
    "Pendulum-v1": {"lr": 1e-3, "gamma": 0.9, "num_epochs": 6},
}


def main() -> None:
    """Trains, and prints the result."""
    task = Task.from_arguments()
    settings = SETTINGS[task.env_id]
    # Ray and its processes also print; stdout contains only the result.
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        config = (
            APPOConfig()
            .environment(task.env_id)
            .env_runners(
                num_env_runners=1, num_envs_per_env_runner=ENVIRONMENTS, rollout_fragment_length=BATCH // ENVIRONMENTS
            )
            .training(train_batch_size_per_learner=BATCH, **settings)
            .reporting(min_time_s_per_iteration=0, metrics_num_episodes_for_smoothing=EPISODES)
            .debugging(seed=task.seed, log_level="ERROR")
        )
        algorithm = config.build_algo()
        course, env_steps = Course(task.threshold), 0
        while env_steps < task.total_steps:
            results = algorithm.train()["env_runners"]
            env_steps = int(results.get("num_env_steps_sampled_lifetime", 0))
            course.add(time.perf_counter(), env_steps, float(results.get("episode_return_mean", float("nan"))))
        algorithm.stop()
        ray.shutdown()
    course.outcome(
        f"the last {EPISODES} training episodes",
        f"{ENVIRONMENTS} environments, batches of {BATCH}, {settings['num_epochs']} epochs",
    ).print_json()


if __name__ == "__main__":
    main()
