"""An actor of gRPC and the contract's messages alone, whose segments are numbered; a process of its own.

python -m stress.plain_actor --learner HOST:PORT --number N [--certificate FILE] [--memory PARTS,SIZE]

It joins the learner, sends a window for each grant, and after a break sends unacknowledged windows again, as the
contract requires, and two acknowledged ones, as it permits. None of this is in the clients of Penstock's actors. Each
acknowledgement is one line of JSON on standard output, so that the killer of this process can read what was promised to
it. Observations are numbered as `tests.support.segments.store_ledger` expects. Started by `kills.py`.
"""

import argparse
import itertools
import json
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from penstock.acting.values.spaces import segment_schema
from penstock.rpc import methods
from penstock.rpc.contract import stamped
from penstock.rpc.health import blocking_channel
from penstock.security.authority import files_of
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.types.block import Columns, Schema
from penstock.types.replay import Window, WindowHead
from penstock.v1 import replay_pb2, run_pb2
from penstock.wire.schema import encode_schema
from penstock.wire.spaces import encode_environment
from penstock.wire.windows import encode_window
from tests.support.environments.made import make_environments

ENVIRONMENT = "CartPole-v1"
STEPS, ENVIRONMENTS = 16, 4
SPEC = make_environments(ENVIRONMENT, 1, kwargs={}).spec
_BEAT_S = 0.5
_AGAIN_S = 0.2
_PAUSE_S = 0.02
"""Pause after each window, so that a run of minutes fits into a small store."""
_MOST_PENDING = 16


def schema_of(memory: tuple[int, int] | None) -> Schema:
    """Returns the schema of the segments; `memory` is the shape of one state of a recurrent policy."""
    return segment_schema(SPEC, STEPS, memory=memory)


def numbered(schema: Schema, number: int, window: int) -> Columns:
    """Returns the segments of an actor's window, both counted from 0: every observation has a number of its own."""
    columns = schema.empty(ENVIRONMENTS)
    for column, array in zip(schema.columns, columns.arrays, strict=True):
        array[...] = 1 if column.name in ("reward", "valid", "frame_age") else 0
    # The number of the environment, then that of the step, in 24 bits each, which are exact in float32.
    observations = columns.column("observation")
    observations[..., -2] = (number * ENVIRONMENTS + np.arange(ENVIRONMENTS))[:, None] / 2.0**24
    observations[..., -1] = (window * STEPS + np.arange(observations.shape[1])) / 2.0**24
    columns.column("behaviour_log_prob")[...] = np.log(0.5)
    return columns


def say(entry: Mapping[str, object]) -> None:
    """Writes a line at once and in one piece, so that a kill leaves no part of one."""
    os.write(sys.stdout.fileno(), f"{json.dumps(entry)}\n".encode())


