"""The store: a ring of rows in one memory-mapped file, one segment per row, that survives the death of any process.

The file is allocated at its full size when the service starts or, if its size depends on the schema, when the first
schema is known. The first schema divides it into regions: the headers, then one region per column. Segment `key` is in
row `key % capacity`. Keys count insertions from 1 and are never reused. A row's key is zeroed before the row is
overwritten and the new key is written last, so a torn row has no key. Without a folder, anonymous memory has the same
layout.

The store refuses a file that can't be allocated, and an existing store of another format, schema or size.
`replay.buffer` and its parts call it under one lock. Reads of rows (`columns`, `gather_bytes`, `checksums`) are safe
without the lock if the keys are checked again afterwards. So are `put` and `inspect` on reserved rows.
"""

import errno
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, DamagedFile, InvalidSegment, Overloaded, PlaceLost, SchemaMismatch
from penstock.replay.store.description import DESCRIPTION_FILE, damaged_store, read_description, write_description
from penstock.replay.store.encoded_rows import decode_rows
from penstock.replay.store.layout import (
    HEADER,
    PAGE,
    RECORDS_BYTES,
    RECORDS_FILE,
    SEGMENT_STATES,
    SEGMENTS_FILE,
    Regions,
    State,
    runs,
)
from penstock.replay.store.lz4_blocks import first_malformed
from penstock.replay.store.piece_copies import copy_pieces
from penstock.replay.store.records import Records, session_of
from penstock.replay.store.row_checks import (
    begin_headers,
    check_values,
    checksums_of,
    copy_and_sum,
    has_values_to_check,
    inspect_raw,
    kind_of,
    reserve_rows,
)
from penstock.types.block import VALID, Fragment, Schema
from penstock.types.codecs import Codec, Forms, codec_number, encodable, form_sizes
from penstock.types.payloads import Places
from penstock.types.replay import MAX_SLOTS, MappedStore, WindowHead

