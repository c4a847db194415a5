"""Actors that are alive but take no step: their grants, and their state in the learner's status."""

import itertools
import math
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from penstock.rpc import methods
from penstock.types.run import ActorProgress, ActorReport, EnvironmentFault
from penstock.types.statistics import Timing
from penstock.types.status import ActorState
from penstock.v1 import replay_pb2, run_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.servers import (
    Actor,
    LiveServer,
    Loopback,
    PlainStream,
    Recorder,
    Trainer,
    hello_request,
    open_request,
    plan_with,
    sample,
    until,
    window_request,
)

# The gate


def beat(steps: int) -> replay_pb2.AppendSegmentsRequest:
    return replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat(steps=steps))


def receive_until(stream: PlainStream, **counts: int) -> list[replay_pb2.AppendSegmentsResponse]:
    """Collects responses until these numbers of grants, returned grants or stored segments have arrived."""
    received: list[replay_pb2.AppendSegmentsResponse] = []
    while True:
        came = {
            "grants": sum(len(response.grants) for response in received),
            "returned": sum(response.returned_grants for response in received),
            "stored": received[-1].stored_sequence if received else 0,
        }
        if all(came[name] >= count for name, count in counts.items()):
            return received
        received.append(stream.receive())


@pytest.mark.parametrize("degree", [0, 1])
def test_heartbeats_without_steps_do_not_keep_grants_and_the_other_actor_continues(
    loopback: Loopback, degree: int
) -> None:
    server, recorder = loopback.replay(grant_timeout_s=2.0), Recorder()
    plan = plan_with(fresh_segments=8, batch_segments=8, off_policy_degree=degree)
    trainer = Trainer(loopback.source(server, plan), recorder, plan)
    stuck = loopback.plain(server, methods.APPEND_SEGMENTS)
    stuck.send(open_request(0, segments=4))
    receive_until(stuck, grants=2)
    sink = loopback.sink(1, server, segments=4)
    actor = Actor(sink, recorder, lambda: trainer.published, slot=1, segments=4)
    trained = []

    def train_one() -> bool:
        stuck.send(beat(3))
        batch = trainer._source.next(0.2)
        if batch is not None:
            trained.append(batch.number)
            trainer._source.commit(batch, np.ones(batch.keys.size))
            trainer.version = trainer.published = batch.number + 1
        return len(trained) == 10

    until(train_one, "ten batches without the stuck actor")
    receive_until(stuck, returned=2)
    until(lambda: sample("penstock_replay_timed_out_grants_total") >= 2, "the grants to be counted")
    assert sample("penstock_replay_stuck_actors") == 1
    # After a step it receives grants again; the window collected meanwhile is stored under such a grant.
    stuck.send(beat(4), window_request(1, segments=4))
    recorder.note(make_window(segments=4))

    def taken() -> bool:
        train_one()
        return int(server.store.watermark(0, 1)) == 4

    until(taken, "its window to be stored")
    actor.end()
    # Otherwise it may be stuck with a grant that it does not use any more.
    sink.close()
    steps = itertools.count(5)

    def steps_on() -> bool:
        # Without steps it would be stuck again before the metric is next computed.
        stuck.send(beat(next(steps)))
        return sample("penstock_replay_stuck_actors") == 0

    until(steps_on, "no stuck actor")


def test_after_the_return_of_its_grants_an_actor_receives_no_more_than_the_gate_permits(loopback: Loopback) -> None:
    # Long enough that no later grant times out on a slow machine.
    server = loopback.replay(grant_timeout_s=4.0)
    source = loopback.source(server, plan_with(fresh_segments=2, batch_segments=2, off_policy_degree=1))
    sink = loopback.sink(0, server)
    # The first grant is in use for too long; the second waits.
    assert until(lambda: sink.next_grant(0.5), "a grant").batch == 0
    until(lambda: sample("penstock_replay_stuck_actors") == 1, "the actor to be stuck")
    sequences = itertools.count(1, 2)
    sink.send(make_window(next(sequences)))
    assert sink.drain(PATIENCE_S)
    for number in range(5):
        batch = until(lambda: source.next(0.5), f"batch {number}")
        source.commit(batch, np.ones(2)).result(PATIENCE_S)
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(make_window(next(sequences), version=number))
        assert sink.drain(PATIENCE_S)
    # The gate permits two windows ahead; the last one is one of them, and an excess grant would be a third.
    counts = loopback.replay_status(server).counts
    held = sum(sink.next_grant(0.2) is not None for _ in range(3))
    assert 2 * held == counts.granted


