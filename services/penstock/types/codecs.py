"""Codecs of columns, and the form in which a segment's column is sent and stored: raw, or encoded to fewer bytes.

A form is a uint32: the codec in the upper 4 bits and the size in bytes in the lower 28. Raw bytes have the form 0,
since their size follows from the schema. Forms of segments are <uint32>[segments, encodable columns].
"""

import enum
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Schema

Forms = NDArray[np.uint32]
"""<uint32>[segments, encodable columns]."""

LEAST_ENCODED_BYTES = 4096
"""Least size in bytes, per segment, of a column that may be encoded. It is part of the contract and of the format of
stores: below it, a form would cost more than it saves."""

_SIZE_BITS = 28
_SIZE_MASK = 2**_SIZE_BITS - 1


class Codec(enum.IntEnum):
    """Encoding of a column's bytes, numbered as in the contract."""

    RAW = 0
    """The values themselves."""
    LZ4 = 1
    """An LZ4 block, without a header."""


ENCODINGS = (Codec.LZ4,)
"""Codecs that this release reads and writes besides raw bytes, best first."""


def form(codec: Codec, size: int) -> int:
    """Returns the form of a column encoded to `size` bytes."""
    return codec << _SIZE_BITS | size


def codec_number(one: int) -> int:
    """Returns the codec's number in one form. It may be unknown."""
    return one >> _SIZE_BITS


def codec_numbers(forms: Forms) -> Forms:
    """Returns the codecs' numbers in forms of any shape. They may be unknown."""
    return forms >> np.uint32(_SIZE_BITS)


def form_sizes(forms: Forms) -> Forms:
    """Returns the sizes in forms of any shape; 0 for raw bytes."""
    return forms & np.uint32(_SIZE_MASK)


@functools.lru_cache(maxsize=64)
def encodable(schema: Schema) -> tuple[int, ...]:
    """Returns the positions of the columns that may be encoded."""
    return tuple(
        position for position, width in enumerate(schema.column_bytes) if LEAST_ENCODED_BYTES <= width <= _SIZE_MASK
    )


@functools.lru_cache(maxsize=64)
def raw_sizes(schema: Schema) -> NDArray[np.int64]:
    """Returns the bytes <int64>[encodable columns] of the columns that may be encoded, per segment. Read-only."""
    sizes = np.array([schema.column_bytes[position] for position in encodable(schema)], np.int64)
    sizes.flags.writeable = False
    return sizes


def encoded_sizes(schema: Schema, forms: Forms) -> NDArray[np.int64]:
    """Returns the bytes <int64>[segments, encodable columns] that each column of each segment has in its form.

    A size is at most the raw one, even in forms that were read while they were written.
    """
    raw = raw_sizes(schema)
    return np.where(forms == 0, raw, np.minimum(form_sizes(forms), raw))


def possible(schema: Schema, forms: Forms) -> bool:
    """Returns whether a sender can have written the forms: known codecs, and sizes from one byte to fewer than the raw
    ones.
    """
    sizes = form_sizes(forms)
    sound = (codec_numbers(forms) - np.uint32(1) < len(Codec) - 1) & (sizes > 0) & (sizes < raw_sizes(schema))
    return bool((sound | (forms == 0)).all())


def readable(forms: Forms, codecs: Sequence[Codec]) -> bool:
    """Returns whether a peer that reads raw bytes and these codecs can read all forms."""
    return bool(np.isin(codec_numbers(forms), (Codec.RAW, *codecs)).all())
