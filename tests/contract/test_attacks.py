"""Each attack of a client without certificates on services without certificates, and what comes of it.

`stress.attacks` measures the pace of healthy clients during attacks.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.rpc import methods
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.v1 import evaluation_pb2
from penstock.wire.run import encode_result
from tests.contract.attacks import ATTACKS, EVALUATOR, TASK, Code, Target
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.servers import SPEC, Loopback, hello_request, open_request
from tests.support.training.policies import fresh_weights


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Loopback() as loopback:
        target = Target(tmp_path_factory.mktemp("run"), loopback, loopback)
        yield target
        target.end()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_and_changes_nothing(target: Target, name: str) -> None:
    attack = ATTACKS[name]
    code, details = attack.make(target)
    assert (code, attack.reason in details) == (attack.code, True), (code, details)
    target.assert_sound()


def test_silent_clients_without_a_place_hold_no_grants(target: Target) -> None:
    streams = [target.open(target.replay, methods.APPEND_SEGMENTS) for _ in range(20)]
    for slot, stream in enumerate(streams):
        stream.send(open_request(100 + slot, run=target.identity.number))
    target.assert_sound()
    assert [stream.status()[0] for stream in streams] == [Code.FAILED_PRECONDITION] * len(streams)


def test_what_only_certificates_prevent(target: Target) -> None:
    """A stranger that imitates an evaluator or an actor is one: it can report plausible returns, and has a place."""
    weights = replace(fresh_weights(SPEC), version=TASK)
    target.run.servicer.ask(EvaluationTask(TASK + 1, weights, 2, deterministic=True, seed=1))
    stream = target.open(target.run, methods.RUN_EVALUATIONS)
    stream.send(EVALUATOR)
    while stream.receive().WhichOneof("message") != "weights":
        pass
    forged = EvaluationResult(TASK + 1, TASK, (1e9, 1e9), (1, 1), 0.0)
    stream.send(evaluation_pb2.RunEvaluationsRequest(result=encode_result(forged)))
    assert target.run.servicer.result(PATIENCE_S) == forged
    actor = target.open(target.run, methods.JOIN)
    actor.send(hello_request())
    assert actor.receive().assignment.replay_token
    target.assert_sound()
