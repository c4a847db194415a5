"""The store: a ring of rows in one memory-mapped file, one segment per row, that survives the death of any process.

The file is allocated at its full size when the service starts or, if its size depends on the schema, when the first
schema is known. The first schema divides it into regions: the headers, then one region per column. Segment `key` is in
row `key % capacity`. Keys count insertions from 1 and are never reused. A row's key is zeroed before the row is
overwritten and the new key is written last, so a torn row has no key. Without a folder, anonymous memory has the same
layout.

The store refuses a file that can't be allocated, and an existing store of another format, schema or size. Callers hold
the buffer's lock. Reads of rows (`columns`, `gather_bytes`, `checksums`) are safe without the lock if the keys are
checked again afterwards. So are `put` and `inspect` on reserved rows.
"""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DamagedFile, InvalidSegment, Overloaded, PlaceLost, SchemaMismatch
from penstock.replay.store.description import (
    DESCRIPTION_FILE,
    NO_OWNER,
    Description,
    Owner,
    damaged_store,
    write_description,
)
from penstock.replay.store.layout import (
    HEADER,
    RECORDS_BYTES,
    RECORDS_FILE,
    SEGMENT_STATES,
    SEGMENTS_FILE,
    Regions,
    State,
)
from penstock.replay.store.records import Records, session_of
from penstock.replay.store.recovery import Recovery, scan_rows
from penstock.replay.store.row_checks import begin_headers, in_order, reserve_rows
from penstock.replay.store.segment_rows import SegmentRows
from penstock.replay.store.store_files import allocate, check_files, check_place, description_in
from penstock.types.block import Fragment, Schema
from penstock.types.codecs import Forms
from penstock.types.payloads import Places
from penstock.types.replay import MAX_SLOTS, MappedStore, WindowHead

