"""Malformed, absurd and hostile requests receive a precise status, and do not affect other clients."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.rpc import methods
from penstock.rpc.contract import stamped
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.permissions import REQUEST_BYTES
from penstock.rpc.service import Method
from penstock.types.block import Column, Schema
from penstock.v1 import block_pb2, replay_pb2
from tests.support.machine.timing import PATIENCE_S, Bound, longest_of, seconds_of
from tests.support.segments.segments import SCHEMA, make_window
from tests.support.services.forged_requests import QUICK, Forger
from tests.support.services.servers import (
    Actor,
    LiveReplay,
    Loopback,
    Recorder,
    Trainer,
    batch_request,
    open_request,
    plan_request,
    plan_with,
    sample,
    until,
    window_request,
)

T = TypeVar("T")
Code = grpc.StatusCode
Message = Any
Answer = tuple[grpc.StatusCode, str]
Append, Sample, Commit = (
    replay_pb2.AppendSegmentsRequest,
    replay_pb2.SampleBatchesRequest,
    replay_pb2.CommitBatchRequest,
)
REFUSED = (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
MAX_32 = 2**32 - 1
STRANGE_SLOT = 7
PROMPT = 20.0
"""Bound of every answer, as a multiple of the time for a harmless message of the largest size.

All clients share the service's one thread.
"""
TRIES = 10
"""Number of answers of which one must be prompt: other processes may use the cores during the others."""

many = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Stranger:
    """A client without any of our code, on one connection."""

    def __init__(self, address: str) -> None:
        options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.insecure_channel(address, options)

    def ask(self, method: Method, *requests: Message | bytes, timeout_s: float = PATIENCE_S) -> Answer:
        """Sends these requests, half-closes the stream, and returns its final status."""
        data = [request if isinstance(request, bytes) else request.SerializeToString() for request in requests]
        try:
            if not method.request_stream:
                call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method.path)
                call(data[0], timeout=timeout_s)
                return Code.OK, ""
            opening = [stamped(request) for request in data[:1]]
            for _ in self._stream(method)(iter([*opening, *data[1:]]), timeout=timeout_s):
                pass
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return Code.OK, ""

    def leave(self, method: Method, *requests: Message) -> None:
        """Sends these requests, and leaves before all answers arrive."""
        data = [stamped(request) for request in requests]
        call: Any = self._stream(method)(iter(data))
        call.add_done_callback(lambda _: None)
        time.sleep(0.003)
        call.cancel()

    def close(self) -> None:
        self._channel.close()

    def _stream(self, method: Method) -> "grpc.StreamStreamMultiCallable[bytes, bytes]":
        return self._channel.stream_stream(method.path)


class Neighbourhood:
    """A service with an actor and a learner that work all the time, and a hostile client."""

    def __init__(self, loopback: Loopback) -> None:
        self.server: LiveReplay = loopback.replay()
        recorder = Recorder()
        self.plan = plan_with(batch_segments=8, fresh_segments=4, off_policy_degree=8, min_replay_segments=8)
        self.trainer = Trainer(loopback.source(self.server, self.plan), recorder, self.plan)
        self._actor = Actor(loopback.sink(0, self.server), recorder, lambda: self.trainer.published, slot=0)
        self.stranger = Stranger(self.server.address)
        self._stop, self._failure = threading.Event(), ""
        self._thread = threading.Thread(target=self._train, name="neighbour")
        self._thread.start()

    def assert_still_served(self) -> None:
        """Fails unless the healthy clients are served now; their batches are verified all the time."""
        seen = self.trainer.version + 3
        until(lambda: self.trainer.version > seen or self._failure, "three more batches")
        assert not self._failure

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._actor.end()
        self.stranger.close()
        assert not self._failure

    def _train(self) -> None:
        try:
            while not self._stop.is_set():
                for _ in self.trainer.train(1):
                    self._stop.wait(0.01)
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"


@pytest.fixture(scope="module")
def neighbourhood() -> Iterator[Neighbourhood]:
    before = mistakes()
    with Loopback() as loopback:
        neighbourhood = Neighbourhood(loopback)
        yield neighbourhood
        neighbourhood.assert_still_served()
        neighbourhood.end()
    assert mistakes() == before


def mistakes() -> float:
    """Returns the number of calls with a status that indicates a fault, from the servers' metrics."""
    replay = (methods.APPEND_SEGMENTS, methods.SAMPLE_BATCHES, methods.COMMIT_BATCH, methods.GET_REPLAY_STATUS)
    return sum(
        sample(
            "grpc_server_handled_total",
            grpc_type=method.kind,
            grpc_service=method.service,
            grpc_method=method.name,
            grpc_code=code,
        )
        for method in replay
        for code in ("UNKNOWN", "INTERNAL")
    )


