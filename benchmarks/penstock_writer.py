"""One writer process of `insertion.py`: an actor that collects nothing and sends windows of a pool.

`peers/writer_lines.py` has the lines that it obeys.
"""

import argparse
import contextlib
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.writer_lines import obey
from benchmarks.penstock_replay import PATIENCE_S, SETTINGS, pool_of, windows_of
from penstock.process.service import keep_freed_memory
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.security.authority import files_of
from penstock.security.credentials import Credentials
from penstock.types.location import Place
from penstock.types.replay import Window, WindowHead
from penstock.types.run import Assignment
from tests.support.services.another_host import as_from_another_host


class Writer:
    """An actor in one slot."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._size, self._slot, schema = arguments.window, arguments.slot, SETTINGS[arguments.segment].schema
        self._thread = LoopThread(credentials_in(arguments.certificates))
        place = Assignment(self._slot, 1, tuple(range(self._size)), b"", 0, Place((arguments.address,)))
        self._sink = ReplaySegmentSink(self._thread, place, schema)
        self._windows = windows_of(pool_of(arguments.segment), self._size)
        self._environments = np.arange(self._size, dtype=np.uint32)
        self._sent = 0

    def send(self) -> None:
        """Sends one window, once there is a grant for it."""
        self._await_grant()
        self._send()

    def fill(self, segments: int) -> None:
        """Sends this many segments, at least."""
        while self._sent < segments:
            self.send()
        assert self._sink.drain(PATIENCE_S)

    def insert(self, seconds: float) -> list[float]:
        """Sends for this number of seconds; returns segments, seconds and CPU seconds until the last is stored."""
        before, cpu_s, began = self._sent, time.process_time(), time.monotonic()
        while time.monotonic() < began + seconds:
            self.send()
        assert self._sink.drain(PATIENCE_S)
        return [self._sent - before, time.monotonic() - began, time.process_time() - cpu_s]

    def wait(self, seconds: float) -> list[float]:
        """Sends one window at a time; returns the milliseconds until each is stored."""
        end, waited = time.monotonic() + seconds, []
        while time.monotonic() < end:
            self._await_grant()
            began = time.monotonic()
            self._send()
            assert self._sink.drain(PATIENCE_S)
            waited.append(1e3 * (time.monotonic() - began))
        return waited

    def close(self) -> None:
        """Closes the client."""
        self._sink.close()
        self._thread.close()

    def _await_grant(self) -> None:
        assert self._sink.next_grant(PATIENCE_S) is not None

    def _send(self) -> None:
        head = WindowHead(self._slot, 1, self._sent + 1, 0, self._environments)
        self._sink.send(Window(head, self._windows[self._sent // self._size % len(self._windows)]))
        self._sent += self._size


def credentials_in(folder: Path | None) -> Credentials | None:
    """Returns an actor's credentials in a folder of certificates."""
    if folder is None:
        return None
    return Credentials(files_of(folder), "actor")


def main() -> None:
    """Fills its part of the store and obeys the lines of the input."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--segment", choices=tuple(SETTINGS), required=True)
    parser.add_argument("--window", type=int, required=True, help="segments of a window")
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--segments", type=int, required=True, help="segments of this writer with which it begins")
    parser.add_argument("--distant", action="store_true", help="connect as from another host")
    parser.add_argument("--certificates", type=Path, help="folder of certificates, for TLS")
    arguments = parser.parse_args()
    keep_freed_memory()
    with as_from_another_host() if arguments.distant else contextlib.nullcontext():
        writer = Writer(arguments)
        obey(writer, arguments.segments)
        writer.close()


if __name__ == "__main__":
    main()
