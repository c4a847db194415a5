"""Checks of rows' bytes: they equal the bytes sent, hold valid values, and have not changed since.

The functions are compiled, handle many rows per call and release the GIL.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.replay.store.encoded_rows import Pieces
from penstock.replay.store.layout import HEADER
from penstock.types.block import VALID, Column
from penstock.types.codecs import Forms

_LANES = 32
"""Number of 64-bit lanes that are mixed in parallel, enough for the compiler to use the widest vector registers."""


@intrinsic
def _fence(typing_context):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return numba.void(), generate


@numba.njit("void()", cache=True)
def in_order():  # type: ignore[no-untyped-def]
    """Keeps the reads and writes of memory before this call before the later ones, as other processes see them.

    Readers of rows rely on it. x86 keeps this order by itself; ARM needs an instruction, which this call executes.
    """
    _fence()  # type: ignore[call-arg]


@numba.njit("void(uint8[::1], uint8[::1], uint64[::1])", nogil=True, cache=True)
def copy_and_sum(source, target, sums):  # type: ignore[no-untyped-def]
    """Copies bytes and adds their 64-bit words to <uint64>[S] sums, word i to sum i % S.

    The last word is padded with zeros. Each word is read once, so the sum belongs to the copy even if another process
    writes to the source.
    """
    count, turn = source.size // 8, sums.size
    read, written = source[: 8 * count].view(np.uint64), target[: 8 * count].view(np.uint64)
    for start in range(0, count, turn):
        # With separate slices the compiler vectorizes the loop, which makes it four times faster.
        some, into = read[start : start + turn], written[start : start + turn]
        for index in range(some.size):
            word = some[index]
            into[index] = word
            sums[index] += word
    for position in range(8 * count, source.size):
        byte = source[position]
        target[position] = byte
        sums[count % turn] += np.uint64(byte) << np.uint64(8 * (position - 8 * count))


@numba.njit("void(uint8[:, ::1], uint64[::1])", nogil=True, cache=True)
def mix_rows(rows, checksums):  # type: ignore[no-untyped-def]
    """Folds each row's bytes into its checksum: rounds of xor, multiply and rotate (after xxHash64), in lanes."""
    prime, left, right = np.uint64(0x9E3779B185EBCA87), np.uint64(31), np.uint64(33)
    size = rows.shape[1]
    rounds = size // (8 * _LANES)
    whole_words = size // 8
    lanes = np.empty(_LANES, np.uint64)
    for index in range(rows.shape[0]):
        words = rows[index, : 8 * whole_words].view(np.uint64)
        mixed = checksums[index] ^ prime
        for lane in range(_LANES):
            lanes[lane] = mixed + np.uint64(lane) * prime
        for turn in range(rounds):
            start = np.uint64(turn * _LANES)
            for lane in range(_LANES):
                folded = (lanes[lane] ^ words[start + np.uint64(lane)]) * prime
                lanes[lane] = (folded << left) | (folded >> right)
        if rounds:
            for lane in range(_LANES):
                mixed = (mixed ^ lanes[lane]) * prime
                mixed ^= mixed >> right
        for word in range(rounds * _LANES, whole_words):
            mixed = (mixed ^ words[word]) * prime
            mixed ^= mixed >> right
        for byte in range(8 * whole_words, size):
            mixed = (mixed ^ np.uint64(rows[index, byte])) * prime
            mixed ^= mixed >> right
        checksums[index] = mixed


@numba.njit("void(uint8[::1], int64[::1], int64[::1], uint64[::1])", nogil=True, cache=True)
def mix_pieces(data, starts, sizes, checksums):  # type: ignore[no-untyped-def]
    """Folds the bytes of each piece of `data` into its checksum, as `mix_rows`. Piece i has sizes[i] bytes."""
    # Not one loop for both, because rows of one known width are a fifth faster.
    for index in range(starts.size):
        piece = data[starts[index] : starts[index] + sizes[index]]
        mix_rows(piece.reshape(1, piece.size), checksums[index : index + 1])


