"""Vectorised forms of Pendulum-v1 and Acrobot-v1, for which Gymnasium has none.

Each form starts the same episodes as Gymnasium's single environments with the same seeds, and takes the same steps with
the same actions, bit for bit. Its operations are those of the original in the same order, on arrays of N numbers, which
NumPy rounds as it does one number. `choice` gives the forms to `gymnasium.make_vec`.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


class Motion(Protocol):
    """The equations of N environments, whose state is <float64>[K, N]."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def begin(self, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
        """Draws the first state of an episode, [K], in the type in which it is observed."""

    def advance(self, state: Numbers, action: NDArray[Any]) -> tuple[Numbers, NDArray[Any], NDArray[np.bool_]]:
        """Returns the next state, the rewards [N], and whether the episodes terminate, <bool>[N]."""

    def observe(self, state: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Returns the observations, <float32>[N, ...]."""


class MovingEnvironments(VectorEnv[Any, Any, Any]):
    """N environments of one motion, in NEXT_STEP autoreset mode. It draws only for environments that reset."""

    def __init__(self, motion: Motion, num_envs: int, max_episode_steps: int) -> None:
        """Truncates episodes after `max_episode_steps`. Raises `ValueError` if that is below 1."""
        if max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, not {max_episode_steps}")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self._motion, self._limit = num_envs, motion, max_episode_steps
        self.single_observation_space, self.single_action_space = motion.observation_space, motion.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._steps, self._ended = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.bool_)
        self._state: Numbers = np.zeros((0, num_envs))

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts new episodes. Each environment has its own seed; the number i means i, i + 1, and so on."""
        seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
        if seeds is not None:
            self._generators = [seeding.np_random(each)[0] for each in seeds]
        begun = self._begun(range(self.num_envs))
        self._state = begun.astype(np.float64)
        self._steps[:], self._ended[:] = 0, False
        return self._motion.observe(begun), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one step in each environment, in which those that ended in the last step reset."""
        self._state, reward, terminated = self._motion.advance(self._state, actions)
        observation = self._motion.observe(self._state)
        self._steps += 1
        truncated = self._steps >= self._limit
        if self._ended.any():
            rows = self._ended.nonzero()[0]
            begun = self._begun(rows.tolist())
            self._state[:, rows], observation[rows] = begun, self._motion.observe(begun)
            self._steps[rows], reward[rows], terminated[rows], truncated[rows] = 0, 0.0, False, False
        self._ended = terminated | truncated
        return observation, reward, terminated, truncated, {}

    def _begun(self, rows: Collection[int]) -> NDArray[np.floating[Any]]:
        """Returns first states, [K, rows], in contiguous memory, which NumPy's functions round as single numbers."""
        return np.ascontiguousarray(np.array([self._motion.begin(self._generators[row]) for row in rows]).T)


_PRODUCT = (np.float32(1.0) * 1.0).dtype
"""Type of the product of a float32 number and one of Python's, as in the originals: float64 before NumPy 2."""


class Pendulum:
    """The equations of Gymnasium's Pendulum-v1. The state is the angle and its speed."""

    _MAX_SPEED, _MAX_TORQUE, _STEP_S, _MASS, _LENGTH = 8, 2.0, 0.05, 1.0, 1.0

    def __init__(self, g: float) -> None:
        """Takes the acceleration of gravity."""
        high = np.array([1.0, 1.0, self._MAX_SPEED], np.float32)
        self.observation_space: gymnasium.Space[Any] = spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gymnasium.Space[Any] = spaces.Box(-self._MAX_TORQUE, self._MAX_TORQUE, (1,), np.float32)
        self._high, self._g = np.array([np.pi, 1.0]), g

    def begin(self, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
        """Draws an angle and a speed."""
        return generator.uniform(low=-self._high, high=self._high)

    def advance(self, state: Numbers, action: NDArray[Any]) -> tuple[Numbers, NDArray[Any], NDArray[np.bool_]]:
        """Applies a torque, <float32>[N, 1], for one step."""
        angle, speed = state
        torque = np.clip(action[:, 0], -self._MAX_TORQUE, self._MAX_TORQUE).astype(_PRODUCT, copy=False)
        distance = ((angle + np.pi) % (2 * np.pi)) - np.pi
        costs = _square(distance) + 0.1 * _square(speed) + 0.001 * _square(torque)
        gravity = 3 * self._g / (2 * self._LENGTH) * np.sin(angle)
        moved = np.empty_like(state)
        speed = speed + (gravity + 3.0 / (self._MASS * self._LENGTH**2) * torque) * self._STEP_S
        np.clip(speed, -self._MAX_SPEED, self._MAX_SPEED, out=moved[1])
        np.add(angle, moved[1] * self._STEP_S, out=moved[0])
        return moved, -costs, np.zeros(len(costs), np.bool_)

    def observe(self, state: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Returns cosine and sine of the angle, and the speed."""
        angle, speed = state
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1, dtype=np.float32, casting="same_kind")


class Acrobot:
    """The equations of Gymnasium's Acrobot-v1, of the book. The state is two angles and their speeds.

    Lengths and masses are 1, and centres of mass are at 0.5.
    """

    _STEP_S, _GRAVITY, _CENTRE, _INERTIA = 0.2, 9.8, 0.5, 1.0
    _MAX_SPEEDS = (4 * np.pi, 9 * np.pi)

    def __init__(self) -> None:
        high = np.array([1.0, 1.0, 1.0, 1.0, *self._MAX_SPEEDS], np.float32)
        self.observation_space: gymnasium.Space[Any] = spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gymnasium.Space[Any] = spaces.Discrete(3)

    def begin(self, generator: np.random.Generator) -> NDArray[np.floating[Any]]:
        """Draws two angles and two speeds, which the original keeps and observes as float32."""
        return generator.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)

    def advance(self, state: Numbers, action: NDArray[Any]) -> tuple[Numbers, NDArray[Any], NDArray[np.bool_]]:
        """Applies a torque of -1, 0 or 1, <int>[N], for one step of the Runge-Kutta method of fourth order."""
        torque, step = action - 1.0, self._STEP_S
        first = self._slopes(state, torque)
        second = self._slopes(state + step / 2.0 * first, torque)
        third = self._slopes(state + step / 2.0 * second, torque)
        fourth = self._slopes(state + step * third, torque)
        moved = state + step / 6.0 * (first + 2 * second + 2 * third + fourth)
        for angle in moved[:2]:
            _wrap(angle)
        for speed, most in zip(moved[2:], self._MAX_SPEEDS, strict=True):
            np.clip(speed, -most, most, out=speed)
        terminated = -np.cos(moved[0]) - np.cos(moved[1] + moved[0]) > 1.0
        return moved, np.where(terminated, 0.0, -1.0), terminated

    def observe(self, state: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Returns cosine and sine of both angles, and the speeds."""
        cosines, sines = np.cos(state[:2]), np.sin(state[:2])
        parts = [cosines[0], sines[0], cosines[1], sines[1], state[2], state[3]]
        return np.stack(parts, axis=1, dtype=np.float32, casting="same_kind")

    def _slopes(self, state: Numbers, torque: NDArray[Any]) -> Numbers:
        """Returns the derivative of the state, <float64>[4, N]."""
        (angle1, angle2, speed1, speed2), centre, inertia = state, self._CENTRE, self._INERTIA
        cosine, sine, square1 = np.cos(angle2), np.sin(angle2), centre**2
        d1 = square1 + (1.0 + square1 + 2 * centre * cosine) + inertia + inertia
        d2 = (square1 + centre * cosine) + inertia
        phi2 = centre * self._GRAVITY * np.cos(angle1 + angle2 - math.pi / 2.0)
        phi1 = (
            -centre * _square(speed2) * sine
            - 2 * centre * speed2 * speed1 * sine
            + (centre + 1.0) * self._GRAVITY * np.cos(angle1 - math.pi / 2)
            + phi2
        )
        slopes = np.empty_like(state)
        slopes[:2] = state[2:]
        turning = torque + d2 / d1 * phi1 - centre * _square(speed1) * sine - phi2
        slopes[3] = turning / (square1 + inertia - _square(d2) / d1)
        slopes[2] = -(d2 * slopes[3] + phi1) / d1
        return slopes


def pendulum(num_envs: int = 1, max_episode_steps: int = 200, g: float = 10.0) -> MovingEnvironments:
    """Returns N pendulums, with the arguments of Gymnasium's environment that change an episode."""
    return MovingEnvironments(Pendulum(g), num_envs, max_episode_steps)


def acrobot(num_envs: int = 1, max_episode_steps: int = 500) -> MovingEnvironments:
    """Returns N acrobots."""
    return MovingEnvironments(Acrobot(), num_envs, max_episode_steps)


def _square(values: NDArray[Any]) -> NDArray[Any]:
    """Returns squares, <floating>[N], as `number ** 2` of the originals rounds them: by the C library's power.

    `array ** 2` multiplies, and `np.power` of arrays rounds in another way on processors with AVX-512.
    """
    if values.dtype == np.float64:
        squares: NDArray[Any] = np.float_power(values, 2.0)
        return squares
    two = values.dtype.type(2.0)
    return np.fromiter((number**two for number in values), values.dtype, values.size)


def _wrap(angle: Numbers) -> None:
    """Brings angles between -pi and pi, in place, by whole turns, one after another as the original does."""
    while (above := angle > math.pi).any():
        angle[above] -= 2 * math.pi
    while (below := angle < -math.pi).any():
        angle[below] += 2 * math.pi
