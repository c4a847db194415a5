"""A `penstock replay` of a benchmark: the real command as a process, what it logs, and how much memory it has.

Used by `hostile.py`, `soak.py` and `snapshot_latency.py`. Nothing outlives the `with`.
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

STOP_S = 30.0
_COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()", "replay")
_HANDLED = re.compile(r'^grpc_server_handled_total\{.*grpc_code="(\w+)".*grpc_method="(\w+)".*\} (\S+)$', re.MULTILINE)


class ReplayProcess:
    """One service: where it listens, and what can be seen of it from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", address: str, metrics_port: int, log: Path) -> None:
        self.address, self.pid = address, process.pid
        self._process, self._metrics_port, self._log = process, metrics_port, log

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def log(self) -> str:
        """All that it has logged and printed."""
        return self._log.read_text(errors="replace")

    def memory_bytes(self, kind: str) -> int:
        """A line of /proc/PID/status: RssAnon, RssFile, RssShmem."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(rf"^{kind}:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024

    def cpu_s(self) -> float:
        """User and system seconds that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def has_loaded(self, library: str) -> bool:
        """Whether a file with this in its name is mapped."""
        return library in Path(f"/proc/{self.pid}/maps").read_text()

    def handled(self) -> dict[tuple[str, str], int]:
        """Calls that have ended, by method and status, as the service has counted them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10.0) as answer:
            text = answer.read().decode()
        return {(method, code): int(float(count)) for code, method, count in _HANDLED.findall(text)}


@contextmanager
def replay_process(
    capacity_bytes: int, *, folder: Path | None = None, max_actors: int = 256
) -> Iterator[ReplayProcess]:
    """Starts a service on free ports of loopback, and ends it."""
    port, metrics_port = _free_ports(2)
    address = f"127.0.0.1:{port}"
    command = [*_COMMAND, "--replay.listen", address, "--replay.metrics-port", str(metrics_port)]
    command += ["--replay.capacity-bytes", str(capacity_bytes), "--replay.max-actors", str(max_actors)]
    command += ["--replay.folder", str(folder)] if folder is not None else []
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield ReplayProcess(process, address, metrics_port, Path(log.name))
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