# The learner


def joined(loopback: Loopback, server: LiveServer, name: str) -> PlainStream:
    stream = loopback.plain(server, methods.JOIN)
    request = hello_request()
    request.hello.name = name
    stream.send(request)
    stream.receive()
    return stream


def test_every_field_of_an_actors_activity_reaches_the_status(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client = loopback.status(server.address)
    at = ActorProgress(steps=33, doing="step", environment=1, window_step=5, window_steps=32)
    member = loopback.membership(server, name="actor-0", progress=lambda: at)
    member.report(ActorReport(64, 0.0, (), Timing(0.1, 0.1, 0.1, 0.1), segments=4))
    member.report_fault(EnvironmentFault("environment 1: RuntimeError: lost\nand gone (My-v0)", dropped=True))
    member.drain(PATIENCE_S)

    def state_of_actor() -> ActorState | None:
        states = client.get(PATIENCE_S).actor_states
        return states[0] if states and states[0].failures and states[0].steps else None

    state = until(state_of_actor, "the actor's state")
    assert 0.0 <= state.stuck_s < PATIENCE_S
    shown = ActorState("actor-0", 0, True, 33, 4, state.stuck_s, 1, 1, "step of environment 1")
    assert state == shown
    [notice] = client.get(PATIENCE_S).notices
    assert notice.text == "actor-0, environment 1: RuntimeError: lost and gone (My-v0)"


def test_progress_is_reported_while_the_actors_thread_is_blocked(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client, steps = loopback.status(server.address), itertools.count(1)
    loopback.membership(server, progress=lambda: ActorProgress(next(steps), "step"))
    until(lambda: any(state.steps > 2 for state in client.get(PATIENCE_S).actor_states), "further progress")
    [state] = client.get(PATIENCE_S).actor_states
    assert (state.name, state.doing) == ("slot 0", "step of the environments")


def test_a_process_that_replaces_another_continues_its_counts(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client = loopback.status(server.address)
    fault = run_pb2.JoinRequest(fault=run_pb2.EnvironmentFault(text="environment 0: lost", dropped=True))

    def has_failed(times: int) -> bool:
        return [each.failures for each in client.get(PATIENCE_S).actor_states] == [times]

    for failures in range(1, 4):
        stream = joined(loopback, server, "actor-0")
        stream.send(fault)
        until(
            partial(has_failed, failures),
            "the failure to be counted",
        )
        stream.close()


def long_name() -> run_pb2.JoinRequest:
    request = hello_request()
    request.hello.name = "a" * 101
    return request


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(env_steps=2**63)), "the maximum is"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(segments=2**63)), "the maximum is"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(environment_s=math.nan)), "environment_s nan"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(waiting_s=-1e300)), "waiting_s -1e+300"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(policy_s=math.inf)), "policy_s inf"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(building_s=1e10)), "building_s 1e+10"),
        (run_pb2.JoinRequest(report=run_pb2.ActorReport(first_step_at_s=math.nan)), "first_step_at_s nan"),
        (
            run_pb2.JoinRequest(
                report=run_pb2.ActorReport(episodes=[run_pb2.Episode(episode_return=1e308) for _ in range(1000)])
            ),
            "episode return of 1e+308",
        ),
        (run_pb2.JoinRequest(progress=run_pb2.ActorProgress(steps=2**63)), "at most"),
        (run_pb2.JoinRequest(progress=run_pb2.ActorProgress(doing="nothing good")), "'nothing good'"),
        (run_pb2.JoinRequest(fault=run_pb2.EnvironmentFault(text="x" * 1001)), "1001 characters"),
        (long_name(), "the name of an actor has 101 characters"),
    ],
)
def test_impossible_numbers_of_an_actor_are_refused_without_effect(
    loopback: Loopback, tmp_path: Path, request_: run_pb2.JoinRequest, reason: str
) -> None:
    server = loopback.run(tmp_path / "roster.json")
    stream = loopback.plain(server, methods.JOIN)
    if request_.WhichOneof("message") != "hello":
        stream.send(hello_request())
    stream.send(request_)
    code, details = stream.status()
    assert (code, reason in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    status = server.statistics.status()
    assert (status.return_mean, status.episodes, status.coordinator) == (None, 0, None)
    assert server.statistics.session.totals().actor_steps == 0
