import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.local.launcher import train
from penstock.process.own_certificate import CertificateWatch, credentials_of
from penstock.security.authority import issue
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Identity
from penstock.telemetry import metrics
from tests.support.services.certificates import DAY_S, RUN, Foreign, authority, certificates_of, write
from tests.support.services.servers import until

LOOK_S = 0.01


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(certificates_of(tmp_path)["replay"], "replay")


@pytest.fixture
def looks(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The results of all looks of a watch at the files, in one thread."""
    seen, refreshed = list[bool](), Credentials.refreshed

    def look(own: Credentials) -> bool:
        seen.append(refreshed(own))
        return seen[-1]

    monkeypatch.setattr(Credentials, "refreshed", look)
    return seen


@pytest.fixture
def events(credentials: Credentials) -> Iterator[list[EventDict]]:
    """What a watch of the credentials logs."""
    with capture_logs() as events:
        watch = CertificateWatch(credentials, structlog.get_logger(), LOOK_S)
        yield events
        watch.close()


def after_another_look(looks: list[bool]) -> None:
    """Waits until a look that began after this call is over."""
    before = len(looks)
    # A look may be in progress now, and the last one that was counted may be.
    until(lambda: len(looks) > before + 2, "further looks")


def expiry(certificate: str) -> float:
    return float(metrics.CERTIFICATE_EXPIRY.labels(certificate)._value.get())


def logged(events: list[EventDict], event: str) -> Callable[[], EventDict | None]:
    return lambda: next((each for each in events if each["event"] == event), None)


def test_the_certificate_is_logged_and_shown(credentials: Credentials, events: list[EventDict]) -> None:
    (entry,) = events
    assert (entry["event"], entry["of"]) == ("certificate loaded", f"replay of run {RUN}")
    assert entry["expires"] == time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(credentials.current.expires))
    assert expiry("own") == credentials.current.expires
    assert expiry("authority") == credentials.current.authority_expires > expiry("own")


def test_renewed_files_are_taken(credentials: Credentials, events: list[EventDict], tmp_path: Path) -> None:
    before = credentials.current
    issue(tmp_path, RUN, days=180, hosts={}, now=time.time(), renew=True)
    until(logged(events, "certificate renewed"), "the renewed certificate")
    assert expiry("own") == credentials.current.expires > before.expires + 80 * DAY_S


def test_files_that_can_not_be_used_are_reported_once(
    credentials: Credentials, looks: list[bool], events: list[EventDict]
) -> None:
    before = credentials.current
    credentials.files.certificate.write_text("half")
    entry = until(logged(events, "renewed certificate not used"), "the report")
    assert str(credentials.files.certificate) in entry["reason"]
    after_another_look(looks)
    assert sum(each["event"] == "renewed certificate not used" for each in events) == 1
    assert credentials.current is before


def test_an_expired_certificate_is_reported_once_each_time(
    credentials: Credentials, looks: list[bool], events: list[EventDict], tmp_path: Path
) -> None:
    credentials.current = replace(credentials.current, expires=time.time() - 1.0)
    entry = until(logged(events, "certificate expired"), "the report")
    assert (entry["log_level"], "penstock certificates RUN --renew" in entry["reason"]) == ("error", True)
    after_another_look(looks)
    assert sum(each["event"] == "certificate expired" for each in events) == 1
    issue(tmp_path, RUN, days=90, hosts={}, now=time.time(), renew=True)
    until(logged(events, "certificate renewed"), "the renewed certificate")
    credentials.current = replace(credentials.current, expires=time.time() - 1.0)
    until(lambda: sum(each["event"] == "certificate expired" for each in events) == 2, "the second report")


def test_without_a_certificate_there_are_no_credentials() -> None:
    assert credentials_of(Config().security, "actor") is None


def test_key_and_authority_are_beside_the_certificate(tmp_path: Path) -> None:
    files = certificates_of(tmp_path)["actor"]
    found = credentials_of(Config(security={"certificate": str(files.certificate)}).security, "actor")
    assert found is not None
    assert found.identity == Identity(RUN, "actor")
    assert found.files == files
    assert not found.by_address


def test_every_file_and_the_names_of_servers_can_be_set(tmp_path: Path) -> None:
    root = authority()
    files = write(tmp_path, [Foreign().signed_by(root)], root)
    moved = Files(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt")
    for name in ("certificate", "key", "authority"):
        getattr(files, name).rename(getattr(moved, name))
    settings = {name: str(getattr(moved, name)) for name in ("certificate", "key", "authority")}
    found = credentials_of(Config(security={**settings, "server_names": "address"}).security, "replay")
    assert found is not None
    assert found.files == moved
    assert found.by_address


def test_the_certificate_of_another_role_is_refused(tmp_path: Path) -> None:
    path = str(certificates_of(tmp_path)["actor"].certificate)
    with pytest.raises(ConfigurationError, match="the role learner was started with it"):
        credentials_of(Config(security={"certificate": path}).security, "learner")


@pytest.mark.parametrize("name", ["key", "authority"])
def test_a_key_or_an_authority_without_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"security\.{name} is x\.pem, but security\.certificate is unset"):
        Config(security={name: "x.pem"})


def test_a_repetition_does_not_have_the_certificate_of_one_service() -> None:
    config = Config(security={"certificate": "a.pem", "key": "b.pem", "authority": "c.pem", "insecure": True})
    assert config.repeatable().security == Config(security={"insecure": True}).security


def test_a_launcher_refuses_a_certificate_before_it_makes_anything(tmp_path: Path) -> None:
    config = Config(run_dir=str(tmp_path / "run"), security={"certificate": "a.pem"})
    with pytest.raises(ConfigurationError, match=r"^security\.certificate is a\.pem, but penstock train connects its"):
        train(config)
    assert not (tmp_path / "run").exists()
