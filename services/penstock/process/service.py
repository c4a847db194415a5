"""The parts that every service process has: an allocator, a logger, a metrics server, and one way to stop."""

import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

from penstock.config import ActorConfig, Config, EvaluationConfig, LearnerConfig, ReplayConfig
from penstock.config.exposure import check_listen, isolation, metrics_host
from penstock.errors import BY_SIGNAL
from penstock.machine.addresses import Address, advertised
from penstock.process.environment_process import seed_generators, set_arguments
from penstock.process.own_certificate import CertificateWatch, credentials_of
from penstock.telemetry import logs, metrics
from penstock.telemetry.metrics_server import MetricsServer
from penstock.types.location import Location

SUPERVISED_VARIABLE = "PENSTOCK_SUPERVISED"
"""Variable that a launcher sets to the service's name. The service then stops when its standard input ends."""

START_VARIABLE = "PENSTOCK_START"
"""Variable in which a launcher numbers the starts of a run's services; no two have the same number."""

PRESET_VARIABLE = "PENSTOCK_PRESET"
"""Variable that names the preset if --preset does not; docker-compose.yml reads it as well."""

COMMIT_VARIABLE = "PENSTOCK_COMMIT"
"""Variable with the commit of the running code, where no file has it."""

COMMIT_FILE = Path(sys.prefix) / "commit"
"""File with the commit, which the build of an image writes. Variables of a container can't change it."""

ServiceName = Literal["replay", "learner", "actor", "evaluator"]

_ORPHAN_PATIENCE_S = 10.0
_LOOK_S = 0.1
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameter numbers of mallopt, from glibc's malloc.h."""

_KEPT_BYTES = 128 * 2**20
"""Free bytes at the end of the heap above which memory is returned to the kernel: room for dozens of messages."""

_MAPPED_FROM_BYTES = 32 * 2**20
"""Size in bytes from which a block is mapped by itself: the largest value that glibc allows."""


