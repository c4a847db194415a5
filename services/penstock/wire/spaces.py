"""Conversion of spaces and environment specs to messages and back.

Decoding refuses every spec that no environment has: malformed spaces, inconsistent paths, frames that do not divide
their axis, a mask of another size than the action's choices. Limits keep its cost and memory small for any message.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import assert_never

import numpy as np

from penstock.errors import InvalidSegment
from penstock.types.block import DATA_TYPES
from penstock.types.spaces import (
    ACTION_TYPES,
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Path,
    Space,
    Tree,
    is_stackable,
)
from penstock.v1 import run_pb2
from penstock.wire.schema import MAX_DIMENSIONS

MAX_LEAVES = 256
"""Leaves of one observation or action. Both together stay below the limit on the columns of a schema."""

MAX_DEPTH, MAX_KEY = 16, 256
"""Levels of a nested space, and characters of a key."""

MAX_ELEMENTS = 2**26
"""Elements of one observation or action; a column of more would exceed the limit on a segment's bytes."""

MAX_CHOICES = 2**22
"""Alternatives, over all choices of one observation or action. Each takes an input or an output of the policy."""


def encode_environment(spec: EnvironmentSpec) -> run_pb2.EnvironmentSpec:
    """Encodes an environment's spec."""
    return run_pb2.EnvironmentSpec(
        id=spec.id,
        observation=_encode_tree(spec.observation),
        action=_encode_tree(spec.action),
        frames=spec.frames,
        mask_bits=spec.mask_bits,
        action_types=spec.action_types,
    )


def decode_environment(message: run_pb2.EnvironmentSpec) -> EnvironmentSpec:
    """Decodes an environment's spec. Raises `InvalidSegment` if no environment can have it."""
    observation, action = _decode_tree(message.observation, "observation"), _decode_tree(message.action, "action")
    frames, mask_bits = message.frames or 1, message.mask_bits
    if frames > 1:
        axes = [space.shape[0] for space in observation.spaces if is_stackable(space)]
        if not axes or any(axis % frames for axis in axes):
            raise InvalidSegment(
                f"{frames} frames can't be stacked along the first axis of the observations, whose sizes are {axes};"
                " every size must be divisible by the number of frames"
            )
    if mask_bits not in (0, expected := sum(action.choices)):
        raise InvalidSegment(
            f"an action mask of {mask_bits} bits does not fit the actions; they have {expected} alternatives, so it"
            f" must have 0 or {expected} bits"
        )
    types = tuple(message.action_types)
    if types and (len(types) != len(action.leaves) or not set(types) <= {"", *ACTION_TYPES}):
        raise InvalidSegment(
            f"{len(types)} element types, {types!s:.80}, do not fit an action of {len(action.leaves)} leaves;"
            f" expected {', '.join(ACTION_TYPES)} or an empty text for each leaf, or none at all"
        )
    return EnvironmentSpec(message.id, observation, action, frames, mask_bits, types)


def _encode_tree(tree: Tree) -> run_pb2.Space:
    if tree.leaves[0].path == ():
        return _encode_space(tree.leaves[0].space)
    leaves = [run_pb2.Leaf(path=_encode_path(leaf.path), space=_encode_space(leaf.space)) for leaf in tree.leaves]
    return run_pb2.Space(tree=run_pb2.Tree(leaves=leaves))


def _encode_path(path: Path) -> list[run_pb2.PathElement]:
    return [
        run_pb2.PathElement(key=part) if isinstance(part, str) else run_pb2.PathElement(position=part) for part in path
    ]


def _encode_space(space: Space) -> run_pb2.Space:
    match space:
        case DiscreteSpace():
            return run_pb2.Space(discrete=run_pb2.DiscreteSpace(n=space.n, start=space.start))
        case MultiDiscreteSpace():
            several = run_pb2.MultiDiscreteSpace(shape=space.shape, n=space.n, start=space.start)
            return run_pb2.Space(multi_discrete=several)
        case MultiBinarySpace():
            return run_pb2.Space(multi_binary=run_pb2.MultiBinarySpace(shape=space.shape))
        case BoxSpace():
            box = run_pb2.BoxSpace(
                data_type=DATA_TYPES.index(space.dtype) + 1,  # type: ignore[arg-type]
                shape=space.shape,
                low=space.low,
                high=space.high,
            )
            return run_pb2.Space(box=box)
        case _:
            assert_never(space)


def _decode_tree(message: run_pb2.Space, role: str) -> Tree:
    if message.WhichOneof("kind") != "tree":
        tree = Tree.of(_decode_space(message))
    else:
        leaves = message.tree.leaves
        if not 1 <= len(leaves) <= MAX_LEAVES:
            raise InvalidSegment(f"the {role} space has {len(leaves)} leaves; expected 1 to {MAX_LEAVES}")
        tree = Tree(tuple(Leaf(_decode_path(leaf.path), _decode_space(leaf.space)) for leaf in leaves))
        _check_paths([leaf.path for leaf in tree.leaves])
    _check_size(tree, role)
    return tree


def _decode_path(message: Sequence[run_pb2.PathElement]) -> Path:
    if not 1 <= len(message) <= MAX_DEPTH:
        raise InvalidSegment(f"a leaf of a space has a path of {len(message)} elements; expected 1 to {MAX_DEPTH}")
    return tuple(_decode_path_element(element) for element in message)


