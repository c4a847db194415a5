"""Stable-Baselines3's PPO on the work of `benchmarks.peers.equal_work`.

Gymnasium's vector environment is given to it as a `VecEnv`. Such an environment resets itself in the step after the
last one of an episode, so that SB3 trains also on that row, and gets no `terminal_observation`.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.peers import equal_work
from benchmarks.peers.equal_work import Work
from benchmarks.peers.journal import Journal


class GymnasiumVector(VecEnv):
    """A vector environment of Gymnasium with the interface of Stable-Baselines3."""

    def __init__(self, work: Work) -> None:
        self._envs, self._seed = work.make(), work.seed
        super().__init__(self._envs.num_envs, self._envs.single_observation_space, self._envs.single_action_space)
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._action: NDArray[Any] = np.zeros(0)

    def reset(self) -> NDArray[np.float32]:
        """Begins all episodes."""
        observation: NDArray[np.float32] = self._envs.reset(seed=self._seed)[0]
        return observation

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keeps the actions of the next step."""
        self._action = actions

    def step_wait(self) -> Any:
        """Steps all environments."""
        observation, reward, terminated, truncated, _ = self._envs.step(self._action)
        return observation, reward, terminated | truncated, self._infos

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Returns an attribute that all environments have, or None."""
        return [getattr(self._envs, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Is not needed here."""
        raise NotImplementedError("the environments are one object")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Is not needed here."""
        raise NotImplementedError("the environments are one object")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Returns that no environment is wrapped."""
        return [False] * self.num_envs


class Notes(BaseCallback):
    """Notes the environment steps in the journal before each rollout."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._journal.trained(self.num_timesteps)


def main() -> None:
    """Trains until it is stopped."""
    work = Work.from_arguments()
    torch.set_num_threads(1)
    hidden = list(work.hidden)
    model = PPO(
        "MlpPolicy",
        GymnasiumVector(work),
        learning_rate=equal_work.LEARNING_RATE,
        n_steps=equal_work.SEGMENT_STEPS,
        batch_size=work.minibatch,
        n_epochs=equal_work.EPOCHS,
        gamma=equal_work.DISCOUNT,
        gae_lambda=equal_work.TRACE_DECAY,
        clip_range=equal_work.CLIP_RANGE,
        ent_coef=equal_work.ENTROPY_COEFFICIENT,
        vf_coef=equal_work.VALUE_COEFFICIENT,
        max_grad_norm=equal_work.MAX_GRADIENT_NORM,
        policy_kwargs={"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": torch.nn.Tanh},
        seed=work.seed,
        device="cpu",
    )
    model.learn(equal_work.ENDLESS_STEPS, callback=Notes(work.open_journal()))


if __name__ == "__main__":
    main()
