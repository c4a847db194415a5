"""A run whose services have certificates: training, operators, strangers, renewal under load, and unusable files."""

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from penstock.errors import GAVE_UP, USAGE_ERROR
from penstock.runs.folder import RunFolder
from penstock.security.roles import Role
from tests.support.services.certificates import Foreign, authority, certificates_of, write
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command, end_in_time, run

RUN = "certified"
ENVIRONMENT = "tests.support.environments.paced:Paced-v0"
"""It sleeps in each step, so that the run takes little of the machine as long as the tests last."""
SERVICES: tuple[Role, ...] = ("replay", "learner", "actor", "evaluator")
ENDLESS = ("--run.total-steps=None", "--run.total-minutes=1000", "--run.stop-at-return=None")
CERTIFICATE = "PENSTOCK__SECURITY__CERTIFICATE"

PAUSED_S = 32.0
"""Seconds in which both sides of each connection give the other up."""


class Services:
    """The services of an endless run, each with the certificate of its role in the run's folder."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.folder, self.place = RunFolder(place / RUN), place
        self.files = certificates_of(self.folder.certificates, RUN)
        replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
        self.learner = learner
        self.options = (
            f"--environment.id={ENVIRONMENT}",
            "--actor.environments=4",
            f"--run.dir={self.folder.root}",
            f"--replay.listen={replay}",
            f"--learner.listen={learner}",
            f"--learner.replay-addresses={replay}",
            f"--actor.learner-address={learner}",
            f"--evaluation.learner-address={learner}",
            "--replay.metrics-port=0",
            "--learner.metrics-port=0",
            "--actor.metrics-port=0",
            "--evaluation.metrics-port=0",
            *ENDLESS,
        )
        self._stack = stack
        self.commands: dict[str, Command] = {}
        for role in SERVICES:
            self.commands[role] = self.start(role, {CERTIFICATE: str(self.files[role].certificate)})

    def start(self, service: str, environment: Mapping[str, str]) -> Command:
        command = Command(service, *self.options, environment={**WITH_HELPERS, **environment}, directory=self.place)
        return self._stack.enter_context(command)

    def log(self, service: str, event: str) -> list[dict[str, str]]:
        """Returns the entries of a service's log with this event."""
        lines = map(json.loads, self.commands[service].stderr.splitlines())
        return [line for line in lines if line["event"] == event]

    def change(self, option: str) -> None:
        """Changes the certificates by an option of the command, and waits until all services have taken them."""
        before = {name: self._renewals(name) for name in self.commands}
        assert run("certificates", str(self.folder.root), option, directory=self.place).code == 0
        for name, command in self.commands.items():
            command.until(partial(self._has_renewed, name, before[name]), f"{name} to take what {option} has made")

    def _has_renewed(self, service: str, before: int) -> bool:
        return self._renewals(service) > before

    def _renewals(self, service: str) -> int:
        return len(self.log(service, "certificate renewed"))

    def until_version(self, version: int) -> int:
        """Waits until the learner has published more than this version; returns the newest."""
        learner = self.commands["learner"]
        return learner.until(lambda: newest if (newest := self._version()) > version else None, f"version {version}")

    def _version(self) -> int:
        journal = self.folder.metrics
        lines = journal.read_text().rpartition("\n")[0].splitlines() if journal.exists() else []
        return max((int(record["version"]) for record in map(json.loads, lines) if "version" in record), default=-1)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with ExitStack() as stack:
        services = Services(stack, tmp_path_factory.mktemp("certified"))
        services.commands["learner"].until(services.folder.services.exists, "the list of services")
        services.until_version(2)
        yield services


def test_the_run_trains_and_its_operator_sees_it(services: Services) -> None:
    shown = run("status", str(services.folder.root), directory=services.place)
    assert shown.code == 0 and "Paced-v0" in shown.stdout
    by_address = run("status", services.learner, environment={CERTIFICATE: str(services.files["operator"].certificate)})
    assert by_address.code == 0 and "Paced-v0" in by_address.stdout
    listed = run("runs", str(services.place), directory=services.place)
    assert "active" in listed.stdout
    name = services.folder.root.name
    removed = run("runs", "remove", name, "--folder", str(services.place), "--yes", directory=services.place)
    assert (removed.code, removed.stderr.count("\n")) == (2, 1)
    assert f"the run {name} is being trained; stop it first, or wait for its end" in removed.stderr


def test_an_operator_without_a_certificate_is_told_what_is_missing(services: Services) -> None:
    refused = run("status", services.learner)
    assert (refused.code, refused.stderr.count("\n")) == (GAVE_UP, 1)
    assert "it uses TLS, set security.certificate here" in refused.stderr
    (noted,) = [
        entry
        for entry in services.log("learner", "connection refused during its TLS handshake")
        if "does not use TLS" in entry["reason"]
    ]
    assert noted["level"] == "warning"


