"""The game of `benchmarks.emulators` for the peers: stable-retro with a skip of four frames, and small grey pictures.

The environments of the peers have no Penstock. So this module loads Penstock's preprocessing of pictures, which needs
NumPy alone, from its file, and all systems see the same pictures.
"""

import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import stable_retro
from numpy.typing import NDArray

GAME, SCREEN, SIZE, FRAME_SKIP = "Airstriker-Genesis-v0", (224, 320), 84, 4
_PICTURES = Path(__file__).parents[2] / "services/penstock/acting/environments/emulators/pictures.py"


class SkippedGame(gymnasium.Env[NDArray[np.uint8], Any]):
    """The game, whose step holds its buttons for four frames.

    Its emulator is made in the first reset, because PufferLib makes two environments in each process, and uses one.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = None

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
    action_space = gymnasium.spaces.MultiDiscrete([3, 3, 14])

    def __init__(self) -> None:
        self._game: Any = None
        spec = importlib.util.spec_from_file_location("pictures", _PICTURES)
        assert spec is not None and spec.loader is not None
        pictures = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(pictures)
        self._shrink = pictures.Shrinker(SCREEN, (SIZE, SIZE))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode."""
        if self._game is None:
            actions = stable_retro.Actions.MULTI_DISCRETE
            self._game = stable_retro.RetroEnv(GAME, use_restricted_actions=actions, render_mode="rgb_array")
        observation, info = self._game.reset(seed=seed)
        return self._shrink(observation)[..., None], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes a step, as the example of stable-retro does."""
        total, ended = 0.0, False
        for _ in range(FRAME_SKIP):
            observation, reward, ended, _, info = self._game.step(action)
            total += reward
            if ended:
                break
        return self._shrink(observation)[..., None], total, ended, False, info


def measure(step: Callable[[], object], count: int, seconds: float) -> dict[str, float]:
    """Returns steps per second, and the memory of this process and of all its children in bytes.

    Memory is the proportional set size, in which memory that k processes share counts 1 / k times for each of them.
    """
    steps, started = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < seconds:
        step()
        steps += count
    processes = [psutil.Process(os.getpid()), *psutil.Process().children(recursive=True)]
    own, *children = (each.memory_full_info().pss for each in processes)
    return {"steps_per_s": steps / elapsed_s, "own_bytes": own, "children_bytes": sum(children)}
