"""`make stress-fuzz`: malformed TLS handshakes and HTTP/2 frames, beside a healthy actor and learner.

One service has certificates and one has none. A separate process with the lowest priority sends malformed inputs to its
socket: mutated recorded handshakes, and mutated, reordered and invented frames, also within TLS by a client whose
certificate the service trusts. Spans with and without inputs alternate, so that other load on the machine affects both.
The test fails if a service ends, hangs, logs a traceback or many bytes, keeps memory, threads or descriptors, or if the
pair loses more than a tenth of its throughput or receives an error or a damaged segment. gRPC's own tracebacks about
clients that left before their call was refused are counted, and no failure. The result is build/bench/fuzz.json.
"""

import argparse
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from penstock.process.service import keep_freed_memory
from penstock.rpc.health import is_serving
from penstock.security.authority import issue
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from stress import results
from stress.healthy_pair import HealthyPair, Served, plan_of
from stress.malformed_inputs import FRAMES, PREFACE, Inputs, frame
from stress.replay_process import ReplayProcess, replay_process

CAPACITY_BYTES = 64 * 2**20
RUN = "fuzz"
SPAN_S, SETTLE_S = 5.0, 2.0
PACE = 0.4
"""Pace of the pair, as a fraction of its highest throughput."""
KEPT = 0.9
HEALTH_S = 5.0
INPUTS = 50_000
"""Inputs for each of the two services."""
_NICE = 19
_PER_S = 2_000.0
"""Most inputs per second, which is more than a service with as many clients gets."""
_SOCKET_S = 2.0
_LIMIT_S = 600.0
"""Seconds within which inputs are sent."""
_MOST_GROWTH_BYTES = 16 * 2**20
_LOGGED_BYTES = 10
"""Most bytes that a service logs for each input, on average."""
UNDELIVERED = "grpc._cython.cygrpc.ExecuteBatchError: "
"""Last line of these tracebacks, which gRPC prints itself."""
_MOST_MORE = 8
"""Threads and descriptors that a service may have more than before the inputs, once their connections have ended."""


