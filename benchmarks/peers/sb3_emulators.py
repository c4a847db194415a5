"""Emulators in Stable-Baselines3's `SubprocVecEnv`, with the four stacked frames of its `VecFrameStack`."""

import json
import sys

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

from benchmarks.peers.retro_game import SkippedGame, measure


def main() -> None:
    """Measures as many emulators as the first argument says, for the seconds of the second."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    envs = VecFrameStack(SubprocVecEnv([SkippedGame] * count), n_stack=4)
    envs.reset()
    actions = np.zeros((count, 3), np.int64)
    measure(lambda: envs.step(actions), count, 0.5)
    print(json.dumps(measure(lambda: envs.step(actions), count, seconds)))
    envs.close()


if __name__ == "__main__":
    main()
