"""Bytes of segments in the rows of a store: copied to them, checked in them, and copied from them.

A row has each column raw or encoded, as its forms say. Nothing here knows which rows are in use: the caller checks the
keys again after it has read rows that another thread may overwrite. No method takes a lock.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.errors import InvalidSegment
from penstock.replay.store.encoded_rows import decode_rows
from penstock.replay.store.layout import Regions, runs
from penstock.replay.store.lz4_blocks import first_malformed
from penstock.replay.store.row_checks import (
    check_values,
    checksums_of,
    copy_and_sum,
    has_values_to_check,
    inspect_raw,
    kind_of,
    largest_bits,
)
from penstock.types.block import VALID, Fragment, Schema
from penstock.types.codecs import Codec, Forms, codec_number, encodable, form_sizes
from penstock.types.payloads import Places

_RAW: Forms = np.zeros(0, np.uint32)


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
    """Copies pieces from their starts in `data` to their targets in `into`. Parts outside of either are cut off."""
    for index in range(starts.size):
        start, target = starts[index], targets[index]
        first = max(0, -start, -target)
        last = min(sizes[index], data.size - start, into.size - target)
        if first < last:
            into[target + first : target + last] = data[start + first : start + last]


class SegmentRows:
    """Rows of one store. Any thread may call any method, under the conditions above."""

    def __init__(self, regions: Regions, schema: Schema) -> None:
        self._regions, self._schema = regions, schema
        self._columns, self._forms = regions.columns, regions.forms
        self._form_of = {position: index for index, position in enumerate(encodable(schema))}
        """Index in the forms of each column that may be encoded, by its position."""
        self._checked = self._checks(0.0)
        self._marked = any(column.name == VALID for column in schema.columns)

    def _checks(self, largest: float) -> tuple[float, NDArray[np.int64]]:
        """Returns the largest magnitude and the columns <int64>[columns, 4] for `inspect_raw` with it."""
        schema, kinds = self._schema, map(kind_of, self._schema.columns)
        limits = (largest_bits(column, largest) for column in schema.columns)
        columns = [*zip(self._regions.offsets, schema.column_bytes, kinds, limits, strict=True)]
        return largest, np.array(columns, np.int64)

    def put(
        self,
        keys: NDArray[np.uint64],
        first: int,
        fragment: Fragment,
        sums: NDArray[np.uint64] | None = None,
    ) -> None:
        """Copies bytes of a window's column to the rows of these keys, its segments from index `first` on.

        Bytes of earlier segments, which are stored already, are skipped. The 64-bit words of all bytes are added to
        `sums` <uint64>[S] as they are read, as in `copy_and_sum`.
        """
        region = self._columns[fragment.column]
        width = region.shape[1]
        if fragment.starts is not None:
            data, mine = fragment.data, fragment.starts[first:]
            if sums is not None:
                # Another process may write to the source, so a second read of it could differ from the summed bytes.
                data = np.empty_like(data)
                copy_and_sum(fragment.data, data, sums)
            copy_pieces(
                data, mine[:-1] - fragment.offset, region.reshape(-1), self._regions.rows(keys) * width, np.diff(mine)
            )
            return
        flat, row = region.reshape(-1), int(keys[0] % np.uint64(self._regions.capacity))
        start, data = fragment.offset - first * width, fragment.data
        begin = (row * width + max(start, 0)) % flat.size
        if sums is not None:
            if start >= 0 and begin + data.size <= flat.size:
                copy_and_sum(data, flat[begin : begin + data.size], sums)
                return
            read = np.empty_like(data)
            copy_and_sum(data, read, sums)
            data = read
        data = data[max(-start, 0) :]
        before_end = min(data.size, flat.size - begin)
        flat[begin : begin + before_end] = data[:before_end]
        flat[: data.size - before_end] = data[before_end:]

    def inspect(self, runs_of_rows: Iterable[tuple[int, int, int]], header: NDArray[Any], largest: float) -> None:
        """Checks the values in the rows of a window, and writes the checksums of their <HEADER>[B] headers.

        `runs_of_rows` has start and stop of each run of segments in adjacent rows, and its first row. Floats are at
        most `largest` in magnitude; 0: any that are finite.

        Raises:
            InvalidSegment: The window has invalid values, or no row to learn from.
        """
        learnable = False
        if largest != self._checked[0]:
            self._checked = self._checks(largest)
        for start, stop, row in runs_of_rows:
            side_by_side = slice(row, row + stop - start)
            found = self._inspect_raw(side_by_side, header[start:stop])
            learnable |= found == 1
            if found >= 0:
                continue
            for position, column in enumerate(self._schema.columns):
                for content in self._decoded(position, side_by_side):
                    check_values(column, content, largest)
                    learnable |= column.name == VALID and bool(content.any())
            header["checksum"][start:stop] = self._checksums(header[start:stop], side_by_side)
        if self._marked and not learnable:
            # At least every second step of an environment is valid, so an actor can't have collected these bytes.
            raise InvalidSegment(f"malformed segments: column {VALID} marks no row of the window to learn from")

    def _inspect_raw(self, rows: slice, header: NDArray[Any]) -> int:
        """Checks adjacent rows as `inspect_raw` and returns its result; -1 also if some columns are encoded."""
        forms = self._forms[rows]
        if forms.any():
            return -1
        memory = self._regions.memory
        return int(inspect_raw(memory, self._checked[1], rows.start, rows.stop, forms.view(np.uint8), header))

    def gather(self, rows: NDArray[np.int64], where: Places, start: int, into: NDArray[np.uint8]) -> None:
        """Copies the bytes of these rows <int64>[B], column after column, from byte `start` on until `into` is full.

        `where` has the places of the columns. If it has forms, they are the forms of the rows, and the bytes are copied
        as they are stored. Otherwise encoded ones are decoded. Gaps between columns are not written.
        """
        for position, (region, offset, size) in enumerate(zip(self._columns, where.offsets, where.sizes, strict=True)):
            first, last = max(start - offset, 0), min(start + into.size - offset, size)
            if first >= last:
                continue
            wanted = into[offset + first - start : offset + last - start]
            if position in where.starts:
                starts = where.starts[position]
                copy_pieces(region.reshape(-1), rows * region.shape[1], wanted, starts[:-1] - first, np.diff(starts))
            elif position in self._form_of and (forms := self._forms[rows, self._form_of[position]]).any():
                _decode_into(region, rows, forms, first, wanted)
            else:
                _copy_rows(region, rows, first, wanted)

    def checksums(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the checksums <uint64>[B] of the immutable data (identity, version, payload) in ascending rows."""
        checksums = np.empty(rows.size, np.uint64)
        for start, stop in runs(rows):
            side_by_side = slice(rows[start], rows[stop - 1] + 1)
            checksums[start:stop] = self._checksums(self._regions.headers[side_by_side], side_by_side)
        return checksums

    def _checksums(self, headers: NDArray[Any], rows: slice) -> NDArray[np.uint64]:
        """Returns the checksums <uint64>[B] of the data in adjacent rows with these headers <HEADER>[B]."""
        return checksums_of(headers, self._forms[rows], self._regions.pieces(rows))

    def _decoded(self, position: int, rows: slice) -> Iterator[NDArray[np.uint8]]:
        """Yields a column's bytes <uint8>[..., width] in adjacent rows, decoded; each array is valid until the next.

        Encoded bytes whose values need no check are only checked to be decodable.

        Raises:
            InvalidSegment: Bytes were not encoded by their codec from as many bytes as the column has.
        """
        region, index = self._columns[position], self._form_of.get(position)
        forms = self._forms[rows, index] if index is not None else _RAW
        if not forms.any():
            yield region[rows]
            return
        self._check_blocks(position, rows, forms)
        if not has_values_to_check(self._schema.columns[position]):
            return
        # One row of scratch memory stays in the processor's cache.
        scratch = np.empty((1, region.shape[1]), np.uint8)
        for index in range(forms.size):
            decode_rows(region, np.array([rows.start + index]), forms[index : index + 1], scratch)
            yield scratch

    def _check_blocks(self, position: int, rows: slice, forms: Forms) -> None:
        """Raises `InvalidSegment` if encoded bytes of a column in adjacent rows don't decode to the column's values."""
        width, encoded = self._columns[position].shape[1], np.flatnonzero(forms)
        starts, sizes = (rows.start + encoded) * width, form_sizes(forms)[encoded].astype(np.int64)
        malformed = first_malformed(self._columns[position].reshape(-1), starts, sizes, width)
        if malformed >= 0:
            codec = Codec(codec_number(int(forms[encoded[malformed]]))).name.lower()
            raise InvalidSegment(
                f"malformed segments: column {self._schema.columns[position].name} has {sizes[malformed]} bytes of"
                f" {codec} that don't decode to {width} bytes"
            )


