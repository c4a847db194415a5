"""The sum tree: masses in the leaves, sums in the inner nodes, and draws in proportion to mass.

A batch takes one compiled call that releases the GIL. It proceeds level by level rather than leaf by leaf: the steps of
different leaves are independent, so the processor overlaps their cache misses. Parents are recomputed from their
children and never adjusted by differences, so rounding errors do not accumulate. Callers hold the buffer's lock.
"""

import numba
import numpy as np
from numpy.typing import NDArray

# Node 1 is the root, 2 i and 2 i + 1 are the children of node i, and leaf i is node width + i. Nodes are read by
# unsigned index because numba wraps signed ones around at 0, which costs a tenth of a draw.


@numba.njit("void(float64[::1], int64)", nogil=True, cache=True)
def _rebuild(nodes, end):  # type: ignore[no-untyped-def]
    """Recomputes all nodes below `end`, which must not be leaves."""
    for node in range(end - 1, 0, -1):
        nodes[np.uint64(node)] = nodes[np.uint64(2 * node)] + nodes[np.uint64(2 * node + 1)]


@numba.njit("boolean(float64[::1], int64, int64, int64[::1], float64[::1])", nogil=True, cache=True)
def _update(nodes, width, capacity, leaves, masses):  # type: ignore[no-untyped-def]
    """Sets masses and recomputes their ancestors. Returns False and changes nothing if an argument is invalid."""
    valid = True
    for position in range(leaves.size):
        leaf, mass = leaves[position], masses[position]
        valid &= (leaf >= 0) & (leaf < capacity) & (mass >= 0.0) & (mass < np.inf)
    if not valid:
        return False
    for position in range(leaves.size):
        nodes[np.uint64(width + leaves[position])] = masses[position]
    level_width, height = width >> 1, 1
    while level_width > leaves.size:
        for position in range(leaves.size):
            node = (width + leaves[position]) >> height
            nodes[np.uint64(node)] = nodes[np.uint64(2 * node)] + nodes[np.uint64(2 * node + 1)]
        level_width >>= 1
        height += 1
    # From here on a level has no more nodes than the batch, so recomputing all of it in order is cheaper.
    _rebuild(nodes, 2 * level_width)
    return True


@numba.njit("int64(float64[::1], int64, float64)", nogil=True, cache=True)
def _walk(nodes, width, target):  # type: ignore[no-untyped-def]
    """Returns the leaf's node whose range of the cumulative mass contains the target, or else the last with mass."""
    node = 1
    while node < width:
        node *= 2
        if target >= nodes[node] and nodes[node + 1] > 0.0:
            target -= nodes[node]
            node += 1
    return node


@numba.njit("void(float64[::1], int64, float64[::1], int64[::1], float64[::1])", nogil=True, cache=True)
def _draw(nodes, width, uniforms, leaves, masses):  # type: ignore[no-untyped-def]
    """Applies `_walk` to a whole batch, level by level. Writes the results to `leaves` and `masses`."""
    stratum = nodes[1] / max(1, uniforms.size)
    # During the descent the outputs hold the node and the remaining target.
    for position in range(uniforms.size):
        leaves[position] = 1
        masses[position] = (position + uniforms[position]) * stratum
    level_width = 1
    while level_width < width:
        for position in range(uniforms.size):
            node = 2 * leaves[position]
            left, target = nodes[np.uint64(node)], masses[position]
            # A branch is avoided because the processor could not predict it.
            right = target >= left
            leaves[position] = node + right
            masses[position] = target - left if right else target
        level_width *= 2
    for position in range(uniforms.size):
        node = leaves[position]
        # Rounding may leave a target slightly past the last mass. Only then does the descent end at a leaf without
        # mass. `_walk` looks at both children and takes the same way everywhere else, so the order of the draws is
        # preserved.
        if nodes[np.uint64(node)] == 0.0:
            node = _walk(nodes, width, (position + uniforms[position]) * stratum)
        leaves[position] = node - width
        masses[position] = nodes[np.uint64(node)]


class SumTree:
    """Binary tree over `capacity` masses in double precision.

    Draws and updates of a batch of B cost O(B log capacity). Concurrent calls are not safe.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree needs at least one leaf, got capacity {capacity}")
        self._capacity = capacity
        self._width = 1 << (capacity - 1).bit_length()
        self._nodes: NDArray[np.float64] = np.zeros(2 * self._width, np.float64)

    @property
    def capacity(self) -> int:
        """Number of leaves."""
        return self._capacity

    @property
    def total(self) -> float:
        """Sum of all masses."""
        return float(self._nodes[1])

    @property
    def masses(self) -> NDArray[np.float64]:
        """Read-only use of the leaves: a view <float64>[capacity]."""
        return self._nodes[self._width : self._width + self._capacity]

    def update(self, leaves: NDArray[np.int64], masses: NDArray[np.float64]) -> None:
        """Sets the masses of some leaves. The last duplicate wins.

        Args:
            leaves: <int64>[B] leaves in [0, capacity), in any order.
            masses: <float64>[B] masses, finite and at least 0.

        Raises:
            ValueError: A leaf is out of range, a mass is negative or not finite, or the sizes differ. Nothing is
                changed.
        """
        if leaves.shape != masses.shape:
            raise ValueError(f"expected one mass per leaf, got {masses.shape} masses for {leaves.shape} leaves")
        leaves, masses = np.ascontiguousarray(leaves, np.int64), np.ascontiguousarray(masses, np.float64)
        if not _update(self._nodes, self._width, self._capacity, leaves, masses):
            if leaves.min() < 0 or leaves.max() >= self._capacity:
                raise ValueError(f"leaves must be in [0, {self._capacity}), got {leaves.min()} to {leaves.max()}")
            raise ValueError(f"masses must be finite and not negative, got {masses.min()} to {masses.max()}")

    def scale(self, factor: float) -> None:
        """Multiplies every mass; the distribution of draws does not change. Costs O(capacity)."""
        self._nodes[self._width :] *= factor
        _rebuild(self._nodes, self._width)

    def draw(self, uniforms: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draws one leaf from each of B equal ranges of mass (stratified; Schaul et al. 2016, appendix B.2.1).

        Args:
            uniforms: <float64>[B] in [0, 1), the position of each draw in its range.

        Returns:
            <int64>[B] leaves, in ascending order, and <float64>[B] their masses. Divided by `total`, these are the
            probabilities.

        Raises:
            ValueError: No leaf has mass.
        """
        if not self.total > 0.0:
            raise ValueError("no leaf has mass")
        uniforms = np.ascontiguousarray(uniforms, np.float64)
        leaves, masses = np.empty(uniforms.size, np.int64), np.empty(uniforms.size, np.float64)
        _draw(self._nodes, self._width, uniforms, leaves, masses)
        return leaves, masses
