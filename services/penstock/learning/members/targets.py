"""The list of metrics addresses of a run's services, for Prometheus (`file_sd_configs`).

It is a file in the run's folder while the run is active. Each service says where its metrics are when it joins, so that
Prometheus finds services on any free port of any node. An actor that has left is not listed: actors may end at any
time, and a target that is down would look like a fault.

Prometheus requests every listed address, so an actor or evaluator is listed at its own host alone: at the address from
which it is connected, or at one that its certificate names. Names are not looked up, because they could lead elsewhere
later. No entry of an actor or evaluator replaces the entry of the learner or of a replay service.
"""

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.machine.addresses import LOOPBACK, Address, ip_of, is_of_this_host
from penstock.telemetry import logs, metrics
from penstock.types.location import Location, Origin

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
        self._services: dict[Hashable, tuple[str, Location, int | None]] = {}
        self._clients: dict[Hashable, tuple[str, Location, int | None]] = {}
        self._warned = set[str]()
        self._changed, self._closed = threading.Event(), threading.Event()
        self.put("learner", 0, own)
        self._thread = threading.Thread(target=self._run, name="targets", daemon=True)
        self._thread.start()

    @contextmanager
    def listing(self, job: str, location: Location, origin: Origin, slot: int | None = None) -> Iterator[None]:
        """Lists a client inside the context, unless it serves no metrics or states another host's address.

        `location` is the location that the client states, and `origin` the address of its connection.
        """
        key = next(self._numbers)
        if self._is_reachable(job, location) and (seen := self._seen(job, location, origin)) is not None:
            with self._lock:
                self._clients[key] = (job, seen, slot)
            self._changed.set()
        try:
            yield
        finally:
            with self._lock:
                self._clients.pop(key, None)
            self._changed.set()

    def put(self, job: str, number: int, location: Location) -> None:
        """Lists the service of this number among the services of its job from now on, instead of at an earlier
        location.
        """
        shown = self._is_reachable(job, location)
        with self._lock:
            self._services.pop((job, number), None)
            if shown:
                self._services[job, number] = (job, location, None)
        self._changed.set()

    def close(self) -> None:
        """Ends the thread. Later changes are not written."""
        self._closed.set()
        self._changed.set()
        self._thread.join()

    def content(self) -> Content:
        """Returns the list, each address once, ordered by job and slot."""
        with self._lock:
            # An actor that returns before its old stream has ended is in the list twice; the later entry holds.
            entries = [*self._clients.values(), *self._services.values()]
            by_address = {location.metrics_address: entry for entry in entries if (location := entry[1])}
        groups = sorted(by_address.values(), key=lambda entry: (entry[0], entry[2] or 0, entry[1].metrics_address))
        return [
            {
                "targets": [location.metrics_address],
                "labels": {"job": job, "node": location.node, **({} if slot is None else {"slot": str(slot)})},
            }
            for job, location, slot in groups
        ]

    def _is_reachable(self, job: str, location: Location) -> bool:
        if not location.metrics_address:
            return False
        if location.node == self._node or not Address.parse(location.metrics_address).is_local:
            return True
        self._note_unlisted(
            job,
            location,
            "loopback",
            f"they are served on {location.metrics_address}, which is that node's loopback; set telemetry.metrics_host"
            " to 0.0.0.0 there to show such services in Prometheus",
        )
        return False

    def _seen(self, job: str, location: Location, origin: Origin) -> Location | None:
        """Returns the location with the host at which the client is; None if it states another host's address."""
        stated = Address.parse(location.metrics_address)
        is_here = not origin.host or is_of_this_host(origin.host)
        if stated.host in origin.names or (is_here and is_of_this_host(stated.host)):
            return location
        if ip_of(stated.host) is None:
            return replace(location, metrics_address=str(replace(stated, host=origin.host or LOOPBACK)))
        if ip_of(stated.host) == ip_of(origin.host):
            return location
        self._note_unlisted(
            job,
            location,
            "host",
            f"it states {location.metrics_address} and is connected from {origin.host or 'this host'}; set"
            " telemetry.metrics_host there to 0.0.0.0, or to an address that its certificate names",
        )
        return None

    def _note_unlisted(self, job: str, location: Location, kind: str, reason: str) -> None:
        """Counts an address that is not listed. Only the first of a kind is logged."""
        metrics.UNLISTED_METRICS.labels(job).inc()
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
        if first:
            logs.note("metrics not listed", service=job, node=location.node, reason=reason)

    def _run(self) -> None:
        written: Content = []
        while self._changed.wait() and not self._closed.is_set():
            self._changed.clear()
            if (content := self.content()) != written:
                self._write(content)
                written = content
                self._closed.wait(_INTERVAL_S)