def refused(answer: Answer) -> bool:
    """Returns whether the answer has a status of the contract and a reason."""
    code, details = answer
    return code in REFUSED and bool(details)


# The catalogue


class HypothesisDraws:
    """Choices of Hypothesis, which tries limits and finds the smallest forgery that fails."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def number(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def one_of(self, *choices: T) -> T:
        return choices[self._data.draw(st.integers(0, len(choices) - 1))]

    def bytes(self, size: int) -> bytes:
        return self._data.draw(st.binary(min_size=size, max_size=size))


@pytest.mark.parametrize("kind", QUICK)
@many
@given(data=st.data())
def test_a_forged_request_receives_a_status_that_the_contract_allows(
    neighbourhood: Neighbourhood, kind: str, data: st.DataObject
) -> None:
    forger = Forger(
        HypothesisDraws(data),
        neighbourhood.plan,
        capacity=neighbourhood.server.store.capacity,
        schema=SCHEMA,
        window=lambda slot, incarnation: make_window(slot=slot, incarnation=incarnation),
    )
    forgery = forger.makers[kind]()
    code, details = neighbourhood.stranger.ask(forgery.method, *forgery.messages)
    assert code.name in forgery.allowed, (forgery.kind, details)
    assert details or code == Code.OK, forgery.kind


def test_a_refusal_names_the_wrong_number(neighbourhood: Neighbourhood) -> None:
    stranger, plan = neighbourhood.stranger, replace(neighbourhood.plan, session=9)
    for name, number in (("alpha", -1.0), ("epsilon", math.nan), ("half_life", math.nan)):
        changes: dict[str, Any] = {name: number}
        code, details = stranger.ask(methods.SAMPLE_BATCHES, plan_request(replace(plan, **changes)))
        assert (code, name in details) == (Code.INVALID_ARGUMENT, True)
    priorities = np.array([1.0, -5e-324]).tobytes()
    code, details = stranger.ask(methods.COMMIT_BATCH, Commit(session=9, keys=bytes(16), priorities=priorities))
    assert (code, "finite, not negative" in details) == (Code.INVALID_ARGUMENT, True)
    window = window_request(1, slot=STRANGE_SLOT)
    window.window.block.payload = b"\xff" * len(window.window.block.payload)
    code, details = stranger.ask(methods.APPEND_SEGMENTS, open_request(STRANGE_SLOT), window)
    assert (code, "not finite" in details) == (Code.INVALID_ARGUMENT, True)


# Messages that could keep the service's one thread busy


def schema_of(*columns: block_pb2.Column) -> replay_pb2.AppendSegmentsRequest:
    schema = block_pb2.Schema(unroll_length=1, columns=columns)
    return Append(open=replay_pb2.OpenAppend(schema=schema, slot=STRANGE_SLOT, incarnation=1, window_segments=2))


def column_of(*shape: int, name: str = "c") -> block_pb2.Column:
    return block_pb2.Column(name=name, data_type=block_pb2.DATA_TYPE_UINT8, extent=block_pb2.EXTENT_STEP, shape=shape)


# Created by the process that sends them, because creating them takes a second at collection.
COSTLY: list[tuple[Method, Callable[[], tuple[Message | bytes, ...]]]] = [
    (methods.APPEND_SEGMENTS, lambda: (schema_of(column_of(*[MAX_32] * 3_000)),)),
    (methods.APPEND_SEGMENTS, lambda: (schema_of(column_of(*[MAX_32] * 200_000)),)),
    (methods.APPEND_SEGMENTS, lambda: (schema_of(column_of(*[0] * 200_000)),)),
    (methods.APPEND_SEGMENTS, lambda: (schema_of(*(column_of(name=f"c{number}") for number in range(200_000))),)),
    (methods.APPEND_SEGMENTS, lambda: (b"\x08\x01" * 2_000_000,)),
    (methods.APPEND_SEGMENTS, lambda: (b"\x0a\x84\x92\xf4\x01" + b"\x0a\x80\x92\xf4\x01" + b"\x12\x00" * 2_000_000,)),
    (methods.APPEND_SEGMENTS, lambda: (open_request(STRANGE_SLOT), b"\x7a\x80\x92\xf4\x01" + b"\x18\x01" * 2_000_000)),
    (methods.COMMIT_BATCH, lambda: (b"\xf0\x01\x01" * (REQUEST_BYTES[methods.COMMIT_BATCH] // 3),)),
]


@pytest.mark.parametrize(("method", "make"), COSTLY)
def test_no_message_keeps_the_service_busy(
    neighbourhood: Neighbourhood, method: Method, make: Callable[[], tuple[Message | bytes, ...]]
) -> None:
    requests = make()
    assert all(len(data) < MAX_MESSAGE_BYTES for data in requests if isinstance(data, bytes))

    harmless = Commit(keys=bytes(REQUEST_BYTES[methods.COMMIT_BATCH] // 8 * 8 - 64))

    def newly_ask(method: Method, *requests: Message | bytes) -> Answer:
        # A connection is not read any more after such a message.
        with contextlib.closing(Stranger(neighbourhood.server.address)) as stranger:
            return stranger.ask(method, *requests)

    def ask() -> None:
        answer = newly_ask(method, *requests)
        assert refused(answer), answer

    def is_prompt() -> bool:
        baseline_s = longest_of(lambda: newly_ask(methods.COMMIT_BATCH, harmless))
        return seconds_of(ask) < Bound(PROMPT, baseline_s).seconds

    assert any(is_prompt() for _ in range(TRIES))
    neighbourhood.assert_still_served()


@pytest.mark.parametrize("method", [methods.APPEND_SEGMENTS, methods.SAMPLE_BATCHES, methods.COMMIT_BATCH])
def test_a_message_larger_than_the_limit_is_refused_on_every_call(neighbourhood: Neighbourhood, method: Method) -> None:
    data = Commit(keys=bytes(MAX_MESSAGE_BYTES)).SerializeToString()
    assert neighbourhood.stranger.ask(method, data)[0] == Code.RESOURCE_EXHAUSTED


def test_a_commit_of_a_batch_before_the_first_is_invalid(neighbourhood: Neighbourhood) -> None:
    request = Commit(session=neighbourhood.plan.session, batch=-1)
    code, details = neighbourhood.stranger.ask(methods.COMMIT_BATCH, request)
    assert (code, "batch -1" in details) == (Code.INVALID_ARGUMENT, True)


# A refusal changes nothing


@pytest.mark.parametrize(
    "refusal",
    [
        open_request(4096),
        open_request(STRANGE_SLOT, segments=0),
        open_request(STRANGE_SLOT, schema=Schema(3, (Column("c", "uint8", (0,)),))),
    ],
)
def test_a_refused_actor_does_not_decide_the_schema(
    loopback: Loopback, refusal: replay_pb2.AppendSegmentsRequest
) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with())
    stranger = Stranger(server.address)
    other = replay_pb2.AppendSegmentsRequest()
    other.CopyFrom(refusal)
    other.open.schema.unroll_length = 5
    assert refused(stranger.ask(methods.APPEND_SEGMENTS, other))
    stranger.close()
    assert server.store.schema is None


def test_a_batch_with_too_many_replayed_segments_requested_loses_no_fresh_segment(loopback: Loopback) -> None:
    server, plan = loopback.replay(), plan_with(fresh_segments=4, batch_segments=4)
    stranger, sink = Stranger(server.address), loopback.sink(0, server)
    greedy = Sample(batch=replay_pb2.BatchRequest(batch=0, replay_segments=5))
    assert stranger.ask(methods.SAMPLE_BATCHES, plan_request(plan))[0] == Code.OK
    for sequence in (1, 3):
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(make_window(sequence))
    assert sink.drain(PATIENCE_S)
    assert refused(stranger.ask(methods.SAMPLE_BATCHES, plan_request(plan), greedy))
    stranger.close()
    source = loopback.source(server, plan)
    assert until(lambda: source.next(0.5), "a batch").fresh_segments == 4


def test_the_largest_priorities_are_replayed_like_others(loopback: Loopback) -> None:
    server, version = loopback.replay(), 0
    plan = plan_with(fresh_segments=2, batch_segments=6, alpha=2.0, half_life=0.5)
    source, sink = loopback.source(server, plan, prefetch=0), loopback.sink(0, server)
    actor = Actor(sink, Recorder(), lambda: version, slot=0)
    for number in range(5):
        batch = until(lambda: source.next(0.5), "a batch")
        version = number + 1
        priorities = np.full(batch.keys.size, 1.7e308)
        assert source.commit(batch, priorities).result(PATIENCE_S).updated == batch.keys.size
    actor.end()
    assert batch.keys.size == 6
    assert np.isfinite(batch.head.probabilities).all()


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63 - 1, 2**62 + 1])
def test_an_impossible_batch_number_is_not_passed_over(loopback: Loopback, number: int) -> None:
    server, plan = loopback.replay(), plan_with(fresh_segments=2, batch_segments=2)
    source, sink = loopback.source(server, plan, prefetch=0), loopback.sink(0, server)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window())
    batch = until(lambda: source.next(0.5), "a batch")
    request = Commit(session=plan.session, batch=number)
    stranger = Stranger(server.address)
    code, details = stranger.ask(methods.COMMIT_BATCH, request)
    stranger.close()
    assert (code, str(number) in details) == (Code.INVALID_ARGUMENT, True)
    assert source.commit(batch, np.ones(2)).result(PATIENCE_S).updated == 2


# Silent and absent clients


def test_a_client_that_leaves_before_its_answer_is_not_a_fault_of_the_service(loopback: Loopback) -> None:
    server, plan = loopback.replay(), plan_with()
    source = loopback.source(server, plan)
    loopback.sink(0, server)
    until(lambda: server.store.schema is not None, "the actor connects")
    source.close()
    before, stranger = mistakes(), Stranger(server.address)
    for _ in range(200):
        stranger.leave(methods.SAMPLE_BATCHES, plan_request(plan), batch_request(0))
    stranger.ask(methods.GET_REPLAY_STATUS, b"")
    stranger.close()
    server.stop()
    assert mistakes() == before


def test_clients_that_send_or_read_nothing_delay_no_other_client(loopback: Loopback) -> None:
    neighbourhood = Neighbourhood(loopback)
    server = neighbourhood.server
    silent = [loopback.plain(server, method) for method in (methods.APPEND_SEGMENTS, methods.SAMPLE_BATCHES) * 8]
    unread = loopback.plain(server, methods.SAMPLE_BATCHES)
    unread.send(plan_request(neighbourhood.plan), *(batch_request(neighbourhood.trainer.version) for _ in range(200)))
    neighbourhood.assert_still_served()
    for stream in [*silent, unread]:
        stream.close()
    neighbourhood.assert_still_served()
    neighbourhood.end()
