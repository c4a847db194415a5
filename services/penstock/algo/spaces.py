"""Spaces that the policies support, and the encoder of each part of an observation.

Imports no torch, so that a launcher can check the spaces before it starts any process.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError
from penstock.types.spaces import (
    LEAST_IMAGE,
    PLAIN_ENCODERS,
    BoxSpace,
    DiscreteSpace,
    Encoder,
    EnvironmentSpec,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    channels_first,
    is_image,
)

WHOLE = "observation"
"""Name of an observation that is not nested, in `policy.encoders`."""

_ABSURD = 1e4
"""Multiple of the widest range of actions beyond which no bound is meant."""

_LARGEST_RANGE = 1e38
"""Half of the largest range of actions that float32 can hold."""

_MOST_CODES = 1024
"""Most alternatives of integers that are one-hot by default; more are embedded."""

MOST_PLANES = 32
"""Most alternatives of a board's integers for which the board encoder has one plane per alternative."""

_MOST_SHOWN = 8

_USUAL_PIXELS, _MANY_TIMES = 84 * 84, 2.0
"""Pixels of the pictures that are usual in the literature, and the multiple of them from which a user is told."""

_LEAST_SIDE, _LEAST_PICTURE = 5, 9
"""Smallest height and width of a new policy's boards: of integers with at most `MOST_PLANES` values, and of others.

Smaller arrays, and floats below the size of an image, are in one row, because convolutions cost several times as much
there and learn no faster."""


def check_spaces(
    spec: EnvironmentSpec,
    encoders: Mapping[str, Encoder] | None = None,
    moves: str | None = None,
    critic_only: Sequence[str] = (),
) -> None:
    """Raises `ConfigurationError` if no policy supports the spaces, or a setting does not fit them.

    The settings are `policy.encoders`, `policy.moves` and `policy.critic_only`.
    """
    chosen = encoders_of(spec, encoders or {})
    if moves is not None:
        _check_moves(spec, chosen, moves)
    _check_critic_only(spec, chosen, critic_only)
    for leaf in spec.action.leaves:
        if isinstance(leaf.space, BoxSpace) and not leaf.space.dtype.startswith("float"):
            raise ConfigurationError(f"{spec.id} has the action space {leaf.space.shown()}; boxes must be of floats")


def encoders_of(spec: EnvironmentSpec, chosen: Mapping[str, Encoder]) -> tuple[Encoder, ...]:
    """Returns the encoder of each leaf of an observation: the chosen one, else the one of its kind of space.

    Weights record the chosen ones alone, so the encoders of the kinds must never change. `encoders_of_new` chooses the
    encoders of new policies. Raises `ConfigurationError` if a chosen encoder names no leaf or can't encode its space.
    """
    for name in chosen:
        _check_part(spec, "policy.encoders", name)
    encoders = []
    for name, space in zip(part_names(spec), spec.observation.spaces, strict=True):
        encoder = chosen.get(name, _encoder_of_kind(space))
        if conflict := _conflict(encoder, space):
            raise ConfigurationError(
                f"policy.encoders chooses {encoder} for {name} of {spec.id}, {space.shown()}; {conflict}"
            )
        encoders.append(encoder)
    return tuple(encoders)


def part_names(spec: EnvironmentSpec) -> list[str]:
    """Returns the names of the leaves of an observation, as settings use them."""
    return [leaf.name or WHOLE for leaf in spec.observation.leaves]


def encoders_of_new(spec: EnvironmentSpec, moves: str | None = None) -> dict[str, Encoder]:
    """Returns the encoders that a new policy records, by the names of the leaves: those that differ from `encoders_of`.

    Actions that move pieces (`policy.moves`) need the planes of their board, whatever its size.
    """
    found: dict[str, Encoder] = {}
    for name, space in zip(part_names(spec), spec.observation.spaces, strict=True):
        if name != moves and _encoder_of_kind(space) == "board" and not _is_worth_convolving(space):
            found[name] = _encoder_of_row(space)
        elif _is_row_of_tokens(space):
            found[name] = "token_mean"
    return found


