"""Encoding of an actor's windows: the codec of each column is chosen by what the column's own segments shrink to.

`rpc.clients.segment_sink` encodes windows that it sends in messages. Windows in shared memory stay raw.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock import compression
from penstock.types.block import Columns, Schema
from penstock.types.codecs import Codec, Forms, encodable, form
from penstock.types.replay import Window, WindowHead

PROBE_WINDOWS = 32
"""Windows between probes of a column that is sent raw. A probe encodes one of its segments."""

_LEAST_SHRINKAGE = 2
"""Factor by which a column must shrink. Below it, the codec's time is worth more than the bytes on most networks."""


@dataclass(frozen=True, slots=True)
class EncodedWindow:
    """A window with columns in forms to be sent.

    Attributes:
        head: Head of the window.
        schema: Schema of the columns.
        forms: Forms of the segments' columns.
        pieces: Bytes of each column, <uint8>[...]: of all segments in one piece if the column can't be encoded, else of
            each segment in one.
    """

    head: WindowHead
    schema: Schema
    forms: Forms
    pieces: tuple[tuple[NDArray[np.uint8], ...], ...]


class WindowEncoder:
    """Encoder of the windows of one actor. One thread at a time may call it.

    A column is encoded while its segments shrink by half or more. A column that does not is sent raw, and one of its
    segments is encoded every `PROBE_WINDOWS` windows to see whether that has changed.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._shrinks = dict.fromkeys(encodable(schema), False)
        self._windows = 0

    def encode(self, window: Window, codecs: Sequence[Codec]) -> EncodedWindow | None:
        """Returns the window with its columns encoded by the best of the codecs that the receiver reads.

        Returns:
            The window; None if all columns are to be sent raw. Raw pieces are views of the window's columns.
        """
        if not self._shrinks or not codecs:
            return None
        codec, columns = codecs[0], window.columns
        if self._windows % PROBE_WINDOWS == 0:
            self._probe(codec, columns)
        self._windows += 1
        if not any(self._shrinks.values()):
            return None
        forms = np.zeros((columns.segments, len(self._shrinks)), np.uint32)
        pieces: list[tuple[NDArray[np.uint8], ...]] = []
        for position, array in enumerate(columns.arrays):
            if position not in self._shrinks:
                pieces.append((_bytes_of(array),))
            elif not self._shrinks[position]:
                pieces.append(tuple(_bytes_of(segment) for segment in array))
            else:
                index = encodable(self._schema).index(position)
                pieces.append(self._encoded(codec, position, array, forms[:, index]))
        return EncodedWindow(window.head, self._schema, forms, tuple(pieces))

    def _probe(self, codec: Codec, columns: Columns) -> None:
        for position, shrinks in self._shrinks.items():
            if not shrinks:
                raw = _bytes_of(columns.arrays[position][0])
                self._shrinks[position] = _shrank(len(compression.encode(codec, raw)), raw.size)

    def _encoded(
        self, codec: Codec, position: int, array: NDArray[np.generic], forms: Forms
    ) -> tuple[NDArray[np.uint8], ...]:
        """Returns the bytes of each segment of a column, and writes their forms, <uint32>[segments]."""
        pieces, size = [], 0
        for segment, content in enumerate(array):
            raw = _bytes_of(content)
            encoded = np.frombuffer(compression.encode(codec, raw), np.uint8)
            if encoded.size < raw.size:
                forms[segment] = form(codec, encoded.size)
            pieces.append(encoded if encoded.size < raw.size else raw)
            size += pieces[-1].size
        self._shrinks[position] = _shrank(size, array.nbytes)
        return tuple(pieces)


def _shrank(encoded: int, raw: int) -> bool:
    return encoded * _LEAST_SHRINKAGE <= raw


def _bytes_of(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
