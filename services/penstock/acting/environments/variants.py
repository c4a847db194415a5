"""Environment variants: the same environment with different arguments, under one policy.

All environments of an actor are of one variant. The environments of an evaluation alternate between all variants.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.making import Making
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.single_environments import AnswerTogether, StepOutcome
from penstock.acting.environments.vectors import Environments, make_environments
from penstock.errors import ConfigurationError, EnvironmentFailed
from penstock.types.spaces import EnvironmentSpec

Row = TypeVar("Row", bound=np.generic)
Arguments = Mapping[str, object]


class MixedEnvironments(AnswerTogether):
    """Environments of V variants that are stepped together. Row i is of variant i modulo V.

    A step costs one call per variant and a copy of all rows.
    """

    def __init__(self, parts: Sequence[Environments]) -> None:
        """Combines the environments of all variants, which have the same spaces."""
        self._parts, self.progress = parts, Progress()
        self.spec, self.count = parts[0].spec, sum(part.count for part in parts)
        self.timed = all(part.timed for part in parts)
        self.observation: tuple[NDArray[np.generic], ...] = ()
        self.acting_observation: tuple[NDArray[np.generic], ...] = ()
        self.action_mask: NDArray[np.bool_] | None = None

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes; each environment's generator gets its own seed."""
        for variant, part in enumerate(self._parts):
            with self._numbered(variant):
                part.reset(seeds[variant :: len(self._parts)])
        self._observe()

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment. Raises `EnvironmentFailed`, also if a worker process is lost."""
        outcomes = []
        for variant, part in enumerate(self._parts):
            with self._numbered(variant):
                rows = (np.ascontiguousarray(leaf[variant :: len(self._parts)]) for leaf in action)
                outcome = part.step(tuple(rows))
                for lost in outcome.lost.values():
                    raise lost
                outcomes.append(outcome)
        self._observe()
        columns = zip(*(outcome[:5] for outcome in outcomes), strict=True)
        reward, terminated, truncated, valid, begun = map(_take_turns, columns)
        reported = [outcome.info for outcome in outcomes if outcome.info is not None]
        info = _take_turns(reported) if reported else None
        return StepOutcome(reward, terminated, truncated, valid, begun, info=info)

    def close(self) -> None:
        """Closes the environments."""
        for part in self._parts:
            part.close()

    @contextlib.contextmanager
    def _numbered(self, variant: int) -> Iterator[None]:
        """Replaces the row in a variant's failure by the row among all environments."""
        try:
            yield
        except EnvironmentFailed as failed:
            row = None if failed.environment is None else failed.environment * len(self._parts) + variant
            raise EnvironmentFailed(failed.what, row) from failed

    def _observe(self) -> None:
        self.observation = _leaves_by_turns([part.observation for part in self._parts])
        self.acting_observation = _leaves_by_turns([part.acting_observation for part in self._parts])
        masks = [part.action_mask for part in self._parts if part.action_mask is not None]
        self.action_mask = _take_turns(masks) if masks else None


@dataclass(frozen=True, slots=True)
class EnvironmentVariants:
    """The variants of an environment.

    Attributes:
        makings: What each variant is made from; at least one.
        frames: Frames stacked in an observation.
    """

    makings: Sequence[Making]
    frames: int = 1

    def make_mixed(self, count: int) -> Environments:
        """Makes N environments that alternate between the variants. Variants past N are not made.

        Raises `ConfigurationError` if a variant can't be made (`make`), or two variants have different spaces.
        """
        parts: list[Environments] = []
        variants = len(self.makings)
        try:
            for variant in range(min(count, variants)):
                spec = parts[0].spec if parts else None
                parts.append(self.make(variant, len(range(variant, count, variants)), spec=spec))
        except ConfigurationError:
            for part in parts:
                part.close()
            raise
        return parts[0] if len(parts) == 1 else MixedEnvironments(parts)

    def make(
        self, variant: int, count: int, *, spec: EnvironmentSpec | None = None, progress: Progress | None = None
    ) -> Environments:
        """Makes N environments of one variant, with the spaces `spec` of the first variant (None: any).

        Raises `ConfigurationError` if there is no such variant, it can't be made (`make_environments`), or its spaces
        differ.
        """
        variants = [each.kwargs for each in self.makings]
        if variant >= len(variants):
            raise ConfigurationError(
                f"the run assigns environment variant {variant}, counted from 0, and this service has {len(variants)};"
                " start all services with the run's configuration"
            )
        try:
            made = make_environments(self.makings[variant], count, progress=progress, expected=spec)
            made = with_frames(made, self.frames)
        except ConfigurationError as error:
            if len(variants) == 1:
                raise
            raise ConfigurationError(f"environment {variant_name(variants, variant)}: {error}") from error
        if spec is not None and made.spec != spec:
            made.close()
            require_same_spaces(made.spec, spec, variants, variant)
        return made


def require_same_spaces(
    found: EnvironmentSpec, expected: EnvironmentSpec, variants: Sequence[Arguments], variant: int
) -> None:
    """Raises `ConfigurationError` if a variant's spaces differ from the first variant's spaces."""
    if found != expected:
        raise ConfigurationError(
            f"one policy needs the same spaces in all variants, and {found.id} has {_differences(found, expected)} as"
            f" {variant_name(variants, variant)} and as {variant_name(variants, 0)}; remove one of them from"
            " environment.variants, set environment.pad_spaces to auto, or wrap the environment so that they agree"
        )


def variant_name(variants: Sequence[Arguments], variant: int) -> str:
    """Returns the number and the arguments of a variant, for messages."""
    arguments = ", ".join(f"{name}={value}" for name, value in variants[variant].items())
    return f"variant {variant} ({arguments or 'plain'})"


def _differences(one: EnvironmentSpec, other: EnvironmentSpec) -> str:
    differences = [
        f"the {role} {mine.shown()} and {theirs.shown()}"
        for role, mine, theirs in (
            ("observations", one.observation, other.observation),
            ("actions", one.action, other.action),
        )
        if mine != theirs
    ]
    if one.mask_bits != other.mask_bits:
        differences.append(f"action masks of {one.mask_bits} bits and {other.mask_bits} bits")
    return " and ".join(differences)


def _leaves_by_turns(parts: Sequence[tuple[NDArray[np.generic], ...]]) -> tuple[NDArray[np.generic], ...]:
    return tuple(_take_turns(leaves) for leaves in zip(*parts, strict=True))


def _take_turns(parts: Sequence[NDArray[Row]]) -> NDArray[Row]:
    """Interleaves the rows of V parts into [N, ...]: row i is the next row of part i modulo V."""
    rows = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for variant, part in enumerate(parts):
        rows[variant :: len(parts)] = part
    return rows
