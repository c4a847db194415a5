"""What every service process has: a logger, metrics, and one way to be told to stop."""

import os
import resource
import signal
import threading
import time
from types import FrameType, TracebackType

from penstock.apps import allocator
from penstock.config import TelemetryConfig
from penstock.telemetry import logs
from penstock.telemetry.metrics_server import MetricsServer

SUPERVISED_VARIABLE = "PENSTOCK_SUPERVISED"
"""Set by a launcher that holds our standard input: when that ends, the launcher is gone and so should we be."""

_ORPHAN_PATIENCE_S = 10.0
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service:
    """The surroundings of one service. Enter it, work until `stopping`, leave it."""

    def __init__(self, name: str, telemetry: TelemetryConfig, *, listen: str, metrics_port: int) -> None:
        """Args:
        name: replay, learner, actor or evaluator.
        telemetry: For the logs.
        listen: The service's gRPC address, on whose host the metrics are served too.
        metrics_port: 0 for none.
        """
        allocator.keep_freed_memory()
        self.logger = logs.configure(name, level=telemetry.log_level, log_format=telemetry.log_format)
        self._raise_descriptor_limit()
        self._metrics = MetricsServer(listen.rpartition(":")[0], metrics_port)
        # Plain text, set without locking or logging: a handler may interrupt its own thread in the middle of either.
        self._told_by = ""

    def __enter__(self) -> "Service":
        self.take_signals()
        threading.Thread(target=self._read_signals, args=_signal_numbers(), name="signals", daemon=True).start()
        if self.supervised:
            threading.Thread(target=self._watch_launcher, name="launcher", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics.close()
        if error is None:
            self.logger.info("stopped", told_by=self._told_by or None)

    def _raise_descriptor_limit(self) -> None:
        """Lets this process open as many files as the system allows it: each connection is one.

        The metric `process_max_fds` shows the limit.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            except (OSError, ValueError) as error:
                self.logger.warning("the limit of open files stays as it was", limit=soft, reason=str(error))

    def take_signals(self) -> None:
        """Has the signals that end a service tell it to stop. On the main thread.

        Call it again after an environment was made: some set handlers of their own.
        """
        for number in _ENDING_SIGNALS:
            signal.signal(number, self._on_signal)

    @property
    def supervised(self) -> bool:
        """Whether a launcher started it, as one of a run's processes on this machine."""
        return bool(os.environ.get(SUPERVISED_VARIABLE))

    @property
    def stopping(self) -> bool:
        """Whether the service was told to stop."""
        return bool(self._told_by)

    def wait(self, timeout_s: float) -> bool:
        """Waits to be told to stop; whether it was."""
        time.sleep(0.0 if self.stopping else timeout_s)
        return self.stopping

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told_by = signal.Signals(number).name

    def _read_signals(self, numbers: int) -> None:
        # A handler runs when the main thread comes back to Python, which one that hangs in C never does.
        while received := os.read(numbers, 1):
            if received[0] in _ENDING_SIGNALS:
                self._told_by = self._told_by or signal.Signals(received[0]).name

    def _watch_launcher(self) -> None:
        # The bare descriptor: a daemon thread must not hold the lock of sys.stdin when the interpreter ends.
        while os.read(0, 1):
            pass
        self._told_by = self._told_by or "the end of the launcher"
        # Whoever should have ended a process that hangs is gone, so it ends itself.
        time.sleep(_ORPHAN_PATIENCE_S)
        os._exit(1)


def _signal_numbers() -> tuple[int]:
    """The descriptor from which the numbers of this process's signals can be read."""
    numbers, into = os.pipe()
    os.set_blocking(into, False)
    signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave_signals)
    return (numbers,)


def _leave_signals() -> None:
    """In a child that an environment forks: its signals are not the service's, and end it."""
    signal.set_wakeup_fd(-1)
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
