"""Segments of versions that the learner can't have published are not stored; valid windows wait for news of theirs."""

import time
from dataclasses import replace

import grpc
import numpy as np
import pytest

from penstock.replay.intake import Intake
from penstock.rpc import methods
from penstock.types.replay import WindowHead
from tests.support.services.servers import (
    Actor,
    Loopback,
    PlainStream,
    Recorder,
    Trainer,
    open_request,
    plan_with,
    until,
    window_request,
)

PLAN = plan_with(batch_segments=4, fresh_segments=4, off_policy_degree=2)


def receive_grants(stream: PlainStream, count: int) -> None:
    while count > 0:
        count -= len(stream.receive().grants)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which a service looked whether it knows the version of a window."""
    seen, knows = list[float](), Intake.knows_version

    def look(intake: Intake, head: WindowHead) -> bool:
        seen.append(time.monotonic())
        return knows(intake, head)

    monkeypatch.setattr(Intake, "knows_version", look)
    return seen


def test_a_window_of_an_unpublished_version_is_refused_and_not_stored(loopback: Loopback) -> None:
    server, recorder = loopback.replay(version_patience_s=0.5), Recorder()
    trainer = Trainer(loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(3):
        pass
    for version in (trainer.version + 990, 10**15):
        stranger = loopback.plain(server, methods.APPEND_SEGMENTS)
        stranger.send(open_request(5), window_request(1, slot=5, version=version))
        code, details = stranger.status()
        assert (code, f"slot 5 sent version {version}" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    for _ in trainer.train(3):
        pass
    actor.end()
    assert {name[0] for name in recorder.windows} == {0}
    assert loopback.replay_status(server).counts.inserted == 2 * actor.sent


def test_a_window_of_the_next_learner_waits_for_its_plan(loopback: Loopback, looks: list[float]) -> None:
    patience_s = 0.5
    server, recorder = loopback.replay(version_patience_s=patience_s), Recorder()
    trainer = Trainer(source := loopback.source(server, PLAN), recorder, PLAN)
    actor = Actor(loopback.sink(0, server), recorder, lambda: trainer.published, slot=0, windows=3)
    for _ in trainer.train(1):
        pass
    source.close()
    actor.end()
    stored = loopback.replay_status(server).counts.inserted
    looks.clear()
    # The next learner has already published its first version.
    early = Actor(loopback.sink(1, server), recorder, lambda: 50, slot=1, windows=1)
    until(lambda: looks and looks[-1] > looks[0] + 2.0 * patience_s, "a look after the time of a connected learner")
    assert loopback.replay_status(server).counts.inserted == stored
    loopback.source(server, replace(PLAN, session=9, next_batch=50))
    until(lambda: loopback.replay_status(server).counts.inserted == stored + 2, "the window is stored")
    early.end()


def test_a_window_waits_for_news_of_a_batch_that_was_assembled_without_this_shard(
    loopback: Loopback, looks: list[float]
) -> None:
    server = loopback.replay(version_patience_s=60.0)
    source = loopback.source(server, PLAN)
    actor = loopback.plain(server, methods.APPEND_SEGMENTS)
    actor.send(open_request())
    receive_grants(actor, 1)
    actor.send(window_request(1, version=1))
    until(lambda: len(looks) > 1, "a second look")
    assert loopback.replay_status(server).counts.inserted == 0
    source.skip()
    source.commit_keys(0, np.zeros(0, np.uint64), np.zeros(0))
    until(lambda: loopback.replay_status(server).counts.inserted == 2, "the window is stored")
