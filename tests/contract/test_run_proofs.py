"""Only the holder of the run's key may change what a replay service keeps, and only with a proof made for the call."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from penstock.errors import PermissionDenied, SchemaMismatch
from penstock.replay.store.description import Owner
from penstock.rpc import channel, methods
from penstock.rpc.proofs import public_half
from penstock.types.replay import SamplingPlan
from penstock.types.run import RunIdentity
from penstock.v1 import replay_pb2
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.servers import (
    LiveReplay,
    Loopback,
    PlainStream,
    open_request,
    pass_windows,
    plan_request,
    plan_with,
    proved,
    sample,
    until,
)

Code = grpc.StatusCode
RUN = RunIdentity.draw()
STRANGER = replace(RunIdentity.draw(), number=RUN.number)
"""Identity of a client that knows the run's number, as all peers do, and has a key of its own."""


def plan_of(identity: RunIdentity = RUN, **changes: Any) -> SamplingPlan:
    return plan_with(fresh_segments=2, batch_segments=2, run=identity.number, actor_key=identity.actor_key, **changes)


def train(loopback: Loopback, server: LiveReplay, batches: int) -> SamplingPlan:
    """Trains the run's learner on this number of batches, ends it without a word, and returns its plan."""
    plan = plan_of()
    source = loopback.source(server, plan, key=RUN.key)
    # The plan has the key of the actors, so that an actor that is earlier is refused.
    until(lambda: server.store.owner == Owner(RUN.number, public_half(RUN.key)), "the run's plan")
    sink = loopback.sink(0, server, identity=RUN)
    pass_windows(sink, source, batches)
    # A connected actor would keep the grants that a later one waits for.
    sink.close()
    source.close()
    return plan


def opened(loopback: Loopback, server: LiveReplay, request: Message, key: bytes | None = None) -> PlainStream:
    """Sends a plan with the proof of a key, if any, by a client of the contract alone."""
    stream = loopback.plain(server, methods.SAMPLE_BATCHES)
    stream.send(request if key is None else proved(methods.SAMPLE_BATCHES, request, key, stream.challenge))
    return stream


def answer(loopback: Loopback, server: LiveReplay, request: Message, key: bytes | None = None) -> tuple[Code, str]:
    stream = opened(loopback, server, request, key)
    stream.leave()
    return stream.status()


def assert_continues(loopback: Loopback, server: LiveReplay, version: int) -> None:
    """Fails unless the run's own learner continues at this version with the segments that were stored."""
    assert loopback.replay_status(server).version == version
    source = loopback.source(server, plan_of(next_batch=version), key=RUN.key)
    sink = loopback.sink(1, server, identity=RUN)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window(1, slot=1, version=version))
    batch = until(lambda: source.next(0.5), "a batch")
    source.commit(batch, np.ones(batch.keys.size)).result(PATIENCE_S)
    assert loopback.replay_status(server).version == version + 1
    source.close()


@pytest.mark.parametrize("ahead", [0, 1, 10**6, 2**61])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_stranger_can_not_end_a_store_while_its_learner_is_dead(
    loopback: Loopback, tmp_path: Path, ahead: int, restarted: bool
) -> None:
    server = loopback.replay(folder=tmp_path)
    train(loopback, server, 2)
    if restarted:
        server.kill()
        server = loopback.replay(folder=tmp_path)
    before = sample("penstock_refused_clients_total", client="learner")
    plan = plan_request(plan_of(STRANGER, next_batch=2 + ahead))
    for key, came in (None, "came without one"), (STRANGER.key, "with a proof of another key"):
        code, details = answer(loopback, server, plan, key)
        assert (code, came in details, "\n" in details) == (Code.PERMISSION_DENIED, True, False)
    assert sample("penstock_refused_clients_total", client="learner") == before + 2
    assert_continues(loopback, server, 2)


