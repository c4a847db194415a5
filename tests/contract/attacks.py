"""Attacks on a real learner and a real replay service, which a healthy actor and a healthy learner use.

A client may know what every peer knows: the addresses, the spaces, the schema and the identity of the run. An insider
also has a place as an actor, and so its token.
"""

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.rpc import methods
from penstock.rpc.direct_socket import MAX_MESSAGE_BYTES
from penstock.rpc.service import Method
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.run import Assignment, RunIdentity
from penstock.types.spaces import DiscreteSpace, Tree
from penstock.v1 import evaluation_pb2, replay_pb2, run_pb2
from penstock.wire.run import encode_result
from penstock.wire.spaces import encode_environment
from penstock.wire.windows import encode_window
from tests.support.segments.segments import make_window
from tests.support.services.servers import (
    SPEC,
    Actor,
    LiveReplay,
    LiveRun,
    Loopback,
    PlainClient,
    PlainStream,
    Recorder,
    Trainer,
    hello_request,
    open_request,
    plan_request,
    plan_with,
    proved,
    until,
    window_request,
)
from tests.support.training.policies import fresh_weights

Code = grpc.StatusCode
OWN_KEY = bytes(range(32))
TASK = 77
SLOT = 3
EVALUATOR = evaluation_pb2.RunEvaluationsRequest(
    hello=evaluation_pb2.EvaluatorHello(environment=encode_environment(SPEC))
)


Issued = Mapping[Role, Credentials]


class Target:
    """A learner's services and a replay service, which a healthy actor and learner use, and an insider's assignment."""

    def __init__(self, folder: Path, learner: Loopback, actor: Loopback, credentials: Issued | None = None) -> None:
        """Starts the services, with certificates if there are any, and the healthy clients.

        Attacks come in plain text, until `client` is set.
        """
        self.loopback, self.client = learner, None if credentials is None else PlainClient()
        self.run: LiveRun = learner.run(
            folder / "roster.json", max_actors=64, credentials=credentials and credentials["learner"]
        )
        self.replay: LiveReplay = learner.replay(
            folder=folder / "store",
            snapshots=folder / "snapshots",
            version_patience_s=0.5,
            credentials=credentials and credentials["replay"],
        )
        self.identity: RunIdentity = self.run.roster.identity
        self.plan = plan_with(
            batch_segments=4,
            fresh_segments=4,
            off_policy_degree=4,
            run=self.identity.number,
            actor_key=self.identity.actor_key,
            largest_magnitude=1e15,
        )
        recorder = Recorder()
        self._trainer = Trainer(learner.source(self.replay, self.plan, key=self.identity.key), recorder, self.plan)
        self._member = actor.membership(self.run)
        place: Assignment = until(lambda: self._member.assignment(0.1), "an assignment")
        sink = actor.sink(place.slot, self.replay, incarnation=place.incarnation, identity=self.identity)
        self._actor = Actor(sink, recorder, lambda: self._trainer.published, slot=place.slot)
        self.assert_sound()

    @property
    def version(self) -> int:
        return self._trainer.version

    def assert_sound(self) -> None:
        """Trains on two batches, whose content and versions are verified, and fails unless the run is as it was."""
        before = self._trainer.version
        for _ in self._trainer.train(2):
            pass
        assert self.loopback.replay_status(self.replay).version == before + 2
        assert self.run.roster.spec == SPEC
        assert self._actor.error is None

    def end(self) -> None:
        self._actor.end()

    def answer(self, server: LiveRun | LiveReplay, method: Method, *requests: Message | bytes) -> tuple[Code, str]:
        """Returns the status of a call with these requests."""
        if not method.request_stream:
            code, details = self.loopback.plain_call(server, method, requests[0], self.client)
            return code, str(details)
        stream = self.open(server, method)
        stream.send(*requests)
        stream.leave()
        return self._status_of(stream)

    def prove(self, method: Method, request: Message, key: bytes) -> tuple[Code, str]:
        """Returns the status of a stream of the replay service that opens with the proof of this key."""
        stream = self.open(self.replay, method)
        with suppress(grpc.RpcError, KeyError):
            # Refused clients get no challenge.
            request = proved(method, request, key, stream.challenge)
        stream.send(request)
        stream.leave()
        return self._status_of(stream)

    def open(self, server: LiveRun | LiveReplay, method: Method) -> PlainStream:
        """Opens a stream of the attacker."""
        return self.loopback.plain(server, method, client=self.client)

    def _status_of(self, stream: PlainStream) -> tuple[Code, str]:
        """Returns the final status of a stream. Trains until then, because a window waits for room in the gate."""
        found: list[tuple[Code, str]] = []
        waiting = threading.Thread(target=lambda: found.append(stream.status()), name="attack")
        waiting.start()
        while waiting.is_alive():
            for _ in self._trainer.train(1):
                waiting.join(0.01)
        return found[0]

    def append(self, *requests: Message | bytes, token: bytes | None = None, **opening: int) -> tuple[Code, str]:
        """Opens a stream of windows, with the insider's token by default, and sends these requests."""
        slot, incarnation = opening.pop("slot", SLOT), opening.pop("incarnation", 1)
        known = self.identity.token(slot, incarnation) if token is None else token
        first = open_request(slot, incarnation=incarnation, run=opening.pop("run", self.identity.number), token=known)
        return self.answer(self.replay, methods.APPEND_SEGMENTS, first, *requests)

    def evaluate(self, result: EvaluationResult) -> tuple[Code, str]:
        """Answers a task of the learner with this result, as an evaluator that was sent it."""
        weights = replace(fresh_weights(SPEC), version=TASK)
        self.run.servicer.ask(EvaluationTask(TASK, weights, 2, deterministic=True, seed=1, max_episode_steps=500))
        stream = self.open(self.run, methods.RUN_EVALUATIONS)
        stream.send(EVALUATOR)
        with suppress(grpc.RpcError):
            # Refused clients get no task; their status says why.
            while stream.receive().WhichOneof("message") != "weights":
                pass
        stream.send(evaluation_pb2.RunEvaluationsRequest(result=encode_result(result)))
        stream.leave()
        status = stream.status()
        assert self.run.servicer.result(0.05) is None
        return status


