"""A pendulum in torch, vectorised, that resets in the last step of an episode, as simulators on a GPU do."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

STEPS = 200


class TensorPendulum(VectorEnv[Any, Any, Any]):
    """Pendulum-v1 with its physics, on a device. An observation is a Dict if it is `nested`."""

    def __init__(self, num_envs: int = 1, device: str = "cpu", nested: bool = False, final: bool = True) -> None:
        self.num_envs, self.device, self._nested, self._final = num_envs, torch.device(device), nested, final
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        high = np.array([1.0, 1.0, 8.0], np.float32)
        box = spaces.Box(-high, high)
        self.single_observation_space = spaces.Dict({"policy": box}) if nested else box
        self.single_action_space = spaces.Box(-2.0, 2.0, (1,))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generator = torch.Generator(self.device)
        self._angle = self._speed = self._steps = torch.zeros(num_envs, device=self.device)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        assert isinstance(seed, int)
        self._generator.manual_seed(seed)
        self._angle, self._speed = self._drawn()
        # Episodes end at different times.
        self._steps = torch.arange(self.num_envs, device=self.device) % STEPS
        return self._observed(), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        assert isinstance(actions, Tensor) and actions.device == self.device
        torque = actions[:, 0].clamp(-2.0, 2.0)
        angle = (self._angle + torch.pi) % (2.0 * torch.pi) - torch.pi
        reward = -(angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2)
        self._speed = (self._speed + (15.0 * torch.sin(self._angle) + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        self._angle, self._steps = self._angle + self._speed * 0.05, self._steps + 1
        truncated, final = self._steps >= STEPS, self._observed()
        drawn = self._drawn()
        self._angle, self._speed = (
            torch.where(truncated, new, old) for new, old in zip(drawn, (self._angle, self._speed), strict=True)
        )
        self._steps = torch.where(truncated, 0, self._steps)
        infos = {"final_obs": final} if self._final and truncated.any() else {}
        return self._observed(), reward, torch.zeros_like(truncated), truncated, infos

    def _drawn(self) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(2, self.num_envs, generator=self._generator, device=self.device) * 2.0 - 1.0
        return drawn[0] * torch.pi, drawn[1]

    def _observed(self) -> Any:
        values = torch.stack([self._angle.cos(), self._angle.sin(), self._speed], 1)
        return {"policy": values} if self._nested else values
