import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from penstock.process.certificate_watch import CertificateWatch
from penstock.security.authority import issue
from penstock.security.credentials import Credentials
from penstock.telemetry import metrics
from tests.support.services.certificates import DAY_S, RUN, certificates_of
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
