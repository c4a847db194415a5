"""Services with certificates: segments and batches over mutual TLS, renewal under load, and failed connections."""

import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc.aio import Metadata

from penstock.errors import ConfigurationError, Unavailable
from penstock.machine.addresses import LOOPBACK
from penstock.rpc import methods
from penstock.rpc.clients.connection import Connection
from penstock.rpc.errors import from_rpc
from penstock.rpc.health import is_serving
from penstock.security.authority import issue
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Identity, Role
from penstock.telemetry import metrics
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.certificates import RUN, Foreign, Pair, authority, certificates_of, write
from tests.support.services.servers import LiveMethods, LiveServer, Loopback, pass_windows, plan_with, until

PLAN = plan_with(batch_segments=2, fresh_segments=2)


class Certified:
    """A run with certificates in a folder, of which each role has its own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.files = certificates_of(folder, **options)

    def __getitem__(self, role: Role) -> Credentials:
        return Credentials(self.files[role], role)

    def renew(self, days: int = 90) -> None:
        """Replaces all certificates."""
        issue(self.folder, RUN, days=days, hosts={}, now=time.time(), renew=True)


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    """A run with certificates."""
    return Certified(tmp_path / "certificates")


def serial(credentials: Credentials) -> int:
    return x509.load_pem_x509_certificate(credentials.current.certificate_pem).serial_number


def presented(server: LiveServer, client: Files) -> int:
    """Returns the serial number of the certificate that a server presents to a new client."""
    context = ssl.create_default_context(cafile=client.authority)
    context.load_cert_chain(client.certificate, client.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((LOOPBACK, server.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=f"replay.{RUN}.penstock") as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


@pytest.mark.parametrize("mapped", [False, True], ids=["in messages", "mapped"])
def test_segments_and_batches_pass_unchanged(certified: Certified, tmp_path: Path, *, mapped: bool) -> None:
    with Loopback(certified["learner"]) as learner, Loopback(certified["actor"]) as actor:
        server = learner.replay(credentials=certified["replay"], folder=tmp_path / "store" if mapped else None)
        source = learner.source(server, PLAN)
        pass_windows(actor.sink(0, server), source, 5)
        assert source.reads == ("mapped store" if mapped else "messages")


def test_unix_sockets_take_certificates_too(certified: Certified, tmp_path: Path) -> None:
    with Loopback(certified["learner"]) as learner, Loopback(certified["actor"]) as actor:
        server = learner.replay(credentials=certified["replay"], path=str(tmp_path / "replay.sock"))
        pass_windows(actor.sink(0, server), learner.source(server, PLAN), 2)


def test_a_client_without_a_certificate_is_refused_at_a_unix_socket(certified: Certified, tmp_path: Path) -> None:
    with Loopback(certified["learner"]) as learner, Loopback() as stranger:
        server = learner.replay(credentials=certified["replay"], path=str(tmp_path / "replay.sock"))
        with pytest.raises(Unavailable, match=re.escape(PLAIN)):
            stranger.snapshots(server).complete()
        assert learner.replay_status(server).actors == 0


def test_certificates_are_renewed_while_segments_pass(certified: Certified) -> None:
    roles: tuple[Role, ...] = ("replay", "learner", "actor")
    own = {role: certified[role] for role in roles}
    reconnections = metrics.RECONNECTIONS.labels("replay")._value
    with Loopback(own["learner"]) as learner, Loopback(own["actor"]) as actor:
        server = learner.replay(credentials=own["replay"])
        sink, source = actor.sink(0, server), learner.source(server, PLAN)
        pass_windows(sink, source, 3)
        before, broken = {role: serial(each) for role, each in own.items()}, reconnections.get()
        certified.renew()
        assert all(each.refreshed() for each in own.values())
        assert all(serial(each) != before[role] for role, each in own.items())
        # Open connections are kept, and new ones have the new certificates.
        pass_windows(sink, source, 3, first=3)
        assert reconnections.get() == broken
        assert presented(server, certified.files["operator"]) == serial(own["replay"])
        assert learner.replay_status(server).version == 6


def test_a_call_ends_with_its_clients_certificate_and_the_client_returns_with_a_new_one(certified: Certified) -> None:
    # By the server's clock, the certificates expire in a second.
    early, server_files = Certified(certified.folder)["actor"], certified.files["replay"]
    ahead = early.current.expires - time.time() - 1.0
    reconnections = metrics.RECONNECTIONS.labels("replay")._value
    own = certified["actor"]
    before = reconnections.get()
    with Loopback(own) as actor:
        server = actor.replay(credentials=Credentials(server_files, "replay", clock=lambda: time.time() + ahead))
        sink = actor.sink(0, server)
        until(lambda: reconnections.get() > before, "the end of the call")
        certified.renew(days=3650)
        assert own.refreshed()
        with Loopback(certified["learner"]) as learner:
            source = learner.source(server, PLAN)
            pass_windows(sink, source, 2)
            ended = reconnections.get()
            pass_windows(sink, source, 2, first=2)
            assert reconnections.get() == ended


def test_a_client_whose_certificate_has_expired_waits_for_a_new_one(certified: Certified) -> None:
    own = certified["learner"]
    expired = replace(own.current, expires=time.time() - 1.0)
    with Loopback(own) as learner:
        server = learner.replay(credentials=certified["replay"])
        own.current = expired
        with pytest.raises(Unavailable, match=r"certificate\.pem expired at .* penstock certificates RUN --renew"):
            learner.snapshots(server).complete()
        certified.renew()
        assert own.refreshed()
        with pytest.raises(ConfigurationError, match=r"replay\.snapshot_folder|no folder"):
            learner.snapshots(server).complete()


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ({}, None, "it ended the connection of a client without a certificate; if it uses TLS, set security.certif"),
        (None, {}, "it does not use TLS; set security.certificate there, or unset it here"),
        ({"run": "green"}, {}, "it is not signed by the authority"),
    ],
    ids=["client without", "server without", "another authority"],
)
def test_a_client_says_in_one_line_why_a_handshake_failed(
    tmp_path: Path, server: dict[str, Any] | None, client: dict[str, Any] | None, reason: str
) -> None:
    def made(name: str, role: Role, options: dict[str, Any] | None) -> Credentials | None:
        return None if options is None else Certified(tmp_path / name, **options)[role]

    with Loopback(made("client", "learner", client)) as loopback:
        live = loopback.replay(credentials=made("server", "replay", server))
        with pytest.raises(Unavailable) as caught:
            loopback.snapshots(live).complete()
    text = str(caught.value)
    assert text.startswith(f"the replay service at {live.address} can't be reached: ")
    assert reason in text.replace("its certificate is not signed", "it is not signed")
    assert "\n" not in text


STOPPED = "it accepts connections and does not answer: it is paused, hung or overloaded"
REFUSED = (
    "it ended the connection during the handshake: it refuses this client's certificate, for the reason in its log"
)
ABSENT = "it is not listening yet, or it has ended; see its log"
PLAIN = "it ended the connection of a client without a certificate; if it uses TLS, set security.certificate here"

SERVER = """
import sys
from pathlib import Path
from tests.support.services.servers import LiveMethods
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials

