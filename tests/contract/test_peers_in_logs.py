"""Each service logs the peers that join, return and leave, with the reason."""

import logging
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from penstock.rpc import methods
from penstock.telemetry import logs
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import Loopback, hello_request, open_request, plan_with, until, window_request

Events = list[MutableMapping[str, Any]]


@pytest.fixture
def events() -> Iterator[Events]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as events:
        yield events
    structlog.reset_defaults()
    logs.note("logging is restored")


def find(events: Events, event: str, **values: str) -> Events:
    return [each for each in events if each["event"] == event and values.items() <= each.items()]


def test_the_learner_logs_actors_that_join_return_and_leave(loopback: Loopback, tmp_path: Path, events: Events) -> None:
    server = loopback.run(tmp_path / "roster.json")
    request = hello_request()
    request.hello.name = "left-hand"
    request.hello.location.node, request.hello.location.job = "node2", "17_3"
    first = loopback.plain(server, methods.JOIN)
    first.send(request)
    request.hello.token = first.receive().assignment.token
    assert len(find(events, "actor joined", actor="left-hand", slot="0", incarnation="1", peer_node="node2")) == 1
    first.close()
    until(lambda: find(events, "actor left", slot="0"), "the log of the actor's end")
    second = loopback.plain(server, methods.JOIN)
    second.send(request)
    second.receive()
    assert len(find(events, "actor returned", actor="left-hand", slot="0", peer_job="17_3")) == 1
    second.send(hello_request())
    until(lambda: len(find(events, "actor left", slot="0")) == 2, "the log of the actor's end")
    lost, refused = find(events, "actor left", slot="0")
    # A slow server sees the end of the stream before it sees that the call was cancelled.
    assert "its stream" in lost["reason"]
    assert refused["reason"].startswith("InvalidSegment: after `hello`")


def test_the_learner_logs_evaluators(loopback: Loopback, tmp_path: Path, events: Events) -> None:
    work = loopback.work(loopback.run(tmp_path / "roster.json"))
    until(lambda: find(events, "evaluator joined"), "the log of the evaluator")
    work.close()
    until(lambda: find(events, "evaluator left"), "the log of its end")


def test_the_replay_service_logs_actors_and_learners(loopback: Loopback, events: Events) -> None:
    server = loopback.replay()
    plan = plan_with()
    source = loopback.source(server, plan)
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request())
    stream.receive()
    assert len(find(events, "actor joined", slot="0", incarnation="1", stored="0")) == 1
    stream.send(window_request(1))
    until(lambda: loopback.replay_status(server).counts.stored == 2, "the window to be stored")
    stream.leave()
    stream.status()
    assert find(events, "actor left", slot="0")[0]["reason"] == "its stream ended"
    again = loopback.plain(server, methods.APPEND_SEGMENTS)
    again.send(open_request())
    again.receive()
    assert len(find(events, "actor returned", slot="0", stored="2")) == 1
    until(lambda: find(events, "learner joined"), "the log of the learner")
    source.close()
    until(lambda: find(events, "learner left"), "the log of its end", PATIENCE_S)
