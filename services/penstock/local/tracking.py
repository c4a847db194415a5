"""The process that sends the records of a local run to a tracker. Its end never ends the run."""

import shlex
import time

from penstock.config import Config
from penstock.local.child_log import ChildLog
from penstock.local.children import Child, service_command
from penstock.local.process_group import Guard, describe_exit
from penstock.machine.installation import program
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder

LINE = "tracking: "
"""Beginning of the lines of `penstock track` for the user."""

_POLL_S = 0.1
FINISH_S = 60.0
"""Seconds after the end of training in which the process may start and send the last records."""


class TrackingProcess:
    """The process of `penstock track`, if a tracker is set. Used on the launcher's main thread."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self._folder, self._tracker = folder, config.tracking.tracker
        self._log = folder.logs / "tracker.log"
        arguments = (
            "track",
            str(folder.root.absolute()),
            f"--to={self._tracker}",
            f"--project={config.tracking.project}",
        )
        self._child = Child("tracker", service_command(*arguments), ChildLog(self._log))
        self._read, self._runs, self._begun = 0, False, False

    def start(self, guard: Guard) -> list[str]:
        """Starts the process, which the guard ends with the launcher; returns lines for the user."""
        if self._tracker is None:
            return []
        try:
            self._read = self._log.stat().st_size if self._log.exists() else 0
            self._child.start(guard, None, 0)
        except OSError as error:
            return [self._ended(f"can't be started: {in_words(error)}")]
        self._runs = True
        return []

    def news(self) -> list[str]:
        """Returns new lines for the user: where the records go, failures, and an end before the run's."""
        if not self._runs:
            return []
        # Before the lines, so that none of an ended process is missed.
        code = self._child.exit_code
        lines = self._lines()
        if code is not None:
            self._runs = False
            reason = self._child.log.own_reason() or f"{describe_exit(code)}: {self._child.log.cause()}"
            lines += [self._ended(f"ended with {reason}")] if code else []
            self._child.log.close()
        return lines

    def finish(self) -> list[str]:
        """Lets the process send the last records and end, at most `FINISH_S` seconds; returns lines for the user."""
        if not self._runs:
            return []
        deadline, lines = time.monotonic() + FINISH_S, list[str]()
        try:
            # Before its first line, the signal would end it without a record.
            while not self._begun and self._runs and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                lines += self.news()
            self._child.terminate()
            self._child.end(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:
            self._child.end(0.0)
        return lines + self.news()

    def _ended(self, how: str) -> str:
        again = f"`{program()} track {shlex.quote(str(self._folder.root))} --to {self._tracker}` sends what is missing"
        return f"{LINE}{how}; training is not affected, and {again}"

    def _lines(self) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except OSError:
            return []
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        lines = [line for line in data.decode(errors="replace").splitlines() if line.startswith(LINE)]
        self._begun = self._begun or bool(lines)
        return lines