_SEEN, _WRITING = int(State.SEEN), int(State.WRITING)


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
        owner: Run to which the store belongs.
        recovery: Result of opening the store.
    """

    def __init__(self, folder: Path | None, capacity_bytes: int | Callable[[Schema], int]) -> None:
        """Creates the files, or opens the existing ones.

        Args:
            folder: Folder of the store; None for anonymous memory.
            capacity_bytes: Size in bytes; or a function that returns it, called once when the schema is known. The file
                is then allocated at that time.

        Raises:
            ConfigurationError: The folder is on a network file system or can't be written, the disk is too full, or
                the existing store has another size or format.
            DamagedFile: A file of the store is missing or damaged.
        """
        self.folder, self._size = folder, capacity_bytes
        if folder is not None:
            check_place(folder)
        description = description_in(folder) if folder is not None else None
        schema = description.schema if description is not None else None
        self.owner = description.owner if description is not None else NO_OWNER
        size = self._bytes_for(schema)
        if folder is not None and description is not None and size is not None:
            check_files(folder, description.capacity_bytes, size)
        self._memory = allocate(folder, SEGMENTS_FILE, size) if size is not None else None
        self._records_memory = allocate(folder, RECORDS_FILE, RECORDS_BYTES)
        self.records = np.frombuffer(self._records_memory, np.uint8)
        self._records = self._open_records(new=schema is None)
        self.schema: Schema | None = None
        self.capacity = 0
        self.headers: NDArray[Any] = np.zeros(0, HEADER)
        self._layout: Regions | None = None
        self._contents: SegmentRows | None = None
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
        self._describe()

    def belong_to(self, owner: Owner) -> None:
        """Makes the store one of this run from now on. Raises `OSError` if that can't be recorded."""
        former, self.owner = self.owner, owner
        try:
            self._describe()
        except OSError:
            self.owner = former
            raise

    def _describe(self) -> None:
        """Writes the description, once there are segments to describe."""
        if self.folder is not None and self.schema is not None:
            assert self._memory is not None
            write_description(self.folder, Description(self.schema, len(self._memory), self.owner))

    def _lay_out(self, schema: Schema) -> None:
        if self._memory is None:
            size = self._bytes_for(schema)
            assert size is not None
            self._memory = allocate(self.folder, SEGMENTS_FILE, size)
        regions = Regions(self._memory, schema, len(self._memory))
        self._layout, self._contents = regions, SegmentRows(regions, schema)
        self.columns, self.forms = regions.columns, regions.forms
        self.headers, self.schema, self.capacity = regions.headers, schema, regions.capacity

    def _recover(self) -> Recovery:
        scan = scan_rows(self.headers, self.session, self.checksums)
        if scan.headers_lost:
            assert self.folder is not None
            raise damaged_store(
                self.folder / SEGMENTS_FILE,
                f"has none of the {scan.damaged} segments that were stored: its headers are lost",
            )
        self.remove(scan.spoilt)
        whole = self.headers[scan.intact]
        self.session.next_key = max(self.session.next_key, int(whole["key"].max(initial=0)) + 1)
        self.session.save()
        for slot in np.unique(whole["slot"]):
            mine = whole[whole["slot"] == slot]
            newest = mine[mine["incarnation"] == mine["incarnation"].max()]
            self._raise_watermark(int(slot), int(newest["incarnation"][0]), int(newest["sequence"].max()))
        return Recovery(scan.intact.size, scan.damaged, scan.torn, self._records.repaired)

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
        in_order()
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
        # The rows' new bytes come after the keys that are gone.
        in_order()
        for start, stop, row in self._side_by_side(keys):
            self.forms[row : row + stop - start] = 0 if forms is None else forms[start:stop]
        return rows[:seen]

    def put(
        self,
        keys: NDArray[np.uint64],
        first: int,
        fragment: Fragment,
        sums: NDArray[np.uint64] | None = None,
    ) -> None:
        """Copies bytes of a window to the reserved rows of these keys, as `SegmentRows.put`. Needs no lock."""
        self._rows_of_segments.put(keys, first, fragment, sums)

    def inspect(self, keys: NDArray[np.uint64], head: WindowHead, first: int, largest: float = 0.0) -> NDArray[Any]:
        """Checks the values in reserved rows. It is called without the lock, because it reads every byte.

        Floats must be finite and at most `largest` in magnitude; 0: only finite.

        Returns:
            <HEADER>[B] headers for `seal`.

        Raises:
            InvalidSegment: The window has invalid values, or no row to learn from. The rows stay reserved.
        """
        header = np.empty(keys.size, HEADER)
        environments = np.ascontiguousarray(head.environments[first:])
        begin_headers(
            header, keys, head.first_sequence + first, head.version, head.slot, head.incarnation, environments
        )
        header["state"] = State.UNSEEN
        self._rows_of_segments.inspect(self._side_by_side(keys), header, largest)
        return header

    def _side_by_side(self, keys: NDArray[np.uint64]) -> Iterator[tuple[int, int, int]]:
        """Yields start and stop of the runs of these consecutive keys whose rows are adjacent, and each first row."""
        row = int(keys[0]) % self.capacity
        before_end = min(keys.size, self.capacity - row)
        yield 0, before_end, row
        if before_end < keys.size:
            yield before_end, keys.size, 0

    def seal(self, keys: NDArray[np.uint64], header: NDArray[Any], head: WindowHead) -> None:
        """Turns reserved rows into unseen segments. The keys are written last."""
        header["key"] = 0
        for start, stop, row in self._side_by_side(keys):
            self.headers[row : row + stop - start] = header[start:stop]
            in_order()
            self.headers["key"][row : row + stop - start] = keys[start:stop]
        self._raise_watermark(head.slot, head.incarnation, head.last_sequence)

    def release(self, keys: NDArray[np.uint64]) -> None:
        """Releases reserved rows. They stay empty until the ring reaches them again."""
        self.headers["state"][self.rows(keys)] = State.RELEASED

    def without_state(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows among these whose segments have an invalid state. They are damaged."""
        headers = self.headers[rows]
        damaged: NDArray[np.int64] = rows[(headers["key"] != 0) & ~np.isin(headers["state"], SEGMENT_STATES)]
        return damaged

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Removes the segments in these rows."""
        self.headers["key"][rows] = 0
        self.headers["state"][rows] = State.RELEASED

    def gather_bytes(self, rows: NDArray[np.int64], where: Places, start: int, into: NDArray[np.uint8]) -> None:
        """Copies the bytes of these rows <int64>[B], as `SegmentRows.gather`."""
        self._rows_of_segments.gather(rows, where, start, into)

    def forms_of(self, rows: NDArray[np.int64]) -> Forms | None:
        """Returns a copy of the forms of these rows <int64>[B]; None if all are raw."""
        forms: Forms = self.forms[rows]
        return forms if forms.any() else None

    def checksums(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns the checksums <uint64>[B] of the immutable data in ascending rows, as `SegmentRows.checksums`."""
        return self._rows_of_segments.checksums(rows)

    @property
    def _rows_of_segments(self) -> SegmentRows:
        assert self._contents is not None
        return self._contents

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
