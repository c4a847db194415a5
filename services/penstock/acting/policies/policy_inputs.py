"""Checks the inputs of a trained policy: one observation or a batch of them, and their action masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.offsets import stacked_offsets, subtracted
from penstock.acting.values import masks
from penstock.acting.values.leaf_buffers import Unusable, ValueCheck
from penstock.acting.values.leaves import flatten
from penstock.acting.values.masks import MaskSource, Place
from penstock.acting.values.returned_values import UNREADABLE, array_of
from penstock.algo.network import Network
from penstock.algo.spaces import part_names
from penstock.errors import ConfigurationError
from penstock.types.spaces import EnvironmentSpec, Leaf, Space, is_image

_ABSENT = object()
"""In place of a part that the actor does not read."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Checked observations of a policy.

    Attributes:
        leaves: [N, ...] values, one array per leaf.
        mask: <bool>[N, bits] legal actions; None if there are no masks.
        is_batch: Whether the caller passed a batch; otherwise N is 1.
    """

    leaves: tuple[NDArray[np.generic], ...]
    mask: NDArray[np.bool_] | None
    is_batch: bool

    @property
    def count(self) -> int:
        """Number of observations, N."""
        return len(self.leaves[0])

    def shaped(self, result: NDArray[Any]) -> Any:
        """Returns results [N, ...] as the caller expects them: all rows of a batch, or the single one."""
        return result if self.is_batch else result[0]


class PolicyInputs:
    """Converts observations and masks to the rows of a policy, and refuses those that do not fit its spaces."""

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Takes what the policy was made for, and its network."""
        self._spec, self._offsets = spec, stacked_offsets(spec, network.observation_offsets)
        self._unread = {name for name in part_names(spec) if name in network.critic_only}
        self._checks = [ValueCheck(leaf) for leaf in spec.observation.leaves]
        self._masks = MaskSource(Place.INFO, spec.action)

    def rows(self, observation: Any, action_mask: Any, *, masked: bool = True) -> Rows:
        """Returns the rows of an observation or a batch. Raises `ConfigurationError` if they do not fit.

        `masked` says whether a policy with masks needs one. Parts that the actor does not read may be absent.
        """
        if self._unread and isinstance(observation, Mapping):
            observation = {**dict.fromkeys(self._unread, _ABSENT), **observation}
        values = flatten(self._spec.observation, observation)
        leaves = self._spec.observation.leaves
        arrays = [
            None if value is _ABSENT else self._array(leaf, value) for leaf, value in zip(leaves, values, strict=True)
        ]
        leaf, first = next((leaf, array) for leaf, array in zip(leaves, arrays, strict=True) if array is not None)
        is_batch = first.ndim == len(leaf.space.observation_array[1]) + 1
        count = len(first) if is_batch else 1
        rows = []
        for leaf, check, array in zip(leaves, self._checks, arrays, strict=True):
            dtype, shape = leaf.space.observation_array
            if array is None:
                rows.append(np.zeros((count, *shape), dtype))
                continue
            row = array if is_batch else array[None]
            if row.shape != (count, *shape):
                raise self._misfit(leaf, array)
            try:
                check(row)
            except Unusable as fault:
                raise ConfigurationError(f"{fault.what}; this policy of {self._spec.id} can't act on it") from None
            rows.append(row)
        mask = self._mask(observation, action_mask, count if is_batch else None) if masked else None
        cast = (self._cast(leaf, row) for leaf, row in zip(leaves, subtracted(tuple(rows), self._offsets), strict=True))
        return Rows(tuple(cast), mask, is_batch)

    def _array(self, leaf: Leaf, value: Any) -> NDArray[np.generic]:
        wanted = np.dtype(leaf.space.observation_array[0])
        try:
            array = np.asarray(array_of(value), np.float64 if wanted.kind == "f" else None)
        except UNREADABLE:
            raise ConfigurationError(
                f"an observation{leaf.place} that is not an array of numbers: {type(value).__name__}; this policy of"
                f" {self._spec.id} expects the shape {leaf.space.observation_array[1]}"
            ) from None
        if wanted.kind != "f" and array.dtype.kind not in "iub":
            raise self._wrong_type(leaf, array)
        return _as_in_training(leaf.space, array)

    def _cast(self, leaf: Leaf, row: NDArray[np.generic]) -> NDArray[np.generic]:
        wanted = np.dtype(leaf.space.observation_array[0])
        if row.dtype == wanted:
            return row
        cast = row.astype(wanted)
        if wanted.kind != "f" and not np.array_equal(cast, row):
            raise self._wrong_type(leaf, row)
        return cast

    def _wrong_type(self, leaf: Leaf, array: NDArray[np.generic]) -> ConfigurationError:
        return ConfigurationError(
            f"an observation of type {array.dtype}{leaf.place}, where this policy of {self._spec.id} expects"
            f" {leaf.space.observation_array[0]}; pass it as the policy saw it in training (penstock.make)"
        )

    def _misfit(self, leaf: Leaf, array: NDArray[np.generic]) -> ConfigurationError:
        shape = leaf.space.observation_array[1]
        batch = ", ".join(["N", *map(str, shape)])
        return ConfigurationError(
            f"an observation of shape {array.shape}{leaf.place}, where this policy of {self._spec.id} expects {shape},"
            f" or ({batch}) for a batch; pass it as the policy saw it in training (penstock.make)"
        )

    def _mask(self, observation: Any, action_mask: Any, count: int | None) -> NDArray[np.bool_] | None:
        """Returns the masks of `count` rows, or of the only one."""
        spec = self._spec
        if not spec.mask_bits:
            return None
        if action_mask is None and isinstance(observation, Mapping):
            action_mask = observation.get(masks.KEY)
        if action_mask is None:
            raise ConfigurationError(
                f"this policy of {spec.id} was trained with action masks of {spec.mask_bits} bits; pass action_mask"
            )
        found = self._masks.row(action_mask)[None] if count is None else self._masks.rows(action_mask, count)
        if count is not None and len(found) != count:
            raise ConfigurationError(f"{len(found)} action masks for {count} observations; pass one for each")
        if illegal := self._masks.find_illegal(found):
            raise ConfigurationError(illegal[1])
        return found


def _as_in_training(space: Space, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns an observation or a batch as training saw it, where its shape tells how the environment returned it.

    Images may have channels last, in a batch too. A single observation may lack dimensions of size 1, such as the only
    channel of an image of shape (H, W).
    """
    shape = space.observation_array[1]
    if is_image(space) and shape not in (array.shape, array.shape[1:]):
        channels_last = (*shape[1:], shape[0]) if len(shape) == 3 else shape
        if channels_last in (array.shape, array.shape[1:]):
            return np.moveaxis(array, -1, -3)
    if array.ndim < len(shape) and [size for size in array.shape if size > 1] == [size for size in shape if size > 1]:
        return array.reshape(shape)
    return array
