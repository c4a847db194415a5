"""Every method, called by every kind of caller: results/permissions.md lists what each one gets."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import structlog

from penstock.errors import PermissionDenied
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.rpc import methods
from penstock.rpc.channel import connected
from penstock.rpc.contract import stamped
from penstock.rpc.permissions import PERMISSIONS
from penstock.rpc.service import Method
from penstock.rpc.servicers.run_snapshots import RunSnapshotServicer
from penstock.rpc.servicers.variants import VariantServicer
from penstock.rpc.tls import client_credentials
from penstock.security.certificate import Files, read
from penstock.security.credentials import Credentials
from penstock.security.roles import ROLES, Identity, Role
from penstock.telemetry import metrics
from penstock.types.extents import Amounts
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.certificates import RUN, Foreign, authority, certificates_of, write
from tests.support.services.servers import Loopback, until

TABLE = Path(__file__).parents[2] / "results" / "permissions.md"
WRITE = "PENSTOCK_TEST_WRITE_PERMISSIONS"
METHODS = (*PERMISSIONS, methods.CHECK_HEALTH)
OTHER_RUN = "green"
ADMITTED, DENIED, NO_CONNECTION = "admitted", "PERMISSION_DENIED", "no connection"
HEADER = f"""# Who may call what

Each method of services with certificates of the run `{RUN}`, called with an empty request.

- *{NO_CONNECTION}*: the TLS handshake failed.
- *{ADMITTED}*: the method itself answers, with any code but {DENIED}.

The runs `{RUN}` and `{OTHER_RUN}` have one authority here, as those of a user with an authority of their own.
Runs for which `penstock certificates` has made the certificates have one each, so that a role of another run gets no
connection.

`tests/contract/test_permissions.py` makes these calls and compares the answers with this table.
With `{WRITE}=1` it writes the table.

