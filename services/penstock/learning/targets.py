"""The list of metrics addresses of a run's services, for Prometheus (`file_sd_configs`).

It is a file in the run's folder while the run is active. Each service says where its metrics are when it joins, so that
Prometheus finds services on any free port of any node. An actor that has left is not listed: actors may end at any
time, and a target that is down would look like a fault.
"""

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.addresses import Address
from penstock.telemetry import logs
from penstock.types.location import Location

_INTERVAL_S = 1.0
"""Least seconds between two writes: at the start of a run, hundreds of actors join within a few seconds."""

Content = list[dict[str, Any]]
"""Groups of targets with their labels, as Prometheus reads them from JSON."""


class Targets:
    """The metrics addresses of a run's services. Any thread may call; a thread of its own writes the list.

    The labels of an address are the job (the kind of service), its node and, for an actor, its slot.
    """

    def __init__(self, write: Callable[[Content], object], own: Location) -> None:
        """Lists the learner at its own location. `write` writes the list, at most once per second."""
        self._write, self._node = write, own.node
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._listed: dict[Hashable, tuple[str, Location, int | None]] = {}
        self._warned = False
        self._changed, self._closed = threading.Event(), threading.Event()
        self.put("learner", 0, own)
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)
        self._thread.start()

    @contextmanager
    def listing(self, job: str, location: Location, slot: int | None = None) -> Iterator[None]:
        """Lists a service inside the context, unless it serves no metrics or only on the loopback of another node."""
        key = next(self._numbers)
        self._set(key, job, location, slot)
        try:
            yield
        finally:
            with self._lock:
                self._listed.pop(key, None)
            self._changed.set()

    def put(self, job: str, number: int, location: Location) -> None:
        """Lists the service of this number among those of its job from now on, instead of at an earlier location."""
        self._set((job, number), job, location, None)

    def close(self) -> None:
        """Ends the thread. Later changes are not written."""
        self._closed.set()
        self._changed.set()
        self._thread.join()

    def content(self) -> Content:
        """Returns the list, each address once, ordered by job and slot."""
        with self._lock:
            # An actor that returns before its old stream has ended is in the list twice; the later entry holds.
            by_address = {location.metrics_address: entry for entry in self._listed.values() if (location := entry[1])}
        groups = sorted(by_address.values(), key=lambda entry: (entry[0], entry[2] or 0, entry[1].metrics_address))
        return [
            {
                "targets": [location.metrics_address],
                "labels": {"job": job, "node": location.node, **({} if slot is None else {"slot": str(slot)})},
            }
            for job, location, slot in groups
        ]

    def _set(self, key: Hashable, job: str, location: Location, slot: int | None) -> None:
        shown = location.metrics_address and self._is_reachable(job, location)
        with self._lock:
            self._listed.pop(key, None)
            if shown:
                self._listed[key] = (job, location, slot)
        self._changed.set()

    def _is_reachable(self, job: str, location: Location) -> bool:
        if location.node == self._node or not Address.parse(location.metrics_address).is_local:
            return True
        if not self._warned:
            self._warned = True
            logs.note(
                "metrics not listed",
                service=job,
                node=location.node,
                reason=f"they are served on {location.metrics_address}, which is that node's loopback; set"
                " telemetry.metrics_host to 0.0.0.0 there to show such services in Prometheus",
            )
        return False

    def _run(self) -> None:
        written: Content = []
        while self._changed.wait() and not self._closed.is_set():
            self._changed.clear()
            if (content := self.content()) != written:
                self._write(content)
                written = content
                self._closed.wait(_INTERVAL_S)