def shown_encoders(spec: EnvironmentSpec, chosen: Mapping[str, Encoder], critic_only: Sequence[str] = ()) -> str:
    """Returns a short line with the encoder of each leaf of an observation. Raises as `encoders_of`."""
    encoders = zip(part_names(spec), encoders_of(spec, chosen), strict=True)
    parts = [f"{name} {encoder}{' for the critic only' * (name in critic_only)}" for name, encoder in encoders]
    more = f" and {len(parts) - _MOST_SHOWN} more" if len(parts) > _MOST_SHOWN else ""
    return f"encoders: {', '.join(parts[:_MOST_SHOWN])}{more} (policy.encoders)"


def large_pictures(spec: EnvironmentSpec, chosen: Mapping[str, Encoder]) -> list[str]:
    """Returns a line for each leaf of an observation whose pictures cost many times those of the usual size.

    Raises as `encoders_of`.
    """
    lines = []
    for name, space, encoder in zip(part_names(spec), spec.observation.spaces, encoders_of(spec, chosen), strict=True):
        if encoder == "image" and isinstance(space, BoxSpace):
            height, width = channels_first(space.shape)[1:]
            if (ratio := height * width / _USUAL_PIXELS) >= _MANY_TIMES:
                lines.append(
                    f"{name}: a picture of {height} x {width} takes {ratio:.1f} times the computation of 84 x 84; a"
                    " wrapper can make it smaller (docs/your-environment.md#large-pictures)"
                )
    return lines


def position_of(spec: EnvironmentSpec, name: str) -> int:
    """Returns the position of a leaf among the leaves of an observation."""
    return part_names(spec).index(name)


def is_code(space: Space) -> bool:
    """Returns whether a space holds integers that name alternatives, as opposed to numbers and bits."""
    return isinstance(space, (DiscreteSpace, MultiDiscreteSpace))


def alternatives(space: Space) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Returns the lowest value and the number of values of each integer element, <int64>[size] each.

    None if an element is a float or unbounded.
    """
    match space:
        case DiscreteSpace():
            return np.array([space.start]), np.array([space.n])
        case MultiDiscreteSpace():
            return np.array(space.start), np.array(space.n)
        case MultiBinarySpace():
            return np.zeros(space.size, np.int64), np.full(space.size, 2)
        case BoxSpace():
            low, high = bounds(space)
            if space.dtype.startswith("float") or not bounded(space).all() or max(high - low, default=0.0) > 2**31:
                return None
            return low.astype(np.int64), (high - low).astype(np.int64) + 1


def bounds(space: BoxSpace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the lowest and the highest value of each element, <float64>[A] each."""
    return np.broadcast_to(np.array(space.low), space.size), np.broadcast_to(np.array(space.high), space.size)


def scaled(space: BoxSpace, widest_range: float) -> NDArray[np.bool_]:
    """Returns <bool>[A]: whether each element of an action is scaled to its bounds (`Network.widest_range`).

    Wide bounds are rarely meant: of actions between -1e6 and 1e6, none would be near 0. Those that are not symmetric
    are scaled if they are not absurd, because 0 to 1e6 may be a quantity.
    """
    low, high = bounds(space)
    half = high / 2.0 - low / 2.0
    meant = np.where(low == -high, widest_range, min(_ABSURD * widest_range, _LARGEST_RANGE))
    found: NDArray[np.bool_] = bounded(space) & (half <= np.minimum(meant, _LARGEST_RANGE))
    return found


def beginning(space: BoxSpace, widest_range: float) -> NDArray[np.float64]:
    """Returns the mean of each element, <float64>[A], with which a policy begins, in its own units.

    It is 0, or as near to 0 as the bounds of an element that is not scaled allow, with one unit to them.
    """
    low, high = bounds(space)
    return np.where(scaled(space, widest_range), 0.0, np.minimum(np.maximum(0.0, low + 1.0), high - 1.0))


def bounded(space: BoxSpace) -> NDArray[np.bool_]:
    """Returns <bool>[A]: whether each element has finite bounds on both sides."""
    low, high = bounds(space)
    both: NDArray[np.bool_] = np.isfinite(low) & np.isfinite(high)
    return both


def _check_part(spec: EnvironmentSpec, setting: str, name: str) -> None:
    """Raises `ConfigurationError` if a setting names what is not part of an observation."""
    if name not in part_names(spec):
        raise ConfigurationError(
            f"{setting} names {name!r}, which is not part of an observation of {spec.id}; its parts are:"
            f" {', '.join(part_names(spec))}"
        )


