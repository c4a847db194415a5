"""`penstock replay` as a child process that is killed, and checks of its store while no service runs."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from penstock.errors import PlaceLost
from penstock.machine.addresses import Address
from penstock.process.service import SUPERVISED_VARIABLE
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.masses import MassFunction
from penstock.replay.store.ages import Ages
from penstock.replay.store.description import DESCRIPTION_FILE
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.rpc.health import is_serving
from penstock.types.replay import SamplingPlan
from tests.support.machine.timing import start_patience_s
from tests.support.segments.direct_buffer import read_rows
from tests.support.segments.store_view import StoreView
from tests.support.services.link import Host
from tests.support.services.ports import free_ports
from tests.support.torture.content import first_wrong, parts_of
from tests.support.torture.ledger import Ledger

_POLL_S, _ANSWER_S = 0.01, 10.0
_CHECKED_AT_ONCE = 256
"""Rows whose content is compared at once, which bounds the memory of the check."""


class ReplayProcess:
    """A sequence of `penstock replay` processes on one address over one folder."""

    def __init__(
        self,
        folder: Path,
        capacity_bytes: int,
        ledger: Ledger,
        *,
        host: Host | None = None,
        address: str = "",
        options: Sequence[str] = (),
    ) -> None:
        """Prepares the service without starting it.

        Args:
            folder: Folder of the store; the log is beside it.
            capacity_bytes: Size of the store in bytes.
            ledger: Ledger that receives violations.
            host: Host on which it runs and listens on all addresses; None for this one.
            address: Address (host:port) for health checks; empty for a free port of this host.
            options: Further options of the command line.
        """
        self.folder, self.capacity_bytes, self._ledger = folder, capacity_bytes, ledger
        self.address = address or f"127.0.0.1:{free_ports(1)[0]}"
        self._host, self._options = host, options
        self._log = folder.parent / "replay.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def start(self) -> None:
        """Starts the service, without waiting."""
        self._show()
        command = [sys.executable, "-m", "penstock", "replay", *self._options]
        if self._host is None:
            command += ["--replay.listen", self.address]
        else:
            listen = Address.parse(self.address)
            command += ["--replay.listen", f"0.0.0.0:{listen.port}", "--replay.advertise", listen.host]
            command += ["--security.insecure", "true"]
        command += ["--replay.metrics-port", "0", "--replay.capacity-bytes", str(self.capacity_bytes)]
        command += ["--replay.folder", str(self.folder)]
        if self._host is not None:
            command = self._host.command(*command)
        self._started = time.monotonic()
        with self._log.open("wb") as log:
            # It ends when its standard input closes, and so with this process in any case.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, SUPERVISED_VARIABLE: "1"},
                start_new_session=True,
            )

    def wait_until_ready(self) -> float | None:
        """Waits until the service is ready; returns the seconds since its start, or None if it fails to start."""
        assert self._process is not None
        limit = self._started + start_patience_s()
        while time.monotonic() < limit and self._process.poll() is None:
            if is_serving(self.address, _ANSWER_S):
                return time.monotonic() - self._started
            time.sleep(_POLL_S)
        self._ledger.violated(f"the service did not become ready: {self.last_words}")
        return None

    def kill(self) -> None:
        """Sends SIGKILL, and waits for the end. A service that had already ended is a violation."""
        assert self._process is not None
        if self._process.poll() is not None:
            self._ledger.violated(f"the service ended with {self._process.returncode}: {self.last_words}")
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._show()

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the last start."""
        assert self._process is not None
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def log(self) -> str:
        """Log since the last start."""
        return self._log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        """End of the log."""
        return self.log[-2000:]

    # A learner reads the columns itself if it can see the store's records; otherwise they arrive in messages.

    def view(self) -> StoreView | None:
        """Returns the current store; None while it has no schema."""
        if not (self.folder / DESCRIPTION_FILE).exists():
            return None
        hidden = self.folder / "records.hidden"
        return StoreView(self.folder, hidden if hidden.exists() else None)

    def hide(self) -> None:
        """Hides the store from learners that connect later, as on another host."""
        (self.folder / "records.bin").rename(self.folder / "records.hidden")

    def _show(self) -> None:
        if (self.folder / "records.hidden").exists():
            (self.folder / "records.hidden").rename(self.folder / "records.bin")


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a store after a kill.

    Attributes:
        segments: Number of segments.
        torn: Rows that were being written.
        root_error: Error of the sum tree's root, relative to the sum of its leaves.
        late: Segments that the store counted as late.
        late_surplus: Those of them that were not late according to the ledger.
        inserted_missing: Segments stored according to the ledger that the store's counter of insertions lacks.
    """

    segments: int
    torn: int
    root_error: float
    late: int
    late_surplus: int
    inserted_missing: int


def check_store(process: ReplayProcess, ledger: Ledger, plan: SamplingPlan) -> Found | None:
    """Opens the store of a dead service and checks all its guarantees; None while it has no schema."""
    store = RingStore(process.folder, process.capacity_bytes)
    if store.schema is None:
        return None
    ledger.capacity = store.capacity
    if store.recovery.damaged:
        ledger.violated(f"{store.recovery.damaged} rows are damaged after a kill")
    headers = store.headers
    rows = np.flatnonzero(headers["key"])
    keys = headers["key"][rows]
    if np.unique(keys).size != keys.size or (keys % np.uint64(store.capacity) != rows).any():
        ledger.violated(f"keys are not unique, or not in their rows: {keys}")
    names = _check_contents(store, rows, ledger)
    _check_order(headers[rows], ledger)
    next_key = store.session.next_key
    if keys.size and int(keys.max()) >= next_key:
        ledger.violated(f"key {keys.max()} is stored, but the next key is {next_key}")
    present = dict(zip(keys.tolist(), names, strict=True))
    states = dict(zip(names, headers["state"][rows].tolist(), strict=True))
    with ledger.lock:
        for key, name in present.items():
            ledger.record_key(key, name)
        # A kill between the emptying of the oldest rows and the record of their next keys leaves these rows torn.
        overwritten = next_key + store.recovery.torn
        for key, name in ledger.name_of.items():
            if key + store.capacity >= overwritten and key not in present:
                ledger.violated(f"segment {parts_of(name)}, key {key}, is lost; the next key is {next_key}")
    _check_priorities(store, rows, ledger, plan)
    marks = {}
    for slot, incarnation in ledger.stays:
        # The slot has a later incarnation, so this one's unacknowledged segments do not matter.
        with suppress(PlaceLost):
            marks[slot, incarnation] = store.watermark(slot, incarnation)
    waiting = {name for name, state in states.items() if state in (State.UNSEEN, State.LEASED)}
    late = ledger.settle(waiting, set(states) - waiting, marks)
    counted = store.session.late
    if counted < late:
        ledger.violated(f"{late} segments became replay without a commit, but {counted} were counted as late")
    stored = sum(stay.stored for stay in ledger.stays.values())
    ledger.forget(next_key - 2 * store.capacity)
    return Found(
        segments=keys.size,
        torn=store.recovery.torn,
        root_error=_root_error(store, plan, ledger),
        late=counted,
        late_surplus=counted - late,
        inserted_missing=stored - store.session.inserted,
    )


def _check_contents(store: RingStore, rows: np.ndarray, ledger: Ledger) -> list[int]:
    """Compares every byte of these rows with their names; returns the names."""
    assert store.schema is not None
    names: list[int] = []
    for start in range(0, rows.size, _CHECKED_AT_ONCE):
        some = rows[start : start + _CHECKED_AT_ONCE]
        columns = store.schema.empty(some.size)
        read_rows(store, some, columns)
        wrong = first_wrong(columns)
        if wrong is not None:
            ledger.violated(f"row {some[wrong]} does not hold the content of its name")
        headers, own = store.headers[some], columns.arrays[0][:, 0]
        named = headers["slot"].astype(np.int64) << 52 | headers["incarnation"].astype(np.int64) << 32
        named |= headers["sequence"].astype(np.int64)
        if (named != own).any() or (headers["version"] != columns.arrays[1][:, 0]).any():
            ledger.violated(f"rows {some} hold other segments than their headers state")
        names += own.tolist()
    return names


def _check_order(headers: np.ndarray, ledger: Ledger) -> None:
    """Checks that an actor's segments have increasing keys in the order of sending."""
    headers = headers[np.lexsort((headers["key"], headers["incarnation"], headers["slot"]))]
    same = (np.diff(headers["slot"].astype(np.int64)) == 0) & (np.diff(headers["incarnation"].astype(np.int64)) == 0)
    steps = np.diff(headers["sequence"].astype(np.int64))[same]
    if (steps < 1).any():
        ledger.violated("an actor's segments are not stored in the order of sending")