class Service:
    """The process of one service. Use it as a context manager, and work inside it until `stopping` is true.

    Attributes:
        location: Where it runs, as it tells the learner.
        credentials: Credentials of its connections; None: they are in plain text.
        logger: Logger of the process. Its entries carry service, node, job and slot, as far as there are any.
    """

    def __init__(self, name: ServiceName, config: Config) -> None:
        """Sets up the allocator, the logger, the limit of open files and the metrics server.

        Raises `ConfigurationError` if an address is not available, other hosts could reach it and must not, or the
        certificate can't be used.
        """
        section = "evaluation" if name == "evaluator" else name
        settings: ReplayConfig | LearnerConfig | ActorConfig | EvaluationConfig = getattr(config, section)
        telemetry, listen = config.telemetry, Address.parse(settings.listen)
        check_listen(f"{section}.listen", settings.listen, config.security)
        keep_freed_memory()
        if name in ("actor", "evaluator"):
            set_arguments(config.environment.id)
            # An actor has no slot before it has made its environments, whose spaces it joins with.
            own = os.environ.get(SUPERVISED_VARIABLE, f"{settings.listen}:{os.getpid()}")
            self.seed_generators(config.run.seed, name, own, os.environ.get(START_VARIABLE, ""))
        self._folder = Path.cwd()
        node = telemetry.node or socket.gethostname()
        self._log_fields: dict[str, str | int] = {"service": name, "node": node}
        if telemetry.job is not None:
            self._log_fields["job"] = telemetry.job
        self.logger = logs.configure(self._log_fields, level=telemetry.log_level, log_format=telemetry.log_format)
        metrics.NODE_INFO.labels(node).set(1)
        if name in ("replay", "learner") and (reason := isolation(config, name)):
            self.logger.warning("can't be reached from other hosts", reason=reason)
        self._raise_descriptor_limit()
        self.credentials = credentials_of(config.security, name)
        self._certificate_watch = None if self.credentials is None else CertificateWatch(self.credentials, self.logger)
        host = metrics_host(telemetry.metrics_host, listen, config.security)
        self._metrics = MetricsServer(host, settings.metrics_port, metrics.OfService(name))
        address = advertised(Address(host, self._metrics.port), ())[0] if self._metrics.port else ""
        self.location = Location(node, telemetry.job or "", address)
        if address:
            self.logger.info("serving metrics", address=address)
        # A plain string, set without a lock or a log call: a signal handler may interrupt its own thread inside either.
        self._stopped_by = ""

    def __enter__(self) -> "Service":
        self.take_signals()
        threading.Thread(target=self._read_signals, args=_signal_numbers(), name="signals", daemon=True).start()
        if self.supervised:
            threading.Thread(target=self._watch_launcher, name="launcher", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._metrics.close()
        if self._certificate_watch is not None:
            self._certificate_watch.close()
        if exception[0] is None:
            self.logger.info("stopped", stopped_by=self._stopped_by or None)

    def _raise_descriptor_limit(self) -> None:
        """Raises the limit of open files, one per connection, to the system's maximum; `process_max_fds` shows it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError) as error:
                self.logger.warning("limit of open files not raised", limit=soft, reason=str(error))

    def take_signals(self) -> None:
        """Installs the signal handlers that stop the service. Call it on the main thread."""
        for number in _ENDING_SIGNALS:
            signal.signal(number, self._on_signal)

    def check_names(self, addresses: Sequence[str]) -> None:
        """Raises `ConfigurationError` if clients check addresses and the certificate does not cover the advertised
        ones.

        `addresses` are the addresses by which others reach the service.
        """
        if self.credentials is not None:
            self.credentials.check_server([host for text in addresses if (host := Address.parse(text).host)])

    def set_slot(self, slot: int) -> None:
        """Adds an actor's slot to all later log entries. Any thread may call."""
        self._log_fields["slot"] = slot

    def restore_process(self) -> None:
        """Restores the signal handlers and the working directory, which the making of environments may have changed."""
        self.take_signals()
        with contextlib.suppress(OSError):
            os.chdir(self._folder)

    def seed_generators(self, *key: int | str) -> None:
        """Seeds the random generators that environments share in this process (`environment_process`)."""
        seed_generators(*key)

    @property
    def supervised(self) -> bool:
        """Whether a launcher started this process as part of a run on this machine."""
        return bool(os.environ.get(SUPERVISED_VARIABLE))

    @property
    def stopping(self) -> bool:
        """Whether the service is to stop."""
        return bool(self._stopped_by)

    @property
    def stop_code(self) -> int:
        """Exit code for work that a signal has cut short: 128 and its number, as shells report it.

        0 if no signal was received, or if a launcher, which knows that it has stopped the service, supervises it.
        """
        stopped_by = {number.name: number for number in _ENDING_SIGNALS}.get(self._stopped_by)
        return 0 if stopped_by is None or self.supervised else BY_SIGNAL + stopped_by

    def wait(self, timeout_s: float) -> bool:
        """Sleeps for `timeout_s` seconds unless the service is stopping; returns whether it is stopping."""
        time.sleep(0.0 if self.stopping else timeout_s)
        return self.stopping

    def wait_until(self, condition: Callable[[], bool], interval_s: float) -> bool:
        """Waits until a condition holds, checked every `interval_s` seconds. Returns False if stopped before."""
        while not condition():
            if self.wait(interval_s):
                return False
        return True

    def await_scrape(self) -> None:
        """Waits until Prometheus has read the current metrics, unless it does not read them regularly or is late.

        The last values of a process are otherwise lost, such as those that tell the end of a run from a crash.
        """
        now = time.monotonic()
        deadline = now + self._metrics.next_scrape_within_s()
        self.wait_until(lambda: self._metrics.scraped_at > now or time.monotonic() >= deadline, _LOOK_S)

    async def serve_until(self, ended: Callable[[], bool]) -> None:
        """Waits on an event loop until the service is stopping or `ended` returns true."""
        while not self.stopping and not ended():
            await asyncio.sleep(_LOOK_S)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopped_by = signal.Signals(number).name

    def _read_signals(self, numbers: int) -> None:
        # A handler runs only when the main thread returns to Python code, which it never does if it hangs in C.
        while received := os.read(numbers, 1):
            if received[0] in _ENDING_SIGNALS:
                self._stopped_by = self._stopped_by or signal.Signals(received[0]).name

    def _watch_launcher(self) -> None:
        # Reads the descriptor: a daemon thread must not hold the lock of sys.stdin when the interpreter exits.
        while os.read(0, 1):
            pass
        self._stopped_by = self._stopped_by or "the end of the launcher"
        # The launcher that would kill a hung process has ended, so the process exits.
        time.sleep(_ORPHAN_PATIENCE_S)
        os._exit(1)


def keep_freed_memory() -> None:
    """Sets the thresholds of glibc's malloc; does nothing with another C library. Call it before starting threads.

    gRPC and Python allocate and free memory for every message. By default, glibc returns blocks of that size to the
    kernel, which clears new pages for the next message. This took more than a third of the time for moving 3 MiB
    messages.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        # One arena: a thread can't reuse blocks in the arena of another thread.
        mallopt(_M_ARENA_MAX, 1)


def show_run(name: str, environment: str) -> None:
    """Sets the metric for a run with this name and environment. Preset and commit are empty if not known."""
    metrics.RUN_INFO.labels(name, environment, os.environ.get(PRESET_VARIABLE, ""), commit_of_code()).set(1)


def commit_of_code(file: Path = COMMIT_FILE) -> str:
    """Returns the commit of the running code; empty if not known."""
    try:
        return file.read_text().strip()
    except OSError:
        return os.environ.get(COMMIT_VARIABLE, "")


def _signal_numbers() -> tuple[int]:
    """Sets up and returns a descriptor from which the numbers of this process's signals can be read."""
    numbers, into = os.pipe()
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave_signals)
    return (numbers,)


def _leave_signals() -> None:
    """Restores default signal handling in a child forked by an environment: its signals end it, not the service."""
    signal.set_wakeup_fd(-1)
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
