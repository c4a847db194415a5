"""Vector environments that draw all their randomness from one generator, with one for each environment instead.

With one, what an environment draws depends on how many share it and on when the others reset: one seed would give other
episodes with every change of the number of environments or actors.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import Error
from gymnasium.utils import seeding
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from penstock.errors import ConfigurationError


class _Streams:
    """A generator for each environment, in the shape of one: `uniform(low, high, size=(4, 3))` and its like draw for
    the three environments that reset now, or for all, a column each.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        self.resetting: NDArray[np.intp] = np.arange(len(seeds))

    def __getattr__(self, distribution: str) -> Any:
        def draw(*parameters: Any, size: int | tuple[int, ...], **named: Any) -> NDArray[Any]:
            *shape, count = (size,) if isinstance(size, (int, np.integer)) else size
            if count == len(self.resetting):
                chosen = [self._generators[index] for index in self.resetting]
            elif count == len(self._generators):
                chosen = self._generators
            else:
                raise ConfigurationError(
                    f"the environment drew for {count} environments while {len(self.resetting)} of"
                    f" {len(self._generators)} were reset; use environment.vectorization sync"
                )
            if not chosen:
                return np.empty((*shape, 0))
            return np.stack(
                [getattr(one, distribution)(*parameters, size=tuple(shape), **named) for one in chosen], axis=-1
            )

        return draw


class SeparateGenerators(VectorWrapper[Any, Any, Any]):
    """A vector environment whose environments have seeds of their own, as `SyncVectorEnv`'s have.

    One that takes a list or an array of seeds is left to itself. One that has a single generator gets a stream for each
    environment in its place, which begins the episodes that a single environment of that seed would; since it must be
    known which environments reset in a step, its autoreset mode is to be NEXT_STEP.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._streams: _Streams | None = None

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int], options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes, each environment's generator seeded with its own number."""
        # Atari's takes an array, of C's integers.
        for seeds in (list(seed), np.array(seed) % 2**31):
            with contextlib.suppress(Error, TypeError):
                return self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]
        self._streams = _Streams(seed)
        self.env.unwrapped.np_random = self._streams  # type: ignore[assignment]
        begun = self.env.reset(options=options)
        self._streams.resetting = np.arange(0)
        return begun

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes a step."""
        outcome = self.env.step(actions)
        if self._streams is not None:
            self._streams.resetting = np.flatnonzero(outcome[2] | outcome[3])
        return outcome