def test_a_recorded_proof_is_of_no_use_on_another_stream(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    train(loopback, server, 2)
    request = plan_request(plan_of(next_batch=2))
    stream = loopback.plain(server, methods.SAMPLE_BATCHES)
    recorded = proved(methods.SAMPLE_BATCHES, request, RUN.key, stream.challenge)
    stream.send(recorded)
    assert stream.receive().HasField("opened")
    stream.close()
    until(lambda: answer(loopback, server, recorded)[0] == Code.PERMISSION_DENIED, "the refusal")
    assert "not a signature of this call" in answer(loopback, server, recorded)[1]
    assert_continues(loopback, server, 2)


def test_a_learner_whose_challenge_comes_too_late_tries_again(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = loopback.replay(folder=tmp_path)
    before = sample("penstock_refused_clients_total", client="learner")
    with monkeypatch.context() as slow_link:
        slow_link.setattr(channel, "_CHALLENGE_S", 0.0)
        source = loopback.source(server, plan_of(), key=RUN.key)
        until(lambda: sample("penstock_refused_clients_total", client="learner") > before, "a refusal")
    sink = loopback.sink(0, server, identity=RUN)
    pass_windows(sink, source, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", 99),
        ("next_batch", 10**6),
        ("batch_segments", 4),
        ("seed", 5),
        ("hurried_below", 7),
        ("slot_weights", [1.0]),
        ("actor_key", b"\x01" * 32),
        ("largest_magnitude", 1e30),
    ],
)
def test_a_proof_covers_every_field_of_the_plan(loopback: Loopback, tmp_path: Path, field: str, value: object) -> None:
    server, changes = loopback.replay(folder=tmp_path), dict[str, Any]({field: value})
    train(loopback, server, 1)
    stream = loopback.plain(server, methods.SAMPLE_BATCHES)
    request = proved(methods.SAMPLE_BATCHES, plan_request(plan_of(next_batch=1)), RUN.key, stream.challenge)
    request.plan.MergeFrom(replay_pb2.SamplingPlan(**changes))
    stream.send(request)
    assert stream.status()[0] == Code.PERMISSION_DENIED
    assert_continues(loopback, server, 1)


def test_a_proof_for_one_method_is_not_one_for_another(loopback: Loopback) -> None:
    server = loopback.replay()
    plan = train(loopback, server, 1)
    finish = proved(methods.COMMIT_BATCH, replay_pb2.FinishRunRequest(session=plan.session), RUN.key)
    code, details = loopback.plain_call(server, methods.FINISH_RUN, finish)
    assert (code, "not a signature of this call" in details) == (Code.PERMISSION_DENIED, True)


@pytest.mark.parametrize("key", [None, STRANGER.key], ids=["no proof", "another key"])
def test_a_stranger_that_knows_the_session_can_neither_commit_nor_finish(loopback: Loopback, key: bytes | None) -> None:
    server = loopback.replay()
    plan = train(loopback, server, 1)
    calls: list[tuple[Any, Message]] = [
        (methods.COMMIT_BATCH, replay_pb2.CommitBatchRequest(session=plan.session, batch=10**6)),
        (methods.FINISH_RUN, replay_pb2.FinishRunRequest(session=plan.session)),
    ]
    for method, request in calls:
        code, details = loopback.plain_call(server, method, proved(method, request, key) if key else request)
        assert (code, f"{method.name} needs a proof" in details) == (Code.PERMISSION_DENIED, True)
    assert not server._servicer.run_finished
    assert_continues(loopback, server, 1)


def test_the_learner_can_commit_and_finish_outside_of_its_stream(loopback: Loopback) -> None:
    server = loopback.replay()
    plan = plan_of()
    source = loopback.source(server, plan, key=RUN.key)
    until(lambda: loopback.replay_status(server).training_waits_for == "actors", "the plan")
    loopback.sink(0, server, identity=RUN)
    until(lambda: server.store.schema is not None, "the actor")
    request = replay_pb2.CommitBatchRequest(session=plan.session, batch=3)
    assert (
        loopback.plain_call(server, methods.COMMIT_BATCH, proved(methods.COMMIT_BATCH, request, RUN.key))[0] == Code.OK
    )
    assert loopback.replay_status(server).version == 4
    source.finish()
    assert server._servicer.run_finished


@pytest.mark.parametrize("key", [None, STRANGER.key], ids=["no proof", "another key"])
def test_a_stranger_can_not_take_a_snapshot(loopback: Loopback, tmp_path: Path, key: bytes | None) -> None:
    server = loopback.replay(folder=tmp_path / "store", snapshots=tmp_path / "snapshots")
    train(loopback, server, 1)
    stream = loopback.plain(server, methods.TAKE_SNAPSHOT)
    request = replay_pb2.TakeSnapshotRequest(open=replay_pb2.OpenSnapshot(name="evil", version=1, automatic=True))
    stream.send(proved(methods.TAKE_SNAPSHOT, request, key, stream.challenge) if key else request)
    assert stream.status()[0] == Code.PERMISSION_DENIED
    assert not list((tmp_path / "snapshots").glob("*"))


@pytest.mark.parametrize("named", [True, False], ids=["with the run's number", "with a run of its own"])
def test_a_stranger_that_is_first_at_an_empty_store_does_not_keep_it(
    loopback: Loopback, tmp_path: Path, named: bool
) -> None:
    server = loopback.replay(folder=tmp_path)
    stranger = STRANGER if named else RunIdentity.draw()
    stream = opened(loopback, server, plan_request(plan_of(stranger, next_batch=2**61)), stranger.key)
    until(lambda: loopback.replay_status(server).version == 2**61, "the stranger's plan")
    stream.close()
    train(loopback, server, 2)
    assert server.store.owner.run == RUN.number
    assert answer(loopback, server, plan_request(plan_of(stranger, next_batch=2)), stranger.key)[0] != Code.OK
    assert_continues(loopback, server, 2)


def test_a_stranger_does_not_take_the_session_of_a_connected_learner(loopback: Loopback) -> None:
    server = loopback.replay()
    plan = plan_of()
    source = loopback.source(server, plan, key=RUN.key)
    until(lambda: loopback.replay_status(server).training_waits_for == "actors", "the plan")
    taken = plan_request(replace(plan, actor_key=STRANGER.actor_key))
    assert answer(loopback, server, taken, STRANGER.key)[0] == Code.UNAVAILABLE
    pass_windows(loopback.sink(0, server, identity=RUN), source, 1)


def test_a_stranger_that_is_first_with_an_actor_keeps_the_store_and_the_run_is_told(loopback: Loopback) -> None:
    server = loopback.replay()
    stream = opened(loopback, server, plan_request(plan_of(STRANGER)), STRANGER.key)
    loopback.sink(0, server, identity=STRANGER)
    until(lambda: server.store.schema is not None, "the stranger's actor")
    stream.close()
    source = loopback.source(server, plan_of(), key=RUN.key)
    with pytest.raises(PermissionDenied, match="with a proof of another key"):
        source.next(PATIENCE_S)


def test_a_store_of_an_earlier_release_takes_the_key_of_its_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    train(loopback, server, 1)
    server.store.belong_to(replace(server.store.owner, key=b""))
    server.kill()
    server = loopback.replay(folder=tmp_path)
    other = RunIdentity.draw()
    assert (
        answer(loopback, server, plan_request(plan_of(other, next_batch=1)), other.key)[0] == Code.FAILED_PRECONDITION
    )
    assert_continues(loopback, server, 1)
    assert answer(loopback, server, plan_request(plan_of(next_batch=2)), STRANGER.key)[0] == Code.PERMISSION_DENIED


def test_a_learner_without_the_run_s_identity_file_is_told_so(loopback: Loopback, tmp_path: Path) -> None:
    """Its folder has lost all copies, so it is another run with another number."""
    server = loopback.replay(folder=tmp_path)
    train(loopback, server, 1)
    new = RunIdentity.draw()
    source = loopback.source(server, plan_of(new, next_batch=1), key=new.key)
    with pytest.raises(SchemaMismatch, match=f"{RUN.number:016x}, and the learner to run {new.number:016x}; resume"):
        source.next(PATIENCE_S)
    assert_continues(loopback, server, 1)


def test_an_actor_s_stream_proves_nothing_about_plans(loopback: Loopback) -> None:
    """The key of the actors' tokens, which a replay service knows, is not the run's."""
    server = loopback.replay()
    train(loopback, server, 1)
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request(2, run=RUN.number, token=RUN.token(2, 1)))
    plan = plan_request(plan_of(next_batch=10**6))
    assert answer(loopback, server, plan, RUN.actor_key)[0] == Code.PERMISSION_DENIED
    assert_continues(loopback, server, 1)
