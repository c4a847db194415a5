from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from penstock.errors import RunFinished, SchemaMismatch
from penstock.rpc import methods
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.location import Location
from penstock.types.run import Weights
from penstock.types.spaces import DiscreteSpace, Tree
from penstock.v1 import evaluation_pb2
from penstock.wire.run import WeightsAssembler, decode_task, encode_result
from penstock.wire.spaces import encode_environment
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import SPEC, LiveRun, Loopback, PlainStream, hello_request, sample, until

Code = grpc.StatusCode
Request = evaluation_pb2.RunEvaluationsRequest
IGNORED = "penstock_ignored_evaluation_results_total"
LARGE = np.random.default_rng(3).bytes(5_000_000)
HELLO = Request(hello=evaluation_pb2.EvaluatorHello(environment=encode_environment(SPEC)))


def task(identity: int, data: bytes = b"weights") -> EvaluationTask:
    """Returns a task whose weights have its number as version."""
    return EvaluationTask(identity, Weights.of(identity, data), episodes=2, deterministic=True, seed=2**64 - identity)


def result(identity: int, *returns: float) -> EvaluationResult:
    """Returns the result of a task."""
    values = returns or (float(identity), 0.5)
    return EvaluationResult(identity, identity, values, tuple(range(1, len(values) + 1)), seconds=0.25)


@pytest.fixture
def server(loopback: Loopback, tmp_path: Path) -> LiveRun:
    return loopback.run(tmp_path / "roster.json")


def plain_evaluator(loopback: Loopback, server: LiveRun) -> PlainStream:
    """Opens the stream of an evaluator without any of our code."""
    stream = loopback.plain(server, methods.RUN_EVALUATIONS)
    stream.send(HELLO)
    return stream


def test_an_evaluator_is_listed_for_prometheus_while_it_takes_part(loopback: Loopback, server: LiveRun) -> None:
    work = loopback.work(server, location=Location("node2", "17", "node2:40001"))
    expected = {"targets": ["127.0.0.1:40001"], "labels": {"job": "evaluator", "node": "node2"}}
    until(lambda: expected in server.targets.content(), "the evaluator")
    work.close()
    until(lambda: expected not in server.targets.content(), "its end")


def receive_task(stream: PlainStream) -> int:
    """Returns the id of the next task, after receiving its weights."""
    head, weights, assembler = stream.receive().task, None, WeightsAssembler()
    while weights is None:
        weights = assembler.add(stream.receive().weights)
    assert weights.version == head.version
    return int(head.id)


def answer(message: EvaluationResult) -> Request:
    """Returns the message of a result."""
    return Request(result=encode_result(message))


def test_an_evaluator_receives_a_task_and_returns_its_result(loopback: Loopback, server: LiveRun) -> None:
    work = loopback.work(server)
    assert work.next(0.05) is None
    for identity in (3, 4):
        server.servicer.ask(task(identity, LARGE))
        assert until(lambda: work.next(0.5), "a task") == task(identity, LARGE)
        assert server.servicer.result(0.0) is None
        work.deliver(result(identity))
        assert server.servicer.result(PATIENCE_S) == result(identity)
    assert server.servicer.result(0.05) is None


def test_a_task_contains_its_number_of_variants(loopback: Loopback, server: LiveRun) -> None:
    work = loopback.work(server)
    server.servicer.ask(replace(task(3), variants=5))
    assert until(lambda: work.next(0.5), "a task") == replace(task(3), variants=5)


def test_a_task_contains_the_bounds_of_its_episodes(loopback: Loopback, server: LiveRun) -> None:
    work = loopback.work(server)
    bounded = replace(task(3), max_episode_steps=500, max_seconds=12.5)
    server.servicer.ask(bounded)
    assert until(lambda: work.next(0.5), "a task") == bounded


@pytest.mark.parametrize(
    "came_of_it",
    [
        replace(result(7), unfinished=1),
        replace(result(7), unfinished=2, out_of_time=True),
        EvaluationResult(7, 7, (), (), 0.5, failure="RuntimeError: simulator lost"),
    ],
)
def test_unfinished_episodes_are_reported(loopback: Loopback, server: LiveRun, came_of_it: EvaluationResult) -> None:
    work = loopback.work(server)
    server.servicer.ask(task(7))
    assert until(lambda: work.next(0.5), "a task") == task(7)
    work.deliver(came_of_it)
    assert server.servicer.result(PATIENCE_S) == came_of_it
    # The evaluator takes the next task on the same stream.
    server.servicer.ask(task(8))
    assert until(lambda: work.next(0.5), "a task") == task(8)


