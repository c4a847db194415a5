import pytest

from penstock.config import Config
from penstock.config.exposure import check_listen, isolation, metrics_host
from penstock.config.settings.security import SecurityConfig
from penstock.errors import ConfigurationError
from penstock.machine.addresses import Address
from penstock.process.service import Service, ServiceName

CLOSED = SecurityConfig()
OPEN = (SecurityConfig(insecure=True), SecurityConfig(certificate="certificate.pem"))


@pytest.mark.parametrize("listen", ["0.0.0.0:7431", "[::]:7431", "10.0.0.1:7431", "node1:0"])
def test_a_server_that_other_hosts_can_reach_needs_a_certificate_or_permission(listen: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^replay\.listen .* security\.certificate .* security\.insecure=true in a private"
    ):
        check_listen("replay.listen", listen, CLOSED)
    for security in OPEN:
        check_listen("replay.listen", listen, security)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.0.0.2:1", "[::1]:1", "localhost:1", "unix:/run/x.sock"])
def test_a_local_server_needs_neither(listen: str) -> None:
    check_listen("replay.listen", listen, CLOSED)


@pytest.mark.parametrize(
    ("chosen", "listen", "security", "host"),
    [
        (None, "127.0.0.2:1", CLOSED, "127.0.0.2"),
        (None, "unix:/run/x.sock", CLOSED, "127.0.0.1"),
        ("::1", "127.0.0.1:1", CLOSED, "::1"),
        (None, "0.0.0.0:1", OPEN[0], "0.0.0.0"),
        # Metrics are not encrypted, so that a certificate opens them to others only if the user says so.
        (None, "0.0.0.0:1", OPEN[1], "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0:1", OPEN[1], "0.0.0.0"),
    ],
)
def test_metrics_are_open_to_others_with_the_service_or_by_choice(
    chosen: str | None, listen: str, security: SecurityConfig, host: str
) -> None:
    assert metrics_host(chosen, Address.parse(listen), security) == host


def test_metrics_that_other_hosts_can_reach_need_permission_too() -> None:
    with pytest.raises(ConfigurationError, match=r"^telemetry\.metrics_host 0\.0\.0\.0 can be reached"):
        metrics_host("0.0.0.0", Address.parse("127.0.0.1:1"), CLOSED)


@pytest.mark.parametrize(
    ("service", "section"),
    [("replay", "replay"), ("learner", "learner"), ("actor", "actor"), ("evaluator", "evaluation")],
)
def test_every_service_refuses_before_it_opens_a_port(service: ServiceName, section: str) -> None:
    config = Config(**{section: {"listen": "0.0.0.0:0", "metrics_port": 0}})
    with pytest.raises(ConfigurationError, match=rf"^{section}\.listen 0\.0\.0\.0:0 can be reached"):
        Service(service, config)


def test_a_configuration_with_open_services_can_still_be_read() -> None:
    # Runs of earlier releases have recorded such addresses.
    assert Config(learner={"listen": "0.0.0.0:7432"}).learner.listen == "0.0.0.0:7432"


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("replay", {"learner": {"replay_addresses": "node1:7431"}}),
        ("learner", {"actor": {"learner_address": "node1:7432,10.0.0.1:7432"}}),
        ("learner", {"evaluation": {"learner_address": "node1:7432"}}),
    ],
)
def test_a_service_on_loopback_that_others_look_for_elsewhere_is_reported(
    service: str, settings: dict[str, dict[str, object]]
) -> None:
    reason = isolation(Config(**settings), service)
    assert reason is not None
    assert f"{service}.listen 127.0.0.1" in reason
    assert "node1:743" in reason
    section = settings.setdefault(service, {})
    assert isolation(Config(**{**settings, service: {**section, "listen": "0.0.0.0:1"}}), service) is None


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("replay", {}),
        ("learner", {}),
        ("replay", {"learner": {"replay_addresses": "file:replay.json"}}),
        # One host of several.
        ("replay", {"learner": {"replay_addresses": "127.0.0.1:7431,node1:7431"}}),
        ("learner", {"actor": {"learner_address": "node1:7432,127.0.0.1:7432"}}),
    ],
)
def test_a_service_on_loopback_that_is_looked_for_there_is_not_reported(
    service: str, settings: dict[str, dict[str, object]]
) -> None:
    assert isolation(Config(**settings), service) is None