def _decode_path_element(message: run_pb2.PathElement) -> str | int:
    match message.WhichOneof("element"):
        case "key":
            if len(message.key) > MAX_KEY:
                raise InvalidSegment(
                    f"the key {message.key[:80]!r} of a space has {len(message.key)} characters; the maximum is"
                    f" {MAX_KEY}"
                )
            return message.key
        case "position":
            return message.position
        case _:
            raise InvalidSegment("an element of a leaf's path is neither a key nor a position")


def _check_paths(paths: Sequence[Path], parent: Path = ()) -> None:
    """Raises `InvalidSegment` unless the rest of the paths below `parent` belong to a Dict, a Tuple or one leaf."""
    level = len(parent)
    if any(len(path) == level for path in paths):
        if len(paths) > 1:
            raise InvalidSegment(f"the leaf {_short(parent)} of a space is there twice, or has leaves below it")
        return
    groups = [(part, list(group)) for part, group in groupby(paths, key=lambda path: path[level])]
    parts = [part for part, _ in groups]
    positions = [part for part in parts if isinstance(part, int)]
    if positions and parts != list(range(len(parts))):
        raise InvalidSegment(
            f"the parts of a space at {_short(parent)} must all have keys, or positions in order from 0, got"
            f" {_short(tuple(parts))}"
        )
    if len(set(parts)) != len(parts):
        raise InvalidSegment(
            f"the leaves below each part of a space at {_short(parent)} must follow each other, got"
            f" {_short(tuple(parts))}"
        )
    for part, group in groups:
        _check_paths(group, (*parent, part))


def _short(path: Path) -> str:
    return repr(".".join(map(str, path))[:80])


def _check_size(tree: Tree, role: str) -> None:
    elements = sum(1 if isinstance(space, DiscreteSpace) else math.prod(space.shape) for space in tree.spaces)
    if elements > MAX_ELEMENTS:
        raise InvalidSegment(f"the {role} space has {elements} elements; the maximum is {MAX_ELEMENTS}")
    alternatives = sum(_alternatives(space) for space in tree.spaces)
    if alternatives > MAX_CHOICES:
        raise InvalidSegment(
            f"the choices of the {role} space have {alternatives} alternatives; the maximum is {MAX_CHOICES}; wrap the"
            " environment to have fewer"
        )


def _alternatives(space: Space) -> int:
    # Without the tuple of its choices, a large space of bits costs no memory.
    return 2 * space.size if isinstance(space, MultiBinarySpace) else sum(space.choices)


def _decode_space(message: run_pb2.Space) -> Space:
    match message.WhichOneof("kind"):
        case "discrete":
            _check_integers("a discrete space", [message.discrete.n], [message.discrete.start])
            return DiscreteSpace(message.discrete.n, message.discrete.start)
        case "multi_discrete":
            return _decode_multi_discrete(message.multi_discrete)
        case "multi_binary":
            return MultiBinarySpace(_decode_shape("a multi-binary space", message.multi_binary.shape))
        case "box":
            return _decode_box(message.box)
        case "tree":
            raise InvalidSegment("a leaf of a space is a tree; expected its leaves with longer paths")
        case _:
            raise InvalidSegment("a space of no known kind")


def _decode_multi_discrete(message: run_pb2.MultiDiscreteSpace) -> MultiDiscreteSpace:
    what = "a multi-discrete space"
    shape = _decode_shape(what, message.shape)
    if not len(message.n) == len(message.start) == math.prod(shape):
        raise InvalidSegment(
            f"{what} of shape {shape} has {len(message.n)} values of n and {len(message.start)} of start; expected"
            f" {math.prod(shape)} of each"
        )
    _check_integers(what, message.n, message.start)
    return MultiDiscreteSpace(shape, tuple(message.n), tuple(message.start))


def _check_integers(what: str, counts: Sequence[int], starts: Sequence[int]) -> None:
    if min(counts) < 1:
        raise InvalidSegment(f"{what} without elements: n is {min(counts)}, and must be at least 1")
    last = max(start + count - 1 for count, start in zip(counts, starts, strict=True))
    if last >= 2**63:
        raise InvalidSegment(f"{what} has integers up to {last}; the maximum is {2**63 - 1}")


def _decode_shape(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise InvalidSegment(
            f"{what} has {len(shape)} dimensions, the smallest of size {min(shape, default=0)}; expected at most"
            f" {MAX_DIMENSIONS}, and none of size 0"
        )
    return tuple(shape)


def _decode_box(message: run_pb2.BoxSpace) -> BoxSpace:
    shape = _decode_shape("a box", message.shape)
    size = math.prod(shape)
    if not 1 <= message.data_type <= len(DATA_TYPES) or not {len(message.low), len(message.high)} <= {1, size}:
        raise InvalidSegment(f"a box of shape {shape} needs a known data type and 1 or {size} bounds on each side")
    if np.isnan(message.low).any() or np.isnan(message.high).any():
        raise InvalidSegment("a box's bounds must be numbers")
    return BoxSpace(DATA_TYPES[message.data_type - 1], shape, tuple(message.low), tuple(message.high))
