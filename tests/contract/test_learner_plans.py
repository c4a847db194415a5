"""A plan can't take over the session of a connected learner, nor jump to a version that no learner can have used."""

from dataclasses import replace

import grpc
import pytest

from penstock.errors import SchemaMismatch
from penstock.rpc import methods
from penstock.telemetry import logs, metrics
from penstock.types.run import LARGEST_VERSION_JUMP
from tests.support.services.servers import Actor, Loopback, Recorder, Trainer, plan_request, plan_with, until

Code = grpc.StatusCode
PLAN = plan_with(batch_segments=4, fresh_segments=4)


def test_a_plan_of_another_session_is_refused_while_the_learner_is_connected(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    trainer = Trainer(loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(3):
        pass
    for ahead in (0, 10, LARGEST_VERSION_JUMP):
        stranger = loopback.plain(server, methods.SAMPLE_BATCHES)
        stranger.send(plan_request(plan_with(session=12345, next_batch=trainer.version + ahead)))
        code, details = stranger.status()
        assert (code, "another learner of this run is connected" in details) == (Code.UNAVAILABLE, True)
        assert loopback.replay_status(server).version == trainer.version
    for _ in trainer.train(3):
        pass
    actor.end()


def test_a_second_learner_waits_for_the_first_and_logs_the_reason_once(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(logs, "note", lambda event, **more: reasons.append(str(more.get("reason", ""))))
    server, recorder = loopback.replay(), Recorder()
    former = Trainer(source := loopback.source(server, PLAN), recorder, PLAN)
    trainers = [former]
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainers[-1].published, slot=0)
    batch = former.next()
    successor = plan_with(batch_segments=4, fresh_segments=4, next_batch=5)
    trainers.append(trainer := Trainer(waiting := loopback.source(server, successor), recorder, successor))
    until(lambda: any("another learner of this run" in reason for reason in reasons), "the second learner is refused")
    assert former.commit(batch).updated == 4
    refused = metrics.RECONNECTIONS.labels("replay")._value
    before = refused.get()
    until(lambda: refused.get() > before + 1.0, "further attempts")
    assert waiting.next(0.0) is None
    source.close()
    for _ in trainer.train(3):
        pass
    actor.end()
    assert sum("another learner of this run" in reason for reason in reasons) == 1


def test_a_second_stream_of_the_same_session_is_served(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    trainer = Trainer(loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    batch = trainer.next()
    again = loopback.source(server, PLAN)
    same = until(lambda: again.next(0.5), "the batch on the second stream")
    assert same.keys.tolist() == batch.keys.tolist()
    actor.end()


@pytest.mark.parametrize("connected", [True, False])
def test_a_plan_that_begins_far_above_the_store_version_is_refused_and_changes_nothing(
    loopback: Loopback, connected: bool
) -> None:
    server, recorder = loopback.replay(), Recorder()
    trainer = Trainer(source := loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(2):
        pass
    if not connected:
        source.close()
    stranger = loopback.plain(server, methods.SAMPLE_BATCHES)
    stranger.send(plan_request(plan_with(session=12345, next_batch=10**15)))
    code, details = stranger.status()
    assert (code, f"begins at version {10**15}" in details) == (Code.FAILED_PRECONDITION, True)
    assert loopback.replay_status(server).version == trainer.version
    if not connected:
        again = replace(PLAN, next_batch=trainer.version)
        trainer = Trainer(loopback.source(server, again), recorder, again)
    for _ in trainer.train(2):
        pass
    actor.end()


def test_a_learner_whose_session_has_ended_stops(loopback: Loopback) -> None:
    server, recorder = loopback.replay(), Recorder()
    trainer = Trainer(loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(3):
        pass
    late = loopback.source(server, plan_with(batch_segments=4, fresh_segments=4, next_batch=1))
    with pytest.raises(SchemaMismatch, match="the learner begins at 1"):
        until(lambda: late.next(0.5), "the learner that is too late is refused")
    actor.end()