def _check_priorities(store: RingStore, rows: np.ndarray, ledger: Ledger, plan: SamplingPlan) -> None:
    headers = store.headers[rows]
    seen = headers[headers["state"] == State.SEEN]
    with ledger.lock:
        clock = Ages(store.records, store.session.version)
        late = seen["version"] < clock.oldest(ledger.highest_leased, plan.largest_lag)
        for key, priority, may_be_late in zip(
            seen["key"].tolist(), seen["priority"].tolist(), late.tolist(), strict=True
        ):
            if not ledger.is_possible(key, priority, ledger.resolved, may_be_late):
                ledger.violated(
                    f"key {key} is stored with priority {priority}; committed were {ledger.priorities_of(key)}"
                )


def _root_error(store: RingStore, plan: SamplingPlan, ledger: Ledger) -> float:
    """Returns the error of the root of the tree that a service would build, relative to the sum of the masses."""
    session = store.session.session
    if session == 0:
        return 0.0
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    buffer.adopt_plan(replace(plan, session=session))
    version = store.session.version
    clock = Ages(store.records, version)
    function = MassFunction(plan.alpha, plan.epsilon, plan.half_life, clock.at(version))
    headers = store.headers[(store.headers["key"] != 0) & (store.headers["state"] == State.SEEN)]
    expected = float(function.masses(headers["priority"], clock.clock(headers["version"])).sum())
    root = buffer.mass.total
    error = abs(root - expected) / expected if expected else abs(root)
    if error > 1e-9:
        ledger.violated(f"the sum tree's root is {root}, but its leaves add up to {expected}")
    return error
