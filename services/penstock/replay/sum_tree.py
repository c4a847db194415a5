"""The sum tree: masses in the leaves, sums above, draws in proportion to mass.

Whole batches go through one compiled call that holds no GIL. Parents are recomputed from their children, never adjusted
by differences, so that rounding does not drift. Called by `replay.buffer` alone, under its lock.
"""

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit("void(float64[::1], int64, int64[::1], float64[::1])", nogil=True, cache=True)
def _update(nodes, width, leaves, masses):  # type: ignore[no-untyped-def]
    for position in range(leaves.size):
        nodes[width + leaves[position]] = masses[position]
    for position in range(leaves.size):
        node = (width + leaves[position]) >> 1
        while node >= 1:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node >>= 1


@numba.njit("void(float64[::1], int64)", nogil=True, cache=True)
def _rebuild(nodes, width):  # type: ignore[no-untyped-def]
    for node in range(width - 1, 0, -1):
        nodes[node] = nodes[2 * node] + nodes[2 * node + 1]


@numba.njit("void(float64[::1], int64, float64[::1], int64[::1])", nogil=True, cache=True)
def _draw(nodes, width, uniforms, leaves):  # type: ignore[no-untyped-def]
    stratum = nodes[1] / uniforms.size
    for position in range(uniforms.size):
        target = (position + uniforms[position]) * stratum
        node = 1
        while node < width:
            node *= 2
            left = nodes[node]
            # Rounding may leave a target a little past the last mass; a branch without mass is never entered.
            if target >= left and nodes[node + 1] > 0.0:
                target -= left
                node += 1
        leaves[position] = node - width


class SumTree:
    """A binary tree over `capacity` masses in double precision.

    Draws and updates of a batch of B cost O(B log capacity). Not safe for concurrent calls.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree needs at least one leaf, got capacity {capacity}")
        self._capacity = capacity
        self._width = 1 << (capacity - 1).bit_length()
        self._nodes: NDArray[np.float64] = np.zeros(2 * self._width, np.float64)

    @property
    def capacity(self) -> int:
        """The number of leaves."""
        return self._capacity

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._nodes[1])

    @property
    def masses(self) -> NDArray[np.float64]:
        """<float64>[capacity] a view of the leaves; not to be written to."""
        return self._nodes[self._width : self._width + self._capacity]

    def update(self, leaves: NDArray[np.int64], masses: NDArray[np.float64]) -> None:
        """Sets the masses of some leaves; of duplicates the last one holds.

        Args:
            leaves: <int64>[B] in [0, capacity).
            masses: <float64>[B] finite, at least 0.

        Raises:
            ValueError: A leaf is out of range, or a mass negative or not finite. Nothing is changed then.
        """
        if leaves.size == 0:
            return
        if leaves.min() < 0 or leaves.max() >= self._capacity:
            raise ValueError(f"leaves must lie in [0, {self._capacity}), got {leaves.min()} to {leaves.max()}")
        if not np.isfinite(masses).all() or masses.min() < 0.0:
            raise ValueError("masses must be finite and not negative")
        _update(
            self._nodes, self._width, np.ascontiguousarray(leaves, np.int64), np.ascontiguousarray(masses, np.float64)
        )

    def scale(self, factor: float) -> None:
        """Multiplies every mass; the draws stay as they are. Costs O(capacity)."""
        self._nodes[self._width :] *= factor
        _rebuild(self._nodes, self._width)

    def draw(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Draws one leaf in each of B equal ranges of mass (stratified; Schaul et al. 2016, appendix B.2.1).

        Args:
            uniforms: <float64>[B] in [0, 1), where in its range each draw falls.

        Returns:
            <int64>[B] leaves, in ascending order.

        Raises:
            ValueError: There is no mass to draw from.
        """
        if not self.total > 0.0:
            raise ValueError("no leaf has mass")
        leaves = np.empty(uniforms.size, np.int64)
        _draw(self._nodes, self._width, np.ascontiguousarray(uniforms, np.float64), leaves)
        return leaves
