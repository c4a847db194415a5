"""The same attacks on services with certificates: by strangers, and by an actor with its own certificate."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from penstock.rpc import methods
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import SERVERS, Role
from penstock.types.evaluation import EvaluationTask
from tests.contract.attacks import ATTACKS, EVALUATOR, TASK, Code, Target
from tests.support.services.certificates import certificates_of
from tests.support.services.servers import SPEC, Loopback, PlainClient, hello_request
from tests.support.training.policies import fresh_weights


def presenting(own: Files, trusting: Files) -> PlainClient:
    """Returns a client with this certificate, which trusts the authority of another."""
    trusted, key, certificate = (path.read_bytes() for path in (trusting.authority, own.key, own.certificate))
    return PlainClient(grpc.ssl_channel_credentials(trusted, key, certificate))


class Certified:
    """A target with certificates, and clients that attack it."""

    def __init__(self, folder: Path, learner: Loopback, actor: Loopback, files: dict[Role, Files]) -> None:
        credentials = {role: Credentials(files[role], role) for role in SERVERS}
        self.target = Target(folder, learner, actor, credentials)
        strangers = certificates_of(folder / "strangers")
        self.clients = {
            "in plain text": PlainClient(),
            "TLS without a certificate": PlainClient(
                grpc.ssl_channel_credentials(files["actor"].authority.read_bytes())
            ),
            "a learner of another authority": presenting(strangers["learner"], files["actor"]),
            "an actor": presenting(files["actor"], files["actor"]),
        }


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    folder = tmp_path_factory.mktemp("run")
    files = certificates_of(folder / "certificates")
    learner, actor = (Loopback(Credentials(files[role], role)) for role in ("learner", "actor"))
    with learner, actor:
        certified = Certified(folder, learner, actor, files)
        yield certified
        certified.target.end()


@pytest.mark.parametrize("client", ["in plain text", "TLS without a certificate", "a learner of another authority"])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_stranger_gets_no_connection(certified: Certified, name: str, client: str) -> None:
    target, target.client = certified.target, certified.clients[client]
    code, details = ATTACKS[name].make(target)
    assert code is Code.UNAVAILABLE, (code, details)
    target.assert_sound()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_actor_can_not_act_as_another_role_and_is_refused_in_its_own(certified: Certified, name: str) -> None:
    target, target.client = certified.target, certified.clients["an actor"]
    attack = ATTACKS[name]
    code, details = attack.make(target)
    expected = (
        (attack.code, attack.reason)
        if attack.role == "actor"
        else (Code.PERMISSION_DENIED, "the certificate of the actor of run")
    )
    assert (code, expected[1] in details) == (expected[0], True), (code, details)
    target.assert_sound()


@pytest.mark.parametrize("client", ["in plain text", "a learner of another authority", "an actor"])
def test_a_forged_evaluation_is_prevented(certified: Certified, client: str) -> None:
    target, target.client = certified.target, certified.clients[client]
    weights = replace(fresh_weights(SPEC), version=TASK)
    target.run.servicer.ask(EvaluationTask(TASK + 1, weights, 2, deterministic=True, seed=1))
    stream = target.open(target.run, methods.RUN_EVALUATIONS)
    stream.send(EVALUATOR)
    code, _ = stream.status()
    assert code is (Code.PERMISSION_DENIED if client == "an actor" else Code.UNAVAILABLE)
    target.assert_sound()


@pytest.mark.parametrize("client", ["in plain text", "a learner of another authority"])
def test_a_stranger_gets_neither_a_place_nor_weights(certified: Certified, client: str) -> None:
    target, target.client = certified.target, certified.clients[client]
    stream = target.open(target.run, methods.JOIN)
    stream.send(hello_request())
    with pytest.raises(grpc.RpcError) as caught:
        stream.receive()
    assert caught.value.code() is Code.UNAVAILABLE
    target.assert_sound()
