"""An actor that collects nothing: the content of its segments follows from their names."""

import random
import threading
from collections.abc import Callable

import numpy as np

from penstock.errors import PenstockError, Unavailable
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.types.location import Place
from penstock.types.replay import Grant, Window, WindowHead
from penstock.types.run import Assignment
from penstock.wire.block import MAX_PART_BYTES
from tests.support.machine.timing import PATIENCE_S
from tests.support.torture.content import SCHEMA, make_columns, names_of
from tests.support.torture.ledger import Ledger

_GRANT_WAIT_S = 0.05


class TortureActor:
    """One stay of one actor, in a thread. `leave` ends it in order, `die` does not."""

    def __init__(
        self,
        thread: LoopThread,
        address: str,
        ledger: Ledger,
        published: Callable[[], int],
        *,
        slot: int,
        incarnation: int,
        segments: int,
        seed: int,
    ) -> None:
        self.slot, self.incarnation, self.segments = slot, incarnation, segments
        self._ledger, self._published, self._random = ledger, published, random.Random(seed)
        environments = tuple(range(slot * 1000, slot * 1000 + segments))
        place = Assignment(slot, incarnation, environments, token=b"", seed=0, replay=Place((address,)))
        self._environments = np.array(environments, np.uint32)
        self._sink = ReplaySegmentSink(thread, place, SCHEMA)
        self._sent = 0
        self._leaving, self._dead = threading.Event(), threading.Event()
        self.sending_parts = threading.Event()
        """Set just before a window of several parts is sent; cleared by the waiting thread."""
        self._thread = threading.Thread(target=self._run, name=f"actor {slot}", daemon=True)
        self._thread.start()

    def die(self) -> None:
        """Ends at once, at any point of its work; unacknowledged segments may be stored or not."""
        self._dead.set()
        self._sink.close()
        self._join()

    def leave(self) -> None:
        """Stops sending, and waits until everything sent is stored."""
        self._leaving.set()
        self._join()
        if not self._sink.drain(PATIENCE_S):
            self._ledger.violated(f"slot {self.slot} received no acknowledgement of sequence {self._sent}")
        elif self._sent:
            self._ledger.acknowledged(self.slot, self.incarnation, self._sent)
        self._sink.close()

    def _join(self) -> None:
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._ledger.violated(f"the actor in slot {self.slot} hangs")

    def _run(self) -> None:
        try:
            while not self._leaving.is_set() and not self._dead.is_set():
                grant = self._sink.next_grant(_GRANT_WAIT_S)
                if grant is not None and self._has_weights(grant):
                    self._send()
                # From time to time it waits for acknowledgements, so that many are known when the service is killed.
                if self._sent and self._sink.drain(self._random.choice((0.0, 0.0, 0.02))):
                    self._ledger.acknowledged(self.slot, self.incarnation, self._sent)
        except Unavailable as error:
            if not self._dead.is_set():
                self._ledger.violated(f"the actor in slot {self.slot} failed with {error!r}")
        except PenstockError as error:
            self._ledger.violated(f"the actor in slot {self.slot} failed with {error!r}")

    def _has_weights(self, grant: Grant) -> bool:
        while self._published() < grant.minimum_version:
            if self._leaving.is_set() or self._dead.wait(0.001):
                return False
        return True

    def _send(self) -> None:
        version, first = self._published(), self._sent + 1
        names = names_of(self.slot, self.incarnation, first, self.segments)
        window = Window(
            WindowHead(self.slot, self.incarnation, first, version, self._environments), make_columns(names, version)
        )
        self._ledger.sending(self.slot, self.incarnation, self._sent + self.segments)
        if self.segments * SCHEMA.segment_bytes > MAX_PART_BYTES:
            self.sending_parts.set()
        self._sink.send(window)
        self._sent += self.segments
        self._ledger.events["windows sent"] += 1
