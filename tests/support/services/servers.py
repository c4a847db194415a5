"""Real servers and clients on loopback, for contract tests.

Each server runs on a separate loop thread, as in a separate process. All clients of a test share another one. A
`Loopback` closes them all, clients first.
"""

import math
import queue
import secrets
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from prometheus_client import REGISTRY

from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.population import Population
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.learning.members.roster import Roster
from penstock.learning.members.targets import Content, Targets
from penstock.learning.report.statistics import RunStatistics
from penstock.machine.addresses import LOOPBACK, Address
from penstock.replay.admission import Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.snapshots.taking import Snapshots
from penstock.replay.store.ring_store import RingStore
from penstock.rpc import methods
from penstock.rpc.channel import call_unary, connect, connected
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.evaluation_work import EvaluationWork
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.operator import RunSnapshotClient, StatusClient
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.clients.snapshots import SnapshotClient, StoreSnapshots
from penstock.rpc.contract import CONTRACT, stamped
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import Server
from penstock.rpc.service import Method
from penstock.rpc.servicers.replay import ReplayServicer
from penstock.rpc.servicers.run import RunServicer
from penstock.rpc.servicers.snapshots import SnapshotServicer
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.types.block import Column, Extent, Schema
from penstock.types.evaluation import EvaluatorHello
from penstock.types.extents import Amounts
from penstock.types.location import UNKNOWN, Location, Place
from penstock.types.replay import Batch, CommitOutcome, Grant, SamplingPlan, Window
from penstock.types.run import NO_IDENTITY, Assignment, RunIdentity, Weights
from penstock.types.snapshots import Snapshot, SnapshotProgress, SnapshotRequest
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from penstock.v1 import replay_pb2, run_pb2, snapshot_pb2
from penstock.wire.batches import encode_plan
from penstock.wire.schema import encode_schema
from penstock.wire.spaces import encode_environment
from penstock.wire.windows import encode_window
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_window
from tests.support.services.relay import Relay

SPEC = EnvironmentSpec(
    "Counting-v0",
    Tree.of(BoxSpace("float32", (2,), (0.0, 0.0), (float("inf"), float("inf")))),
    Tree.of(DiscreteSpace(2)),
)

IMAGES = Schema(4, (Column("observation", "uint8", (500, 501), Extent.STEP_AND_NEXT), Column("reward", "float32")))
"""Segments of 1.25 MB, whose windows and batches travel in parts."""

Name = tuple[int, int, int]
"""(slot, incarnation, sequence) of a segment."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Closable(Protocol):
    """An object with `close`."""

    def close(self) -> None:
        """Closes it."""


class Addressed(Protocol):
    """A server, or what carries the bytes of its clients."""

    @property
    def address(self) -> str:
        """host:port that clients call."""


AnyServer = TypeVar("AnyServer", bound="LiveServer")
AnyClient = TypeVar("AnyClient", bound=Closable)


def until(condition: Callable[[], T | None], what: str, timeout_s: float | None = None) -> T:
    """Waits like `wait_for`, for a condition inside this process."""
    return wait_for(condition, what, timeout_s, poll_s=0.002)


def sample(name: str, **labels: str) -> float:
    """Returns the value of a metric of this process; 0 if it was never counted."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def gauge(metrics_port: int, name: str) -> float:
    """Returns the value of a metric without labels that a service exports at this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=PATIENCE_S) as response:
        (line,) = [line for line in response.read().decode().splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def assignment(
    slot: int, address: str, *, segments: int = 2, incarnation: int = 1, identity: RunIdentity = NO_IDENTITY
) -> Assignment:
    """Returns an assignment of this run, whose environments have the numbers used by `make_window`."""
    return Assignment(
        slot,
        incarnation,
        tuple(range(slot * segments, (slot + 1) * segments)),
        token=b"",
        seed=0,
        replay=Place((address,)),
        run=identity.number,
        replay_token=identity.token(slot, incarnation),
    )


class LiveServer:
    """A server in a separate thread, as in a separate process."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.thread = LoopThread(credentials)
        self.server: Server
        self._ended = False

    def _listen(self, port: int, host: str = LOOPBACK, path: str = "", health_listen: str | None = None) -> None:
        starting = self.server.start(str(Address(host, port, path)), health_listen=health_listen)
        self.thread.run(starting, PATIENCE_S)
        self.port = self.server.address.port

    @property
    def address(self) -> str:
        return str(self.server.address)

    def stop(self) -> None:
        """Stops like a service that receives a stop signal."""
        if not self._ended:
            self.thread.run(self.server.stop(), PATIENCE_S)
            self._end()

    def kill(self) -> None:
        """Stops at once, without notifying any stream."""
        if not self._ended:
            self.thread.run(self.server._server.stop(None), PATIENCE_S)
            self._end()

    def _end(self) -> None:
        self._ended = True
        self.thread.close()