@dataclass(frozen=True)
class Attack:
    """An attack, and the status and a part of the message that answer it where nothing else does.

    `role` is the one that needs to be imitated for it.
    """

    role: Role
    make: Callable[[Target], tuple[Code, str]]
    code: Code
    reason: str


def plan_of(target: Target, **changes: Any) -> replay_pb2.SampleBatchesRequest:
    return plan_request(replace(target.plan, session=12345, **changes))


def result(*returns: float, steps: tuple[int, ...] = (3, 4), version: int = TASK) -> EvaluationResult:
    return EvaluationResult(TASK, version, returns, steps, seconds=0.1)


def window(target: Target, ahead: int = 0, value: float | None = None) -> replay_pb2.AppendSegmentsRequest:
    """Returns an insider's window of a version this far ahead of the learner's, with this value in its observations."""
    made = make_window(slot=SLOT, version=target.version + ahead)
    if value is not None:
        made.columns.column("observation")[0].flat[0] = value
    (data,) = encode_window(made)
    return replay_pb2.AppendSegmentsRequest.FromString(data)


def joined_with(report: run_pb2.ActorReport) -> Callable[[Target], tuple[Code, str]]:
    return lambda target: target.answer(target.run, methods.JOIN, hello_request(), run_pb2.JoinRequest(report=report))


def snapshot_named(name: str) -> Callable[[Target], tuple[Code, str]]:
    return lambda target: target.answer(target.replay, methods.TAKE_SNAPSHOT, snapshot(name))


def snapshot(name: str) -> replay_pb2.TakeSnapshotRequest:
    return replay_pb2.TakeSnapshotRequest(open=replay_pb2.OpenSnapshot(name=name))


