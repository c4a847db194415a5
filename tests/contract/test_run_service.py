import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest

from penstock.errors import InvalidSegment, PenstockError, RunFinished, SchemaMismatch
from penstock.rpc import methods
from penstock.rpc.clients.membership import Membership
from penstock.types.block import Schema
from penstock.types.evaluation import EvaluationSummary, VariantReturns
from penstock.types.extents import Extent, RunLimit
from penstock.types.location import Location
from penstock.types.replay import CommitOutcome, StoreCounts
from penstock.types.run import ActorReport, Assignment, Episode, Weights
from penstock.types.spaces import DiscreteSpace, EnvironmentSpec, Tree
from penstock.types.statistics import (
    Ages,
    CoordinatorStatistics,
    Curve,
    CurvePoint,
    Drops,
    LearningNumbers,
    MeanTimes,
    Replayed,
    Returns,
    Timing,
)
from penstock.types.status import VariantStatus
from penstock.types.waits import Awaited, WaitReason
from penstock.v1 import evaluation_pb2, location_pb2, run_pb2
from penstock.wire.run import decode_assignment, encode_report
from penstock.wire.spaces import encode_environment
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import PLAN, SCHEMA
from tests.support.segments.spaces import ALL_SPECS, masked
from tests.support.segments.statistics import counted_batch, learnt
from tests.support.services.servers import (
    SPEC,
    LiveServer,
    Loopback,
    PlainStream,
    hello_request,
    sample,
    until,
)

Code = grpc.StatusCode
LARGE = np.random.default_rng(2).bytes(9_000_000)
"""Weights of three chunks, more than gRPC buffers for a slow reader."""


def join(loopback: Loopback, server: LiveServer, token: bytes = b"") -> tuple[PlainStream, run_pb2.Assignment]:
    """Joins a run as a plain client."""
    stream = loopback.plain(server, methods.JOIN)
    stream.send(hello_request(token))
    return stream, stream.receive().assignment


def assigned(membership: Membership) -> Assignment:
    """Waits for the assignment."""
    return until(lambda: membership.assignment(0.5), "an assignment")


def receive_weights(stream: PlainStream) -> Weights:
    """Returns the next weights, assembled according to the contract."""
    data, chunk = b"", stream.receive().weights
    while True:
        assert len(chunk.data) <= 3.5 * 2**20
        assert chunk.offset == len(data)
        data += chunk.data
        if len(data) == chunk.total_bytes:
            assert hashlib.sha256(data).digest() == chunk.sha256
            return Weights(chunk.version, data, chunk.sha256)
        version, chunk = chunk.version, stream.receive().weights
        assert chunk.version == version


def report(*returns: float, env_steps: int = 10, first_step_at_s: float = 0.0) -> ActorReport:
    """Returns the report of an actor with these finished episodes."""
    episodes = tuple(Episode(value, 5, environment, False) for environment, value in enumerate(returns))
    return ActorReport(env_steps, first_step_at_s, episodes, Timing(0.1, 0.2, 0.4, 0.3))


# Places