class LiveReplay(LiveServer):
    """A replay service."""

    def __init__(
        self,
        *,
        schema: Schema = SCHEMA,
        rows: int = 400,
        folder: Path | None = None,
        max_actors: int = 8,
        grant_timeout_s: float = 3600.0,
        staging_bytes: int = 2**26,
        version_patience_s: float = 30.0,
        port: int = 0,
        host: str = LOOPBACK,
        path: str = "",
        advertise: Sequence[str] = (),
        location: Location = UNKNOWN,
        snapshots: Path | None = None,
        snapshot_bytes_per_s: int = 2**30,
        clock_ahead_s: float = 0.0,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(credentials)
        self.store = RingStore(folder, capacity_bytes(rows, schema))
        buffer = ReplayBuffer(self.store, Gate(grant_timeout_s, max_actors), lambda: time.time() + clock_ahead_s)
        self.snapshots = Snapshots(buffer, snapshots, kept=3, bytes_per_s=snapshot_bytes_per_s)
        making = self._make(
            buffer,
            self.snapshots,
            max_actors,
            staging_bytes,
            version_patience_s,
            advertise=advertise,
            location=location,
            credentials=credentials,
        )
        self._servicer = self.thread.run(making, PATIENCE_S)
        self.server = self._servicer.server
        self._listen(port, host, path)
        self.thread.spawn(self._servicer.tick())

    @staticmethod
    async def _make(
        buffer: ReplayBuffer,
        snapshots: Snapshots,
        max_actors: int,
        staging_bytes: int,
        version_patience_s: float,
        *,
        advertise: Sequence[str],
        location: Location,
        credentials: Credentials | None,
    ) -> ReplayServicer:
        return ReplayServicer(
            buffer,
            max_actors=max_actors,
            staging_bytes=staging_bytes,
            version_patience_s=version_patience_s,
            advertise=advertise,
            location=location,
            more_methods=SnapshotServicer(snapshots).behaviours,
            credentials=credentials,
        )


class LiveRun(LiveServer):
    """The services of a learner, without the learner.

    Attributes:
        listed: Each written list of metrics addresses.
    """

    def __init__(
        self,
        roster_path: Path,
        *,
        max_actors: int = 4,
        rejoin_timeout_s: float = 60.0,
        seed: int = 11,
        port: int = 0,
        variants: tuple[str, ...] = (),
        temperatures: tuple[float, ...] = (1.0,),
        credentials: Credentials | None = None,
        more_methods: Mapping[Method, Any] | None = None,
        expected: bool = False,
        population: Population | None = None,
    ) -> None:
        super().__init__(credentials)
        self.listed: list[Content] = []
        self.statistics = RunStatistics(limits=Amounts(steps=1000), earlier_s=0.0, variants=variants)
        self.roster = Roster(
            roster_path,
            seed=seed,
            max_actors=max_actors,
            rejoin_timeout_s=rejoin_timeout_s,
            now=time.monotonic(),
            writes=RetriedWrites(self.statistics.notice),
            notice=self.statistics.notice,
            expected=expected,
            variants=max(1, len(variants)),
            temperatures=temperatures,
        )
        self.targets = Targets(self.listed.append, Location("node1", metrics_address="10.0.0.1:9432"))
        self.places = ReplayPlaces(["127.0.0.1:7431"])
        self.servicer = RunServicer(
            self.thread,
            self.roster,
            self.statistics,
            self.targets,
            self.places,
            max_actors=max_actors,
            population=population,
            more_methods=more_methods,
        )
        self.server = self.servicer.server
        self._listen(port)

    def _end(self) -> None:
        super()._end()
        self.targets.close()


class LiveMethods(LiveServer):
    """A server with arbitrary behaviours."""

    def __init__(
        self,
        behaviours: dict[Method, Any],
        *,
        max_streams: int = 16,
        credentials: Credentials | None = None,
        health_listen: str | None = None,
    ) -> None:
        super().__init__(credentials)
        self.server = self.thread.run(self._make(behaviours, max_streams, credentials), PATIENCE_S)
        self._listen(0, health_listen=health_listen)

    @staticmethod
    async def _make(behaviours: dict[Method, Any], max_streams: int, credentials: Credentials | None) -> Server:
        return Server(behaviours, max_streams=max_streams, credentials=credentials)


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A client without any of our code, with this certificate; None: it connects in plain text."""

    credentials: grpc.ChannelCredentials | None = None

    def channel(self, server: LiveServer) -> grpc.Channel:
        """Opens a channel, by the name in the server's certificate if it has one."""
        options: tuple[tuple[str, Any], ...] = (("grpc.enable_http_proxy", 0),)
        if self.credentials is None:
            return grpc.insecure_channel(server.address, options)
        assert server.thread.credentials is not None
        name = server.thread.credentials.identity.server_name
        return grpc.secure_channel(
            server.address, self.credentials, (*options, ("grpc.ssl_target_name_override", name))
        )


class PlainStream:
    """A stream of a client that uses only the contract: protobuf's own bytes, gRPC's own stub."""

    def __init__(
        self,
        server: LiveServer,
        method: Method,
        *,
        timeout_s: float = PATIENCE_S,
        contract: int = CONTRACT,
        client: "PlainClient | None" = None,
    ) -> None:
        """Opens the stream, and waits for the connection unless a `client` is given, which may get none."""
        self._channel = (client or PlainClient()).channel(server)
        self._requests: queue.Queue[Message | bytes | None] = queue.Queue()
        stub = self._channel.stream_stream(
            method.path, request_serializer=_plain_bytes, response_deserializer=method.response.FromString
        )
        self._call = stub(iter(self._requests.get, None), timeout=timeout_s, wait_for_ready=client is None)
        self._contract = contract

    def send(self, *requests: Message | bytes) -> None:
        for request in requests:
            # The first message of a stream carries the number of the contract.
            self._requests.put(stamped(request, self._contract) if self._contract else request)
            self._contract = 0

    @property
    def challenge(self) -> bytes:
        """Challenge of the server, for the proof in the first request."""
        sent: dict[str, Any] = dict(self._call.initial_metadata())
        return bytes.fromhex(sent["penstock-challenge"])

    def receive(self) -> Any:
        """Returns the next response. Raises `grpc.RpcError`, also if none arrives in time."""
        return next(self._call)

    def leave(self) -> None:
        """Half-closes the stream."""
        self._requests.put(None)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """Returns the final status of the stream, after reading all remaining responses."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return self._call.code(), self._call.details()

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()


def _plain_bytes(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def proved(method: Method, request: M, key: bytes, challenge: bytes = b"") -> M:
    """Returns a request with the proof of a run's key, made from the contract alone."""
    signed, private = type(request)(), Ed25519PrivateKey.from_private_bytes(key)
    signed.CopyFrom(request)
    signed.ClearField("proof")
    content = method.path.encode() + b"\0" + challenge + signed.SerializeToString()
    proof = snapshot_pb2.RunProof(key=private.public_key().public_bytes_raw(), signature=private.sign(content))
    signed.MergeFrom(type(request)(proof=proof))
    return signed


def open_request(
    slot: int = 0,
    *,
    incarnation: int = 1,
    segments: int = 2,
    schema: Schema = SCHEMA,
    run: int = 0,
    token: bytes = b"",
) -> replay_pb2.AppendSegmentsRequest:
    """Returns the opening of an append stream."""
    opening = replay_pb2.OpenAppend(
        schema=encode_schema(schema),
        slot=slot,
        incarnation=incarnation,
        window_segments=segments,
        run=run,
        replay_token=token,
    )
    return replay_pb2.AppendSegmentsRequest(open=opening)


def window_request(first_sequence: int = 1, **options: Any) -> replay_pb2.AppendSegmentsRequest:
    """Returns a window of `make_window` in one message."""
    (data,) = encode_window(make_window(first_sequence, **options))
    return replay_pb2.AppendSegmentsRequest.FromString(data)


def plan_request(plan: SamplingPlan) -> replay_pb2.SampleBatchesRequest:
    """Returns the opening of a sampling stream."""
    return replay_pb2.SampleBatchesRequest(plan=encode_plan(plan))


def batch_request(batch: int) -> replay_pb2.SampleBatchesRequest:
    """Returns a request for a batch."""
    return replay_pb2.SampleBatchesRequest(batch=replay_pb2.BatchRequest(batch=batch))


def hello_request(
    token: bytes = b"",
    *,
    environments: int = 2,
    schema: Schema = SCHEMA,
    spec: EnvironmentSpec = SPEC,
    run: int = 0,
) -> run_pb2.JoinRequest:
    """Returns the opening of a join stream."""
    hello = run_pb2.Hello(
        schema=encode_schema(schema),
        environment=encode_environment(spec),
        environments=environments,
        token=token,
        run=run,
    )
    return run_pb2.JoinRequest(hello=hello)


class Loopback:
    """All servers and clients of one test. Leaving the context closes the clients, then the servers."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        """Prepares for clients with these credentials. Servers have those of their options."""
        self._clients, self._servers = ExitStack(), ExitStack()
        self.thread = LoopThread(credentials)

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._servers:
            with self._clients:
                pass
            self.thread.close()

    # Servers

    def replay(self, **options: Any) -> LiveReplay:
        """Starts a replay service with options of `LiveReplay`."""
        return self._serve(LiveReplay(**options))

    def run(self, roster_path: Path, **options: Any) -> LiveRun:
        """Starts a learner's services with options of `LiveRun`."""
        return self._serve(LiveRun(roster_path, **options))

    def methods(self, behaviours: dict[Method, Any], **options: Any) -> LiveMethods:
        """Starts a server with these behaviours and options of `LiveMethods`."""
        return self._serve(LiveMethods(behaviours, **options))

    def relay(self, server: LiveServer, **options: Any) -> Relay:
        """Starts a relay to a server with options of `Relay`."""
        relay = Relay(server.address, **options)
        self._servers.callback(relay.close)
        return relay

    def _serve(self, server: AnyServer) -> AnyServer:
        self._servers.callback(server.stop)
        return server

    # Clients

    def sink(
        self, slot: int, server: Addressed, *, schema: Schema = SCHEMA, window_s: float = math.inf, **options: Any
    ) -> ReplaySegmentSink:
        """Creates the sink of the actor in this slot, whose windows take `window_s`; options as for `assignment`."""
        place = assignment(slot, server.address, **options)
        return self._client(ReplaySegmentSink(self.thread, place, schema, window_s=lambda: window_s))

    def source(
        self,
        server: Addressed,
        plan: SamplingPlan | None = None,
        *,
        schema: Schema = SCHEMA,
        prefetch: int = 1,
        **options: Any,
    ) -> ReplayBatchSource:
        """Creates a learner's source of batches with these options; opens it if there is a plan."""
        source = self._client(
            ReplayBatchSource(self.thread, server.address, schema, prefetch_batches=prefetch, **options)
        )
        if plan is not None:
            source.open(plan)
        return source

    def snapshots(self, server: LiveServer, key: bytes = b"") -> SnapshotClient:
        """Creates a client for snapshots of a replay service, with the key of its run."""
        return self._client(SnapshotClient(self.thread, server.address, key))

    def take(
        self,
        server: LiveServer,
        name: str,
        show: Callable[[SnapshotProgress], None] = lambda progress: None,
        key: bytes = b"",
    ) -> Snapshot:
        """Takes a snapshot of a replay service, with an arbitrary policy and the key of its run."""
        client, request = self.snapshots(server, key), SnapshotRequest(name, 0, automatic=False)
        return self.thread.run(client.take(request, Weights.of(0, b"policy"), show=show), 2.0 * PATIENCE_S)

    def stores(self, *servers: LiveServer) -> StoreSnapshots:
        """Creates a learner's access to the snapshots of its stores."""
        return self._client(StoreSnapshots(self.thread, [server.address for server in servers]))

    def run_snapshots(self, server: LiveServer, key: bytes = b"") -> RunSnapshotClient:
        """Creates a client for snapshots of a run with this key."""
        return self._client(RunSnapshotClient(self.thread, server.address, key))

    def membership(
        self,
        server: LiveServer,
        *,
        schema: Schema = SCHEMA,
        spec: EnvironmentSpec = SPEC,
        environments: int = 2,
        **options: Any,
    ) -> Membership:
        """Creates an actor's membership in a run, with these options."""
        return self._client(Membership(self.thread, server.address, schema, spec, environments, **options))

    def work(self, server: LiveServer, spec: EnvironmentSpec = SPEC, location: Location = UNKNOWN) -> EvaluationWork:
        """Creates an evaluator's work client."""
        return self._client(EvaluationWork(self.thread, server.address, EvaluatorHello(spec, location)))

    def status(self, address: str) -> StatusClient:
        """Creates a client for the status of a run."""
        return self._client(StatusClient(self.thread, address))

    def plain(self, server: LiveServer, method: Method, **options: Any) -> PlainStream:
        """Opens a stream of a client without any of our code, with options of `PlainStream`."""
        return self._client(PlainStream(server, method, **options))

    def _client(self, client: AnyClient) -> AnyClient:
        self._clients.callback(client.close)
        return client

    def ask(
        self,
        address: str,
        method: Method,
        request: Message | bytes,
        timeout_s: float = PATIENCE_S,
        service: Role = "replay",
        *,
        waits: bool = False,
    ) -> Any:
        """Makes a unary call with our client code to a service of this role.

        `waits` is whether to wait for a connection: on a busy machine, gRPC's first attempt may exceed its limit.
        """

        async def call() -> Any:
            async with connect(address, self.thread.credentials, service) as channel:
                if waits:
                    await connected(channel, timeout_s, once=False)
                return await call_unary(channel, method, request, f"the peer at {address}", timeout_s)

        return self.thread.run(call(), 2.0 * PATIENCE_S)

    def plain_call(
        self, server: LiveServer, method: Method, request: Message | bytes, client: PlainClient | None = None
    ) -> tuple[grpc.StatusCode, Any]:
        """Makes a unary call without our client code; returns the status, and the response or the details."""
        with (client or PlainClient()).channel(server) as channel:
            stub = channel.unary_unary(
                method.path, request_serializer=_plain_bytes, response_deserializer=method.response.FromString
            )
            try:
                return grpc.StatusCode.OK, stub(request, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return error.code(), error.details()

    def replay_status(self, server: LiveServer) -> replay_pb2.GetReplayStatusResponse:
        """Returns the status of a replay service."""
        status: replay_pb2.GetReplayStatusResponse = self.ask(
            server.address, methods.GET_REPLAY_STATUS, replay_pb2.GetReplayStatusRequest(), waits=True
        )
        return status

    def join(self, *threads: threading.Thread) -> None:
        """Waits for threads of the test."""
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} did not end"


def pass_windows(sink: ReplaySegmentSink, source: ReplayBatchSource, count: int, *, first: int = 0) -> None:
    """Sends this number of windows of two segments, each for one batch, and checks that they arrive unchanged.

    `first` is the number of those sent before.
    """
    for number in range(first, first + count):
        until(lambda: sink.next_grant(0.5), "a grant")
        window = make_window(1 + 2 * number, version=number)
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        source.commit(batch, np.ones(2)).result(PATIENCE_S)


class Recorder:
    """Records every window that was sent, so that a segment of a batch can be identified by its content."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[bytes, Name] = {}
        self.windows: dict[Name, tuple[Window, int]] = {}

    def note(self, window: Window) -> None:
        """Records a window under the names of its segments."""
        with self._lock:
            for row in range(window.columns.segments):
                name = (window.head.slot, window.head.incarnation, window.head.first_sequence + row)
                self._names[_content(window.columns.arrays, row)] = name
                self.windows[name] = (window, row)

    def names(self, batch: Batch) -> list[Name]:
        """Returns the names of a batch's segments. Fails unless every column and the version are as sent."""
        with self._lock:
            columns = next(iter(self.windows.values()))[0].columns
            for came, sent in zip(batch.columns.arrays, columns.arrays, strict=True):
                assert (came.dtype, came.shape[1:]) == (sent.dtype, sent.shape[1:])
            names = [self._names[_content(batch.columns.arrays, row)] for row in range(batch.keys.size)]
            for row, name in enumerate(names):
                window, _ = self.windows[name]
                assert batch.head.versions[row] == window.head.version, name
            return names

    def environment(self, name: Name) -> int:
        """Returns the number of the environment of a segment."""
        window, row = self.windows[name]
        return int(window.head.environments[row])


def _content(arrays: tuple[np.ndarray, ...], row: int) -> bytes:
    return b"".join(array[row].tobytes() for array in arrays)


class Actor:
    """A thread that acts: for each grant, it waits for the required weights and sends a window."""

    def __init__(
        self,
        sink: ReplaySegmentSink,
        recorder: Recorder,
        published: Callable[[], int],
        *,
        slot: int,
        segments: int = 2,
        incarnation: int = 1,
        windows: int = 10**6,
        schema: Schema = SCHEMA,
        before: Callable[[Grant], None] = lambda grant: None,
    ) -> None:
        self._sink, self._recorder, self._published, self._before = sink, recorder, published, before
        self._make: Callable[[int, int], Window] = lambda sequence, version: make_window(
            sequence, segments=segments, slot=slot, incarnation=incarnation, version=version, schema=schema
        )
        self._segments, self._windows = segments, windows
        self._stop = threading.Event()
        self.sent = 0
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"actor {slot}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while self.sent < self._windows and not self._stop.is_set():
                grant = self._sink.next_grant(0.05)
                if grant is None:
                    continue
                self._before(grant)
                while self._published() < grant.minimum_version:
                    if self._stop.wait(0.0005):
                        return
                window = self._make(1 + self.sent * self._segments, self._published())
                self._recorder.note(window)
                self._sink.send(window)
                self.sent += 1
        except Exception as error:
            self.error = error

    def end(self) -> None:
        """Stops the thread. Raises its error, if any."""
        self._stop.set()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), f"{self.thread.name} did not end"
        if self.error is not None:
            raise self.error