def checksums_of(
    headers: NDArray[Any], forms: Forms, contents: Sequence[Pieces | NDArray[np.uint8]]
) -> NDArray[np.uint64]:
    """Returns checksums <uint64>[B] of the immutable data of segments: identity, version, forms and payload.

    The headers are <HEADER>[B]. The contents have the bytes of each column in its form, as they were sent: pieces, or
    C-ordered rows <uint8>[B, bytes of a segment].
    """
    identity = np.empty((headers.size, 6), np.uint64)
    for position, field in enumerate(("key", "sequence", "slot", "incarnation", "environment")):
        identity[:, position] = headers[field]
    identity[:, 5] = headers["version"].view(np.uint64)
    checksums = np.zeros(headers.size, np.uint64)
    mix_rows(identity.view(np.uint8), checksums)
    if forms.shape[1]:
        mix_rows(np.ascontiguousarray(forms).view(np.uint8), checksums)
    for content in contents:
        rows = content.rows if isinstance(content, Pieces) else content
        if rows is not None:
            mix_rows(rows, checksums)
        elif isinstance(content, Pieces):
            mix_pieces(content.data, content.starts, content.sizes, checksums)
    return checksums


@numba.njit(
    ["boolean(int16[::1], int16, int16)", "boolean(int32[::1], int32, int32)", "boolean(int64[::1], int64, int64)"],
    nogil=True,
    cache=True,
)
def _any_above(words, magnitude, largest):  # type: ignore[no-untyped-def]
    # Without their signs, floats are ordered as the integers of their bits; infinity and NaN come last (IEEE 754).
    found = False
    for index in range(words.size):
        found |= (words[index] & magnitude) > largest
    return found


_HEADERS = numba.from_dtype(HEADER)[::1]

# The codes of states are arguments, because numba's cache does not notice when a constant of another file changes.


@numba.njit(
    numba.int64(_HEADERS, numba.uint64[::1], numba.uint32, numba.uint32, numba.int64[::1]), nogil=True, cache=True
)
def reserve_rows(headers, keys, seen, writing, rows):  # type: ignore[no-untyped-def]
    """Empties the rows of these keys <uint64>[B] of a store's headers <HEADER>[capacity] and marks them as written to.

    Writes the rows of seen segments to <int64>[B] `rows` and returns their number; -1, without any change, if a row has
    an unseen or leased segment or is already written to.
    """
    capacity, found = np.uint64(headers.size), 0
    for position in range(keys.size):
        header = headers[np.int64(keys[position] % capacity)]
        if header.state == writing or (header.key != 0 and header.state != seen):
            return -1
    for position in range(keys.size):
        row = np.int64(keys[position] % capacity)
        header = headers[row]
        if header.key != 0:
            rows[found] = row
            found += 1
        header.key = 0
        header.state = writing
    return found


@numba.njit(
    numba.void(
        _HEADERS,
        numba.uint64[::1],
        numba.uint64,
        numba.int64,
        numba.uint32,
        numba.uint32,
        numba.uint32[::1],
    ),
    nogil=True,
    cache=True,
)
def begin_headers(headers, keys, sequence, version, slot, incarnation, environments):  # type: ignore[no-untyped-def]
    """Writes <HEADER>[B] headers of segments with these keys, consecutive sequences, and no priority or checksum.

    Their state is not set.
    """
    for position in range(keys.size):
        header = headers[position]
        header.key, header.sequence = keys[position], sequence + np.uint64(position)
        header.version, header.batch, header.priority, header.checksum = version, -1, 0.0, 0
        header.slot, header.incarnation = slot, incarnation
        header.environment = environments[position]


_BOOLEAN = 1
_LEARNABLE = 2
_HALF = 3
_SINGLE = 4
_DOUBLE = 5
_KINDS = {"bool": _BOOLEAN, "float16": _HALF, "float32": _SINGLE, "float64": _DOUBLE}


def kind_of(column: Column) -> int:
    """Returns which values of a column `inspect_raw` checks; 0 for none."""
    return _LEARNABLE if column.name == VALID and column.dtype == "bool" else _KINDS.get(column.dtype, 0)


