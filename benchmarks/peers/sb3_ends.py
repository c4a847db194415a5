"""Stable-Baselines3's PPO on the chain of examples/episode_ends.py, with its defaults but for `Task` and the chain."""

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.peers.ends_run import ENV_ID, ENVIRONMENTS, Task, observations, print_values
from benchmarks.peers.sb3_evaluations import linear
from examples.episode_ends import DISCOUNT


def main() -> None:
    """Trains, and prints the values."""
    task = Task.from_arguments()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env(ENV_ID, ENVIRONMENTS, task.seed),
        n_steps=task.segment_steps,
        batch_size=ENVIRONMENTS * task.segment_steps // 4,
        learning_rate=linear(task.learning_rate),
        gamma=DISCOUNT,
        gae_lambda=0.0,
        seed=task.seed,
    )
    model.learn(task.total_steps)
    with torch.no_grad():
        values = model.policy.predict_values(torch.from_numpy(observations()))
    print_values(values.numpy(), "stable-baselines3", "gymnasium")


if __name__ == "__main__":
    main()
