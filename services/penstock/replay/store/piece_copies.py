"""Compiled copies of pieces of different sizes between memories."""

import numba


@numba.njit(
    numba.void(
        # Bytes of a received message can't be written.
        numba.types.Array(numba.uint8, 1, "C", readonly=True),
        numba.int64[::1],
        numba.uint8[::1],
        numba.int64[::1],
        numba.int64[::1],
    ),
    nogil=True,
    cache=True,
)
def copy_pieces(data, starts, into, targets, sizes):  # type: ignore[no-untyped-def]
    """Copies pieces from their starts in `data` to their targets in `into`. What is outside of either is cut off."""
    for index in range(starts.size):
        start, target = starts[index], targets[index]
        first = max(0, -start, -target)
        last = min(sizes[index], data.size - start, into.size - target)
        if first < last:
            into[target + first : target + last] = data[start + first : start + last]