HUGE, OTHER = (replace(SPEC, action=Tree.of(DiscreteSpace(choices))) for choices in (2**31 - 1, 3))
ATTACKS: dict[str, Attack] = {
    # Evaluations
    "an evaluation whose mean overflows": Attack(
        "evaluator", lambda target: target.evaluate(result(1e308, 1.7e308)), Code.INVALID_ARGUMENT, "at most 1e+100"
    ),
    "an evaluation with NaN": Attack(
        "evaluator", lambda target: target.evaluate(result(math.nan, 1.0)), Code.INVALID_ARGUMENT, "a return of nan"
    ),
    "an evaluation of one good episode": Attack(
        "evaluator",
        lambda target: target.evaluate(result(1e9, steps=(3,))),
        Code.INVALID_ARGUMENT,
        "2 episodes were requested",
    ),
    "an evaluation of another version": Attack(
        "evaluator",
        lambda target: target.evaluate(result(1e9, 1e9, version=1)),
        Code.INVALID_ARGUMENT,
        "its result has version 1",
    ),
    "an evaluation without steps": Attack(
        "evaluator",
        lambda target: target.evaluate(result(1e9, 1e9, steps=(0, 0))),
        Code.INVALID_ARGUMENT,
        "from 1 to 500",
    ),
    "an evaluator of another run": Attack(
        "evaluator",
        lambda target: target.answer(
            target.run,
            methods.RUN_EVALUATIONS,
            evaluation_pb2.RunEvaluationsRequest(
                hello=evaluation_pb2.EvaluatorHello(environment=encode_environment(SPEC), run=1)
            ),
        ),
        Code.FAILED_PRECONDITION,
        "belongs to run 0000000000000001",
    ),
    # Plans
    "a plan of the far future": Attack(
        "learner",
        lambda target: target.answer(target.replay, methods.SAMPLE_BATCHES, plan_of(target, next_batch=10**15)),
        Code.PERMISSION_DENIED,
        "came without one",
    ),
    "a plan with the proof of another key": Attack(
        "learner",
        lambda target: target.prove(methods.SAMPLE_BATCHES, plan_of(target, next_batch=10**15), OWN_KEY),
        Code.PERMISSION_DENIED,
        "with a proof of another key",
    ),
    "a plan with the proof of an earlier stream": Attack(
        "learner",
        lambda target: target.answer(
            target.replay,
            methods.SAMPLE_BATCHES,
            proved(methods.SAMPLE_BATCHES, plan_of(target), target.identity.key, bytes(32)),
        ),
        Code.PERMISSION_DENIED,
        "not a signature of this call",
    ),
    "a plan of the next version": Attack(
        "learner",
        lambda target: target.answer(
            target.replay, methods.SAMPLE_BATCHES, plan_of(target, next_batch=target.version + 1)
        ),
        Code.PERMISSION_DENIED,
        "came without one",
    ),
    "a plan of another run": Attack(
        "learner",
        lambda target: target.answer(target.replay, methods.SAMPLE_BATCHES, plan_of(target, run=1)),
        Code.FAILED_PRECONDITION,
        "and the learner to run 0000000000000001",
    ),
    "a plan without a run": Attack(
        "learner",
        lambda target: target.answer(target.replay, methods.SAMPLE_BATCHES, plan_of(target, run=0)),
        Code.FAILED_PRECONDITION,
        "and the learner to a run without an identity",
    ),
    "a commit of another session": Attack(
        "learner",
        lambda target: target.answer(
            target.replay, methods.COMMIT_BATCH, replay_pb2.CommitBatchRequest(session=1, batch=target.version)
        ),
        Code.PERMISSION_DENIED,
        "CommitBatch needs a proof",
    ),
    "the end of the run": Attack(
        "learner",
        lambda target: target.answer(target.replay, methods.FINISH_RUN, replay_pb2.FinishRunRequest(session=1)),
        Code.PERMISSION_DENIED,
        "FinishRun needs a proof",
    ),
    # Windows of a client without a place
    "a stream without a token": Attack(
        "actor", lambda target: target.append(token=b""), Code.FAILED_PRECONDITION, "does not belong to its assignment"
    ),
    "the token of another slot": Attack(
        "actor",
        lambda target: target.append(token=target.identity.token(SLOT + 1, 1)),
        Code.FAILED_PRECONDITION,
        "does not belong to its assignment",
    ),
    "a guessed token": Attack(
        "actor",
        lambda target: target.append(token=b"\x01" * 32),
        Code.FAILED_PRECONDITION,
        "does not belong to its assignment",
    ),
    "the place of the healthy actor": Attack(
        "actor",
        lambda target: target.append(slot=0, incarnation=2, token=target.identity.token(0, 1)),
        Code.FAILED_PRECONDITION,
        "does not belong to its assignment",
    ),
    "a stream of another run": Attack(
        "actor", lambda target: target.append(run=1), Code.FAILED_PRECONDITION, "to run 0000000000000001"
    ),
    # Windows of an insider
    "the largest incarnation": Attack(
        "actor",
        lambda target: target.append(incarnation=2**32 - 1),
        Code.INVALID_ARGUMENT,
        "announced incarnation 4294967295",
    ),
    "a version of the far future": Attack(
        "actor",
        lambda target: target.append(window(target, ahead=10**15)),
        Code.INVALID_ARGUMENT,
        "is the newest that the learner can have published",
    ),
    "a version that is not published yet": Attack(
        "actor",
        lambda target: target.append(window(target, ahead=990)),
        Code.INVALID_ARGUMENT,
        "is the newest that the learner can have published",
    ),
    "an absurd number": Attack(
        "actor", lambda target: target.append(window(target, value=3e38)), Code.INVALID_ARGUMENT, "of magnitude 3e+38"
    ),
    "infinity": Attack(
        "actor", lambda target: target.append(window(target, value=math.inf)), Code.INVALID_ARGUMENT, "not finite"
    ),
    "a window before its first": Attack(
        "actor",
        lambda target: target.append(window_request(0, slot=SLOT)),
        Code.INVALID_ARGUMENT,
        "sequences start at 1",
    ),
    # Membership
    "an actor of another run": Attack(
        "actor",
        lambda target: target.answer(target.run, methods.JOIN, hello_request(run=1)),
        Code.FAILED_PRECONDITION,
        "belongs to run 0000000000000001",
    ),
    "spaces that would need all memory": Attack(
        "actor",
        lambda target: target.answer(target.run, methods.JOIN, hello_request(spec=HUGE)),
        Code.INVALID_ARGUMENT,
        "the maximum is 4194304",
    ),
    "other spaces than the run's": Attack(
        "actor",
        lambda target: target.answer(target.run, methods.JOIN, hello_request(spec=OTHER)),
        Code.FAILED_PRECONDITION,
        "start actors with the run's configuration",
    ),
    "a window of 5,000 environments": Attack(
        "actor",
        lambda target: target.answer(target.run, methods.JOIN, hello_request(environments=5_000)),
        Code.INVALID_ARGUMENT,
        "1 to 4096 environments",
    ),
    "a report of absurd steps": Attack(
        "actor", joined_with(run_pb2.ActorReport(env_steps=2**63)), Code.INVALID_ARGUMENT, "the maximum is"
    ),
    "a report of negative seconds": Attack(
        "actor", joined_with(run_pb2.ActorReport(waiting_s=-1e300)), Code.INVALID_ARGUMENT, "waiting_s -1e+300"
    ),
    "a report of absurd returns": Attack(
        "actor",
        joined_with(run_pb2.ActorReport(episodes=[run_pb2.Episode(episode_return=1e308)])),
        Code.INVALID_ARGUMENT,
        "an episode return of 1e+308",
    ),
    # Files and messages
    "a snapshot": Attack("learner", snapshot_named("evil"), Code.PERMISSION_DENIED, "TakeSnapshot needs a proof"),
    "a snapshot outside of its folder": Attack(
        "learner",
        lambda target: target.prove(methods.TAKE_SNAPSHOT, snapshot("../evil"), target.identity.key),
        Code.INVALID_ARGUMENT,
        "../evil",
    ),
    "garbage": Attack(
        "actor",
        lambda target: target.answer(target.replay, methods.APPEND_SEGMENTS, b"\xff" * 100),
        Code.INVALID_ARGUMENT,
        "malformed message",
    ),
    "a message of 5 MiB": Attack(
        "actor",
        lambda target: target.answer(target.run, methods.JOIN, bytes(MAX_MESSAGE_BYTES + 2**20)),
        Code.RESOURCE_EXHAUSTED,
        "larger than max",
    ),
}
