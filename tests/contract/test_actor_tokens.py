"""A replay service admits the actors to which the run's learner has given a place, and no others."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from penstock.errors import PlaceLost, SchemaMismatch
from penstock.rpc import methods
from penstock.types.block import Column, Schema
from penstock.types.replay import SamplingPlan
from penstock.types.run import RunIdentity
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import (
    Actor,
    LiveReplay,
    Loopback,
    Recorder,
    Trainer,
    open_request,
    pass_windows,
    plan_with,
    sample,
    until,
)

Code = grpc.StatusCode
RUN = RunIdentity.draw()
OTHER = RunIdentity.draw()
FOREIGN_SCHEMA = Schema(3, (Column("c", "uint8", (1,)),))
STRANGER = replace(OTHER, number=RUN.number)
"""Identity of a client that knows the run's number, as all peers do, and guesses a key."""


def plan_of(identity: RunIdentity, **changes: int) -> SamplingPlan:
    return plan_with(fresh_segments=2, batch_segments=2, run=identity.number, actor_key=identity.actor_key, **changes)


def refused(loopback: Loopback, server: LiveReplay, **opening: object) -> tuple[grpc.StatusCode, str]:
    """Returns the status of an append stream with this opening, and checks that its refusal is counted."""
    before = sample("penstock_refused_clients_total", client="actor")
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request(**opening))  # type: ignore[arg-type]
    status = stream.status()
    assert sample("penstock_refused_clients_total", client="actor") == before + 1
    return status


def test_an_actor_with_the_token_of_its_assignment_is_admitted(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    pass_windows(loopback.sink(3, server, identity=RUN), source, 2)


@pytest.mark.parametrize(
    "token",
    [b"", b"\0" * 32, RUN.token(3, 1), RUN.token(2, 2), RUN.token(2, 1)[:-1], OTHER.token(2, 1), STRANGER.token(2, 1)],
    ids=["none", "zeros", "of another slot", "of another incarnation", "cut", "of another run", "of a guessed key"],
)
def test_an_actor_without_it_is_refused_and_changes_nothing(loopback: Loopback, token: bytes) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    code, details = refused(loopback, server, slot=2, run=RUN.number, token=token, schema=FOREIGN_SCHEMA)
    assert (code, "does not belong to its assignment; join again" in details) == (Code.FAILED_PRECONDITION, True)
    assert server.store.schema is None
    pass_windows(loopback.sink(2, server, identity=RUN), source, 1)


def test_an_actor_with_a_wrong_token_joins_again_and_does_not_end(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_of(RUN), key=RUN.key)
    sink = loopback.sink(0, server, identity=STRANGER)
    with pytest.raises(PlaceLost, match="join again"):
        sink.next_grant(PATIENCE_S)


@pytest.mark.parametrize(
    ("number", "named"),
    [(OTHER.number, f"{OTHER.number:016x}"), (0, "a run without an identity")],
    ids=["another", "none"],
)
def test_an_actor_of_another_run_ends_with_both_identities(loopback: Loopback, number: int, named: str) -> None:
    server = loopback.replay()
    loopback.source(server, plan_of(RUN), key=RUN.key)
    sink = loopback.sink(0, server, identity=replace(RUN, number=number))
    with pytest.raises(SchemaMismatch, match=f"belongs to run {RUN.number:016x}, and the actor of slot 0 to .*{named}"):
        sink.next_grant(PATIENCE_S)


def test_an_actor_before_the_first_plan_waits_for_it_and_decides_nothing(loopback: Loopback) -> None:
    server = loopback.replay()
    forged = loopback.plain(server, methods.APPEND_SEGMENTS)
    forged.send(open_request(0, run=RUN.number, schema=FOREIGN_SCHEMA))
    sink = loopback.sink(0, server, identity=RUN)
    until(lambda: loopback.replay_status(server).actors == 2, "both streams to be open")
    assert sink.next_grant(0.0) is None
    assert server.store.schema is None
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    pass_windows(sink, source, 1)
    assert forged.status()[0] == Code.FAILED_PRECONDITION


def test_actors_of_a_learner_without_a_key_need_no_token(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_with(fresh_segments=2, batch_segments=2))
    pass_windows(loopback.sink(0, server, identity=RUN), source, 1)


@pytest.mark.parametrize("learner_too", [True, False])
def test_a_run_goes_on_after_its_replay_service_was_replaced(
    loopback: Loopback, tmp_path: Path, learner_too: bool
) -> None:
    server, recorder, plan = loopback.replay(folder=tmp_path), Recorder(), plan_of(RUN)
    trainer = Trainer(source := loopback.source(server, plan, key=RUN.key), recorder, plan)
    actor = Actor(loopback.sink(0, server, identity=RUN), recorder, lambda: trainer.published, slot=0)
    for _ in trainer.train(2):
        pass
    server.kill()
    server = loopback.replay(folder=tmp_path, port=server.port)
    assert server.store.owner.run == RUN.number
    if learner_too:
        source.close()
        # The same run begins a new session.
        plan = plan_of(RUN, next_batch=trainer.version)
        trainer = Trainer(loopback.source(server, plan, key=RUN.key), recorder, plan)
    for _ in trainer.train(2):
        pass
    actor.end()


def test_actors_are_verified_again_when_the_learner_names_another_key_of_actors(loopback: Loopback) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    sink = loopback.sink(0, server, identity=RUN)
    pass_windows(sink, source, 1)
    source.close()
    changed = replace(plan_of(RUN, next_batch=1), actor_key=STRANGER.actor_key)
    loopback.source(server, changed, key=RUN.key)
    with pytest.raises(PlaceLost):
        until(lambda: sink.next_grant(0.1) and None, "the actor's place to be lost")