def largest_bits(column: Column, largest: float) -> int:
    """Returns the bits of the largest magnitude that a column of floats may have; 0 for another column.

    That is `largest` as the column rounds it, or the largest finite number if that is smaller or `largest` is 0.
    """
    if not column.dtype.startswith("float"):
        return 0
    finite = float(np.finfo(column.dtype).max)
    limit = np.array([min(largest or finite, finite)], column.dtype)
    return int(limit.view(f"int{8 * limit.itemsize}")[0])


@numba.njit(
    numba.int64(
        numba.uint8[::1],
        numba.int64[:, ::1],
        numba.int64,
        numba.int64,
        numba.uint8[:, ::1],
        _HEADERS,
    ),
    nogil=True,
    cache=True,
)
def inspect_raw(memory, columns, first, stop, forms, headers):  # type: ignore[no-untyped-def]
    """Checks the values in adjacent rows whose columns are all raw, and writes their checksums into their headers.

    The store's <uint8>[bytes] memory has the columns <int64>[columns, 4]: the offset of each, the bytes of a segment,
    its `kind_of` and its `largest_bits`. The rows are those from `first` to before `stop`, with forms
    <uint8>[rows, bytes] and headers <HEADER>[rows]. In NumPy, each column and field would need calls of its own, and a
    small window spends its time in these.

    Returns:
        1 if all values are valid and some row is to be learnt from, 0 if none is, and -1 for an invalid value.
    """
    rows, learnable = stop - first, 0
    identity, checksums = np.empty((rows, 6), np.uint64), np.zeros(rows, np.uint64)
    for row in range(rows):
        header = headers[row]
        identity[row, 0], identity[row, 1], identity[row, 2] = header.key, header.sequence, header.slot
        identity[row, 3], identity[row, 4] = header.incarnation, header.environment
        identity[row, 5] = np.uint64(header.version)
    mix_rows(identity.view(np.uint8), checksums)
    if forms.shape[1]:
        mix_rows(forms, checksums)
    for column in range(columns.shape[0]):
        offset, width, kind, largest = columns[column, 0], columns[column, 1], columns[column, 2], columns[column, 3]
        content = memory[offset + first * width : offset + stop * width]
        if kind in (_BOOLEAN, _LEARNABLE):
            bits = np.uint8(0)
            for index in range(content.size):
                bits |= content[index]
            if bits > 1:
                return -1
            if kind == _LEARNABLE and bits:
                learnable = 1
        elif kind == _HALF:
            if _any_above(content.view(np.int16), np.int16(0x7FFF), np.int16(largest)):
                return -1
        elif kind == _SINGLE:
            if _any_above(content.view(np.int32), np.int32(0x7FFFFFFF), np.int32(largest)):
                return -1
        elif kind == _DOUBLE and _any_above(content.view(np.int64), np.int64(0x7FFFFFFFFFFFFFFF), largest):
            return -1
        mix_rows(content.reshape(rows, width), checksums)
    for row in range(rows):
        headers[row].checksum = checksums[row]
    return learnable


def has_values_to_check(column: Column) -> bool:
    """Returns whether `check_values` refuses some bytes of this column."""
    return column.dtype == "bool" or column.dtype.startswith("float")


def check_values(column: Column, content: NDArray[np.uint8], largest: float = 0.0) -> None:
    """Checks a column's values in C-ordered bytes <uint8>[rows, bytes of a segment].

    Raises:
        InvalidSegment: A float is NaN, infinite or above `largest` in magnitude (0: no limit), or a boolean is neither
            0 nor 1.
    """
    if column.dtype == "bool":
        if content.size and int(content.max()) > 1:
            raise InvalidSegment(f"malformed segments: column {column.name} has bytes above 1")
        return
    if not column.dtype.startswith("float"):
        return
    values = content.reshape(-1).view(column.dtype)
    bits: Any = np.dtype(f"int{8 * values.itemsize}").type
    if not _any_above(values.view(bits), bits(np.iinfo(bits).max), bits(largest_bits(column, largest))):
        return
    if not np.isfinite(values).all():
        raise InvalidSegment(f"malformed segments: column {column.name} has values that are not finite")
    found = float(np.abs(values).max())
    raise InvalidSegment(
        f"malformed segments: column {column.name} has a value of magnitude {found:g}; the largest of this run is"
        f" {largest:g} (environment.largest_magnitude)"
    )
