"""Gives each environment of a vector environment its own random generator.

With a shared generator, the numbers that an environment draws depend on how many environments share it and on when the
others reset. The same seed would give different episodes after a change in the number of environments or actors.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import Error
from gymnasium.utils import seeding
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from penstock.acting.environments.wrappers.vector_wrapper import VectorWrapper
from penstock.acting.values.returned_values import column_of
from penstock.errors import ConfigurationError


class _Streams:
    """One generator per environment, with the interface of a single generator.

    `uniform(low, high, size=(4, 3))` and similar methods draw one column for each of three environments: those that
    reset in this step, or all. They cost nothing for environments that do not reset.

    Attributes:
        resetting: Indices of the environments that reset in this step.
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [seeding.np_random(seed)[0] for seed in seeds]
        self.resetting: Sequence[int] = range(len(seeds))

    def __getattr__(self, distribution: str) -> Any:
        draws = [getattr(each, distribution) for each in self._generators]

        def draw(*parameters: Any, size: int | tuple[int, ...], **named: Any) -> NDArray[Any]:
            *shape, count = size if isinstance(size, tuple) else (size,)
            chosen = self._chosen(count)
            if not chosen:
                return np.empty(size)
            drawn = np.array([draws[index](*parameters, size=tuple(shape), **named) for index in chosen])
            return drawn.transpose(*range(1, drawn.ndim), 0)

        # The next access finds it without a call of this method.
        setattr(self, distribution, draw)
        return draw

    def _chosen(self, count: int) -> Sequence[int]:
        """Returns the indices of the environments that draw."""
        if count == len(self.resetting):
            return self.resetting
        if count == len(self._generators):
            return range(len(self._generators))
        raise ConfigurationError(
            f"the environment drew for {count} environments while {len(self.resetting)} of {len(self._generators)} were"
            " reset; use environment.vectorization sync"
        )


class SeparateGenerators(VectorWrapper):
    """A vector environment with one seed per environment, like `SyncVectorEnv`.

    A vector environment that accepts a list or an array of seeds is used unchanged. Otherwise a stream per environment
    replaces its single generator and starts the same episodes as a single environment with that seed. Its autoreset
    mode must then be NEXT_STEP, because the environments that reset in a step must be known.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._streams: _Streams | None = None

    def reset(  # type: ignore[override]
        self, *, seed: Sequence[int], options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts new episodes; each environment's generator gets its own seed."""
        # Atari's vector environment takes an array of C integers.
        for seeds in (list(seed), np.array(seed) % 2**31):
            with contextlib.suppress(Error, TypeError):
                return self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]
        self._streams = _Streams(seed)
        self.env.unwrapped.np_random = self._streams  # type: ignore[assignment]
        begun = self.env.reset(options=options)
        self._streams.resetting = ()
        return begun

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step in each environment."""
        outcome = self.env.step(actions)
        if self._streams is not None:
            terminated, truncated = (column_of(ended, self.num_envs) for ended in outcome[2:4])
            self._streams.resetting = (terminated | truncated).nonzero()[0].tolist()
        return outcome
