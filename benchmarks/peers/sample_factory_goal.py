"""Sample Factory's APPO with the settings of its example for CartPole-v1, judged until it is stopped.

The settings are those of the command line in `sf_examples.train_gym_env`. The judge plays in the main process while the
others go on, with the weights that the learner shares with all processes.
"""

import contextlib
import logging
import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.tensor_utils import unsqueeze_tensor
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import ActorCritic, create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from signal_slot.signal_slot import EventLoopObject

from benchmarks.peers import forwarding_wrappers  # noqa: F401
from benchmarks.peers.judge import Goal, Judge

SETTINGS = {
    "algo": "APPO",
    "use_rnn": False,
    "num_envs_per_worker": 20,
    "policy_workers_per_policy": 2,
    "recurrence": 1,
    "with_vtrace": False,
    "batch_size": 512,
    "reward_scale": 0.1,
    "save_every_sec": 10,
    "experiment_summaries_interval": 10,
    "device": "cpu",
}


def make_environment(name: str, *_: object, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Creates one environment; the workers find this function by its name."""
    return gymnasium.make(name, render_mode=render_mode)


class Weights(EventLoopObject):
    """The weights that the learner shares, which it sends once."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.event_loop, "judge")
        self.shared: dict[str, torch.Tensor] | None = None

    def take(self, initial: tuple[int, dict[str, torch.Tensor], object, int]) -> None:
        """Receives them."""
        self.shared = initial[1]


class Judged(AlgoObserver):
    """Lets the judge look at the policy after every batch."""

    def __init__(self, goal: Goal) -> None:
        self._judge, self._env_id = Judge(goal), goal.env_id
        self._weights: Weights | None = None
        self._policy: ActorCritic | None = None

    def on_connect_components(self, runner: Runner) -> None:
        """Asks for the weights."""
        self._weights = Weights(runner)
        runner.learners[0].model_initialized.connect(self._weights.take)

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Lets the judge look."""
        shared = None if self._weights is None else self._weights.shared
        if shared is not None:
            self._judge.look(sum(runner.env_steps.values()), self._act(runner, shared))

    def _act(self, runner: Runner, shared: dict[str, torch.Tensor]) -> Any:
        if self._policy is None:
            environment = gymnasium.make(self._env_id)
            observations = gymnasium.spaces.Dict({"obs": environment.observation_space})
            self._space: Any = environment.action_space
            self._policy = create_actor_critic(runner.cfg, observations, environment.action_space)
            self._policy.eval()
        policy, space = self._policy, self._space
        loaded = False

        @torch.no_grad()
        def act(observation: NDArray[np.float32]) -> NDArray[np.generic]:
            nonlocal loaded
            if not loaded:
                policy.load_state_dict(shared)
                loaded = True
            # A copy, because it normalises in place.
            normal = policy.normalize_obs({"obs": torch.from_numpy(observation.copy())})
            state = torch.zeros(len(observation), get_rnn_size(runner.cfg))
            policy(normal, state)
            action = argmax_actions(policy.action_distribution())
            if not space.shape:
                chosen: NDArray[np.generic] = action.reshape(-1).numpy()
                return chosen
            if action.ndim == 1:
                action = unsqueeze_tensor(action, dim=-1)
            clipped: NDArray[np.generic] = np.clip(action.numpy(), space.low, space.high)
            return clipped

        return act


def main() -> None:
    """Trains."""
    goal = Goal.from_arguments()
    torch.set_num_threads(1)
    register_env(goal.env_id, make_environment)
    settings = {
        **SETTINGS,
        "env": goal.env_id,
        "seed": goal.seed,
        "train_dir": str(goal.journal.parent),
        "experiment": "goal",
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    parser, _ = parse_sf_args(words)
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(sys.stderr):
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Judged(goal))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