def test_a_task_without_variants_has_one() -> None:
    head = evaluation_pb2.EvaluationTask(id=3, version=3, episodes=2, deterministic=True, seed=2**64 - 3)
    assert decode_task(head, Weights.of(3, b"weights")) == task(3)


def test_a_newer_task_replaces_one_that_has_not_started(loopback: Loopback, server: LiveRun) -> None:
    for identity in (1, 2, 3):
        server.servicer.ask(task(identity))
    stream = plain_evaluator(loopback, server)
    assert receive_task(stream) == 3
    server.servicer.ask(task(4))
    server.servicer.ask(task(5))
    stream.send(answer(result(3)))
    assert receive_task(stream) == 5
    assert server.servicer.result(PATIENCE_S) == result(3)


def test_the_next_evaluator_gets_the_task_of_a_lost_one(loopback: Loopback, server: LiveRun) -> None:
    server.servicer.ask(task(1))
    for end in (PlainStream.close, PlainStream.leave):
        lost = plain_evaluator(loopback, server)
        assert receive_task(lost) == 1
        end(lost)
        until(lambda: server.servicer.evaluators == 0, "the evaluator to leave")
    work = loopback.work(server)
    assert until(lambda: work.next(0.5), "a task") == task(1)
    work.deliver(result(1))
    assert server.servicer.result(PATIENCE_S) == result(1)
    # It is done: no evaluator receives it again.
    other = loopback.work(server)
    until(lambda: server.servicer.evaluators == 2, "another evaluator to join")
    server.servicer.ask(task(2))
    assert until(lambda: other.next(0.5), "a task") == task(2)


def test_results_of_other_tasks_are_ignored(loopback: Loopback, server: LiveRun) -> None:
    server.servicer.ask(task(7))
    stream = plain_evaluator(loopback, server)
    assert receive_task(stream) == 7
    stream.send(answer(result(6)), answer(result(8)), answer(result(7)))
    assert server.servicer.result(PATIENCE_S) == result(7)
    assert server.servicer.result(0.05) is None


def test_only_the_first_answer_to_a_task_counts(loopback: Loopback, server: LiveRun) -> None:
    ignored = sample(IGNORED)
    server.servicer.ask(task(7))
    first, second = (plain_evaluator(loopback, server) for _ in range(2))
    assert [receive_task(first), receive_task(second)] == [7, 7]
    first.send(answer(result(7)), answer(result(7, 100.0, 100.0)))
    assert server.servicer.result(PATIENCE_S) == result(7)
    second.send(answer(result(7, 200.0, 200.0)))
    until(lambda: sample(IGNORED) == ignored + 1, "the second evaluator's answer")
    server.servicer.ask(task(8))
    # Each stream goes on with the next task, and ignores what is left of the former.
    assert [receive_task(first), receive_task(second)] == [8, 8]
    until(lambda: sample(IGNORED) == ignored + 2, "the first evaluator's second answer")
    first.send(answer(result(8)))
    assert server.servicer.result(PATIENCE_S) == result(8)
    assert server.servicer.result(0.05) is None


def test_a_result_of_an_evaluator_that_was_sent_no_task_does_not_count(loopback: Loopback, server: LiveRun) -> None:
    ignored = sample(IGNORED)
    stranger = plain_evaluator(loopback, server)
    until(lambda: server.servicer.evaluators == 1, "the evaluator to join")
    stranger.send(answer(result(7)))
    server.servicer.ask(task(8))
    assert receive_task(stranger) == 8
    until(lambda: sample(IGNORED) == ignored + 1, "the result")
    assert server.servicer.result(0.05) is None


def test_an_evaluator_survives_a_restart_of_the_learner(loopback: Loopback, server: LiveRun, tmp_path: Path) -> None:
    work = loopback.work(server)
    server.servicer.ask(task(1))
    assert until(lambda: work.next(0.5), "a task") == task(1)
    server.roster.dismiss()
    server.kill()
    server = loopback.run(tmp_path / "roster.json", port=server.port)
    server.servicer.ask(task(2))
    # An evaluation for the former learner is delivered to the new one, which ignores it.
    until(lambda: server.servicer.evaluators == 1, "the evaluator to return")
    work.deliver(result(1))
    assert until(lambda: work.next(0.5), "a task") == task(2)
    work.deliver(result(2))
    assert server.servicer.result(PATIENCE_S) == result(2)


