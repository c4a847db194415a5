"""Blocks of data: schemas, columns, and the bytes of segments."""

import enum
import functools
import hashlib
import math
import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

DATA_TYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
"""NumPy names of the element types of columns, in the order of their numbers in the contract, from 1."""

VALID = "valid"
"""Column that is true for the rows of a segment to learn from."""

MAX_COLUMN_NAME = 64
"""Characters of a column's name."""

COLUMN_ALIGNMENT = 8
"""Alignment of the columns in a payload, in bytes. It keeps every element aligned."""


class Extent(enum.IntEnum):
    """Rows of a column in one segment of T steps, numbered as in the contract."""

    STEP = 1
    """T rows."""
    STEP_AND_NEXT = 2
    """T + 1 rows: one per step, and one after the last step."""
    SEGMENT = 3
    """One row."""


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed array that every segment has.

    Attributes:
        name: Name of the column, unique in its schema, of at most `MAX_COLUMN_NAME` characters.
        dtype: Element type, one of `DATA_TYPES`.
        shape: Shape of one row; empty for a scalar.
        extent: Number of rows in a segment.
        lead: Rows before the first step, in addition to the extent.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    extent: Extent = Extent.STEP
    lead: int = 0

    def segment_shape(self, unroll_length: int) -> tuple[int, ...]:
        """Returns the shape of this column in one segment: (rows, *shape)."""
        rows = {Extent.STEP: unroll_length, Extent.STEP_AND_NEXT: unroll_length + 1, Extent.SEGMENT: 1}[self.extent]
        return (rows + self.lead, *self.shape)

    def segment_bytes(self, unroll_length: int) -> int:
        """Returns the size of this column in one segment, in bytes."""
        return math.prod(self.segment_shape(unroll_length)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of every segment of a run, and the steps in a segment, T."""

    unroll_length: int
    columns: tuple[Column, ...]
    _key: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Caches of values that follow from a schema look it up several times per message. A hash of all columns takes
        # longer than the rest of such a look-up. The CRC is the same in every process, which a hash of strings is not.
        object.__setattr__(self, "_key", zlib.crc32(repr((self.unroll_length, self.columns)).encode()))

    def __hash__(self) -> int:
        return self._key

    @property
    def segment_bytes(self) -> int:
        """The size of one segment's columns, in bytes."""
        return sum(self.column_bytes)

    @property
    def column_bytes(self) -> tuple[int, ...]:
        """The size of each column in one segment, in bytes."""
        return _column_bytes(self)

    @property
    def hash(self) -> int:
        """A 64-bit hash that identifies this schema, as defined in proto/penstock/v1/block.proto."""
        return _schema_hash(self)

    def index(self, name: str) -> int:
        """Returns the position of the column with this name. Raises `KeyError` if there is none."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        raise KeyError(name)

    def empty(self, segments: int) -> "Columns":
        """Returns zeroed columns for this many segments."""
        shapes = [(segments, *column.segment_shape(self.unroll_length)) for column in self.columns]
        arrays = tuple(np.zeros(shape, column.dtype) for shape, column in zip(shapes, self.columns, strict=True))
        return Columns(self, arrays)


@functools.lru_cache(maxsize=64)
def _column_bytes(schema: Schema) -> tuple[int, ...]:
    return tuple(column.segment_bytes(schema.unroll_length) for column in schema.columns)


@functools.lru_cache(maxsize=64)
def _schema_hash(schema: Schema) -> int:
    lines = ["penstock.v1", str(schema.unroll_length)]
    for column in schema.columns:
        shape = ",".join(map(str, column.shape))
        lines.append(f"{column.name} {DATA_TYPES.index(column.dtype) + 1} {shape} {int(column.extent)} {column.lead}")
    digest = hashlib.sha256(("\n".join(lines) + "\n").encode()).digest()
    return int.from_bytes(digest[:8], "big")


@dataclass(frozen=True, slots=True)
class Columns:
    """Segments, stored column by column, each in a C-ordered array, [segments, rows, *shape]."""

    schema: Schema
    arrays: tuple[NDArray[np.generic], ...]

    @property
    def segments(self) -> int:
        """Number of segments in these columns."""
        return len(self.arrays[0])

    @property
    def contents(self) -> tuple[NDArray[np.uint8], ...]:
        """Bytes of each column, <uint8>[...]: a view of a contiguous column, and a copy of another."""
        return tuple(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in self.arrays)

    def column(self, name: str) -> NDArray[np.generic]:
        """Returns the array of the column with this name."""
        return self.arrays[self.schema.index(name)]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A received piece of the bytes of one column of a window.

    Attributes:
        column: Position of the column in the schema.
        offset: Offset of the piece in the column's bytes, which are in C order over [segments, rows, *shape].
        data: <uint8>[...] bytes of the piece.
        starts: <int64>[segments + 1] offsets of the segments in the column's bytes, and their end, if some segments are
            encoded; else None.
    """

    column: int
    offset: int
    data: NDArray[np.uint8]
    starts: NDArray[np.int64] | None = None
