"""Stable-Baselines3 PPO with rl-zoo's settings on any task of `benchmarks.peers.zoo_settings`, as rl-zoo sets it up.

As in rl-zoo, environments are stepped one after the other, and evaluations use the statistics of training and count
unscaled rewards. There is one torch thread. The whole run is trained, also beyond the threshold.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from benchmarks.peers.loop_run import Task
from benchmarks.peers.sb3_evaluations import EPISODES, Evaluations, linear
from benchmarks.peers.zoo_settings import SETTINGS, Policy, Settings

_SCHEDULE = "lin_"


@dataclass(frozen=True, slots=True)
class ZooTask(Task):
    """A training run, and the actions by which it is judged."""

    actions: str = field(metadata={"choices": ("deterministic", "sampled")})


def model_of(settings: Settings, envs: VecEnv, seed: int) -> PPO:
    """Returns the untrained model."""
    return PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        policy_kwargs=_policy_arguments(settings.policy),
        **{name: _parsed(value) for name, value in settings.ppo.items()},
    )


def environments_of(settings: Settings, task: Task) -> tuple[VecEnv, VecEnv]:
    """Returns the environments to train and those to evaluate in, with a common state of normalisation."""
    wrapper = _class_of(settings.wrapper) if settings.wrapper else None
    envs = make_vec_env(task.env_id, settings.environments, task.seed, wrapper_class=wrapper)
    watched = make_vec_env(task.env_id, EPISODES, task.seed + 10**6, wrapper_class=wrapper)
    if not settings.normalise:
        return envs, watched
    envs = VecNormalize(envs, gamma=settings.ppo["gamma"])
    watched = VecNormalize(watched, training=False, norm_reward=False)
    watched.obs_rms = envs.obs_rms
    return envs, watched


def _parsed(value: float | bool | str) -> Any:
    return linear(float(value.removeprefix(_SCHEDULE))) if isinstance(value, str) else value


def _policy_arguments(policy: Policy) -> dict[str, Any]:
    hidden = list(policy.hidden_sizes)
    return {
        "log_std_init": policy.log_std_init,
        "ortho_init": policy.ortho_init,
        "activation_fn": getattr(nn, policy.activation),
        "net_arch": {"pi": hidden, "vf": hidden},
    }


def _class_of(name: str) -> Any:
    module, _, member = name.partition(":")
    return getattr(importlib.import_module(module), member)


def main() -> None:
    """Trains, and prints the result."""
    task = ZooTask.from_arguments()
    torch.set_num_threads(1)
    settings = SETTINGS[task.env_id]
    envs, watched = environments_of(settings, task)
    evaluations = Evaluations(task, watched, deterministic=task.actions == "deterministic")
    model_of(settings, envs, task.seed).learn(task.total_steps, callback=evaluations)
    evaluations.course.outcome(f"{EPISODES} episodes with {task.actions} actions", settings.describe()).print_json()


if __name__ == "__main__":
    main()
