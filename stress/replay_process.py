"""A `penstock replay` process for stress tests, with its log, CPU time and memory.

Used by `hostile.py`, `fuzz.py` and `snapshot_latency.py`. The process ends with the context.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.machine.timing import wait_for_run
from tests.support.services.ports import free_ports

STOP_S = 30.0
_COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()", "replay")
_HANDLED = re.compile(r'^grpc_server_handled_total\{.*grpc_code="(\w+)".*grpc_method="(\w+)".*\} (\S+)$', re.MULTILINE)


class ReplayProcess:
    """One service: its address, and its state as seen from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str, metrics_port: int, log: Path) -> None:
        self.address, self.pid = address, process.pid
        self._process, self._metrics_port, self._log = process, metrics_port, log

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """Returns everything that the service has logged and printed."""
        return self._log.read_text(errors="replace")

    def memory_bytes(self, kind: str) -> int:
        """Returns a value of /proc/PID/status in bytes: RssAnon, RssFile or RssShmem."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(rf"^{kind}:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024

    def cpu_s(self) -> float:
        """Returns the user and system seconds of the process."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Returns the number of open files and connections."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Returns the number of threads."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def has_loaded(self, library: str) -> bool:
        """Returns whether a file with this in its name is mapped."""
        return library in Path(f"/proc/{self.pid}/maps").read_text()

    def handled(self) -> dict[tuple[str, str], int]:
        """Returns the number of ended calls by method and status, from the service's metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10.0) as answer:
            text = answer.read().decode()
        return {(method, code): int(float(count)) for code, method, count in _HANDLED.findall(text)}


@contextmanager
def replay_process(
    capacity_bytes: int, *, folder: Path | None = None, max_actors: int = 256, certificate: Path | None = None
) -> Iterator[ReplayProcess]:
    """Starts a service on free ports of loopback, and stops it on exit. Without a `certificate` it uses no TLS."""
    port, metrics_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    command = [*_COMMAND, "--replay.listen", address, "--replay.metrics-port", str(metrics_port)]
    command += ["--replay.capacity-bytes", str(capacity_bytes), "--replay.max-actors", str(max_actors)]
    command += ["--replay.folder", str(folder)] if folder is not None else []
    command += ["--security.certificate", str(certificate)] if certificate is not None else []
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for_run(lambda: process.poll() is not None or _listens(port), "the replay service to listen")
            yield ReplayProcess(process, address, metrics_port, Path(log.name))
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
