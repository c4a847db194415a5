"""The variants that the environments of an actor play in turn, as the learner names them."""

import dataclasses
from collections.abc import Callable, Sequence

from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.making import Making
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.variants import require_same_spaces
from penstock.acting.environments.varied import KEY, Turns, Variation
from penstock.acting.environments.vectors import Environments, make_environments
from penstock.types.run import PlayedVariant
from penstock.types.spaces import EnvironmentSpec


class TrainingTurns:
    """The turns of an actor's environments, in this process or its workers. Used by the thread that steps them."""

    def __init__(self, variation_of: Callable[[PlayedVariant], Variation], frames: int) -> None:
        """Begins without turns. `variation_of` raises `ConfigurationError` for a variant that can't be played.

        `frames` is the number of stacked frames.
        """
        self._variation_of, self._frames = variation_of, frames
        self._turns: Turns | None = None

    def play(self, variants: Sequence[PlayedVariant]) -> None:
        """Plays these variants in turn from the next episodes on; none: the actor's assignment decides.

        Raises as `variation_of`.
        """
        found = [self._variation_of(each) for each in variants]
        if not found:
            return
        if self._turns is None:
            self._turns = Turns(found)
        else:
            self._turns.change(found)

    def make(self, like: Making, count: int, *, spec: EnvironmentSpec | None, progress: Progress) -> Environments:
        """Makes N environments that play the variants in turn, and are otherwise `like` those of one variant.

        Raises `ConfigurationError` as `make_environments`, or if their spaces differ from `spec` (None: any).
        """
        assert self._turns is not None
        making = dataclasses.replace(like, turns=self._turns, info_metrics=(KEY, *like.info_metrics))
        made = with_frames(make_environments(making, count, progress=progress, expected=spec), self._frames)
        if spec is not None and made.spec != spec:
            made.close()
            require_same_spaces(made.spec, spec, [{}, {}], 1)
        return made