| method | caller | expected | observed |
| --- | --- | --- | --- |
"""


class Caller(NamedTuple):
    """A kind of caller.

    Attributes:
        name: Its name in the table.
        identity: What its certificate states; None: it has none that is trusted.
        credentials: Its credentials; None: it calls in plain text.
    """

    name: str
    identity: Identity | None
    credentials: grpc.ChannelCredentials | None


class Services(NamedTuple):
    """The services of a run, each with the name in its certificate, and all kinds of callers."""

    places: dict[str, tuple[str, str]]
    callers: list[Caller]

    async def answer(self, method: Method, caller: Caller) -> str:
        """Returns what a caller gets: the name of a status code, or that there is no connection."""
        address, name = self.places[method.service if method.service in self.places else methods.REPLAY]
        options = (("grpc.enable_http_proxy", 0), ("grpc.ssl_target_name_override", name))
        channel = (
            grpc.aio.insecure_channel(address, options[:1])
            if caller.credentials is None
            else grpc.aio.secure_channel(address, caller.credentials, options)
        )
        async with channel:
            if not await connected(channel, PATIENCE_S, once=True):
                return NO_CONNECTION
            try:
                await _call(channel, method)
            except grpc.aio.AioRpcError as error:
                return error.code().name
            return grpc.StatusCode.OK.name


async def _call(channel: Any, method: Method) -> None:
    """Makes a call with an empty request, and reads the first response."""
    if method.kind == "unary":
        await channel.unary_unary(method.path)(b"", timeout=PATIENCE_S)
        return
    responses = channel.stream_stream(method.path)(iter([stamped(b"")]), timeout=PATIENCE_S)
    async for _ in responses:
        responses.cancel()
        return


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """A replay service and a learner with certificates, and every kind of caller."""
    issuer, stranger = authority(), certificates_of(tmp_path / "strangers")

    def made(run: str, role: Role) -> Files:
        identity = Identity(run, role)
        pair = Foreign((identity.uri,), (identity.server_name,)).signed_by(issuer)
        return write(tmp_path / f"{run}-{role}", [pair], issuer)

    own = {role: made(RUN, role) for role in ROLES}
    callers = [
        *(Caller(role, Identity(RUN, role), credentials_of(own[role])) for role in ROLES),
        *(
            Caller(f"{role} of run {OTHER_RUN}", Identity(OTHER_RUN, role), credentials_of(made(OTHER_RUN, role)))
            for role in ROLES
        ),
        Caller("learner of another authority", None, credentials_of(stranger["learner"], own["learner"])),
        Caller("TLS without a certificate", None, grpc.ssl_channel_credentials(own["actor"].authority.read_bytes())),
        Caller("plain text", None, None),
    ]
    learner = Credentials(own["learner"], "learner")
    with Loopback(learner) as loopback:
        replay = loopback.replay(credentials=Credentials(own["replay"], "replay"))
        statistics = RunStatistics(limits=Amounts(steps=1), earlier_s=0.0)
        snapshots = RunSnapshots(loopback.stores(replay), statistics, interval_s=0.0)
        more = RunSnapshotServicer(snapshots).behaviours | VariantServicer(None, statistics).behaviours
        run = loopback.run(tmp_path / "roster.json", credentials=learner, more_methods=more)
        of_replay, of_run = Identity(RUN, "replay").server_name, Identity(RUN, "learner").server_name
        places = {
            methods.REPLAY: (replay.address, of_replay),
            methods.RUN: (run.address, of_run),
            methods.EVALUATION: (run.address, of_run),
        }
        yield Services(places, callers)


def credentials_of(files: Files, trusting: Files | None = None) -> grpc.ChannelCredentials:
    """Returns the credentials of a client with this certificate, which trusts that authority of the servers."""
    certificate = read(files, None, now=time.time())
    if trusting is not None:
        certificate = replace(certificate, authority_pem=trusting.authority.read_bytes())
    return client_credentials(certificate)


def expected(method: Method, caller: Caller) -> str:
    """Returns what a caller should get. Health checks are open to every certificate of the authority."""
    if caller.identity is None:
        return NO_CONNECTION
    allowed = method is methods.CHECK_HEALTH or (
        caller.identity.run == RUN and caller.identity.role in PERMISSIONS[method]
    )
    return ADMITTED if allowed else DENIED


def test_every_caller_gets_what_the_table_of_permissions_says(services: Services) -> None:
    lines, wrong = [], []
    for method in METHODS:
        for caller in services.callers:
            wanted, found = expected(method, caller), asyncio.run(services.answer(method, caller))
            lines.append(f"| {method.name} | {caller.name} | {wanted} | {found} |")
            if wanted != (ADMITTED if found not in (DENIED, NO_CONNECTION) else found):
                wrong.append(lines[-1])
    assert not wrong
    table = HEADER + "\n".join(lines) + "\n"
    if os.environ.get(WRITE):
        TABLE.write_text(table)
    assert table == TABLE.read_text()


def test_every_method_of_the_contract_has_permissions() -> None:
    contract = {each for each in vars(methods).values() if isinstance(each, Method)} - {methods.CHECK_HEALTH}
    assert contract == set(PERMISSIONS)
    # A role that may call nothing needs no certificate.
    assert {role for roles in PERMISSIONS.values() for role in roles} == set(ROLES) - {"replay"}


def test_a_refused_call_is_logged_once_counted_and_final(tmp_path: Path) -> None:
    own = certificates_of(tmp_path / "certificates")
    handled = metrics.RPC_HANDLED.labels("bidi_stream", methods.REPLAY, "AppendSegments", DENIED)
    before = handled._value.get()
    with Loopback(Credentials(own["evaluator"], "evaluator")) as loopback, structlog.testing.capture_logs() as logs:
        server = loopback.replay(credentials=Credentials(own["replay"], "replay"))
        for _ in range(3):
            sink = loopback.sink(0, server)
            with pytest.raises(PermissionDenied, match="AppendSegments was called with the certificate of the eval"):
                until(partial(sink.next_grant, 0.5), "a refusal")
    assert handled._value.get() == before + 3
    (refused,) = (entry for entry in logs if entry["event"] == "call refused")
    assert refused["peer"].startswith("ipv4:127.0.0.1:")
    assert "needs a certificate of actor" in refused["reason"]
