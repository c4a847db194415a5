"""One writer process of `insertion.py` for Reverb: the older `Writer`, which is its fastest (`reverb_replay.py`).

`writer_lines.py` has the lines that it obeys.
"""

import argparse
import time

import numpy as np
import reverb

from benchmarks.peers.reverb_segments import segment_kind
from benchmarks.peers.writer_lines import obey

_IN_FLIGHT = {"vector": 1000, "frames": 64, "frames_once": 64, "pixel": 8}
"""Items in flight of the fastest writer for each kind of segment."""


class Writer:
    """A writer that is kept open."""

    def __init__(self, address: str, segment: str, table: str) -> None:
        kind = segment_kind(segment)
        self._pool, self._table = kind.segments(np.random.default_rng(0)), table
        self._writer = reverb.Client(address).writer(1, chunk_length=1, max_in_flight_items=_IN_FLIGHT[segment])
        self._sent = 0

    def fill(self, segments: int) -> None:
        """Inserts this many segments."""
        while self._sent < segments:
            self._put()
        self._writer.flush()

    def insert(self, seconds: float) -> "list[float]":
        """Inserts for this number of seconds; returns segments, seconds and CPU seconds until the last is stored."""
        before, cpu_s, began = self._sent, time.process_time(), time.monotonic()
        while time.monotonic() < began + seconds:
            self._put()
        self._writer.flush()
        return [self._sent - before, time.monotonic() - began, time.process_time() - cpu_s]

    def wait(self, seconds: float) -> "list[float]":
        """Inserts one segment at a time; returns the milliseconds until each is stored."""
        end, waited = time.monotonic() + seconds, []
        while time.monotonic() < end:
            began = time.monotonic()
            self._put()
            self._writer.flush()
            waited.append(1e3 * (time.monotonic() - began))
        return waited

    def close(self) -> None:
        """Closes the client."""
        self._writer.close()

    def _put(self) -> None:
        self._writer.append(self._pool[self._sent % len(self._pool)])
        self._writer.create_item(self._table, 1, 1.0)
        self._sent += 1


def main() -> None:
    """Fills its part of the table and obeys the lines of the input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--segment", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--segments", type=int, required=True, help="segments of this writer with which it begins")
    arguments = parser.parse_args()
    writer = Writer(arguments.address, arguments.segment, arguments.table)
    obey(writer, arguments.segments)
    writer.close()


if __name__ == "__main__":
    main()
