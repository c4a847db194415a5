"""Recorded frames of Pong and Breakout, the content of the replay benchmark's `frames` segments on both sides.

The frames are those of the presets: 84 x 84, grey, every fourth frame, of a random policy after step 60. They follow
from the seed, and are kept in `build/bench`. Reading imports nothing of Penstock, which the peer's environment lacks.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parents[1] / "build" / "bench" / "frames.npy"
STEPS, STACK = 32, 4
"""Steps of a segment, and frames of an observation."""

FRAMES = STEPS + STACK
"""Frames of a segment: of its observations and of the last one."""

SEGMENTS = 64
"""Segments in the file, half of them of each game."""

_ACTIONS = {"pong": 6, "breakout": 4}
"""Number of actions of each game."""

_FIRST_STEP, _SEED = 60, 1


def record() -> Path:
    """Returns the file of frames, <uint8>[SEGMENTS, FRAMES, 84, 84], and plays the games if it does not exist."""
    if not FILE.exists():
        FILE.parent.mkdir(parents=True, exist_ok=True)
        temporary = FILE.with_suffix(".tmp.npy")
        np.save(temporary, np.concatenate([_play(game) for game in _ACTIONS]))
        temporary.rename(FILE)
    return FILE


def recorded() -> NDArray[np.uint8]:
    """Returns the frames that `record` has kept, <uint8>[SEGMENTS, FRAMES, 84, 84]."""
    frames: NDArray[np.uint8] = np.load(FILE)
    return frames


def stacked(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns observations <uint8>[..., STEPS + 1, 84, 84, STACK] of segments' frames <uint8>[..., FRAMES, 84, 84]."""
    newest = [frames[..., place : place + STEPS + 1, :, :] for place in range(STACK)]
    return np.stack(newest, axis=-1)


def _play(game: str) -> NDArray[np.uint8]:
    """Returns <uint8>[SEGMENTS / 2, FRAMES, 84, 84] of one game, one environment per segment."""
    from ale_py.vector_env import AtariVectorEnv

    segments = SEGMENTS // len(_ACTIONS)
    environments = AtariVectorEnv(
        game, num_envs=segments, num_threads=1, stack_num=1, frameskip=4, repeat_action_probability=0.0
    )
    actions = np.random.default_rng(_SEED)
    environments.reset(seed=_SEED)
    frames = np.empty((segments, FRAMES, 84, 84), np.uint8)
    for step in range(_FIRST_STEP + FRAMES):
        observations, *_ = environments.step(actions.integers(0, _ACTIONS[game], segments))
        if step >= _FIRST_STEP:
            frames[:, step - _FIRST_STEP] = observations[:, 0]
    environments.close()
    return frames
