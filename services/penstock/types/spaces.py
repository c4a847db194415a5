"""Spaces of observations and actions, the properties of an environment for a policy, and choices of its network.

A space is a tree, and its leaves are arrays. Each kind of leaf defines its display, its JSON form, its arrays and the
choices that an action mask covers. `Space` is the union of all kinds.
"""

import functools
import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import MAX_COLUMN_NAME
from penstock.types.records import plain

Trunk = Literal["separate", "shared"]
"""Whether policy and value have hidden layers of their own."""

Encoder = Literal["flat", "one_hot", "embedding", "token_mean", "token_gru", "board", "image"]
"""Encoder of one leaf of an observation."""

PLAIN_ENCODERS: tuple[Encoder, ...] = ("flat", "one_hot")
"""Encoders that have no parameters."""
VECTOR_ENCODERS: tuple[Encoder, ...] = ("embedding", "token_mean", "token_gru")
"""Encoders with learned vectors of integers."""

ActivationName = Literal["tanh", "relu"]
"""Activation function after a hidden layer; `algo.activations` has its implementations."""

MemoryKind = Literal["gru", "lstm", "module"]
"""Kind of a recurrent layer. module: the policy of `policy.module` has states of its own."""

MEMORY_PARTS: dict[MemoryKind, int] = {"gru": 1, "lstm": 2, "module": 1}
"""Vectors in one state of each kind of memory."""

Library = Literal["numpy", "torch"]
"""Library that computes a policy's actions."""

Inference = Literal["auto", "torch"]
"""Choice of the library. auto: NumPy for policies that it can compute, else torch."""


LEAST_IMAGE = 36
"""Smallest height and width in pixels of an image; smaller arrays of bytes are boards."""

_INTEGERS = (("uint8", 0, 2**8 - 1), ("int8", -(2**7), 2**7 - 1), ("int32", -(2**31), 2**31 - 1))

ACTION_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
"""Element types of integers in the actions of an environment."""

ArrayType = tuple[str, tuple[int, ...]]
"""Element type and shape of an array."""


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
    def observation_array(self) -> ArrayType:
        """Element type and shape of one observation."""
        return self.dtype, self.shape

    @property
    def action_array(self) -> ArrayType:
        """Element type and shape of one action of a policy."""
        return "float32", (self.size,)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of alternatives in each choice among integers; a box has no such choice."""
        return ()

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
    def observation_array(self) -> ArrayType:
        """Element type and shape of one observation."""
        return _integer_type(self.start, self.start + self.n - 1), ()

    @property
    def action_array(self) -> ArrayType:
        """Element type and shape of one action of a policy."""
        return "int64", ()

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of alternatives in each choice among integers."""
        return (self.n,)

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


