"""A pendulum in torch, vectorised, as simulators on a GPU are."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

STEPS = 200
FAR = 10_000.0


class TensorPendulum(VectorEnv[Any, Any, Any]):
    """Pendulum-v1 with its physics, on a device. It never waits for the device.

    It resets in the last step of an episode, with the `final` observation, or in the step after it (`next_step`). An
    observation is a Dict if it is `nested`, and has 64 bits if it is `far`, around 10,000. A `fault` replaces a value.
    """

    def __init__(
        self,
        num_envs: int = 1,
        device: str = "cpu",
        nested: bool = False,
        final: bool = True,
        next_step: bool = False,
        far: bool = False,
        fault: str = "",
    ) -> None:
        self.num_envs, self.device, self._nested, self._final = num_envs, torch.device(device), nested, final
        self._next_step, self._far, self._fault = next_step, far, fault
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP if next_step else AutoresetMode.SAME_STEP}
        high = np.array([1.0, 1.0, 8.0], np.float32)
        box = spaces.Box(FAR - high, FAR + high, dtype=np.float64) if far else spaces.Box(-high, high)
        self.single_observation_space = spaces.Dict({"policy": box}) if nested else box
        self.single_action_space = spaces.Box(-2.0, 2.0, (1,))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generator = torch.Generator(self.device)
        self._angle = self._speed = self._steps = torch.zeros(num_envs, device=self.device)
        self._ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

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
        resetting, self._ended = self._ended if self._next_step else truncated, truncated
        drawn = self._drawn()
        self._angle, self._speed = (
            torch.where(resetting, new, old) for new, old in zip(drawn, (self._angle, self._speed), strict=True)
        )
        self._steps = torch.where(resetting, 0, self._steps)
        if self._next_step:
            truncated, reward = truncated & ~resetting, torch.where(resetting, 0.0, reward)
            self._ended = truncated
        infos = {"final_obs": final} if self._final else {}
        observed: Any = self._observed()
        if self._fault == "array":
            observed = observed.numpy()
        elif self._fault == "narrow":
            observed = observed[:, :2]
        elif self._fault == "nan":
            observed = torch.where(self._steps[:, None] == STEPS // 2, torch.nan, observed)
        elif self._fault == "rewards":
            reward = torch.stack((reward, reward), 1)
        return observed, reward, torch.zeros_like(truncated), truncated, infos

    def _drawn(self) -> tuple[Tensor, Tensor]:
        drawn = torch.rand(2, self.num_envs, generator=self._generator, device=self.device) * 2.0 - 1.0
        return drawn[0] * torch.pi, drawn[1]

    def _observed(self) -> Any:
        """Returns the observations; arrays in place of tensors if the fault is "arrays"."""
        values = torch.stack([self._angle.cos(), self._angle.sin(), self._speed], 1)
        values = values.double() + FAR if self._far else values
        if self._fault == "arrays":
            return values.numpy()
        return {"policy": values} if self._nested else values