def test_a_role_that_is_no_operators_is_refused(services: Services) -> None:
    refused = run("status", services.learner, environment={CERTIFICATE: str(services.files["actor"].certificate)})
    assert (refused.code, refused.stderr.count("\n")) == (USAGE_ERROR, 1)
    assert "is the certificate of the actor of run certified" in refused.stderr


def test_an_actor_of_another_authority_says_so_and_so_does_the_learner(services: Services, tmp_path: Path) -> None:
    strange = certificates_of(tmp_path / "strange", RUN)["actor"].certificate
    stranger = services.start("actor", {CERTIFICATE: str(strange)})
    stranger.until(lambda: '"waiting for service"' in stranger.stderr, "a reason")
    (line,) = [line for line in stranger.stderr.splitlines() if '"waiting for service"' in line]
    assert "is not signed by the authority in security.authority" in line
    noted = services.commands["learner"].until(
        lambda: [
            entry
            for entry in services.log("learner", "connection refused during its TLS handshake")
            if "refuses this service's certificate" in entry["reason"] or "not signed" in entry["reason"]
        ],
        "the line of the learner",
    )
    assert len(noted) == 1
    stranger.terminate()
    end_in_time(stranger)


def test_all_certificates_are_renewed_while_the_run_trains(services: Services) -> None:
    before = services.until_version(0)
    pids = {name: command.pid for name, command in services.commands.items()}
    services.change("--renew")
    services.until_version(before + 5)
    for name, command in services.commands.items():
        assert command.process.poll() is None and command.pid == pids[name]
        assert not services.log(name, "trying again"), name
    # New connections use the new certificates.
    late = services.start("actor", {CERTIFICATE: str(services.files["actor"].certificate)})
    late.until(lambda: '"joined"' in late.stderr, "a new actor")


@pytest.mark.nightly
def test_clients_whose_process_was_paused_take_no_memory_and_train_on(services: Services) -> None:
    """Their connections' keepalives have expired meanwhile. gRPC's own retries took all memory in one case of three.

    It is the last test of this run, whose other tests see no lost connection.
    """
    clients = [psutil.Process(services.commands[name].pid) for name in ("learner", "actor", "evaluator")]
    before = [client.memory_info().rss for client in clients]
    for client in clients:
        client.send_signal(signal.SIGSTOP)
    time.sleep(PAUSED_S)
    for client in clients:
        client.send_signal(signal.SIGCONT)
    services.until_version(services.until_version(0))
    for client, rss in zip(clients, before, strict=True):
        assert client.memory_info().rss < rss + 2**29


def bad_files(place: Path) -> dict[str, tuple[dict[str, str], str]]:
    """Returns settings with unusable files, each with what the error says."""
    own, other = certificates_of(place / "own", RUN), certificates_of(place / "other", "other")
    expired = certificates_of(place / "expired", RUN, age_days=100.0)
    readable = certificates_of(place / "readable", RUN)["replay"]
    readable.key.chmod(0o644)
    issuer = authority()
    uncovered = write(place / "uncovered", [Foreign((f"penstock://{RUN}/replay",)).signed_by(issuer)], issuer)
    replay = own["replay"]
    return {
        "expired": ({"certificate": str(expired["replay"].certificate)}, "renew it with penstock certificates RUN"),
        "other role": ({"certificate": str(own["actor"].certificate)}, "is the certificate of the actor of run"),
        "other authority": (
            {"certificate": str(replay.certificate), "authority": str(other["replay"].authority)},
            "is not signed by an authority in",
        ),
        "other key": (
            {"certificate": str(replay.certificate), "key": str(other["replay"].key)},
            "is not the key of",
        ),
        "readable key": ({"certificate": str(readable.certificate)}, "other users"),
        "names": ({"certificate": str(uncovered.certificate), "server_names": "address"}, "not for 127.0.0.1"),
    }


# tests/unit/security refuses all of these files; one of them shows how a service ends.
@pytest.mark.parametrize(
    "case",
    [
        "expired",
        *(
            pytest.param(case, marks=pytest.mark.nightly)
            for case in ("other role", "other authority", "other key", "readable key", "names")
        ),
    ],
)
def test_a_service_with_unusable_files_ends_with_one_line(tmp_path: Path, case: str) -> None:
    settings, message = bad_files(tmp_path)[case]
    variables = {f"PENSTOCK__SECURITY__{name.upper()}": value for name, value in settings.items()}
    ended = run("replay", "--replay.listen=127.0.0.1:0", "--replay.metrics-port=0", environment=variables)
    assert ended.code == USAGE_ERROR
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("penstock: ")]
    assert message in line
    assert ";" in line, "what was received and expected; what to do"