def first_message(context: ssl.SSLContext) -> bytes:
    """Returns the first message of a client of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=f"replay.{RUN}.penstock")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def context_of(files: Files) -> ssl.SSLContext:
    """Returns the settings of a client that the service trusts."""
    context = ssl.create_default_context(cafile=files.authority)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    return context


def send(port: int, inputs: int, seed: int, certificates: Path | None) -> None:
    """Sends inputs to a service: each over a connection of its own, or many within the TLS of one trusted client."""
    files = files_in(certificates)["actor"] if certificates is not None else None
    context = context_of(files) if files is not None else ssl.create_default_context()
    made, began = Inputs(seed, first_message(context)), time.monotonic()
    choose = random.Random(seed)
    for number in range(inputs):
        time.sleep(max(0.0, began + number / _PER_S - time.monotonic()))
        with suppress(OSError, ssl.SSLError), socket.create_connection(("127.0.0.1", port), _SOCKET_S) as plain:
            if files is None:
                plain.sendall(choose.choice((PREFACE + frame(FRAMES["SETTINGS"], 0, 0, b""), b"")) + made.of_http2())
            elif choose.randrange(4):
                plain.sendall(made.of_tls())
            else:
                with context.wrap_socket(plain, server_hostname=f"replay.{RUN}.penstock") as trusted:
                    trusted.sendall(PREFACE + frame(FRAMES["SETTINGS"], 0, 0, b"") + made.of_http2())
                    with suppress(TimeoutError):
                        trusted.settimeout(0.01)
                        trusted.recv(4_096)
                continue
            if choose.randrange(8) == 0:
                # A client that waits for the answer, as against one that leaves at once.
                plain.settimeout(0.01)
                plain.recv(4_096)


def files_in(folder: Path) -> dict[Role, Files]:
    """Returns the files of each role, which are made at the first call."""
    issued = issue(folder, RUN, days=7, hosts={}, now=time.time())
    return {each.identity.role: each.files for each in issued}


@dataclass(frozen=True, slots=True)
class Result:
    """What the inputs did to one service.

    Attributes:
        certified: Whether it has certificates.
        inputs: Inputs that were sent to it.
        kept: Throughput of the pair beside the inputs, as a share of that without.
        grown_bytes: Anonymous memory that the service has in addition afterwards.
        more_threads, more_descriptors: The same of threads and descriptors.
        damaged: Segments that the learner received and the actor had not sent so.
        answers: Whether the service answered a health check in time, during the inputs and afterwards.
        alive: Whether it ran until the end without a traceback, apart from these.
        undelivered: Tracebacks of gRPC about refusals that it could not deliver.
        logged_bytes: Size of its log.
    """

    certified: bool
    inputs: int
    kept: float
    grown_bytes: int
    more_threads: int
    more_descriptors: int
    damaged: int
    answers: bool
    alive: bool
    undelivered: int
    logged_bytes: int

    @property
    def holds(self) -> bool:
        """Whether all bounds held."""
        return (
            self.kept >= KEPT
            and self.logged_bytes <= _LOGGED_BYTES * self.inputs
            and self.grown_bytes <= _MOST_GROWTH_BYTES
            and max(self.more_threads, self.more_descriptors) <= _MOST_MORE
            and not self.damaged
            and self.answers
            and self.alive
        )


def measure(inputs: int, certificates: Path | None) -> Result:
    """Sends inputs to a service, with certificates if there are any, in spans beside those without."""
    files = files_in(certificates) if certificates is not None else {}

    def credentials(role: Role) -> Credentials | None:
        return Credentials(files[role], role) if files else None

    certificate = files["replay"].certificate if files else None
    with (
        tempfile.TemporaryDirectory() as folder,
        replay_process(CAPACITY_BYTES, folder=Path(folder), certificate=certificate) as service,
    ):
        pair = HealthyPair(service.address, plan_of(), credentials=credentials)
        pair.run(SETTLE_S)
        pace = PACE * pair.run(SPAN_S).batches_per_s
        # What the first inputs allocate once, such as buffers of gRPC's threads, is no growth.
        fuzz(service, pair, pace, inputs // 10, 0, certificates)
        time.sleep(2.0 * SETTLE_S)
        before = state_of(service)
        alone, beside, sent, answers, seed = list[Served](), list[Served](), 0, True, 1
        while sent < inputs:
            alone.append(pair.run(SPAN_S, batches_per_s=pace))
            each = min(int(_PER_S * SPAN_S), inputs - sent)
            beside.append(fuzz(service, pair, pace, each, seed, certificates))
            answers &= is_serving(service.address, HEALTH_S, credentials("operator"), "replay")
            sent, seed = sent + each, seed + 1
        time.sleep(5.0 * SETTLE_S)
        after = state_of(service)
        answers &= is_serving(service.address, HEALTH_S, credentials("operator"), "replay")
        growth = after[0] - before[0], after[1] - before[1], after[2] - before[2]
        pair.close()
        log = service.log()
        rates = [sum(s.batches for s in spans) / sum(s.seconds for s in spans) for spans in (alone, beside)]
        return Result(
            certificate is not None,
            sent,
            rates[1] / rates[0],
            *growth,
            sum(span.damaged for span in (*alone, *beside)),
            answers,
            service.alive and log.count("Traceback") == log.count(UNDELIVERED),
            log.count(UNDELIVERED),
            len(log),
        )


def fuzz(
    service: ReplayProcess, pair: HealthyPair, pace: float, inputs: int, seed: int, certificates: Path | None
) -> Served:
    """Returns the pair's throughput while another process sends inputs."""
    command = [sys.executable, "-m", "stress.fuzz", "--port", service.address.rpartition(":")[2]]
    command += ["--inputs", str(inputs), "--seed", str(seed)]
    command += ["--certificates", str(certificates)] if certificates is not None else []
    process = subprocess.Popen(command)
    try:
        return pair.run(_LIMIT_S, batches_per_s=pace, until=lambda: process.poll() is not None)
    finally:
        process.kill()
        assert process.wait() == 0, "the inputs ended by an error"


def state_of(service: ReplayProcess) -> tuple[int, int, int]:
    """Returns the anonymous memory, the threads and the descriptors of a service."""
    return service.memory_bytes("RssAnon"), service.threads(), service.descriptors()


def main() -> int:
    """Measures, prints and writes everything; returns 0 if all bounds held. With --port, sends inputs."""
    parser = results.options(__doc__)
    parser.add_argument("--inputs", type=int, default=INPUTS, help="inputs for each of the two services")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--certificates", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.port is not None:
        os.nice(_NICE)
        send(arguments.port, arguments.inputs, arguments.seed, arguments.certificates)
        return 0
    keep_freed_memory()
    found, console = list[Result](), Console(highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        for certificates in (Path(folder) / "certificates", None):
            result = measure(arguments.inputs, certificates)
            found.append(result)
            console.print(
                f"{'ok  ' if result.holds else 'FAIL'} {'with' if result.certified else 'without'} certificates:"
                f" {result.inputs:,} inputs, {result.kept:.1%} of the throughput kept, {result.grown_bytes / 2**20:.1f}"
                f" MiB, {result.more_threads} threads and {result.more_descriptors} descriptors more,"
                f" {result.damaged} damaged segments, {result.logged_bytes / 2**10:.0f} KiB logged"
                f"{'' if result.answers else ', health not answered'}"
                f"{'' if result.alive else ', ended or logged a traceback'}",
                soft_wrap=True,
            )
    results.write(arguments, {"results": [asdict(each) for each in found]})
    return 0 if all(result.holds for result in found) else 1


if __name__ == "__main__":
    sys.exit(main())