def _copy_rows(region: NDArray[np.uint8], rows: NDArray[np.int64], first: int, into: NDArray[np.uint8]) -> None:
    """Fills `into` with the concatenated bytes of these rows, from byte `first` on."""
    width = region.shape[1]
    row, skipped = divmod(first, width)
    if skipped:
        piece = region[rows[row], skipped : skipped + into.size]
        into[: piece.size] = piece
        into, row = into[piece.size :], row + 1
    whole = into.size // width
    np.take(region, rows[row : row + whole], axis=0, out=into[: whole * width].reshape(whole, width), mode="clip")
    rest = into[whole * width :]
    if rest.size:
        rest[:] = region[rows[row + whole], : rest.size]


def _decode_into(
    region: NDArray[np.uint8], rows: NDArray[np.int64], forms: Forms, first: int, into: NDArray[np.uint8]
) -> None:
    """Fills `into` with the decoded bytes of these rows, from byte `first` on. Undecodable bytes are replaced by 0."""
    width = region.shape[1]
    scratch = np.empty((1, width), np.uint8)
    for index in range(first // width, -(-(first + into.size) // width)):
        if decode_rows(region, rows[index : index + 1], forms[index : index + 1], scratch):
            scratch[...] = 0
        begin = index * width - first
        piece = scratch[0, max(-begin, 0) : into.size - begin]
        into[max(begin, 0) : max(begin, 0) + piece.size] = piece
