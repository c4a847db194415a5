"""The served report answers with its token and its own host alone, and follows the run."""

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.report.serving import CurrentReport, ReportServer
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import PATIENCE_S
from tests.unit.cli.report.test_report_page import make, records


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make(tmp_path / "run", records(3))


@pytest.fixture
def server(folder: RunFolder) -> Iterator[ReportServer]:
    with ReportServer(CurrentReport([folder]).text) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ReportServer, path: str, host: str = "", method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    return connection.getresponse()


def test_the_page_is_served_and_refreshes_itself(server: ReportServer) -> None:
    answer = ask(server, server.path)
    assert (answer.status, answer.headers["Refresh"], answer.headers["Cache-Control"]) == (200, "5", "no-store")
    assert "CartPole-v1" in answer.read().decode()
    head = ask(server, server.path, method="HEAD")
    assert (head.status, head.read()) == (200, b"")


def test_other_paths_tokens_and_hosts_get_the_same_refusal(server: ReportServer) -> None:
    port = server.server_port
    refused = [
        ask(server, "/"),
        ask(server, server.path.rstrip("/")),
        ask(server, f"{server.path}config.toml"),
        ask(server, f"/{'A' * (len(server.path) - 2)}/"),
        ask(server, "/%ff/"),
        ask(server, f"http://127.0.0.1:{port}{server.path}"),
        ask(server, server.path, f"evil.example:{port}"),
        ask(server, server.path, "127.0.0.1"),
    ]
    assert {(each.status, each.read(), each.headers["Refresh"]) for each in refused} == {(404, b"not found\n", None)}
    assert ask(server, server.path, method="POST").status == 501
    assert ask(server, server.path, f"localhost:{port}").status == 200


def test_the_server_listens_on_this_machine_alone_with_a_token_of_its_own(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with ReportServer(str) as other:
        assert other.path != server.path and len(other.path) == 24


def test_a_new_record_is_on_the_next_page(server: ReportServer, folder: RunFolder) -> None:
    assert "3,000 steps" in ask(server, server.path).read().decode()
    with folder.metrics.open("a") as file:
        file.write(json.dumps({**records(4)[3]}) + "\n")
    assert "4,000 steps" in ask(server, server.path).read().decode()


def test_a_run_that_is_removed_is_named(server: ReportServer, folder: RunFolder) -> None:
    shutil.rmtree(folder.root)
    answer = ask(server, server.path)
    assert (answer.status, answer.headers["Refresh"]) == (503, "5")
    assert "contains no run with metrics" in answer.read().decode()