class Trainer:
    """A learner that trains nothing: takes batches in order, publishes, commits."""

    def __init__(self, source: ReplayBatchSource, recorder: Recorder, plan: SamplingPlan) -> None:
        self._source, self._recorder, self._plan = source, recorder, plan
        self._random = np.random.default_rng(5)
        self._priorities: defaultdict[int, set[float]] = defaultdict(set)
        self.version = plan.next_batch
        self.published = plan.publish_interval * (plan.next_batch // plan.publish_interval)
        self.fresh: list[Name] = []

    def next(self) -> Batch:
        """Returns the next batch after checking it."""
        batch = until(lambda: self._source.next(0.5), f"batch {self.version} ({self._source.waiting_for})")
        assert batch.number == self.version
        assert batch.fresh_segments == self._plan.fresh_segments
        everything = self._recorder.names(batch)
        names = everything[: batch.fresh_segments]
        assert names == sorted(names, key=lambda name: (self._recorder.environment(name), name))
        assert (batch.priorities[: batch.fresh_segments] == 0.0).all()
        assert (batch.head.probabilities[: batch.fresh_segments] == 1.0).all()
        for key, priority, name in list(zip(batch.keys, batch.priorities, everything, strict=True))[len(names) :]:
            # A segment that was too late to be fresh has a priority that was not committed.
            assert priority in self._priorities[int(key)] or name not in self.fresh
        self.fresh += names
        return batch

    def commit(self, batch: Batch) -> CommitOutcome:
        """Publishes the next version, then commits the batch."""
        return self.begin_commit(batch).result(PATIENCE_S)

    def begin_commit(self, batch: Batch) -> Future[CommitOutcome]:
        """Starts a commit, without waiting for the answer."""
        self.version += 1
        if self.version % self._plan.publish_interval == 0:
            self.published = self.version
        priorities = self._random.random(batch.keys.size)
        # A segment may occur twice in a batch; its later priority counts.
        for key, priority in dict(zip(batch.keys.tolist(), priorities.tolist(), strict=True)).items():
            self._priorities[key].add(priority)
        return self._source.commit(batch, priorities)

    def train(self, batches: int) -> Iterator[Batch]:
        """Trains this number of batches."""
        for _ in range(batches):
            batch = self.next()
            self.commit(batch)
            yield batch


def plan_with(**changes: Any) -> SamplingPlan:
    """Returns PLAN with these changes, in a new session."""
    return replace(PLAN, **{"session": secrets.randbits(62) + 1, **changes})
