"""Environments that play another variant in each episode, so that few actors collect in many variants.

The environments of one process share their turns: the next episode is of the variant that has the fewest steps for its
share. An environment that was played is kept for the next episode of its variant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from penstock.acting.environments.wrappers.named import Wrapping
from penstock.acting.values.masks import METHOD
from penstock.errors import ConfigurationError
from penstock.machine import foreign_errors

KEY = "penstock.variant"
"""Key of the infos after a reset that has the number of the variant."""

_RECENT = 0.1
"""Weight of an episode's length in the mean length of its variant."""


@dataclass(frozen=True, slots=True)
class Variation:
    """A variant as environments are made for it.

    Attributes:
        number: Its number in the run.
        kwargs: All arguments of its environments.
        wrappers: All wrappers around them.
        share: Its share of the steps, above 0, relative to the other variants.
    """

    number: int
    kwargs: Mapping[str, Any]
    wrappers: Sequence[Wrapping] = ()
    share: float = 1.0


class Turns:
    """Which variant the next episode of an environment plays. Used by one thread.

    Attributes:
        variations: The variants, at least one.
        changes: Number of changes of `variations`.
    """

    def __init__(self, variations: Sequence[Variation]) -> None:
        self.variations: tuple[Variation, ...] = ()
        self.changes = -1
        # Steps over the share, and the mean length of an episode, by number.
        self._steps: dict[int, float] = {}
        self._lengths: dict[int, float] = {}
        self._first: int | None = None
        self.change(variations)

    def change(self, variations: Sequence[Variation]) -> None:
        """Replaces the variants. Episodes in progress go on, and a new variant is as far as the last one of the others.

        Otherwise a variant that comes later would get all episodes until it has caught up.
        """
        known = [self._steps[each.number] for each in variations if each.number in self._steps]
        least = min(known, default=0.0)
        self.variations, self.changes = tuple(variations), self.changes + 1
        self._steps = {each.number: self._steps.get(each.number, least) for each in variations}
        self._lengths = {number: length for number, length in self._lengths.items() if number in self._steps}

    def start_at(self, seed: int) -> None:
        """Begins with a variant that depends on the seed, so that actors begin with different ones. Once."""
        if self._first is None:
            self._first = seed % len(self.variations)
            self.variations = self.variations[self._first :] + self.variations[: self._first]

    def begin(self) -> tuple[Variation, float]:
        """Returns the variant of the next episode, and the steps that it is expected to take, which count from now."""
        chosen = min(self.variations, key=lambda each: self._steps[each.number])
        mean = sum(self._lengths.values()) / len(self._lengths) if self._lengths else 1.0
        expected = self._lengths.get(chosen.number, mean)
        self._steps[chosen.number] += expected / chosen.share
        return chosen, expected

    def end(self, played: Variation, expected: float, steps: int) -> None:
        """Counts an episode that took `steps` in place of the expected ones."""
        if played.number in self._steps:
            self._steps[played.number] += (steps - expected) / played.share
            length = self._lengths.get(played.number, float(steps))
            self._lengths[played.number] = length + _RECENT * (steps - length)

    def exclude(self, failed: Variation) -> None:
        """Takes a variant out, unless it is the last one."""
        if others := [each for each in self.variations if each.number != failed.number]:
            self.change(others)


class Instances:
    """The environments of all variants in one process. Used by one thread."""

    def __init__(self, turns: Turns, make: Callable[[Variation], gymnasium.Env[Any, Any]], most_idle: int) -> None:
        """`make` makes an environment of a variant. At most `most_idle` environments wait for their next episode."""
        self.turns, self._make, self._most_idle = turns, make, most_idle
        self._idle: list[tuple[int, gymnasium.Env[Any, Any]]] = []
        self._spaces: tuple[gymnasium.Space[Any], ...] | None = None

    def take(self, variation: Variation) -> gymnasium.Env[Any, Any]:
        """Returns an environment of a variant, which nobody else plays.

        Raises `ConfigurationError` if it can't be made, or has other spaces than the first environment.
        """
        for place, (number, env) in enumerate(self._idle):
            if number == variation.number:
                del self._idle[place]
                return env
        made = self._make(variation)
        spaces = (made.observation_space, made.action_space)
        if self._spaces is None:
            self._spaces = spaces
        if spaces != self._spaces:
            foreign_errors.close_quietly(made)
            shown = " and ".join(foreign_errors.shortened(str(each)) for each in spaces)
            raise ConfigurationError(
                f"its spaces are {shown}, and one policy needs the same spaces in all variants; set"
                " environment.pad_spaces to auto"
            )
        return made

    def give_back(self, variation: Variation, env: gymnasium.Env[Any, Any]) -> None:
        """Keeps an environment for the next episode of its variant, and closes the ones that were kept longest."""
        self._idle.append((variation.number, env))
        active = {each.number for each in self.turns.variations}
        surplus = [each for each in self._idle if each[0] not in active]
        kept = [each for each in self._idle if each[0] in active]
        surplus += kept[: max(0, len(kept) - self._most_idle)]
        self._idle = kept[-self._most_idle :]
        for _, closed in surplus:
            foreign_errors.close_quietly(closed)

    def close(self) -> None:
        """Closes the environments that wait."""
        while self._idle:
            foreign_errors.close_quietly(self._idle.pop()[1])


class VariedEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose episodes are of several variants. The infos after its resets have the variant's number."""

    def __init__(self, instances: Instances, first: Variation, notice: Callable[[str], None]) -> None:
        """Makes the environment with which it has its spaces. `notice` gets a line about a variant that is left out.

        Raises as `Instances.take`.
        """
        super().__init__(instances.take(first))
        self._instances, self._notice = instances, notice
        self._variation, self._expected, self._steps = first, 0.0, 0
        self._playing, self._chosen, self._changed = False, False, False
        self._random = np.random.default_rng(0)
        if self.env.has_wrapper_attr(METHOD):
            # An attribute of the object, because an environment without choices has no method for masks.
            setattr(self, METHOD, lambda: self.env.get_wrapper_attr(METHOD)())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode of the variant whose turn it is. Another variant's generator gets a seed of this one's."""
        turns = self._instances.turns
        if seed is not None:
            self._random = np.random.default_rng(seed)
            turns.start_at(seed)
        # A reset that failed is repeated in the same variant.
        if not self._chosen:
            if self._playing:
                turns.end(self._variation, self._expected, self._steps)
            self._changed, self._chosen, self._playing = self._change(), True, False
        if self._changed and seed is None:
            seed = int(self._random.integers(2**31))
        observation, info = self.env.reset(seed=seed, options=options)
        self._playing, self._chosen, self._steps = True, False, 0
        return observation, {**info, KEY: self._variation.number}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one step."""
        self._steps += 1
        return self.env.step(action)

    def close(self) -> None:
        """Closes its environment, and those that wait."""
        self._instances.close()
        super().close()

    def _change(self) -> bool:
        """Takes the environment of the next variant; returns whether it is another one."""
        turns = self._instances.turns
        while True:
            variation, expected = turns.begin()
            if variation.number == self._variation.number:
                self._expected = expected
                return False
            try:
                env = self._instances.take(variation)
            except ConfigurationError as error:
                if len(turns.variations) == 1:
                    raise
                turns.exclude(variation)
                self._notice(f"variant {variation.number} is left out: {error}")
                continue
            self._instances.give_back(self._variation, self.env)
            self.env, self._variation, self._expected = env, variation, expected
            return True