def test_finish_ends_the_work_with_its_reason(loopback: Loopback, server: LiveRun) -> None:
    work, stream = loopback.work(server), plain_evaluator(loopback, server)
    until(lambda: server.servicer.evaluators == 2, "both evaluators to join")
    server.servicer.finish("total_steps", PATIENCE_S)
    assert stream.receive().finished.reason == "total_steps"
    assert stream.status()[0] == Code.OK
    with pytest.raises(RunFinished, match="total_steps"):
        until(lambda: work.next(0.5), "the end")


def test_an_evaluator_that_is_receiving_weights_receives_the_end_of_the_run(
    loopback: Loopback, server: LiveRun
) -> None:
    server.servicer.ask(task(1, LARGE * 4))
    stream = plain_evaluator(loopback, server)
    assert stream.receive().task.id == 1
    server.servicer.finish("threshold", 0.1)
    while (response := stream.receive()).WhichOneof("message") == "weights":
        pass
    assert response.finished.reason == "threshold"


@pytest.mark.parametrize("changes", [{"action": Tree.of(DiscreteSpace(3))}, {"mask_bits": 2}])
def test_an_evaluator_with_other_spaces_is_refused(
    loopback: Loopback, server: LiveRun, changes: dict[str, Any]
) -> None:
    actor = loopback.plain(server, methods.JOIN)
    actor.send(hello_request())
    actor.receive()
    stranger = loopback.work(server, replace(SPEC, **changes))
    with pytest.raises(SchemaMismatch, match=r"trains Counting-v0 with .* and the evaluator offered"):
        until(lambda: stranger.next(0.5), "the refusal")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (HELLO, "expected the result of evaluation 7"),
        (answer(result(7, float("nan"), 1.0)), "a return of nan; its magnitude"),
        (answer(EvaluationResult(7, 7, (), (), 0.1)), "0 returns"),
        (answer(result(7, 1.0)), "1 returns and 1 lengths, 0 of them unfinished; 2 episodes were requested"),
        (answer(result(7, 1.0, 2.0, 3.0)), "3 returns"),
        (answer(result(7, 1e308, 1.7e308)), "a return of 1e+308; its magnitude must be at most 1e+100"),
        (answer(replace(result(7), version=6)), "has version 7, but its result has version 6"),
        (answer(replace(result(7), seconds=float("nan"))), "nan seconds"),
        (answer(replace(result(7), unfinished=3)), "3 of them unfinished"),
        (answer(EvaluationResult(7, 7, (1.0, 2.0), (3,), 0.1)), "2 returns and 1 lengths"),
        (answer(EvaluationResult(7, 7, (1.0, 2.0), (3, 0), 0.1)), "episodes of 0 to 3 steps; each has from 1 to 1000"),
        (answer(EvaluationResult(7, 7, (1.0, 2.0), (3, 1001), 0.1)), "episodes of 3 to 1001 steps"),
        (b"\xff\xff\xff", "malformed message"),
    ],
)
def test_a_malformed_result_is_refused_and_the_next_evaluator_gets_the_task(
    loopback: Loopback, server: LiveRun, request_: Request | bytes, reason: str
) -> None:
    server.servicer.ask(replace(task(7), max_episode_steps=1000))
    offender = plain_evaluator(loopback, server)
    assert receive_task(offender) == 7
    offender.send(request_)
    code, details = offender.status()
    assert (code, reason in details) == (Code.INVALID_ARGUMENT, True), details
    work = loopback.work(server)
    assert until(lambda: work.next(0.5), "a task").id == 7
    work.deliver(result(7))
    assert server.servicer.result(PATIENCE_S) == result(7)


def test_an_evaluation_stream_must_begin_with_hello(loopback: Loopback, server: LiveRun) -> None:
    openings: list[Callable[[PlainStream], None]] = [
        lambda stream: stream.send(answer(result(1))),
        lambda stream: stream.leave(),
    ]
    for begin in openings:
        stream = loopback.plain(server, methods.RUN_EVALUATIONS)
        begin(stream)
        assert stream.status()[0] == Code.INVALID_ARGUMENT
