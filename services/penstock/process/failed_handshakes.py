"""Counts and logs the TLS handshakes that a service's gRPC server has refused.

gRPC reports them in no other way than by a line on the process's error output, which has the reason and no address. So
gRPC's core writes into a pipe here, and everything but its lines of this kind goes on to the error output.
"""

import os
import re
import sys
import threading
from collections.abc import Mapping
from typing import IO, TextIO

from penstock.machine import installation
from penstock.process.output import protected
from penstock.telemetry import logs, metrics

_INFORMATION = (b"I", b"W")
_FROM_GRPC = re.compile(rb"^([IWEF])\d{4} [\d:.]+ +\d+ [\w.-]+:\d+\] ")
"""Beginning of a line that gRPC's core writes, with the letter of its severity."""

_TRACE = "handshaker"
"""Trace of gRPC that reports every handshake, in a few lines for each connection."""

_FAILED = re.compile(rb"CallNextHandshakerLocked: error=(?!OK)")
_OF_A_CLIENT = b"client_channel_factory"
"""Part of the lines about connections that this process makes itself, whose failures its clients report."""

_BEFORE = b"WARNING: All log messages before absl::InitializeLog()"
"""Beginning of a line that the core of grpcio 1.76 writes before its first."""

_PLACE = re.compile(rb"^(=== Source Location Trace|src/core/|\n$)")
"""Lines that follow a line of gRPC's core."""

_REASONS: Mapping[str, tuple[str, str]] = {
    "certificate has expired": (
        "expired",
        f"the client's certificate has expired; renew it with {installation.how_to_renew()}",
    ),
    "certificate is not yet valid": ("not_yet_valid", "the client's certificate is not valid yet; correct the clocks"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "no_certificate",
        "the client has no certificate; set its security.certificate",
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "other_authority",
        "the client's certificate is not signed by the authority in security.authority; use certificates of one run",
    ),
    "WRONG_VERSION_NUMBER": ("plain_text", "the client does not use TLS; set its security.certificate"),
    "HTTP_REQUEST": ("plain_text", "the client does not use TLS; set its security.certificate"),
    "Handshake read failed": (
        "ended_by_client",
        "the client ended the connection; if it is one of this run, it refuses this service's certificate, for the"
        " reason in its log",
    ),
}
"""Meanings of parts of gRPC's lines, the most specific first: label of the metric, and text of the log."""

_OTHER = ("malformed", "a client did not send a TLS handshake; see that only clients of this run can reach the port")


def watch() -> None:
    """Starts to watch the error output of this process. Call it before gRPC is imported, and once."""
    output = os.dup(2)
    into_pipe = os.pipe()
    os.dup2(into_pipe[1], 2)
    os.close(into_pipe[1])
    # Python's own output takes the direct way, so that nothing of it is lost if the process is killed.
    sys.stderr = protected(os.dup(output))
    # gRPC reads them once, when it is imported.
    os.environ["GRPC_VERBOSITY"] = "INFO"
    os.environ["GRPC_TRACE"] = ",".join(filter(None, (os.environ.get("GRPC_TRACE"), _TRACE)))
    threading.Thread(
        target=_read, args=(os.fdopen(into_pipe[0], "rb"), protected(output)), name="failed handshakes", daemon=True
    ).start()


def _read(lines: IO[bytes], output: TextIO) -> None:
    logged: set[str] = set()
    dropping = False
    for line in lines:
        found = _FROM_GRPC.match(line)
        if found is None and ((dropping and _PLACE.match(line)) or line.startswith(_BEFORE)):
            continue
        dropping = found is not None and found[1] in _INFORMATION
        if not dropping:
            output.buffer.write(line)
        elif _FAILED.search(line) and _OF_A_CLIENT not in line:
            label, meaning = reason_of(line.decode(errors="replace"))
            metrics.FAILED_HANDSHAKES.labels(label).inc()
            # The metric counts them all. A client that tries again each second must not fill the log.
            if label not in logged:
                logged.add(label)
                logs.warn("connection refused during its TLS handshake", reason=meaning)


def reason_of(line: str) -> tuple[str, str]:
    """Returns the meaning of a line of gRPC about a failed handshake: label of the metric, and text of the log."""
    return next((meaning for part, meaning in _REASONS.items() if part in line), _OTHER)
