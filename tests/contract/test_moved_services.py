"""Clients of a service that has several names, or that moves to another address."""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from penstock.errors import NotReady, Overloaded, PenstockError, PlaceLost, RunFinished, Unavailable
from penstock.machine.addresses import Address
from penstock.rpc import methods
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.connection import Peer
from penstock.rpc.clients.evaluation_work import EvaluationWork
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.clients.replay_watch import ReplayWatch
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.health import is_serving
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluatorHello
from penstock.types.location import Location, Place
from penstock.types.replay import Window
from penstock.types.run import Assignment, Weights
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import SCHEMA, assert_same_columns, make_window
from tests.support.services.ports import free_ports, release_ports
from tests.support.services.servers import SPEC, LiveReplay, LiveRun, Loopback, pass_windows, plan_with, until

PLAN = plan_with(batch_segments=2, fresh_segments=2)


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which nothing listens."""
    yield f"127.0.0.1:{free_ports(1)[0]}"
    release_ports()


class Moving:
    """The names of a service that moves."""

    def __init__(self, *names: str) -> None:
        self.names: tuple[str, ...] = names

    def __call__(self) -> Place:
        if not self.names:
            raise NotReady("the service has no address yet")
        return Place(self.names)


def join(loopback: Loopback, peer: Peer, give_up_after_s: float = math.inf) -> Membership:
    return loopback._client(Membership(loopback.thread, peer, SCHEMA, SPEC, 2, give_up_after_s=give_up_after_s))


def watch(loopback: Loopback, run: LiveRun, peer: Peer) -> None:
    loopback._client(ReplayWatch(run.thread, [peer], run.places, lambda: None, partial(run.targets.put, "replay")))


def sink_of(loopback: Loopback, member: Membership) -> ReplaySegmentSink:
    assignment = until(lambda: member.assignment(0.5), "an assignment")
    return loopback._client(ReplaySegmentSink(loopback.thread, assignment, SCHEMA, place=member.replay))


def windows_of(assignment: Assignment, first: int, count: int) -> list[Window]:
    slot, incarnation = assignment.slot, assignment.incarnation
    return [
        make_window(first + 2 * number, slot=slot, incarnation=incarnation, version=number) for number in range(count)
    ]


# Several names


def test_streams_use_the_first_name_that_answers(loopback: Loopback, dead: str) -> None:
    server = loopback.replay(host="127.0.0.2")
    place = Place((dead, server.address))
    sink = loopback._client(ReplaySegmentSink(loopback.thread, Assignment(0, 1, (0, 1), b"", 0, place), SCHEMA))
    source = loopback._client(ReplayBatchSource(loopback.thread, place.addresses, SCHEMA, prefetch_batches=1))
    source.open(PLAN)
    pass_windows(sink, source, 3)


def test_calls_use_the_first_name_that_answers(loopback: Loopback, tmp_path: Path, dead: str) -> None:
    run = loopback.run(tmp_path / "roster.json")
    with closing(StatusClient(loopback.thread, (dead, run.address))) as client:
        assert client.get(PATIENCE_S).phase == "waiting"
    assert is_serving((dead, run.address), PATIENCE_S)


def test_a_call_without_an_answer_names_all_addresses(loopback: Loopback, dead: str) -> None:
    other = str(Address("127.0.0.2", Address.parse(dead).port))
    client = loopback._client(StatusClient(loopback.thread, (dead, other)))
    with pytest.raises(Unavailable, match=f"the learner at {dead} or {other} can't be reached"):
        client.get(1.0)


def test_a_stream_goes_on_at_another_name_when_the_first_service_dies(loopback: Loopback, tmp_path: Path) -> None:
    first = loopback.run(tmp_path / "roster.json")
    first.roster.dismiss()
    second = loopback.run(tmp_path / "roster.json")
    member = join(loopback, (first.address, second.address))
    assignment = until(lambda: member.assignment(0.5), "an assignment")
    assert first.roster.connected == 1
    channel = member._stream.channel
    first.kill()
    until(lambda: second.roster.connected == 1, "the actor at the other learner")
    assert channel.get_state() == grpc.ChannelConnectivity.SHUTDOWN
    assert until(lambda: member.assignment(0.5), "an assignment").slot == assignment.slot


# A replay service that moves


def test_an_actor_learns_from_its_learner_where_replay_is(loopback: Loopback, tmp_path: Path) -> None:
    replay, run = loopback.replay(), loopback.run(tmp_path / "roster.json")
    member = join(loopback, run.address)
    assert until(lambda: member.assignment(0.5), "an assignment").replay == Place()
    sink, source = sink_of(loopback, member), loopback.source(replay, PLAN)
    assert sink.next_grant(0.2) is None
    watch(loopback, run, replay.address)
    pass_windows(sink, source, 3)
    assert member.replay() == Place((replay.address,), int(replay.store.session.identity))


def test_an_actor_moves_with_its_replay_service_and_loses_nothing(loopback: Loopback, tmp_path: Path) -> None:
    run, store = loopback.run(tmp_path / "roster.json"), tmp_path / "store"
    replay = loopback.replay(folder=store)
    there = Moving(replay.address)
    watch(loopback, run, there)
    member = join(loopback, run.address)
    sink, assignment = sink_of(loopback, member), until(lambda: member.assignment(0.5), "an assignment")
    source = loopback._client(ReplayBatchSource(loopback.thread, there, SCHEMA, prefetch_batches=1))
    source.open(PLAN)
    sent = windows_of(assignment, 1, 6)
    for number, window in enumerate(sent):
        if number == 3:
            replay.stop()
            replay = loopback.replay(folder=store, host="127.0.0.2")
            there.names = (replay.address,)
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(window)
        batch = until(lambda: source.next(0.5), "a batch")
        assert_same_columns(batch.columns, window.columns)
        source.commit(batch, np.ones(2)).result(PATIENCE_S)
    assert member.replay().addresses == (replay.address,)
    assert until(lambda: member.assignment(0.5), "the assignment") == assignment
    assert loopback.replay_status(replay).counts.inserted == 12


def test_the_metrics_of_a_replay_service_are_listed_where_it_runs_now(loopback: Loopback, tmp_path: Path) -> None:
    run = loopback.run(tmp_path / "roster.json")
    first = loopback.replay(location=Location("node2", metrics_address="node2:40001"))
    names = Moving(first.address)
    watch(loopback, run, names)

    def listed() -> list[tuple[str, str]]:
        groups = run.targets.content()
        return [
            (group["labels"]["node"], group["targets"][0]) for group in groups if group["labels"]["job"] == "replay"
        ]

    until(lambda: listed() == [("node2", "node2:40001")], "the metrics of the service")
    second = loopback.replay(location=Location("node3", metrics_address="node3:40002"))
    names.names = (second.address,)
    first.kill()
    # A service that is gone stays in the list, so that Prometheus shows it as down.
    until(lambda: listed() == [("node3", "node3:40002")], "the metrics of the other service")


def test_an_actor_of_a_replaced_store_joins_again(loopback: Loopback, tmp_path: Path) -> None:
    run, replay = loopback.run(tmp_path / "roster.json"), loopback.replay()
    there = Moving(replay.address)
    watch(loopback, run, there)
    member = join(loopback, run.address)
    sink = sink_of(loopback, member)
    pass_windows(sink, loopback.source(replay, PLAN), 2)
    replay.stop()
    present = loopback.replay(host="127.0.0.2")
    loopback.source(present, PLAN)
    there.names = (present.address,)

    def lost() -> bool:
        try:
            sink.next_grant(0.5)
        except PlaceLost:
            return True
        return False

    until(lost, "the end of the place in the lost store")


def test_an_actor_leaves_a_replay_service_that_its_run_no_longer_uses(loopback: Loopback, tmp_path: Path) -> None:
    run, former, present = loopback.run(tmp_path / "roster.json"), loopback.replay(), loopback.replay()
    run.thread.call(run.places.note, 0, place_of(former))
    member = join(loopback, run.address)
    sink_of(loopback, member)
    until(lambda: loopback.replay_status(former).actors == 1, "the actor at the first service")
    run.thread.call(run.places.note, 0, place_of(present))
    until(lambda: loopback.replay_status(present).actors == 1, "the actor at the present service")
    assert loopback.replay_status(former).actors == 0


def test_an_actor_never_sends_to_the_replay_service_of_another_run(loopback: Loopback, tmp_path: Path) -> None:
    ours = loopback.replay()
    place = place_of(ours)
    ours.stop()
    theirs = loopback.replay(port=ours.port)
    assignment = Assignment(0, 1, (0, 1), b"", 0, place)
    sink = loopback._client(ReplaySegmentSink(loopback.thread, assignment, SCHEMA))
    loopback.source(theirs, PLAN)
    refused = metrics.RECONNECTIONS.labels("replay")._value
    before = refused.get()
    until(lambda: refused.get() > before + 1.0, "two attempts")
    assert sink.next_grant(0.0) is None
    assert loopback.replay_status(theirs).actors == 0


def test_a_service_says_why_it_refuses_the_client_of_another_run(loopback: Loopback, tmp_path: Path) -> None:
    ours, theirs = loopback.replay(), loopback.replay(snapshots=tmp_path)
    client = loopback._client(SnapshotClient(loopback.thread, Place((theirs.address,), place_of(ours).identity)))
    with pytest.raises(NotReady, match="belongs to another run"):
        client.complete()
    assert loopback._client(SnapshotClient(loopback.thread, place_of(theirs))).complete() == []


def place_of(server: LiveReplay) -> Place:
    return Place((server.address,), int(server.store.session.identity))


def test_a_service_advertises_its_names_with_its_port(loopback: Loopback) -> None:
    server = loopback.replay(host="127.0.0.2", advertise=("node1", "gateway:9000"))
    place = loopback.replay_status(server).place
    assert list(place.addresses) == [f"node1:{server.port}", "gateway:9000"]
    assert place.identity == server.store.session.identity


# A learner that moves


def test_an_actor_returns_to_its_slot_at_a_learner_that_was_started_elsewhere(
    loopback: Loopback, tmp_path: Path
) -> None:
    there = Moving()
    member = join(loopback, there)
    assert member.assignment(0.1) is None
    first = loopback.run(tmp_path / "roster.json")
    there.names = (first.address,)
    assignment = until(lambda: member.assignment(0.5), "an assignment")
    first.kill()
    there.names = ()
    second = loopback.run(tmp_path / "roster.json")
    there.names = (second.address,)
    second.servicer.publish(Weights.of(3, b"weights"))
    assert until(lambda: member.at_least(3, 0.5), "weights of the learner's successor").version == 3
    assert member.assignment(0.5) == assignment


def test_the_end_of_the_run_ends_clients_that_look_for_its_learner(loopback: Loopback) -> None:
    def over() -> Place:
        raise RunFinished("this run has already trained 10 steps")

    member, work = join(loopback, over), loopback._client(EvaluationWork(loopback.thread, over, EvaluatorHello(SPEC)))
    with pytest.raises(RunFinished, match="already trained"):
        until(lambda: member.assignment(0.5), "the end")
    with pytest.raises(RunFinished, match="already trained"):
        until(lambda: work.next(0.5), "the end")


def test_an_actor_does_not_join_the_run_that_has_the_former_address_of_its_own(
    loopback: Loopback, tmp_path: Path
) -> None:
    ours = loopback.run(tmp_path / "roster.json")
    place = Place((ours.address,), ours.servicer.identity)
    member = join(loopback, lambda: place)
    assignment = until(lambda: member.assignment(0.5), "an assignment")
    ours.kill()
    theirs = loopback.run(tmp_path / "theirs.json", port=ours.port)
    status = loopback._client(StatusClient(loopback.thread, place))
    with pytest.raises(NotReady, match="belongs to another run"):
        status.get(PATIENCE_S)
    ours = loopback.run(tmp_path / "roster.json")
    place = Place((theirs.address, ours.address), ours.servicer.identity)
    until(lambda: ours.roster.connected == 1, "the actor at its own learner")
    assert theirs.roster.connected == 0
    assert member.assignment(0.5) == assignment


# Giving up


@pytest.mark.parametrize("names", [1, 2, 0], ids=["one name", "two names", "no name yet"])
def test_a_client_gives_up_after_its_time_without_the_learner(loopback: Loopback, dead: str, names: int) -> None:
    peer = Moving(*[dead, f"127.0.0.2:{Address.parse(dead).port}"][:names])
    member = join(loopback, peer, give_up_after_s=0.3)
    work = loopback._client(EvaluationWork(loopback.thread, peer, EvaluatorHello(SPEC), give_up_after_s=0.3))
    reason = r"^gave up after \d+ s: .*(can't be reached|no address)"
    with pytest.raises(PenstockError, match=reason):
        until(lambda: member.assignment(0.5), "the end of the wait")
    with pytest.raises(PenstockError, match=reason):
        until(lambda: work.next(0.5), "the end of the wait")


def test_a_learner_that_answers_but_refuses_is_not_given_up(loopback: Loopback) -> None:
    refused: list[float] = []

    async def refuse(requests: object, context: object) -> None:
        refused.append(time.monotonic())
        raise Overloaded("all slots are taken")

    server = loopback.methods({methods.JOIN: refuse})
    member = join(loopback, server.address, give_up_after_s=0.3)
    until(lambda: refused and time.monotonic() - refused[0] > 1.0, "refusals for longer than the limit")
    assert member.assignment(0.1) is None
    before = len(refused)
    until(lambda: len(refused) > before, "another attempt")
