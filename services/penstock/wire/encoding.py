"""Encoding of an actor's windows: the codec of each column is chosen by the encoded size of the column's own segments.

`rpc.clients.segment_sink` encodes the windows that it sends in messages, and those that it places in shared memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.machine import compression
from penstock.types.block import Columns, Schema
from penstock.types.codecs import Codec, Forms, encodable, form
from penstock.types.payloads import Places, places
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
        forms: Forms of the segments' columns; None if all are raw.
        contents: Bytes of each column, <uint8>[...]: its segments in their forms, one after another.
    """

    head: WindowHead
    schema: Schema
    forms: Forms | None
    contents: tuple[NDArray[np.uint8], ...]

    @property
    def places(self) -> Places:
        """Places of the columns in the window's payload."""
        return places(self.schema, self.head.segments, self.forms)

    def within(self, payload: NDArray[np.uint8]) -> "EncodedWindow":
        """Returns the window whose contents are views of a payload, <uint8>[...], that has them already."""
        where = self.places
        ends = [offset + size for offset, size in zip(where.offsets, where.sizes, strict=True)]
        contents = (payload[offset:end] for offset, end in zip(where.offsets, ends, strict=True))
        return replace(self, contents=tuple(contents))


def raw_window(window: Window) -> EncodedWindow:
    """Returns a window with raw columns."""
    return EncodedWindow(window.head, window.columns.schema, None, window.columns.contents)


class WindowEncoder:
    """Encoder of the windows of one actor. One thread at a time may call it.

    A column is encoded while its segments shrink by half or more. A column that does not is sent raw, and one of its
    segments is encoded every `PROBE_WINDOWS` windows to see whether that has changed.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._shrinks = dict.fromkeys(encodable(schema), False)
        self._encoded: dict[int, NDArray[np.uint8]] = {}
        self._windows = 0

    def encode(self, window: Window, codecs: Sequence[Codec]) -> EncodedWindow | None:
        """Returns the window with its columns encoded by the best of the codecs that the receiver reads.

        Returns:
            The window, whose contents are views of memory that the next call writes, and of the window's columns; None
            if all columns are to be sent raw.
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
        contents = list(columns.contents)
        for index, (position, shrinks) in enumerate(self._shrinks.items()):
            if shrinks:
                contents[position] = self._encode_column(codec, position, contents[position], forms[:, index])
        return EncodedWindow(window.head, self._schema, forms, tuple(contents))

    def _probe(self, codec: Codec, columns: Columns) -> None:
        for position, shrinks in self._shrinks.items():
            if not shrinks:
                raw = columns.contents[position][: self._schema.column_bytes[position]]
                self._shrinks[position] = _shrank(len(compression.encode(codec, raw)), raw.size)

    def _encode_column(self, codec: Codec, position: int, raw: NDArray[np.uint8], forms: Forms) -> NDArray[np.uint8]:
        """Returns the bytes of a column's segments, and writes their forms, <uint32>[segments]."""
        into = self._encoded.get(position)
        if into is None or into.size < raw.size:
            # Of memory for all bytes raw, only the pages that are written exist.
            into = self._encoded[position] = np.empty(raw.size, np.uint8)
        width = self._schema.column_bytes[position]
        sizes = compression.encode_rows(codec, raw.reshape(-1, width), into)
        forms[:] = np.where(sizes < width, form(codec, 0) | sizes, 0)
        size = int(sizes.sum())
        self._shrinks[position] = _shrank(size, raw.size)
        return into[:size]


def _shrank(encoded: int, raw: int) -> bool:
    return encoded * _LEAST_SHRINKAGE <= raw
