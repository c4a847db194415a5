"""Encoding and decoding of columns' bytes by a codec.

Decoding never fails on bytes that a peer has sent: it returns whether they decode to exactly the expected number of
bytes, and writes at most that number. The functions release the interpreter lock and are thread-safe.
"""

import ctypes
from collections.abc import Callable, Iterable

import lz4.block
import numpy as np
from numpy.typing import NDArray

from penstock.types.block import VALID, Columns
from penstock.types.codecs import Codec, codec_number

Decoder = Callable[[NDArray[np.uint8], NDArray[np.uint8]], bool]
RowsEncoder = Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.int64]]


def encode(codec: Codec, content: NDArray[np.uint8]) -> bytes:
    """Returns these C-ordered bytes encoded. The result may be longer than the bytes."""
    assert codec == Codec.LZ4, codec
    encoded: bytes = lz4.block.compress(content.data, store_size=False)
    return encoded


def encode_rows(codec: Codec, rows: NDArray[np.uint8], into: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Encodes each of the C-ordered rows <uint8>[B, width] by itself. The results follow one another in `into`.

    A row that the codec does not make smaller is copied as it is. `into`, <uint8>[...], has room for all rows raw.

    Returns:
        <int64>[B] sizes of the results in bytes; `width` for a copied row.
    """
    assert codec == Codec.LZ4, codec
    assert into.size >= rows.size, (into.size, rows.size)
    return _encode_lz4_rows(rows, into)


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
    """Replaces data that can't be decoded by zeros, and marks no row of these segments to learn from.

    `failed` has the position of the column and the index of the segment. A service has decoded everything that it
    stores once, so this follows a fault of memory or of a disk.
    """
    for position, segment in failed:
        columns.arrays[position][segment] = 0
        for column, array in zip(columns.schema.columns, columns.arrays, strict=True):
            if column.name == VALID:
                array[segment] = False


def _lz4_rows_through_bytes(rows: NDArray[np.uint8], into: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Encodes with lz4's own call, which returns a copy."""
    sizes, end = np.empty(len(rows), np.int64), 0
    for index, row in enumerate(rows):
        encoded = np.frombuffer(encode(Codec.LZ4, row), np.uint8)
        content = encoded if encoded.size < row.size else row
        into[end : end + content.size] = content
        sizes[index], end = content.size, end + content.size
    return sizes


def _lz4_rows_in_place() -> RowsEncoder | None:
    """Returns an encoder without copies; None if lz4's module does not export the functions of its library."""
    # The package has no call that encodes into memory of the caller.
    try:
        library = ctypes.CDLL(lz4.block._block.__file__)
        begin, compress = library.LZ4_initStream, library.LZ4_compress_fast_continue
        state_words = -(-int(library.LZ4_sizeofState()) // 8)
    except (OSError, AttributeError):
        return None
    begin.argtypes, begin.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
    compress.argtypes = (*3 * (ctypes.c_void_p,), *3 * (ctypes.c_int,))

    def in_place(rows: NDArray[np.uint8], into: NDArray[np.uint8]) -> NDArray[np.int64]:
        count, width = rows.shape
        sizes, end = np.empty(count, np.int64), 0
        # Of 64-bit words, because it must be aligned like one. Each call has its own, for calls from several threads.
        state = np.empty(state_words, np.uint64)
        address, source, target = state.ctypes.data, rows.ctypes.data, into.ctypes.data
        for index in range(count):
            # A new stream for each row, which must decode without the others. LZ4_compress_default makes the same bytes
            # and takes a fifth longer.
            begin(address, state.nbytes)
            size = compress(address, source + index * width, target + end, width, width - 1, 1)
            if size <= 0:
                size = width
                into[end : end + width] = rows[index]
            sizes[index], end = size, end + size
        return sizes

    return in_place


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
_encode_lz4_rows = _lz4_rows_in_place() or _lz4_rows_through_bytes
