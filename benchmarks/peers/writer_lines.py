"""How `insertion.py` directs a writer process: lines of the writer's input, and one line of output for each.

Used on both sides. It imports nothing of Penstock, which is not installed in Reverb's environment.
"""

import json
import sys
from typing import Protocol


class Writer(Protocol):
    """A writer of one side."""

    def fill(self, segments: int) -> None:
        """Sends this many segments."""

    def insert(self, seconds: float) -> list[float]:
        """Sends for this number of seconds; returns segments, seconds and CPU seconds until the last is stored."""

    def wait(self, seconds: float) -> list[float]:
        """Sends one at a time; returns the milliseconds until each is stored."""


def obey(writer: Writer, segments: int) -> None:
    """Fills the store, prints `ready`, and answers each line, `insert SECONDS` or `wait SECONDS`, by its numbers."""
    writer.fill(segments)
    print("ready", flush=True)
    for line in sys.stdin:
        what, _, seconds = line.partition(" ")
        print(json.dumps({"insert": writer.insert, "wait": writer.wait}[what](float(seconds))), flush=True)
