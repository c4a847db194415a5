"""Emulators in PufferLib's `Multiprocessing`, with a worker process for each. It stacks no frames."""

import json
import sys
from typing import Any

import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.peers.retro_game import SkippedGame, measure


def _game(buf: Any = None, seed: int = 0, **unused: Any) -> Any:
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=SkippedGame, buf=buf, seed=seed)


def main() -> None:
    """Measures as many emulators as the first argument says, for the seconds of the second."""
    count, seconds = int(sys.argv[1]), float(sys.argv[2])
    envs = pufferlib.vector.make(
        _game, backend=pufferlib.vector.Multiprocessing, num_envs=count, num_workers=count, overwork=True
    )
    envs.reset(seed=0)
    actions = np.zeros((count, 3), np.int32)
    measure(lambda: envs.step(actions), count, 0.5)
    print(json.dumps(measure(lambda: envs.step(actions), count, seconds)), flush=True)
    envs.close()


if __name__ == "__main__":
    main()