folder = Path(sys.argv[1])
files = Files(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
server = LiveMethods({}, credentials=Credentials(files, "replay"))
print(server.address, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("engine", [" (Endpoint closing)", " (FD Shutdown (endpoint shutdown))", ""])
def test_each_of_grpcs_descriptions_of_an_attempt_without_an_answer_are_known(engine: str) -> None:
    details = f"failed to connect to all addresses; last error: Handshake read failed{engine}"
    found = from_rpc(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details), "it")
    assert str(found).startswith(f"it can't be reached: {STOPPED}")


def test_a_client_tells_a_stopped_server_from_one_that_refuses_it_one_without_tls_and_none(tmp_path: Path) -> None:
    trusted, foreign = authority("trusted"), authority("foreign")

    def written(name: str, role: Role, issuer: Pair, *authorities: Pair) -> Files:
        own = Identity(RUN, role)
        return write(tmp_path / name, [Foreign((own.uri,), (own.server_name,)).signed_by(issuer)], *authorities)

    written("server", "replay", trusted, trusted)
    accepted = Credentials(written("accepted", "learner", trusted, trusted), "learner")
    refused = Credentials(written("refused", "learner", foreign, trusted, foreign), "learner")
    command = [sys.executable, "-c", SERVER, str(tmp_path / "server")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()

            def ask(credentials: Credentials | None) -> None:
                with Loopback(credentials) as own, closing(Connection(own.thread, "replay", address)) as connection:
                    connection.call(methods.CHECK_HEALTH, PATIENCE_S)

            def reason(credentials: Credentials | None) -> str:
                with pytest.raises(Unavailable) as caught:
                    ask(credentials)
                return str(caught.value).removeprefix(f"the replay service at {address} can't be reached: ")

            assert (reason(None), reason(refused)) == (PLAIN, REFUSED)
            server.send_signal(signal.SIGSTOP)
            assert reason(accepted).startswith(STOPPED)
            assert reason(None).startswith(STOPPED)
            server.send_signal(signal.SIGCONT)
            ask(accepted)
        finally:
            server.kill()
            server.wait(PATIENCE_S)
        assert reason(accepted) == ABSENT


@pytest.mark.parametrize("covered", [True, False])
def test_by_address_a_servers_certificate_must_cover_the_address(tmp_path: Path, *, covered: bool) -> None:
    issuer = authority()

    def made(role: Role, *names: str) -> Credentials:
        pair = Foreign((Identity(RUN, role).uri,), names).signed_by(issuer)
        return Credentials(write(tmp_path / role, [pair], issuer), role, by_address=True)

    with Loopback(made("learner")) as learner, Loopback(made("actor")) as actor:
        server = learner.replay(credentials=made("replay", LOOPBACK if covered else "replay.example.org"))
        if covered:
            pass_windows(actor.sink(0, server), learner.source(server, PLAN), 2)
            return
        with pytest.raises(Unavailable, match="its certificate is for another run, role or address"):
            learner.snapshots(server).complete()


def test_a_server_of_another_role_or_run_is_not_trusted(certified: Certified, tmp_path: Path) -> None:
    # The learner's certificate at the replay service's address.
    with Loopback(certified["learner"]) as learner:
        server = learner.replay(credentials=certified["learner"])
        with pytest.raises(Unavailable, match="its certificate is for another run, role or address"):
            learner.snapshots(server).complete()


def test_health_is_open_to_every_role_and_in_plain_text_at_an_address_of_its_own(certified: Certified) -> None:
    server = LiveMethods({}, credentials=certified["replay"], health_listen="127.0.0.1:0")
    try:
        assert is_serving(server.address, PATIENCE_S, certified["operator"], "replay")
        assert not is_serving(server.address, PATIENCE_S)
        assert is_serving(str(server.server.health_address), PATIENCE_S)
    finally:
        server.stop()
    assert not is_serving(str(server.server.health_address), PATIENCE_S)