class PlainActor:
    """The actor's two streams, each of which a thread opens again after a break."""

    def __init__(self, learner: str, number: int, certificate: Path | None, memory: tuple[int, int] | None) -> None:
        self._learner, self._number, self._schema = learner, number, schema_of(memory)
        files = None if certificate is None else files_of(certificate.parent)
        self._credentials = None if files is None else Credentials(files, "actor")
        self._changed = threading.Condition()
        self._place = run_pb2.Assignment()
        self._version = self._sequence = self._stored = 0
        self._windows = 0
        self._pending: deque[tuple[int, list[bytes]]] = deque()
        # Sent again after a break although they are stored, which the service must notice.
        self._stored_windows: deque[list[bytes]] = deque(maxlen=2)

    def run(self) -> None:
        """Works until the run has ended."""
        threading.Thread(target=self._repeat, args=(self._append,), daemon=True).start()
        while self._repeat(self._join):
            pass

    def _repeat(self, once: Any) -> bool:
        """Calls a function until it returns a value, again after each break; returns whether to go on."""
        while True:
            try:
                if (ended := once()) is not None:
                    return not ended
            except grpc.RpcError as error:
                say({"broken": str(error.code().name), "details": error.details()})
            time.sleep(_AGAIN_S)

    def _channel(self, address: str, service: Role) -> grpc.Channel:
        return blocking_channel(address, self._credentials, service)

    def _call(self, channel: grpc.Channel, method: Any, requests: Iterator[Any]) -> Any:
        stream: Any = channel.stream_stream(
            method.path,
            request_serializer=lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
            response_deserializer=method.response.FromString,
        )
        return stream(requests)

    # The learner

    def _hello(self) -> Iterator[bytes | run_pb2.JoinRequest]:
        hello = run_pb2.Hello(
            schema=encode_schema(self._schema),
            environment=encode_environment(SPEC),
            environments=ENVIRONMENTS,
            token=self._place.token,
            name=f"plain-{self._number}",
            run=self._place.run,
        )
        yield stamped(run_pb2.JoinRequest(hello=hello))
        while True:
            time.sleep(_BEAT_S)
            yield run_pb2.JoinRequest(progress=run_pb2.ActorProgress(steps=self._windows * STEPS, doing="step"))

    def _join(self) -> bool | None:
        """Stays with the learner; returns true at the end of the run."""
        with self._channel(self._learner, "learner") as channel:
            for response in self._call(channel, methods.JOIN, self._hello()):
                kind = response.WhichOneof("message")
                if kind == "finished":
                    return True
                with self._changed:
                    if kind == "assignment":
                        self._take(response.assignment)
                    elif kind == "replay":
                        self._place.replay.CopyFrom(response.replay)
                    elif kind == "weights" and response.weights.offset + len(response.weights.data) == (
                        response.weights.total_bytes
                    ):
                        self._version = response.weights.version
                    self._changed.notify_all()
        return None

    def _take(self, place: run_pb2.Assignment) -> None:
        """Takes a place. As another actor than before, it numbers its segments from the first again."""
        if (place.slot, place.incarnation) != (self._place.slot, self._place.incarnation):
            self._sequence = self._stored = 0
            self._pending.clear()
            self._stored_windows.clear()
        if not place.replay.addresses:
            place.replay.CopyFrom(self._place.replay)
        self._place.CopyFrom(place)

    # The replay service

    def _append(self) -> bool | None:
        with self._changed:
            self._changed.wait_for(lambda: self._place.replay.addresses)
            place = run_pb2.Assignment()
            place.CopyFrom(self._place)
        sent: queue.Queue[bytes] = queue.Queue()
        with self._channel(place.replay.addresses[0], "replay") as channel:
            responses = self._call(channel, methods.APPEND_SEGMENTS, self._requests(place, sent))
            first = next(responses)
            with self._changed:
                self._acknowledge(place, first.stored_sequence)
                again = [*self._stored_windows, *(messages for _, messages in self._pending)]
                resent = [data for messages in again for data in messages]
                # A window that is sent again takes a grant of this stream, too, unless it is stored.
                spent = len(self._pending)
            for data in resent:
                sent.put(data)
            grants: deque[int] = deque()
            threading.Thread(target=self._collect, args=(place, grants, sent, responses), daemon=True).start()
            for response in itertools.chain([first], responses):
                with self._changed:
                    self._acknowledge(place, response.stored_sequence)
                    for grant in response.grants:
                        if spent:
                            spent -= 1
                        else:
                            grants.append(grant.minimum_version)
                    for _ in range(response.returned_grants):
                        if grants:
                            grants.pop()
                        else:
                            spent += 1
                    self._changed.notify_all()
        return None

    def _requests(self, place: run_pb2.Assignment, sent: "queue.Queue[bytes]") -> Iterator[bytes | object]:
        opening = replay_pb2.OpenAppend(
            schema=encode_schema(self._schema),
            slot=place.slot,
            incarnation=place.incarnation,
            window_segments=len(place.environments),
            run=place.run,
            replay_token=place.replay_token,
        )
        yield stamped(replay_pb2.AppendSegmentsRequest(open=opening))
        while True:
            try:
                yield sent.get(timeout=_BEAT_S)
            except queue.Empty:
                beat = replay_pb2.Heartbeat(steps=self._windows * STEPS)
                yield replay_pb2.AppendSegmentsRequest(heartbeat=beat)

    def _collect(
        self, place: run_pb2.Assignment, grants: "deque[int]", sent: "queue.Queue[bytes]", stream: grpc.Call
    ) -> None:
        """Makes a window for each grant of one stream, while that is open."""
        while stream.is_active():
            with self._changed:
                ready = self._changed.wait_for(
                    lambda: grants and self._version >= grants[0] and len(self._pending) < _MOST_PENDING, _BEAT_S
                )
                if not ready or (place.slot, place.incarnation) != (self._place.slot, self._place.incarnation):
                    continue
                grants.popleft()
                head = WindowHead(
                    place.slot,
                    place.incarnation,
                    self._sequence + 1,
                    self._version,
                    np.array(place.environments, np.uint32),
                )
                window = Window(head, numbered(self._schema, self._number, self._windows))
                messages = list(encode_window(window))
                self._windows += 1
                self._sequence += ENVIRONMENTS
                self._pending.append((self._sequence, messages))
            for data in messages:
                sent.put(data)
            time.sleep(_PAUSE_S)

    def _acknowledge(self, place: run_pb2.Assignment, stored: int) -> None:
        if stored <= self._stored or (place.slot, place.incarnation) != (self._place.slot, self._place.incarnation):
            return
        self._stored = stored
        while self._pending and self._pending[0][0] <= stored:
            self._stored_windows.append(self._pending.popleft()[1])
        address = place.replay.addresses[0]
        say({"replay": address, "slot": place.slot, "incarnation": place.incarnation, "stored": stored})


def main() -> int:
    """Works until the run has ended, or this process is killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learner", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--certificate", type=Path)
    parser.add_argument("--memory", type=lambda text: tuple(map(int, text.split(","))))
    given = parser.parse_args()
    PlainActor(given.learner, given.number, given.certificate, given.memory).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
