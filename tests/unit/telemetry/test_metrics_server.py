import contextlib
import math
import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from penstock.errors import ConfigurationError
from penstock.telemetry import metrics, metrics_server
from penstock.telemetry.metrics_server import MetricsServer
from tests.support.machine.timing import NEVER_S, PATIENCE_S, wait_for


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def server(port: int) -> Iterator[MetricsServer]:
    server = MetricsServer("127.0.0.1", port)
    yield server
    server.close()


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        return str(response.read().decode())


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def test_the_metrics_of_this_process_are_served(server: MetricsServer, port: int) -> None:
    metrics.EVALUATOR_SECONDS.inc()
    assert "penstock_evaluator_seconds_total" in scrape(port)
    with connect(port) as client:
        client.sendall(b"POST /metrics HTTP/1.1\r\n\r\n")
        # prometheus-client 0.20 answers every method as GET.
        assert client.recv(2**16).startswith((b"HTTP/1.1 405 ", b"HTTP/1.1 200 "))


@pytest.mark.parametrize("idle", [100, 300])
def test_idle_connections_start_no_threads_and_delay_no_scrape(server: MetricsServer, port: int, idle: int) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as connections:
        for number in range(idle):
            client = connections.enter_context(connect(port))
            client.sendall(b"GET /metrics HTTP/1.1\r\n" * (number % 2))
        assert "penstock_evaluator_seconds_total" in scrape(port)
        assert threading.active_count() <= threads


def test_a_burst_of_idle_connections_leaves_the_newest_within_the_limit(
    server: MetricsServer, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics_server, "_TIMEOUT_S", NEVER_S)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(connect(port)) for _ in range(500)]
        kept = clients[-metrics_server._MOST_CONNECTIONS :]
        for client in clients[: -len(kept)]:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        for client in kept:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert client.recv(1) == b"H"
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_a_connection_without_a_request_is_closed(
    server: MetricsServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_TIMEOUT_S", 0.2)
    with connect(port) as silent, connect(port) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert silent.recv(1) == slow.recv(1) == b""


def test_a_client_that_does_not_read_is_disconnected(server: MetricsServer, port: int) -> None:
    with contextlib.ExitStack() as clients:
        for _ in range(8):
            client = clients.enter_context(connect(port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: not server._connections, "the end of all connections")
        assert "penstock_evaluator_seconds_total" in scrape(port)


@pytest.mark.parametrize("request_of", [b"\r\n\r\n", b"x" * 2**17, b"\xff\xfe \r\n\r\n", b"GET\r\n\r\n"])
def test_a_malformed_request_is_closed_and_others_are_served(
    server: MetricsServer, port: int, request_of: bytes
) -> None:
    with connect(port) as client, contextlib.suppress(ConnectionError):
        client.sendall(request_of)
        assert client.recv(1) == b""
    assert "penstock_evaluator_seconds_total" in scrape(port)


def test_a_port_in_use_raises_a_configuration_error(server: MetricsServer, port: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"127\.0\.0\.1:{port}: Address already in use; .*metrics_port, auto for any"
    ):
        MetricsServer("127.0.0.1", port)


def test_port_0_starts_no_server() -> None:
    threads = threading.active_count()
    server = MetricsServer("127.0.0.1", 0)
    assert (server.port, threading.active_count()) == (0, threads)
    server.close()


def test_many_servers_on_any_free_port_have_different_ones_and_serve() -> None:
    with contextlib.ExitStack() as servers:
        ports = set[int]()
        for _ in range(8):
            server = MetricsServer("127.0.0.1", "auto")
            servers.callback(server.close)
            ports.add(server.port)
        assert len(ports) == 8
        assert all("penstock_evaluator_seconds_total" in scrape(port) for port in ports)


def test_a_scraper_that_asks_regularly_is_expected_again_until_it_is_late(server: MetricsServer, port: int) -> None:
    assert (server.next_scrape_within_s(), server.scraped_at) == (0.0, -math.inf)
    scrape(port)
    wait_for(lambda: server.scraped_at > 0.0, "the note of the request")
    # A single request may be a user's.
    assert server.next_scrape_within_s() == 0.0
    first = server.scraped_at
    scrape(port)
    wait_for(lambda: server.scraped_at > first, "the note of the second request")
    interval_s = server.scraped_at - first
    assert server.next_scrape_within_s() in (0.0, 2.0 * interval_s)
    wait_for(lambda: server.next_scrape_within_s() == 0.0, "the scraper to be late")


def test_requests_that_are_further_apart_than_scrapes_are_not_awaited(
    server: MetricsServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_LONGEST_INTERVAL_S", 0.0)
    for _ in range(2):
        scrape(port)
    wait_for(lambda: len(server._scrapes) == 2, "the note of both requests")
    assert server.next_scrape_within_s() == 0.0