def test_two_actors_get_different_slots_and_environments(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", seed=2**63 + 5)
    first, second = (loopback.membership(server, environments=count) for count in (2, 3))
    one, other = assigned(first), assigned(second)
    assert {one.slot, other.slot} == {0, 1}
    assert one.token != other.token
    assert (len(one.environments), len(other.environments)) == (2, 3)
    assert set(one.environments + other.environments) == set(range(5))
    assert {place.seed for place in (one, other)} == {2**63 + 5}
    assert {(place.variant, place.temperature) for place in (one, other)} == {(0, 1.0)}


def test_an_actor_that_returns_with_its_token_gets_its_former_place(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    left, assignment = join(loopback, server)
    left.close()
    until(lambda: server.roster.connected == 0, "the actor to leave")
    _, other = join(loopback, server)
    _, again = join(loopback, server, assignment.token)
    assert again == assignment
    assert other.slot != assignment.slot


def test_an_actor_that_returns_too_late_gets_a_new_place(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", rejoin_timeout_s=0.0)
    left, assignment = join(loopback, server)
    left.close()
    until(lambda: server.roster.connected == 0, "the actor to leave")
    _, again = join(loopback, server, assignment.token)
    assert again.slot == assignment.slot
    assert again.incarnation > assignment.incarnation
    assert again.token != assignment.token


def test_the_end_of_an_actors_old_stream_does_not_release_the_place_of_its_new_one(
    loopback: Loopback, tmp_path: Path
) -> None:
    server = loopback.run(tmp_path / "roster.json", rejoin_timeout_s=0.0)
    old, assignment = join(loopback, server)
    new, again = join(loopback, server, assignment.token)
    assert again == assignment
    old.leave()
    assert old.status()[0] == Code.OK
    stranger, other = join(loopback, server)
    assert other.slot != assignment.slot
    assert set(other.environments).isdisjoint(assignment.environments)
    server.servicer.publish(Weights.of(1, b"weights"))
    assert receive_weights(new) == receive_weights(stranger)


def test_a_restarted_learner_restores_the_slots_of_its_actors(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    memberships = [loopback.membership(server) for _ in range(3)]
    before = [assigned(membership) for membership in memberships]
    server.kill()
    server = loopback.run(tmp_path / "roster.json", port=server.port)
    until(lambda: server.roster.connected == 3, "all actors to return")
    assert [assigned(membership) for membership in memberships] == before
    newcomer = assigned(loopback.membership(server))
    assert newcomer.slot == 3
    assert not set(newcomer.environments) & {number for assignment in before for number in assignment.environments}


def test_incarnations_never_repeat_over_restarts(loopback: Loopback, tmp_path: Path) -> None:
    stays, streams = set(), set()
    for _ in range(3):
        server = loopback.run(tmp_path / "roster.json", rejoin_timeout_s=0.0)
        for assignment in [join(loopback, server)[1] for _ in range(2)]:
            stays.add((assignment.slot, assignment.incarnation))
            streams |= {(number, assignment.incarnation) for number in assignment.environments}
        server.kill()
    assert len(stays) == 6
    assert len(streams) == 6 * len(assignment.environments)


def test_more_actors_than_slots_are_refused_until_one_leaves(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", max_actors=1, rejoin_timeout_s=0.0)
    first, assignment = join(loopback, server)
    refused = loopback.plain(server, methods.JOIN)
    refused.send(hello_request())
    code, details = refused.status()
    assert (code, "learner.max_actors" in details) == (Code.RESOURCE_EXHAUSTED, True)
    patient = loopback.membership(server)
    assert patient.assignment(0.1) is None
    first.leave()
    assert assigned(patient).slot == assignment.slot


def test_an_actor_that_leaves_receives_no_end_of_the_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    stream, _ = join(loopback, server)
    stream.leave()
    with pytest.raises(StopIteration):
        stream.receive()
    until(lambda: server.roster.connected == 0, "the actor to leave")


# Variants and temperatures


def test_every_actor_receives_its_variant_and_its_temperature(loopback: Loopback, tmp_path: Path) -> None:
    spread = {"variants": ("g=9", "g=11"), "temperatures": (0.5, 1.25, 3.0)}
    server = loopback.run(tmp_path / "roster.json", **spread)
    members = [loopback.membership(server) for _ in range(4)]
    places = sorted((assigned(member) for member in members), key=lambda place: place.slot)
    assert [place.variant for place in places] == [0, 1, 0, 1]
    assert [place.temperature for place in places] == [0.5, 1.25, 3.0, 0.5]
    server.kill()
    server = loopback.run(tmp_path / "roster.json", port=server.port, **spread)
    until(lambda: server.roster.connected == 4, "all actors to return")
    assert sorted((assigned(member) for member in members), key=lambda place: place.slot) == places


def test_a_plain_client_receives_its_variant_and_its_temperature(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", variants=("g=9", "g=11"), temperatures=(0.5, 2.0))
    places = [join(loopback, server)[1] for _ in range(2)]
    assert [(place.variant, place.temperature) for place in places] == [(0, 0.5), (1, 2.0)]


def test_reports_of_an_actor_count_for_its_variant(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json", variants=("g=9", "g=11"))
    client = loopback.status(server.address)
    members = [loopback.membership(server) for _ in range(3)]
    variants = [assigned(member).variant for member in members]
    for member, variant in zip(members, variants, strict=True):
        member.report(report(10.0 * variant, 10.0 * variant + 1.0))
    until(lambda: client.get(PATIENCE_S).episodes == 6, "the reports")
    counts = {variant: 2 * variants.count(variant) for variant in (0, 1)}
    assert counts == {0: 4, 1: 2}
    evaluation = EvaluationSummary(1, 900, 3, 5.0, 0.5, (VariantReturns(2, 4.0, 0.0), VariantReturns(1, 7.0, 0.0, 1)))
    server.statistics.evaluated(evaluation, 0.5)
    status = client.get(PATIENCE_S)
    assert status.variants == (VariantStatus("g=9", 4, 0.5), VariantStatus("g=11", 2, 10.5, number=1))
    assert status.last_evaluation == evaluation
    assert status.return_mean == pytest.approx((4 * 0.5 + 2 * 10.5) / 6)


def test_an_assignment_without_a_temperature_uses_the_policy_unchanged() -> None:
    assert decode_assignment(run_pb2.Assignment(slot=1, environments=[0])).temperature == 1.0


@pytest.mark.parametrize("temperature", [-1.0, float("inf"), float("nan")])
def test_an_invalid_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidSegment, match="temperature"):
        decode_assignment(run_pb2.Assignment(slot=1, environments=[0], temperature=temperature))


# Refusals


@pytest.mark.parametrize(
    ("schema", "spec", "reason"),
    [
        (Schema(4, SCHEMA.columns), SPEC, "4 steps"),
        (SCHEMA, replace(SPEC, action=Tree.of(DiscreteSpace(3))), "trains Counting-v0 with action"),
        (SCHEMA, masked(SPEC), "with no action masks, and the actor offered .* masks of 2 bits"),
        (SCHEMA, replace(SPEC, id="Other-v0"), "offered Other-v0"),
    ],
)
def test_an_actor_of_another_run_is_refused(
    loopback: Loopback, tmp_path: Path, schema: Schema, spec: EnvironmentSpec, reason: str
) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    assigned(member)
    stranger = loopback.membership(server, schema=schema, spec=spec)
    with pytest.raises(SchemaMismatch, match=reason):
        stranger.assignment(PATIENCE_S)
    plain = loopback.plain(server, methods.JOIN)
    plain.send(hello_request(schema=schema, spec=spec))
    assert plain.status()[0] == Code.FAILED_PRECONDITION
    server.servicer.publish(Weights.of(1, b"weights"))
    assert until(lambda: member.at_least(1, 0.5), "weights").version == 1


def test_an_actor_joins_with_any_spaces_and_masks(loopback: Loopback, tmp_path: Path) -> None:
    spec = ALL_SPECS[-1]
    server = loopback.run(tmp_path / "roster.json")
    assigned(loopback.membership(server, spec=spec))
    assert server.roster.spec == spec
    stranger = loopback.membership(server, spec=replace(spec, mask_bits=0))
    with pytest.raises(SchemaMismatch, match="offered Example-v0 with no action masks"):
        stranger.assignment(PATIENCE_S)


def unknown_space(request: run_pb2.JoinRequest) -> run_pb2.JoinRequest:
    request.hello.environment.action.Clear()
    return request


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([run_pb2.JoinRequest(report=encode_report(report(1.0)))], "must begin with `hello`"),
        ([run_pb2.JoinRequest()], "must begin with `hello`"),
        ([b"\xff\xff\xff"], "malformed message"),
        ([hello_request(environments=0)], "1 to 4096 environments"),
        ([hello_request(environments=4097)], "1 to 4096 environments"),
        ([hello_request(schema=Schema(0, SCHEMA.columns))], "needs steps and columns"),
        ([unknown_space(hello_request())], "no known kind"),
        ([hello_request(spec=replace(SPEC, mask_bits=3))], "mask of 3 bits does not fit"),
        ([hello_request(spec=replace(SPEC, action=Tree.of(DiscreteSpace(2**32 - 1))))], "4294967295 alternatives"),
        ([hello_request(), hello_request()], "carries reports"),
        ([hello_request(), run_pb2.JoinRequest(report=encode_report(report(float("nan"))))], "not finite"),
        ([hello_request(), b"\xff\xff\xff"], "malformed message"),
    ],
)
def test_an_actors_invalid_message_is_refused_without_effect_on_another_actor(
    loopback: Loopback, tmp_path: Path, requests: list[run_pb2.JoinRequest | bytes], reason: str
) -> None:
    server = loopback.run(tmp_path / "roster.json")
    neighbour, _ = join(loopback, server)
    offender = loopback.plain(server, methods.JOIN)
    offender.send(*requests)
    code, details = offender.status()
    assert (code, reason in details) == (Code.INVALID_ARGUMENT, True), details
    neighbour.send(run_pb2.JoinRequest(report=encode_report(report(3.0))))
    until(lambda: server.statistics.status().episodes == 1, "the other actor's report")
    assert server.statistics.status().return_mean == 3.0
    assert server.roster.connected == 1


# Weights


def test_large_weights_are_sent_in_chunks_and_reassembled(loopback: Loopback, tmp_path: Path) -> None:
    server, weights = loopback.run(tmp_path / "roster.json"), Weights.of(7, LARGE)
    stream, _ = join(loopback, server)
    member = loopback.membership(server)
    server.servicer.publish(weights)
    assert receive_weights(stream) == weights
    assert until(lambda: member.at_least(7, 0.5), "weights") == weights


def test_a_new_actor_receives_only_the_latest_weights_and_each_version_once(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    for version in (3, 4, 5):
        server.servicer.publish(Weights.of(version, bytes([version])))
    stream, _ = join(loopback, server)
    assert receive_weights(stream) == Weights.of(5, b"\5")
    server.servicer.publish(Weights.of(6, b"\6"))
    assert receive_weights(stream) == Weights.of(6, b"\6")
    server.servicer.finish("total_steps", PATIENCE_S)
    assert stream.receive().WhichOneof("message") == "finished"


def test_an_actor_waits_for_the_version_it_needs_and_receives_the_newest(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    assert member.at_least(0, 0.05) is None
    server.servicer.publish(Weights.of(4, b"old"))
    assert until(lambda: member.at_least(2, 0.5), "weights").version == 4
    assert member.at_least(5, 0.05) is None
    server.servicer.publish(Weights.of(8, b"new"))
    assert until(lambda: member.at_least(5, 0.5), "weights") == Weights.of(8, b"new")


def test_a_slow_reader_skips_versions_and_delays_no_other_reader(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    slow, _ = join(loopback, server)
    quick = loopback.membership(server)
    for version in range(1, 9):
        server.servicer.publish(Weights.of(version, LARGE))
        assert until(partial(quick.at_least, version, 0.5), "weights").version == version
    versions: list[int] = []
    while not versions or versions[-1] < 8:
        versions.append(receive_weights(slow).version)
    # On a slow machine, gRPC's buffers may have taken one more version before they were full.
    assert versions in ([1, 8], [1, 2, 8])


def test_weights_that_differ_from_their_digest_are_refused(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    server.servicer.publish(Weights(3, b"weights", hashlib.sha256(b"other weights").digest()))
    with pytest.raises(InvalidSegment, match="the SHA-256 of the weights of version 3 differs"):
        member.at_least(1, PATIENCE_S)


def test_a_restarted_learner_sends_its_weights_again(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    server.servicer.publish(Weights.of(4, LARGE))
    until(lambda: member.at_least(4, 0.5), "weights")
    server.kill()
    server = loopback.run(tmp_path / "roster.json", port=server.port)
    server.servicer.publish(Weights.of(104, LARGE))
    assert until(lambda: member.at_least(5, 0.5), "weights").version == 104


# The end


def test_finish_ends_every_stream_with_its_reason(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    members = [loopback.membership(server) for _ in range(2)]
    for member in members:
        assigned(member)
    stream, _ = join(loopback, server)
    server.servicer.finish("total_steps", PATIENCE_S)
    assert stream.receive().finished.reason == "total_steps"
    assert stream.status()[0] == Code.OK
    waits: list[Callable[[Membership], object]] = [
        lambda member: member.at_least(1, PATIENCE_S),
        lambda member: member.assignment(PATIENCE_S),
    ]
    for member in members:
        for wait in waits:
            with pytest.raises(RunFinished, match="total_steps"):
                wait(member)
    with pytest.raises(RunFinished, match="total_steps"):
        loopback.membership(server).at_least(1, PATIENCE_S)
    until(lambda: server.roster.connected == 0, "all actors to leave")


def test_an_actor_that_is_receiving_weights_receives_the_end_of_the_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    stream, _ = join(loopback, server)
    server.servicer.publish(Weights.of(1, LARGE * 3))
    assert stream.receive().weights.version == 1
    server.servicer.finish("threshold", 0.1)
    while (response := stream.receive()).WhichOneof("message") == "weights":
        pass
    assert response.finished.reason == "threshold"
    assert stream.status()[0] == Code.OK


def test_an_actor_that_joins_again_gets_a_new_place(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    first = assigned(member)
    member.join_again()
    second = assigned(member)
    assert second.token != first.token
    assert (second.slot, second.incarnation) != (first.slot, first.incarnation)
    until(lambda: server.roster.connected == 1, "the place to expire")
    server.servicer.publish(Weights(3, b"weights", hashlib.sha256(b"weights").digest()))
    weights = member.at_least(3, PATIENCE_S)
    assert weights is not None and weights.version == 3


def test_an_actor_that_closes_its_membership_releases_its_place(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    assigned(member)
    member.close()
    until(lambda: server.roster.connected == 0, "the actor to leave")
    with pytest.raises(PenstockError, match="closed"):
        member.at_least(0, PATIENCE_S)


# Locations


def test_the_status_and_the_list_for_prometheus_say_where_actors_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client = loopback.status(server.address)
    places = [Location("node2", "17_1", "node2:40001"), Location("node2", "17_2", "node2:40002"), Location("node3")]
    for place in places:
        assigned(loopback.membership(server, location=place))
    older = loopback.plain(server, methods.JOIN)
    older.send(hello_request())
    older.receive()
    until(lambda: server.roster.connected == 4, "all actors")
    status = client.get(PATIENCE_S)
    assert [(state.node, state.job) for state in status.actor_states] == [
        ("node2", "17_1"),
        ("node2", "17_2"),
        ("node3", ""),
        ("", ""),
    ]
    assert [(node.name, node.actors) for node in status.nodes] == [("", 1), ("node2", 2), ("node3", 1)]
    listed = [(group["targets"], group["labels"]) for group in server.targets.content()]
    assert listed[:2] == [
        (["127.0.0.1:40001"], {"job": "actor", "node": "node2", "slot": "0"}),
        (["127.0.0.1:40002"], {"job": "actor", "node": "node2", "slot": "1"}),
    ]
    assert [labels["job"] for _, labels in listed[2:]] == ["learner"]


def test_an_actor_that_has_left_is_not_listed_for_prometheus(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    members = [loopback.membership(server, location=Location("node2", "", f"node2:{port}")) for port in (41, 42)]
    for member in members:
        assigned(member)
    assert len(server.targets.content()) == 3
    members[0].close()
    until(
        lambda: [group["targets"] for group in server.targets.content()] == [["127.0.0.1:42"], ["10.0.0.1:9432"]], "it"
    )


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        (location_pb2.Location(node="node 1"), "the name of a node"),
        (location_pb2.Location(node="n" * 3_000_000), "the name of a node"),
        (location_pb2.Location(job="\x1b[2J"), "the name of a job"),
        (location_pb2.Location(metrics_address="node1:9433/-/quit"), "the address of metrics"),
        (location_pb2.Location(metrics_address="9" * 3_000_000), "the address of metrics"),
    ],
)
def test_a_location_that_no_service_has_is_refused_and_changes_nothing(
    location: location_pb2.Location, reason: str, loopback: Loopback, tmp_path: Path
) -> None:
    server = loopback.run(tmp_path / "roster.json")
    actor, evaluator = hello_request(), evaluation_pb2.RunEvaluationsRequest()
    actor.hello.location.CopyFrom(location)
    evaluator.hello.environment.CopyFrom(encode_environment(SPEC))
    evaluator.hello.location.CopyFrom(location)
    for method, request in ((methods.JOIN, actor), (methods.RUN_EVALUATIONS, evaluator)):
        stream = loopback.plain(server, method)
        stream.send(request)
        code, details = stream.status()
        assert (code, reason in details, len(details) < 300) == (Code.INVALID_ARGUMENT, True, True)
    assert (server.roster.connected, server.roster.schema, len(server.targets.content())) == (0, None, 1)


# Reports and status


def test_reports_of_actors_reach_the_status_of_the_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client = loopback.status(server.address)
    before = client.get(PATIENCE_S)
    assert (before.phase, before.episodes, before.return_mean, before.actors) == ("waiting", 0, None, 0)
    assert (before.last_evaluation, before.remaining_s, before.limit) == (None, None, RunLimit("steps", 0, 1000))
    members = [loopback.membership(server) for _ in range(2)]
    members[0].report(report(1.0, 2.0))
    members[1].report(report(6.0))
    until(lambda: client.get(PATIENCE_S).episodes == 3, "the reports")
    evaluation = EvaluationSummary(version=9, env_steps=900, episodes=20, return_mean=-1.5, return_std=0.5)
    server.statistics.evaluated(evaluation, 0.5)
    server.statistics.best_evaluation = evaluation
    after = client.get(PATIENCE_S)
    assert (after.return_mean, after.actors) == (3.0, 2)
    assert after.last_evaluation == after.best_evaluation == evaluation
    assert after.elapsed_s > before.elapsed_s
    assert before.coordinator is None and after.coordinator is None


def test_every_statistic_of_the_coordinator_reaches_the_status_of_the_run(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    client, statistics = loopback.status(server.address), server.statistics
    statistics.session.set_plan(PLAN)
    begun = client.get(PATIENCE_S).coordinator
    # Unknown values are absent in the message, and not 0.
    assert begun == CoordinatorStatistics("asynchronous", PLAN.off_policy_degree, PLAN.alpha)
    loopback.membership(server).report(report(1.0, env_steps=10))
    until(lambda: client.get(PATIENCE_S).episodes == 1, "the report")
    statistics.session.waited(WaitReason(Awaited.FRESH_SEGMENTS), 0.25)
    counts = StoreCounts(capacity=100, inserted=6, unseen=4, leased=2, refused=3, refunded=5)
    for late in (0, 8):
        batch = counted_batch(replace(counts, late=late))
        training = learnt(entropy=None)
        statistics.trained(
            batch, training, version=1, extent=Extent(steps=20, updates=1), samples_per_insert=2.0, train_s=0.5
        )
    statistics.session.committed(CommitOutcome(1, 9))
    statistics.session.called_back(0.25)
    statistics.evaluated(EvaluationSummary(9, 900, 20, -1.5, 0.5), 2.0)
    coordinator = client.get(PATIENCE_S).coordinator
    assert coordinator is not None and coordinator == statistics.session.statistics()
    found, episode = Returns(20, -1.5, 0.5), Returns(1, 1.0, 0.0)
    assert replace(coordinator, waits=()) == CoordinatorStatistics(
        mode="asynchronous",
        off_policy_degree=PLAN.off_policy_degree,
        alpha=PLAN.alpha,
        segments_collected=6,
        batches_collected=3.0,
        segments_trained=8,
        batches_trained=2,
        evaluations=1,
        lag=Ages(1.0, 1.0, 2),
        staleness=Ages(3.0, 3.0, 7),
        times=MeanTimes(0.1, 0.2, 0.4, 0.3, 0.125, 0.5, 2.0, 0.125),
        drops=Drops(8, 3, 5, 9),
        last=LearningNumbers(0.8, 0.9, 0.1, 0.01, None, 0.4, 0.5, 0.12, 0.1, 0.2, 0.3),
        recent=LearningNumbers(0.8, 0.9, 0.1, 0.01, None, 0.4, 0.5, 0.12, 0.1, 0.2, 0.3),
        recent_batches=2,
        replayed=Replayed(0.0, 0.0, None),
        curve=Curve(points=(CurvePoint(900, found, training=episode),), best=found, worst=found, low=1.0, high=1.0),
    )
    assert [(wait.reason, wait.seconds) for wait in coordinator.waits] == [(WaitReason(Awaited.FRESH_SEGMENTS), 0.25)]


def test_reports_wait_for_an_absent_learner_and_the_oldest_are_dropped(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    assigned(member)
    breaks = sample("penstock_reconnections_total", peer="learner")
    server.kill()
    until(lambda: sample("penstock_reconnections_total", peer="learner") > breaks, "the actor to notice")
    for value in range(100):
        member.report(report(float(value)))
    server = loopback.run(tmp_path / "roster.json", port=server.port)
    until(lambda: server.statistics.status().episodes == 64, "the reports")
    assert server.statistics.status().return_mean == np.mean(range(36, 100))


def test_training_time_begins_with_the_first_step_of_this_learners_session(loopback: Loopback, tmp_path: Path) -> None:
    begun = time.monotonic()
    server = loopback.run(tmp_path / "roster.json")
    member = loopback.membership(server)
    assert server.statistics.training_s == 0.0
    # The actor has outlived an earlier learner, whose seconds are already counted.
    member.report(report(1.0, first_step_at_s=time.time() - 3600.0))
    until(lambda: server.statistics.training_s > 0.0, "the report")
    # On the clock of this process, which the server shares, and not on the actor's.
    assert server.statistics.training_s <= time.monotonic() - begun