def _check_critic_only(spec: EnvironmentSpec, encoders: tuple[Encoder, ...], names: Sequence[str]) -> None:
    for name in names:
        _check_part(spec, "policy.critic_only", name)
        if (encoder := encoders[position_of(spec, name)]) not in PLAIN_ENCODERS:
            raise ConfigurationError(
                f"policy.critic_only names {name} of {spec.id}, whose encoder is {encoder}; only parts with the"
                f" encoders {' and '.join(PLAIN_ENCODERS)} can be hidden from the actor"
            )
    if set(part_names(spec)).issubset(names):
        raise ConfigurationError(
            f"policy.critic_only names all parts of an observation of {spec.id}, so that the actor would act blindly;"
            " leave one out"
        )


def _check_moves(spec: EnvironmentSpec, encoders: tuple[Encoder, ...], name: str) -> None:
    _check_part(spec, "policy.moves", name)
    space, encoder = spec.observation.spaces[position_of(spec, name)], encoders[position_of(spec, name)]
    shape, integers = space.observation_array[1], alternatives(space)
    if len(shape) != 2 or integers is None or len(set(zip(*integers, strict=True))) != 1:
        raise ConfigurationError(
            f"policy.moves names {name} of {spec.id}, {space.shown()}; it needs a matrix of integers that all have the"
            " same bounds, of which the lowest is an empty cell"
        )
    if encoder != "one_hot" and (encoder != "board" or integers[1][0] > MOST_PLANES):
        raise ConfigurationError(
            f"policy.moves names {name} of {spec.id}, whose encoder is {encoder} for {integers[1][0]} values; set"
            f" policy.encoders to {name}=one_hot"
        )
    if [space.choices for space in spec.action.spaces] != [(math.prod(shape) ** 2,)]:
        raise ConfigurationError(
            f"policy.moves names {name} of {spec.id}, which has {math.prod(shape)} cells; the actions must be"
            f" Discrete({math.prod(shape) ** 2}), source * {math.prod(shape)} + target, not {spec.action.shown()}"
        )


def _encoder_of_kind(space: Space) -> Encoder:
    if is_image(space):
        return "image"
    return "board" if len(space.observation_array[1]) in (2, 3) else _encoder_of_row(space)


def _encoder_of_row(space: Space) -> Encoder:
    if is_code(space):
        return "one_hot" if sum(space.choices) <= _MOST_CODES else "embedding"
    return "flat"


def _is_row_of_tokens(space: Space) -> bool:
    """Returns whether a space holds several integers of one large vocabulary, such as the words of a text."""
    if not isinstance(space, MultiDiscreteSpace) or len(space.shape) != 1:
        return False
    return len(space.n) > 1 and set(space.n) == {space.n[0]} and space.n[0] > _MOST_CODES and not any(space.start)


def _is_worth_convolving(space: Space) -> bool:
    dtype, shape = space.observation_array
    if dtype.startswith("float"):
        least = LEAST_IMAGE
    else:
        integers = alternatives(space)
        few = integers is not None and int(integers[1].max()) <= MOST_PLANES
        least = _LEAST_SIDE if few else _LEAST_PICTURE
    return min(channels_first(shape)[1:]) >= least


def _conflict(encoder: Encoder, space: Space) -> str:
    """Returns why an encoder can't encode a space; empty if it can."""
    _, shape = space.observation_array
    if encoder == "board" and len(shape) not in (2, 3):
        return f"board needs two or three dimensions, not {len(shape)}; use flat, one_hot or embedding"
    if encoder == "image" and not is_image(space):
        return (
            f"image needs bytes in two or three dimensions, at least {LEAST_IMAGE} x {LEAST_IMAGE}; use board or flat"
        )
    integers = alternatives(space)
    if encoder in ("one_hot", "embedding") and integers is None:
        return f"{encoder} needs integers with bounds; use flat or board"
    if encoder in ("token_mean", "token_gru") and (integers is None or len(set(zip(*integers, strict=True))) != 1):
        return f"{encoder} needs integers that all have the same bounds; use flat or embedding"
    return ""
