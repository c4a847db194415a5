"""A run has one identity for life. Learners, stores, actors and evaluators of different runs refuse each other."""

import json
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from penstock.errors import PermissionDenied, SchemaMismatch
from penstock.learning.members.roster import decode_roster
from penstock.replay.snapshots.folder import SnapshotFolder
from penstock.replay.snapshots.restoring import restore_store
from penstock.replay.store.description import DESCRIPTION_FILE, Owner
from penstock.replay.store.ring_store import RingStore
from penstock.rpc import methods
from penstock.rpc.proofs import public_half
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationTask
from penstock.types.replay import SamplingPlan
from penstock.types.run import Assignment, RunIdentity
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import capacity_bytes
from tests.support.services.servers import (
    SPEC,
    Loopback,
    hello_request,
    pass_windows,
    plan_with,
    sample,
    until,
)
from tests.support.training.policies import fresh_weights

Code = grpc.StatusCode
RUN, OTHER = RunIdentity.draw(), RunIdentity.draw()


def plan_of(identity: RunIdentity, **changes: int) -> SamplingPlan:
    return plan_with(fresh_segments=2, batch_segments=2, run=identity.number, actor_key=identity.actor_key, **changes)


def both(ours: int, theirs: int) -> str:
    """Returns a pattern of a message that names both runs."""
    return f"run {ours:016x}.* run {theirs:016x}"


# Stores and learners


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("next_batch", [1, 1000])
def test_a_store_with_segments_refuses_a_learner_of_another_run(
    loopback: Loopback, tmp_path: Path, restarted: bool, next_batch: int
) -> None:
    server = loopback.replay(folder=tmp_path)
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    sink = loopback.sink(0, server, identity=RUN)
    pass_windows(sink, source, 1)
    # A connected actor would keep the grants that a later one waits for.
    sink.close()
    source.close()
    if restarted:
        server.stop()
        server = loopback.replay(folder=tmp_path)
    before = sample("penstock_refused_clients_total", client="learner")
    other = loopback.source(server, plan_of(OTHER, next_batch=next_batch), key=OTHER.key)
    with pytest.raises(SchemaMismatch, match=f"{both(RUN.number, OTHER.number)}.*replay.folder"):
        other.next(PATIENCE_S)
    nameless = loopback.source(server, plan_with(next_batch=next_batch))
    with pytest.raises(SchemaMismatch, match="a run without an identity"):
        nameless.next(PATIENCE_S)
    assert sample("penstock_refused_clients_total", client="learner") == before + 2
    assert loopback.replay_status(server).version == 1
    same = loopback.source(server, plan_of(RUN, next_batch=1), key=RUN.key)
    sink = loopback.sink(1, server, identity=RUN)
    assert until(lambda: sink.next_grant(0.5), "a grant of the store's own run") is not None
    same.close()


def test_a_store_without_segments_may_pass_to_another_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    loopback.source(server, plan_of(RUN), key=RUN.key).close()
    source = loopback.source(server, plan_of(OTHER), key=OTHER.key)
    pass_windows(loopback.sink(0, server, identity=OTHER), source, 1)
    assert server.store.owner.run == OTHER.number


