"""Encoding and decoding of a column's bytes by a codec.

Decoding never fails on bytes that a peer has sent: it returns whether they decode to exactly the expected number of
bytes, and writes at most that number. The functions release the interpreter lock and may be called from any thread.
`wire`, `replay.store` and their users call them.
"""

import ctypes
from collections.abc import Callable, Iterable

import lz4.block
import numpy as np
from numpy.typing import NDArray

from penstock.types.block import VALID, Columns
from penstock.types.codecs import Codec, codec_number

Decoder = Callable[[NDArray[np.uint8], NDArray[np.uint8]], bool]


def encode(codec: Codec, content: NDArray[np.uint8]) -> bytes:
    """Returns these C-ordered bytes encoded. The result may be longer than the bytes."""
    assert codec == Codec.LZ4, codec
    encoded: bytes = lz4.block.compress(content.data, store_size=False)
    return encoded


def decode(form: int, data: NDArray[np.uint8], into: NDArray[np.uint8]) -> bool:
    """Decodes bytes of this form to exactly `into.size` bytes. Both arrays are contiguous and do not overlap.

    Returns:
        Whether the bytes are valid. If not, `into` has arbitrary content.
    """
    codec = codec_number(form)
    if codec == Codec.LZ4:
        return _decode_lz4(data, into)
    if codec == Codec.RAW and data.size == into.size:
        into[:] = data
        return True
    return False


def void(columns: Columns, failed: Iterable[tuple[int, int]]) -> None:
    """Replaces what can't be decoded by zeros, and marks no row of these segments to learn from.

    `failed` has the position of the column and the index of the segment. A service has decoded everything that it
    stores once, so this follows a fault of memory or of a disk.
    """
    for position, segment in failed:
        columns.arrays[position][segment] = 0
        for column, array in zip(columns.schema.columns, columns.arrays, strict=True):
            if column.name == VALID:
                array[segment] = False


def _lz4_through_bytes(data: NDArray[np.uint8], into: NDArray[np.uint8]) -> bool:
    """Decodes with lz4's own call, which returns a copy."""
    try:
        decoded = lz4.block.decompress(data.data, uncompressed_size=into.size)
    except (lz4.block.LZ4BlockError, ValueError):
        return False
    if len(decoded) != into.size:
        return False
    into[:] = np.frombuffer(decoded, np.uint8)
    return True


def _lz4_in_place() -> Decoder | None:
    """Returns a decoder without a copy; None if lz4's module does not export the function of its library."""
    # The package has no call that decodes into memory of the caller. A copy of a decoded window takes as long again.
    try:
        function = ctypes.CDLL(lz4.block._block.__file__).LZ4_decompress_safe
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    function.restype = ctypes.c_int

    def in_place(data: NDArray[np.uint8], into: NDArray[np.uint8]) -> bool:
        return bool(function(data.ctypes.data, into.ctypes.data, data.size, into.size) == into.size)

    return in_place


_decode_lz4 = _lz4_in_place() or _lz4_through_bytes