@dataclass(frozen=True, slots=True)
class MultiDiscreteSpace:
    """Arrays of integers. Element i, in C order, is one of start[i], ..., start[i] + n[i] - 1."""

    KIND: ClassVar = "multi_discrete"

    shape: tuple[int, ...]
    n: tuple[int, ...]
    start: tuple[int, ...]

    @property
    def observation_array(self) -> ArrayType:
        """Element type and shape of one observation."""
        last = max(start + n - 1 for start, n in zip(self.start, self.n, strict=True))
        return _integer_type(min(self.start), last), self.shape

    @property
    def action_array(self) -> ArrayType:
        """Element type and shape of one action of a policy."""
        return "int64", (len(self.n),)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of alternatives in each choice among integers."""
        return self.n

    @property
    def has_choice(self) -> bool:
        """Whether the space has more than one member."""
        return max(self.n) > 1

    def shown(self) -> str:
        """Returns a short form for messages."""
        shape = "" if len(self.shape) == 1 else f", shape={self.shape}"
        start = f", start={list(self.start)}" if any(self.start) else ""
        return f"MultiDiscrete({list(self.n)}{shape}{start})"

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights."""
        return {"kind": self.KIND, **plain(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the space with this JSON form."""
        return cls(tuple(value["shape"]), tuple(value["n"]), tuple(value["start"]))


@dataclass(frozen=True, slots=True)
class MultiBinarySpace:
    """Arrays of zeros and ones."""

    KIND: ClassVar = "multi_binary"

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def observation_array(self) -> ArrayType:
        """Element type and shape of one observation."""
        return "uint8", self.shape

    @property
    def action_array(self) -> ArrayType:
        """Element type and shape of one action of a policy."""
        return "int64", (self.size,)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of alternatives in each choice among integers."""
        return (2,) * self.size

    @property
    def has_choice(self) -> bool:
        """Whether the space has more than one member."""
        return self.size > 0

    def shown(self) -> str:
        """Returns a short form for messages."""
        return f"MultiBinary({self.size if len(self.shape) == 1 else list(self.shape)})"

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights."""
        return {"kind": self.KIND, **plain(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the space with this JSON form."""
        return cls(tuple(value["shape"]))


Space = BoxSpace | DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace

SPACE_KINDS: dict[str, type[Space]] = {kind.KIND: kind for kind in get_args(Space)}
"""Kinds of leaves by the `kind` of their JSON form."""

Leaves = tuple[NDArray[np.generic], ...]
"""Arrays [N, ...], one per leaf of an observation or an action."""

Path = tuple[str | int, ...]
"""Place of a leaf: a text is a key of a Dict, and a number a position in a Tuple."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A space with its place. The path is empty if the space is not nested."""

    path: Path
    space: Space

    @property
    def name(self) -> str:
        """The path as text, such as `camera.0`; empty if the space is not nested."""
        return ".".join(map(str, self.path))

    @property
    def place(self) -> str:
        """The name after ` at `, for messages; empty if the space is not nested."""
        return f" at {self.name}" if self.path else ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The leaves of a space. An observation or an action is a tuple of arrays, one per leaf, in this order."""

    leaves: tuple[Leaf, ...]

    KIND: ClassVar = "tree"

    @classmethod
    def of(cls, space: Space) -> Self:
        """Returns the tree of a space that is not nested."""
        return cls((Leaf((), space),))

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces of the leaves."""
        return tuple(leaf.space for leaf in self.leaves)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of alternatives in each choice among integers, over all leaves. An action mask has their sum bits."""
        return tuple(n for space in self.spaces for n in space.choices)

    @property
    def has_choice(self) -> bool:
        """Whether the space has more than one member."""
        return any(space.has_choice for space in self.spaces)

    def columns(self, prefix: str) -> tuple[str, ...]:
        """Returns the name of each leaf's column in a segment: `prefix`, or `prefix.path` if the space is nested.

        The names are unique. One that is too long, or that contains a character which a column's name can't have, ends
        with the position of its leaf, as in `observation.left_arm-3`.
        """
        return _column_names(self, prefix)

    def shown(self) -> str:
        """Returns a short form for messages."""
        return ", ".join(
            f"{leaf.name}: {leaf.space.shown()}" if leaf.path else leaf.space.shown() for leaf in self.leaves
        )

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights; the form of the space if it is not nested."""
        if self.leaves[0].path == ():
            return self.leaves[0].space.to_json()
        leaves = [{"path": list(leaf.path), "space": leaf.space.to_json()} for leaf in self.leaves]
        return {"kind": self.KIND, "leaves": leaves}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the tree with this JSON form. Raises `KeyError` with the name of a kind that does not exist."""
        if value["kind"] != cls.KIND:
            return cls.of(SPACE_KINDS[value["kind"]].from_json(value))
        leaves = [(tuple(leaf["path"]), leaf["space"]) for leaf in value["leaves"]]
        return cls(tuple(Leaf(path, SPACE_KINDS[space["kind"]].from_json(space)) for path, space in leaves))


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The properties of an environment that a policy depends on.

    Attributes:
        id: Name of the environment, for display.
        observation: Space of the policy's observations.
        action: Space of the policy's actions.
        frames: Frames stacked along the first axis of each box of an observation (`is_stackable`), one per step, oldest
            first. Segments hold each frame once.
        mask_bits: Bits of the action mask: one for each alternative of each choice of the action. 0: no masks.
        action_types: Element type of each leaf of an action in the environment; empty text: the type of
            `acting.values.spaces.ActionMap`. Empty, if all leaves have that, or an earlier release wrote the spec.
            Policies of both fit.
    """

    id: str
    observation: Tree
    action: Tree
    frames: int = 1
    mask_bits: int = 0
    action_types: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, object]:
        """Returns the form in the metadata of weights."""
        return {
            "id": self.id,
            "observation": self.observation.to_json(),
            "action": self.action.to_json(),
            "frames": self.frames,
            "mask_bits": self.mask_bits,
            "action_types": list(self.action_types),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Returns the spec with this JSON form. Raises `KeyError` with the name of a kind that does not exist."""
        return cls(
            value["id"],
            Tree.from_json(value["observation"]),
            Tree.from_json(value["action"]),
            value.get("frames", 1),
            value.get("mask_bits", 0),
            tuple(value.get("action_types", ())),
        )


def is_stackable(space: Space) -> TypeGuard[BoxSpace]:
    """Returns whether frames of this space are stacked where `EnvironmentSpec.frames` is above 1."""
    return isinstance(space, BoxSpace) and bool(space.shape)


def is_image(space: Space) -> TypeGuard[BoxSpace]:
    """Returns whether a space holds images: bytes of shape (H, W), (H, W, C) or (C, H, W), of 36 x 36 or more."""
    if not isinstance(space, BoxSpace) or space.dtype != "uint8" or len(space.shape) not in (2, 3):
        return False
    return min(channels_first(space.shape)[1:]) >= LEAST_IMAGE


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Returns whether the last axis of an image or a board is the channels: it is shorter than the first one."""
    return len(shape) == 3 and shape[2] < shape[0]


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape (C, H, W) of an image or a board of shape (H, W), (H, W, C) or (C, H, W)."""
    if len(shape) == 2:
        return (1, *shape)
    return (shape[2], *shape[:2]) if has_channels_last(shape) else shape


def is_column_of(prefix: str, column: str) -> bool:
    """Returns whether a column holds a leaf of the tree whose columns have this prefix (`Tree.columns`)."""
    return column == prefix or column.startswith(f"{prefix}.")


@functools.lru_cache(maxsize=64)
def _column_names(tree: Tree, prefix: str) -> tuple[str, ...]:
    return tuple(_column_name(leaf, prefix, position) for position, leaf in enumerate(tree.leaves))


def _column_name(leaf: Leaf, prefix: str, position: int) -> str:
    exact = ".".join([prefix, *map(str, leaf.path)])
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", str(part)) or "_" for part in leaf.path]
    name = ".".join([prefix, *parts])
    if name == exact and len(name) <= MAX_COLUMN_NAME:
        return name
    # Two leaves may differ only in characters that are replaced or cut off. No exact name has a hyphen.
    suffix = f"-{position}"
    return name[: MAX_COLUMN_NAME - len(suffix)].rstrip(".") + suffix


def _integer_type(low: int, high: int) -> str:
    """Returns the narrowest element type that holds these integers."""
    return next((dtype for dtype, least, most in _INTEGERS if least <= low and high <= most), "int64")


def _bounds_to_json(bounds: tuple[float, ...]) -> list[float | str]:
    # JSON has no infinities.
    return [bound if math.isfinite(bound) else str(bound) for bound in bounds]