def test_a_store_of_an_earlier_release_belongs_to_its_next_run_for_good(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    source = loopback.source(server, plan_with(fresh_segments=2, batch_segments=2))
    sink = loopback.sink(0, server)
    pass_windows(sink, source, 1)
    sink.close()
    source.close()
    server.stop()
    path = tmp_path / DESCRIPTION_FILE
    description = json.loads(path.read_text())
    assert int(description.pop("run"), 16) == 0
    path.write_text(json.dumps(description))
    server = loopback.replay(folder=tmp_path)
    source = loopback.source(server, plan_of(RUN, next_batch=1), key=RUN.key)
    sink = loopback.sink(1, server, identity=RUN)
    assert until(lambda: sink.next_grant(0.5), "a grant") is not None
    server.kill()
    assert RingStore(tmp_path, capacity_bytes(400)).owner.run == RUN.number


def test_a_run_that_can_not_be_recorded_is_refused_until_it_can(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = loopback.replay(folder=tmp_path)
    source = loopback.source(server, plan_with(fresh_segments=2, batch_segments=2))
    pass_windows(loopback.sink(0, server), source, 1)
    source.close()
    (tmp_path / DESCRIPTION_FILE).unlink()
    (tmp_path / DESCRIPTION_FILE).mkdir()
    refused = metrics.RECONNECTIONS.labels("replay")._value
    before = refused.get()
    again = loopback.source(server, plan_of(RUN, next_batch=1), key=RUN.key)
    until(lambda: refused.get() > before, "the refusal")
    assert again.next(0.0) is None
    assert server.store.owner.run == 0
    (tmp_path / DESCRIPTION_FILE).rmdir()
    until(lambda: server.store.owner.run == RUN.number, "the run to be recorded")


def test_a_restored_store_belongs_to_the_run_that_continues_from_it(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path / "store", snapshots=tmp_path / "snapshots")
    source = loopback.source(server, plan_of(RUN), key=RUN.key)
    pass_windows(loopback.sink(0, server, identity=RUN), source, 2)
    source.close()
    loopback.source(server, plan_of(RUN, next_batch=2), key=RUN.key)
    loopback.take(server, "kept", key=RUN.key)
    snapshots = SnapshotFolder(tmp_path / "snapshots")
    owner = Owner(OTHER.number, public_half(OTHER.key))
    restore_store(snapshots, snapshots.read("kept"), tmp_path / "new", capacity_bytes(400), owner=owner)
    restored = loopback.replay(folder=tmp_path / "new")
    for first in RUN, replace(RUN, number=OTHER.number):
        source = loopback.source(restored, plan_of(first, next_batch=2), key=first.key)
        with pytest.raises((SchemaMismatch, PermissionDenied)):
            source.next(PATIENCE_S)
    loopback.source(restored, plan_of(OTHER, next_batch=2), key=OTHER.key)
    until(lambda: loopback.replay_status(restored).training_waits_for == "actors", "the plan of the new run")


# Learners and their peers


def test_the_identity_survives_learners_and_lost_rosters_as_long_as_one_file_has_it(
    loopback: Loopback, tmp_path: Path
) -> None:
    path = tmp_path / "roster.json"
    first = loopback.run(path)
    assignment = until(lambda: loopback.membership(first).assignment(0.1), "an assignment")
    identity = first.roster.identity
    assert identity.number and assignment.run == identity.number
    assert assignment.replay_token == identity.token(assignment.slot, assignment.incarnation)
    assert path.stat().st_mode & 0o777 == 0o600
    first.stop()
    assert loopback.run(path).roster.identity == identity
    path.unlink()
    assert loopback.run(path).roster.identity == identity
    stored = decode_roster((tmp_path / "roster.copy.json").read_bytes())
    assert int(stored["run"], 16) == identity.number

    def lose(*names: str) -> None:
        for name in names:
            (tmp_path / name).unlink(missing_ok=True)

    lose("identity.json")
    assert loopback.run(path).roster.identity == identity
    assert (tmp_path / "identity.json").stat().st_mode & 0o777 == 0o600
    lose("roster.json", "roster.copy.json")
    # A run with a checkpoint expects its roster.
    assert loopback.run(path, expected=True).roster.identity == identity
    lose("roster.json", "roster.copy.json", "identity.json")
    assert loopback.run(path, expected=True).roster.identity.number != identity.number


def test_a_learner_refuses_an_actor_that_belongs_to_another_run(loopback: Loopback, tmp_path: Path) -> None:
    run = loopback.run(tmp_path / "roster.json")
    stream = loopback.plain(run, methods.JOIN)
    stream.send(hello_request(run=OTHER.number))
    code, details = stream.status()
    assert code == Code.FAILED_PRECONDITION
    assert f"{run.roster.identity.number:016x}" in details and f"{OTHER.number:016x}" in details
    assert run.roster.schema is None
    same = loopback.plain(run, methods.JOIN)
    same.send(hello_request(run=run.roster.identity.number))
    assert same.receive().assignment.run == run.roster.identity.number


def test_an_actor_does_not_follow_its_address_to_another_run(loopback: Loopback, tmp_path: Path) -> None:
    first = loopback.run(tmp_path / "first.json")
    member = loopback.membership(first)
    until(lambda: member.assignment(0.1), "an assignment")
    first.kill()
    second = loopback.run(tmp_path / "second.json", port=first.port)
    numbers = [run.roster.identity.number for run in (second, first)]

    def end() -> Assignment | None:
        member.at_least(10**6, 0.1)
        return None

    with pytest.raises(SchemaMismatch, match=f"{both(*numbers)}.*start the actor again"):
        until(end, "the actor to end")


def test_an_evaluator_does_not_follow_its_address_to_another_run(loopback: Loopback, tmp_path: Path) -> None:
    first = loopback.run(tmp_path / "first.json")
    work = loopback.work(first)
    first.servicer.ask(EvaluationTask(1, fresh_weights(SPEC), 2, deterministic=True, seed=1))
    task = until(lambda: work.next(0.1), "a task")
    assert task.run == first.roster.identity.number
    first.kill()
    second = loopback.run(tmp_path / "second.json", port=first.port)
    numbers = [run.roster.identity.number for run in (second, first)]
    with pytest.raises(SchemaMismatch, match=f"{both(*numbers)}.*start the evaluator again"):
        until(lambda: work.next(0.1), "the evaluator to end")
