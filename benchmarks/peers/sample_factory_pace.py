"""Sample Factory's asynchronous PPO on the work of `benchmarks.peers.equal_work`, with batched sampling.

One worker steps all environments together. Each pass over a batch takes all of its minibatches, and the worker collects
the next batch meanwhile. Sample Factory computes the values of a batch once more when it has arrived.
"""

import contextlib
import logging
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.peers import equal_work, forwarding_wrappers  # noqa: F401
from benchmarks.peers.equal_work import VECTOR_ENVIRONMENTS, Work
from benchmarks.peers.journal import Journal


class Environments(gymnasium.Env[Any, Any]):
    """A vector environment of Gymnasium as one environment of Sample Factory with as many agents."""

    def __init__(self, env_id: str) -> None:
        self._envs = VECTOR_ENVIRONMENTS[env_id](num_envs=equal_work.ENVIRONMENTS)
        self.num_agents, self.is_multiagent = self._envs.num_envs, True
        self.observation_space = self._envs.single_observation_space
        self.action_space = self._envs.single_action_space
        self.render_mode = None
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_agents)]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins all episodes."""
        return self._envs.reset(seed=seed)[0], self._infos

    def step(self, action: Any) -> Any:
        """Steps all environments, with actions [N] or [N, dimensions] as a tensor or an array."""
        taken = np.asarray(action)
        observation, reward, terminated, truncated, _ = self._envs.step(taken)
        return observation, reward.astype(np.float32), terminated, truncated, self._infos


def make_environment(name: str, *_: object, render_mode: str | None = None) -> Environments:
    """Makes the environments of the worker, which finds this function by its name."""
    return Environments(name)


class Notes(AlgoObserver):
    """Notes the environment steps in the journal after every batch."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._noted = journal, 0

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Notes the steps, if there are new ones."""
        env_steps = sum(runner.env_steps.values())
        if env_steps > self._noted:
            self._noted = env_steps
            self._journal.trained(env_steps)


def settings_of(work: Work) -> dict[str, object]:
    """Returns Sample Factory's settings."""
    return {
        "algo": "APPO",
        "env": work.env_id,
        "seed": work.seed,
        "train_dir": str(work.journal.parent),
        "experiment": "pace",
        "train_for_env_steps": equal_work.ENDLESS_STEPS,
        "device": "cpu",
        "batched_sampling": True,
        "num_workers": 1,
        "num_envs_per_worker": 1,
        "worker_num_splits": 1,
        "rollout": equal_work.SEGMENT_STEPS,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.minibatches,
        "num_epochs": equal_work.EPOCHS,
        "shuffle_minibatches": True,
        "with_vtrace": False,
        "normalize_input": False,
        "normalize_returns": False,
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "continuous_tanh_scale": 0.0,
        "encoder_mlp_layers": list(work.hidden),
        "nonlinearity": "tanh",
        "learning_rate": equal_work.LEARNING_RATE,
        "gamma": equal_work.DISCOUNT,
        "gae_lambda": equal_work.TRACE_DECAY,
        "ppo_clip_ratio": equal_work.CLIP_RANGE,
        "ppo_clip_value": 1e6,
        "exploration_loss_coeff": equal_work.ENTROPY_COEFFICIENT,
        "value_loss_coeff": equal_work.VALUE_COEFFICIENT,
        "max_grad_norm": equal_work.MAX_GRADIENT_NORM,
        "reward_scale": 0.01,
        "save_every_sec": 100_000,
        "save_best_every_sec": 100_000,
        "set_workers_cpu_affinity": False,
    }


def words_of(settings: dict[str, object]) -> list[str]:
    """Returns settings as words of Sample Factory's command line."""
    words = [f"--{name}={value}" for name, value in settings.items() if not isinstance(value, list)]
    for name, value in settings.items():
        if isinstance(value, list):
            words += [f"--{name}", *map(str, value)]
    return words


def main() -> None:
    """Trains until it is stopped."""
    work = Work.from_arguments()
    torch.set_num_threads(1)
    register_env(work.env_id, make_environment)
    words = words_of(settings_of(work))
    parser, _ = parse_sf_args(words)
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Notes(work.open_journal()))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