_RAW: Forms = np.zeros(0, np.uint32)
_SEEN, _WRITING = int(State.SEEN), int(State.WRITING)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of scanning an existing store.

    Attributes:
        segments: Number of intact segments.
        damaged: Rows dropped because their segments were damaged or lost.
        torn: Rows that were being written when the last process ended. Their segments were never acknowledged.
        repaired: Copies of watermarks and other records that were damaged or torn, and were restored from the other
            copy.
    """

    segments: int = 0
    damaged: int = 0
    torn: int = 0
    repaired: int = 0


class RingStore:
    """Rows of segments with their headers, watermarks and session record.

    Attributes:
        folder: Folder of the store; None in anonymous memory.
        schema: Schema of the segments; None before it is known.
        capacity: Number of rows; 0 before the schema is known.
        headers: <HEADER>[capacity] mapped headers.
        columns: Mapped rows <uint8>[capacity, bytes of a segment's column], one array per column.
        forms: Mapped forms of the rows' columns.
        records: Mapped records <uint8>[RECORDS_BYTES]: watermarks, session record and ages.
        session: Session record.
        recovery: Result of opening the store.
    """

    def __init__(self, folder: Path | None, capacity_bytes: int | Callable[[Schema], int]) -> None:
        """Creates the files, or opens the existing ones.

        Args:
            folder: Folder of the store; None for anonymous memory.
            capacity_bytes: Size in bytes; or a function that returns it, called once when the schema is known. The file
                is then allocated at that time.

        Raises:
            ConfigurationError: The folder can't be written, the disk is too full, or the existing store has another
                size or format.
            DamagedFile: A file of the store is missing or damaged.
        """
        self.folder, self._size = folder, capacity_bytes
        schema, described = _description_in(folder) if folder is not None else (None, 0)
        size = self._bytes_for(schema)
        if folder is not None and schema is not None and size is not None:
            _check_files(folder, described, size)
        self._memory = _allocate(folder, SEGMENTS_FILE, size) if size is not None else None
        self._records_memory = _allocate(folder, RECORDS_FILE, RECORDS_BYTES)
        self.records = np.frombuffer(self._records_memory, np.uint8)
        self._records = self._open_records(new=schema is None)
        self.schema: Schema | None = None
        self.capacity = 0
        self.headers: NDArray[Any] = np.zeros(0, HEADER)
        self._layout: Regions | None = None
        self._checked: NDArray[np.int64] = np.zeros((0, 3), np.int64)
        self._marked = False
        self._proof = secrets.randbits(62)
        self.columns: tuple[NDArray[np.uint8], ...] = ()
        self.forms: Forms = np.zeros((0, 0), np.uint32)
        self.session = self._records.session
        self.recovery = Recovery()
        if schema is not None:
            self._lay_out(schema)
            self.recovery = self._recover()

    def _bytes_for(self, schema: Schema | None) -> int | None:
        """Returns the size of the store; None if it depends on the schema, which is not known yet."""
        if not callable(self._size):
            return self._size
        return self._size(schema) if schema is not None else None

    def _open_records(self, *, new: bool) -> Records:
        try:
            records = Records(self.records, new=False)
        except DamagedFile as error:
            if self.folder is not None and not new:
                raise damaged_store(self.folder / RECORDS_FILE, f"is damaged: {error}") from None
        else:
            if self.folder is not None and new and records.session.next_key > 1:
                raise damaged_store(self.folder / DESCRIPTION_FILE, f"is missing, and {RECORDS_FILE} counts segments")
            return records
        # Nothing was stored: there are no records, or a kill interrupted their creation.
        records = Records(self.records, new=True)
        # Key 0 is never assigned.
        records.session.next_key, records.session.identity = 1, secrets.randbits(63) | 1
        records.session.save()
        return records

    def adopt(self, schema: Schema) -> None:
        """Divides the memory by the first schema, and checks every later one against it.

        Raises:
            SchemaMismatch: The store holds segments of another schema.
            ConfigurationError: Fewer than two segments fit, or the file can't be allocated.
        """
        if self.schema is not None:
            if schema != self.schema:
                raise SchemaMismatch(
                    f"this store holds segments of schema {self.schema.hash:016x}, and an actor sent"
                    f" {schema.hash:016x}; start a new run for another environment or unroll length"
                )
            return
        self._lay_out(schema)
        if self.folder is not None:
            assert self._memory is not None
            write_description(self.folder, schema, len(self._memory))

    def _lay_out(self, schema: Schema) -> None:
        if self._memory is None:
            size = self._bytes_for(schema)
            assert size is not None
            self._memory = _allocate(self.folder, SEGMENTS_FILE, size)
        regions = Regions(self._memory, schema, len(self._memory))
        self._layout, self.columns, self.forms = regions, regions.columns, regions.forms
        self.headers, self.schema, self.capacity = regions.headers, schema, regions.capacity
        kinds = map(kind_of, schema.columns)
        self._checked = np.array([*zip(regions.offsets, schema.column_bytes, kinds, strict=True)], np.int64)
        self._marked = any(column.name == VALID for column in schema.columns)

    def _recover(self) -> Recovery:
        keys, states = self.headers["key"], self.headers["state"]
        rows = np.flatnonzero(keys)
        sound = keys[rows] % np.uint64(self.capacity) == rows
        sound &= self._plausible(rows)
        sound &= self.checksums(rows) == self.headers["checksum"][rows]
        # The process was killed before the key was written, or while the row was overwritten.
        torn = (keys == 0) & np.isin(states, (*SEGMENT_STATES, State.WRITING))
        # Every row that the ring has reached has a state.
        reached = (np.arange(self.capacity) - 1) % self.capacity < self.session.next_key - 1
        lost = (keys == 0) & ~torn & (states != State.RELEASED) & (reached | (states != 0))
        damaged = int(np.count_nonzero(~sound)) + int(np.count_nonzero(lost))
        if lost.any() and not keys.any():
            assert self.folder is not None
            raise damaged_store(
                self.folder / SEGMENTS_FILE,
                f"has none of the {damaged} segments that were stored: its headers are lost",
            )
        self.remove(np.concatenate([rows[~sound], np.flatnonzero(lost | torn)]))
        whole = self.headers[rows[sound]]
        self.session.next_key = max(self.session.next_key, int(whole["key"].max(initial=0)) + 1)
        self.session.save()
        for slot in np.unique(whole["slot"]):
            mine = whole[whole["slot"] == slot]
            newest = mine[mine["incarnation"] == mine["incarnation"].max()]
            self._raise_watermark(int(slot), int(newest["incarnation"][0]), int(newest["sequence"].max()))
        return Recovery(int(sound.sum()), damaged, int(torn.sum()), self._records.repaired)

    def _plausible(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns <bool>[B] whether the header fields that no checksum covers are valid in these rows with keys."""
        headers, session = self.headers[rows], self.session
        result: NDArray[np.bool_] = np.isin(headers["state"], SEGMENT_STATES)
        result &= np.isfinite(headers["priority"]) & (headers["priority"] >= 0.0) & (headers["batch"] >= -1)
        # After a kill between a batch's states and its record, the batch is still the next one.
        open_batch = (headers["batch"] >= session.next_batch) & (headers["batch"] <= session.next_lease)
        result &= (headers["state"] != State.LEASED) | open_batch
        return result

    def adopt_records(self, records: NDArray[np.uint8]) -> None:
        """Adopts the records <uint8>[RECORDS_BYTES] of another store, except its identity and session.

        Raises:
            DamagedFile: The records are damaged.
        """
        identity = self.session.identity
        session_of(records)
        self.records[...] = records
        self._records = Records(self.records, new=False)
        self.session = self._records.session
        # The other store may still exist, and a learner must not mistake one for the other.
        self.session.identity = identity
        # Leases belonged to the other run's learner. The next session revokes them.
        self.session.session = 0
        self.session.save()

    @property
    def mapped(self) -> MappedStore | None:
        """Location from which other processes can map this store; None in anonymous memory."""
        if self.folder is None:
            return None
        return MappedStore(str(self.folder.resolve()), self.session.identity)

    def prove(self) -> int:
        """Writes a new proof to the memory and returns it. Each proof is one more than the last.

        Only a process that maps this memory can read it there. The schema must be known.
        """
        assert self._layout is not None
        self._proof += 1
        self._layout.proof[0] = self._proof
        return self._proof

    def watermark(self, slot: int, incarnation: int) -> int:
        """Returns the last sequence stored for this slot and incarnation; 0 if there is none.

        Raises:
            InvalidSegment: The slot is out of range.
            PlaceLost: A later incarnation has taken the slot.
        """
        if not 0 <= slot < MAX_SLOTS:
            raise InvalidSegment(f"slot must be below {MAX_SLOTS}, got {slot}")
        newest, sequence = self._records.watermark(slot)
        if newest > incarnation:
            raise PlaceLost(
                f"incarnation {incarnation} of slot {slot} is over: {newest} has taken it; join again", newest
            )
        return sequence if newest == incarnation else 0

    def _raise_watermark(self, slot: int, incarnation: int, sequence: int) -> None:
        if (incarnation, sequence) > self._records.watermark(slot):
            self._records.set_watermark(slot, incarnation, sequence)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the rows <int64>[B] to which these keys are assigned."""
        assert self._layout is not None
        return self._layout.rows(keys)

    def present(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Returns <bool>[B] whether these segments are still present."""
        # Rows without a segment have key 0, which is never assigned.
        result: NDArray[np.bool_] = (self.headers["key"][self.rows(keys)] == keys) & (keys != 0)
        return result

    def reserve(self, keys: NDArray[np.uint64], forms: Forms | None = None) -> NDArray[np.int64]:
        """Empties the rows of these consecutive keys, for `put` and then `seal` or `release`.

        Args:
            keys: <uint64>[B] keys.
            forms: Forms of the segments' columns; None if all are raw.

        Returns:
            <int64>[...] rows that held seen segments.

        Raises:
            Overloaded: A row to overwrite is unseen or leased, or is reserved for another window.
        """
        rows = np.empty(keys.size, np.int64)
        seen = reserve_rows(self.headers, keys, _SEEN, _WRITING, rows)
        if seen < 0:
            raise Overloaded(
                f"the store's {self.capacity} rows are full of segments that were not trained yet; raise"
                " replay.capacity_bytes"
            )
        for start, stop, row in self._side_by_side(keys):
            self.forms[row : row + stop - start] = 0 if forms is None else forms[start:stop]
        return rows[:seen]

    def put(
        self,
        keys: NDArray[np.uint64],
        first: int,
        fragment: Fragment,
        sums: NDArray[np.uint64] | None = None,
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        """Copies bytes of a window's column to the reserved rows of its segments from index `first` on. Needs no lock.

        Bytes of earlier segments, which are stored already, are skipped. The 64-bit words of all bytes are added to
        `sums` <uint64>[S] as they are read, as in `copy_and_sum`. `starts` <int64>[segments + 1] has the offsets of the
        window's segments in the column's bytes if some are encoded, which is never so with `sums`.
        """
        region = self.columns[fragment.column]
        width = region.shape[1]
        if starts is not None:
            mine = starts[first:]
            places = mine[:-1] - fragment.offset
            copy_pieces(fragment.data, places, region.reshape(-1), self.rows(keys) * width, np.diff(mine))
            return
        flat, row = region.reshape(-1), int(keys[0] % np.uint64(self.capacity))
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

    def inspect(self, keys: NDArray[np.uint64], head: WindowHead, first: int) -> NDArray[Any]:
        """Checks the values in reserved rows. It is called without the lock, because it reads every byte.

        Returns:
            <HEADER>[B] headers for `seal`.

        Raises:
            InvalidSegment: The window has invalid values, or no row to learn from. The rows stay reserved.
        """
        assert self.schema is not None
        learnable, header = False, np.empty(keys.size, HEADER)
        environments = np.ascontiguousarray(head.environments[first:])
        begin_headers(
            header, keys, head.first_sequence + first, head.version, head.slot, head.incarnation, environments
        )
        header["state"] = State.UNSEEN
        for start, stop, row in self._side_by_side(keys):
            side_by_side = slice(row, row + stop - start)
            found = self._inspect_raw(side_by_side, header[start:stop])
            learnable |= found == 1
            if found >= 0:
                continue
            for position, column in enumerate(self.schema.columns):
                for content in self._decoded(position, side_by_side):
                    check_values(column, content)
                    learnable |= column.name == VALID and bool(content.any())
            header["checksum"][start:stop] = self._checksums(header[start:stop], side_by_side)
        if self._marked and not learnable:
            # At least every second step of an environment is valid, so an actor can't have collected these bytes.
            raise InvalidSegment(f"malformed segments: column {VALID} marks no row of the window to learn from")
        return header

    def _side_by_side(self, keys: NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
        """Yields start and stop of the runs of these consecutive keys whose rows are adjacent, and each first row."""
        row = int(keys[0]) % self.capacity
        before_end = min(keys.size, self.capacity - row)
        yield 0, before_end, row
        if before_end < keys.size:
            yield before_end, keys.size, 0

    def _inspect_raw(self, rows: slice, header: NDArray[Any]) -> int:
        """Checks adjacent rows as `inspect_raw` and returns its result; -1 also if some columns are encoded."""
        assert self._layout is not None
        forms = self.forms[rows]
        if forms.any():
            return -1
        return int(inspect_raw(self._layout.memory, self._checked, rows.start, rows.stop, forms.view(np.uint8), header))

    def _decoded(self, position: int, rows: slice) -> Iterator[NDArray[np.uint8]]:
        """Yields a column's bytes <uint8>[..., width] in adjacent rows, decoded; each array is valid until the next.

        Encoded bytes whose values need no check are only checked to be decodable.

        Raises:
            InvalidSegment: Bytes are not what their codec makes of as many bytes as the column has.
        """
        assert self.schema is not None
        region, columns = self.columns[position], encodable(self.schema)
        forms = self.forms[rows, columns.index(position)] if position in columns else _RAW
        if not forms.any():
            yield region[rows]
            return
        self._check_blocks(position, rows, forms)
        if not has_values_to_check(self.schema.columns[position]):
            return
        # One row of scratch memory stays in the processor's cache.
        scratch = np.empty((1, region.shape[1]), np.uint8)
        for index in range(forms.size):
            decode_rows(region, np.array([rows.start + index]), forms[index : index + 1], scratch)
            yield scratch

    def _check_blocks(self, position: int, rows: slice, forms: Forms) -> None:
        """Raises `InvalidSegment` if encoded bytes of a column in adjacent rows don't decode to what the column has."""
        assert self.schema is not None
        width, encoded = self.columns[position].shape[1], np.flatnonzero(forms)
        starts, sizes = (rows.start + encoded) * width, form_sizes(forms)[encoded].astype(np.int64)
        malformed = first_malformed(self.columns[position].reshape(-1), starts, sizes, width)
        if malformed >= 0:
            codec = Codec(codec_number(int(forms[encoded[malformed]]))).name.lower()
            raise InvalidSegment(
                f"malformed segments: column {self.schema.columns[position].name} has {sizes[malformed]} bytes of"
                f" {codec} that don't decode to {width} bytes"
            )

    def seal(self, keys: NDArray[np.uint64], header: NDArray[Any], head: WindowHead) -> None:
        """Turns reserved rows into unseen segments. The keys are written last."""
        header["key"] = 0
        for start, stop, row in self._side_by_side(keys):
            self.headers[row : row + stop - start] = header[start:stop]
            self.headers["key"][row : row + stop - start] = keys[start:stop]
        self._raise_watermark(head.slot, head.incarnation, head.last_sequence)

    def release(self, keys: NDArray[np.uint64]) -> None:
        """Releases reserved rows. They stay empty until the ring reaches them again."""
        self.headers["state"][self.rows(keys)] = State.RELEASED

    def without_state(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns those of these rows whose segments have an invalid state. They are damaged."""
        headers = self.headers[rows]
        damaged: NDArray[np.int64] = rows[(headers["key"] != 0) & ~np.isin(headers["state"], SEGMENT_STATES)]
        return damaged

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Removes the segments in these rows."""
        self.headers["key"][rows] = 0
        self.headers["state"][rows] = State.RELEASED

    def gather_bytes(self, rows: NDArray[np.int64], where: Places, start: int, into: NDArray[np.uint8]) -> None:
        """Copies the bytes of these rows <int64>[B], column after column, from byte `start` on until `into` is full.

        `where` has the places of the columns. If it has forms, they are those of the rows, and the bytes are copied as
        they are stored. Otherwise encoded ones are decoded. Gaps between columns are not written.
        """
        assert self.schema is not None
        columns = encodable(self.schema)
        for position, (region, offset, size) in enumerate(zip(self.columns, where.offsets, where.sizes, strict=True)):
            first, last = max(start - offset, 0), min(start + into.size - offset, size)
            if first >= last:
                continue
            wanted = into[offset + first - start : offset + last - start]
            if position in where.starts:
                starts = where.starts[position]
                copy_pieces(region.reshape(-1), rows * region.shape[1], wanted, starts[:-1] - first, np.diff(starts))
            elif position in columns and (forms := self.forms[rows, columns.index(position)]).any():
                _decode_into(region, rows, forms, first, wanted)
            else:
                _copy_rows(region, rows, first, wanted)

    def forms_of(self, rows: NDArray[np.int64]) -> Forms | None:
        """Returns a copy of the forms of these rows <int64>[B]; None if all are raw."""
        forms: Forms = self.forms[rows]
        return forms if forms.any() else None

    def checksums(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the checksums <uint64>[B] of the immutable data (identity, version, payload) in ascending rows."""
        checksums = np.empty(rows.size, np.uint64)
        for start, stop in runs(rows):
            side_by_side = slice(rows[start], rows[stop - 1] + 1)
            checksums[start:stop] = self._checksums(self.headers[side_by_side], side_by_side)
        return checksums

    def _checksums(self, headers: NDArray[Any], rows: slice) -> NDArray[np.uint64]:
        """Returns the checksums <uint64>[B] of the data in adjacent rows with these headers <HEADER>[B]."""
        assert self._layout is not None
        return checksums_of(headers, self.forms[rows], self._layout.pieces(rows))

    def freeze(self, headers: NDArray[Any]) -> NDArray[np.uint8]:
        """Copies the mutable state: the headers to `headers`, and the records to a new array, which it returns.

        It copies about 10 GB/s if the memory of `headers` was touched before.
        """
        headers.view(np.uint8)[...] = self.headers.view(np.uint8)
        return self.records.copy()

    def flush(self) -> None:
        """Writes the mapped pages to disk, for a clean stop. Surviving a kill does not require it."""
        if self.folder is not None:
            if self._memory is not None:
                self._memory.flush()
            self._records_memory.flush()


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
    """Fills `into` with the decoded bytes of these rows, from byte `first` on. Zeros replace what can't be decoded."""
    width = region.shape[1]
    scratch = np.empty((1, width), np.uint8)
    for index in range(first // width, -(-(first + into.size) // width)):
        if decode_rows(region, rows[index : index + 1], forms[index : index + 1], scratch):
            scratch[...] = 0
        begin = index * width - first
        piece = scratch[0, max(-begin, 0) : into.size - begin]
        into[max(begin, 0) : max(begin, 0) + piece.size] = piece


def _description_in(folder: Path) -> tuple[Schema | None, int]:
    """Returns the schema and the size in bytes of the store in a folder; (None, 0) if nothing was stored yet.

    Raises:
        ConfigurationError: The store has another format.
        DamagedFile: The description is missing or damaged.
    """
    if (folder / DESCRIPTION_FILE).exists():
        return read_description(folder)
    if _begins_with_data(folder / SEGMENTS_FILE):
        raise damaged_store(folder / DESCRIPTION_FILE, f"is missing, and {SEGMENTS_FILE} holds segments")
    return None, 0


def _check_files(folder: Path, described: int, capacity_bytes: int) -> None:
    """Checks the sizes of the files of a store with `described` bytes.

    Raises:
        ConfigurationError: The store has another size than the configured one.
        DamagedFile: A file is missing, or its size has changed.
    """
    segments, records = folder / SEGMENTS_FILE, folder / RECORDS_FILE
    if described != capacity_bytes:
        if segments.exists() and segments.stat().st_size == capacity_bytes:
            raise damaged_store(folder / DESCRIPTION_FILE, f"names {described} bytes, and {segments} has another size")
        raise _another_size(segments, described, capacity_bytes)
    for path, size in ((segments, described), (records, RECORDS_BYTES)):
        present = path.stat().st_size if path.exists() else -1
        if present != size:
            raise damaged_store(
                path, f"has {present} bytes, and was made with {size}" if present >= 0 else "is missing"
            )


def _begins_with_data(path: Path) -> bool:
    """Returns whether the first page, which has the headers of the first used rows, is not all zeros."""
    try:
        with path.open("rb") as file:
            return any(file.read(PAGE))
    except OSError:
        # The file does not exist, or `_allocate` reports the error.
        return False


def _another_size(path: Path, present: int, wanted: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is a store of {present} bytes, and {wanted} are configured; set replay.capacity_bytes as it"
        " was, or choose another replay.folder"
    )


def _allocate(folder: Path | None, name: str, size: int) -> mmap.mmap:
    if folder is None:
        return mmap.mmap(-1, size)
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            present = os.fstat(descriptor).st_size
            if present not in (0, size):
                raise _another_size(path, present, size)
            _fill_holes(descriptor, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except PermissionError as error:
        raise ConfigurationError(
            f"can't write the replay store at {path}: {error.strerror}; change who owns the folder, or choose another"
            " replay.folder"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"can't allocate {size} bytes for the replay store at {path}: {error.strerror}; free space, lower"
            " replay.capacity_bytes, or choose another replay.folder"
        ) from None


def _fill_holes(descriptor: int, size: int) -> None:
    """Allocates disk space for the whole file, because on a full disk a hole causes a bus error during the run.

    Raises:
        OSError: There is not enough space. The file keeps its size.
    """
    file, disk = os.fstat(descriptor), os.fstatvfs(descriptor)
    # For a new file, free space is checked first, because a failed attempt would briefly fill the disk for other
    # processes. Some file systems do not report it, and root may use reserved space.
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    if file.st_size == 0 and disk.f_blocks and size > free * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        # Ext4 keeps the blocks it has allocated, so the disk would stay full.
        os.ftruncate(descriptor, file.st_size)
        raise
