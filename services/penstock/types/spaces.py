"""Spaces of observations and actions, and the properties of an environment that a policy depends on.

Each kind of space defines its display, its JSON form and the arrays of its actions. `Space` is the union of all kinds.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeGuard, get_args

from penstock.types.records import plain


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """Arrays of numbers with bounds. `low` and `high` hold one value per element, in C order, or one value for all
    elements. They may be infinite.
    """

    KIND: ClassVar = "box"

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def action_array(self) -> tuple[str, tuple[int, ...]]:
        """Element type and shape of one action of a policy."""
        return "float32", (self.size,)

    @property
    def has_choice(self) -> bool:
        """Whether the space has more than one member."""
        return self.low != self.high

    def shown(self) -> str:
        """Returns a short form for messages, with the least and the greatest bound of any element."""
        low, high = min(self.low, default=0.0), max(self.high, default=0.0)
        return f"Box({low:g}, {high:g}, {self.shape}, {self.dtype})"

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights."""
        return {"kind": self.KIND, **plain(self), "low": _bounds_to_json(self.low), "high": _bounds_to_json(self.high)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the space with this JSON form."""
        low, high = (tuple(float(bound) for bound in value[side]) for side in ("low", "high"))
        return cls(value["dtype"], tuple(value["shape"]), low, high)


@dataclass(frozen=True, slots=True)
class DiscreteSpace:
    """The integers start, ..., start + n - 1."""

    KIND: ClassVar = "discrete"

    n: int
    start: int = 0

    @property
    def action_array(self) -> tuple[str, tuple[int, ...]]:
        """Element type and shape of one action of a policy."""
        return "int64", ()

    @property
    def has_choice(self) -> bool:
        """Whether the space has more than one member."""
        return self.n > 1

    def shown(self) -> str:
        """Returns a short form for messages."""
        return f"Discrete({self.n}, start={self.start})"

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights."""
        return {"kind": self.KIND, **plain(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the space with this JSON form."""
        return cls(value["n"], value["start"])


Space = BoxSpace | DiscreteSpace

SPACE_KINDS: dict[str, type[Space]] = {kind.KIND: kind for kind in get_args(Space)}
"""Kinds of spaces by the `kind` of their JSON form."""


def is_image(space: Space) -> TypeGuard[BoxSpace]:
    """Returns whether a space holds images: bytes of shape (H, W), (H, W, C) or (C, H, W)."""
    return isinstance(space, BoxSpace) and space.dtype == "uint8" and len(space.shape) in (2, 3)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The properties of an environment that a policy depends on.

    Attributes:
        id: Name of the environment, for display.
        observation: Space of the policy's observations.
        action: Space of the policy's actions.
        frames: Frames stacked along the first axis of an observation, one per step, oldest first. Segments hold each
            frame once.
    """

    id: str
    observation: Space
    action: Space
    frames: int = 1


def _bounds_to_json(bounds: tuple[float, ...]) -> list[float | str]:
    # JSON has no infinities.
    return [bound if math.isfinite(bound) else str(bound) for bound in bounds]
