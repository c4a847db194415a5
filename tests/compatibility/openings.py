"""Answers of the present services, started on a release's files, to the openings of the release's actor.

Decoders don't see every check: a store may demand a token that a message may lack. Therefore the services are those of
`penstock replay` and `penstock learner`. They continue the recorded run, so that they know the recorded actor.
"""

import queue
import tempfile
from pathlib import Path
from typing import Any

import grpc

from penstock.rpc.health import is_serving
from tests.compatibility.messages import Recorded, read_messages, without_each_field
from tests.compatibility.services import Release, options_of, unpack
from tests.support.machine.timing import PATIENCE_S, wait_for_run
from tests.support.services.ports import free_ports

_HEALTH_S = 1.0

WHOLE = "nothing"
"""Name of the opening that lacks nothing."""


class Opened:
    """A stream that has sent its first message, as a client without any code of ours does."""

    def __init__(self, port: int, method: str, opening: bytes) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._requests.put(opening)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        stub: Any = self._channel.stream_stream(method)
        self._call = stub(iter(self._requests.get, None), wait_for_ready=True, timeout=PATIENCE_S)

    def refusal(self) -> str:
        """Waits for the first response. Returns an empty text, or the status and its details."""
        try:
            next(self._call)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()


def opening_of(release: Path, method: str) -> Recorded:
    """Returns the first request of a stream."""
    return next(each for each in read_messages(release) if each.method.endswith(f"/{method}"))


def refusals(release: Path) -> dict[str, dict[str, str]]:
    """Returns the refusals of openings that lack one field each, by method and path; empty texts: they are accepted."""
    found: dict[str, dict[str, str]] = {}
    replay, learner = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="penstock-") as temporary:
        folder = Path(temporary)
        unpack(release, folder)
        with Release(folder).services(("replay", "learner"), options_of(replay, learner)) as alive:
            addresses = [f"127.0.0.1:{port}" for port in (replay, learner)]
            wait_for_run(lambda: alive() and all(is_serving(each, _HEALTH_S) for each in addresses), "the services")
            joined = opening_of(release, "Join")
            actor = Opened(learner, joined.method, joined.data)
            assert not (refusal := actor.refusal()), refusal
            for method, port in (("AppendSegments", replay), ("Join", learner)):
                opening = opening_of(release, method)
                variants = {WHOLE: opening.data}
                variants |= {path: lacking.SerializeToString() for path, lacking in without_each_field(opening.parsed)}
                found[method] = {
                    path: _answer(port, opening.method, data) for path, data in variants.items() if alive()
                }
            actor.close()
    return found


def accepted(release: Path) -> dict[str, list[str]]:
    """Returns the paths of the fields without which the services accept each opening."""
    return {
        method: [path for path, refusal in answers.items() if not refusal]
        for method, answers in refusals(release).items()
    }


def _answer(port: int, method: str, data: bytes) -> str:
    stream = Opened(port, method, data)
    try:
        return stream.refusal()
    finally:
        stream.close()
