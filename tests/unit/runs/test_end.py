"""The end of a run reaches a webhook or a command once, and a target that fails delays the end for a bounded time."""

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.options import parse
from penstock.config import Config
from penstock.errors import GAVE_UP, ConfigurationError, ForeignCode, TrainingFailed, exit_code
from penstock.local.variables import settings_of_variables
from penstock.runs.end import VARIABLES, RunEnd, announce, obstacle, read_end
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.unit.runs.test_summary import SUMMARY

BOUND_S = 5.0


class Webhook(ThreadingHTTPServer):
    """A web server on loopback that answers with `codes`, the last one for ever, and keeps what it received."""

    daemon_threads = True

    def __init__(self, *codes: int) -> None:
        self.codes, self.received = list(codes), list[dict[str, Any]]()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/secret"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/json"
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        codes = self.server.codes
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "walker")
    folder.create()
    return folder


@pytest.fixture
def end(folder: RunFolder) -> RunEnd:
    summary = replace(
        SUMMARY,
        env_id="Pendulum-v1",
        env_steps=50_000,
        minutes=2.5,
        stopped="total_steps",
        evaluation=EvaluationOutcome(10, -150.25, 3.0),
        best_evaluation=EvaluationOutcome(5, -140.0, 3.0),
    )
    summary.write(folder.summary)
    end = read_end(folder)
    assert end is not None
    return end


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    server = Webhook(200)
    yield server
    server.shutdown()
    server.server_close()


def test_a_webhook_receives_the_result_once(webhook: Webhook, folder: RunFolder, end: RunEnd) -> None:
    assert announce(webhook.url, end) == announce(webhook.url, end) == ""
    assert webhook.received == [
        {
            "name": "walker",
            "dir": str(folder.root),
            "reason": "total_steps",
            "error": "",
            "exit_code": 0,
            "environment": "Pendulum-v1",
            "steps": 50_000,
            "minutes": 2.5,
            "return": -150.25,
            "best_return": -140.0,
            "text": "Penstock: the run walker ended (total_steps) after 50,000 steps, return -150.2",
        }
    ]
    # A longer run ends once more.
    assert announce(webhook.url, replace(end, steps=60_000)) == ""
    assert len(webhook.received) == 2


def test_a_fault_is_sent_once_however_often_the_service_restarts(webhook: Webhook, folder: RunFolder) -> None:
    fault = TrainingFailed("the replay service\n refuses the plan")
    for _ in range(3):
        assert announce(webhook.url, RunEnd.of_fault(folder, fault, exit_code(fault), "Pendulum-v1")) == ""
    [received] = webhook.received
    assert (received["reason"], received["exit_code"], received["return"]) == ("fault", GAVE_UP, None)
    assert received["error"] == "the replay service refuses the plan"


def test_a_webhook_that_fails_first_is_asked_again(webhook: Webhook, end: RunEnd) -> None:
    webhook.codes = [500, 503, 200]
    assert announce(webhook.url, end) == ""
    assert len(webhook.received) == 3


def test_a_webhook_that_refuses_for_ever_is_one_line_without_its_secret(webhook: Webhook, end: RunEnd) -> None:
    webhook.codes = [403]
    failure = announce(webhook.url, end, longest_s=BOUND_S)
    host = webhook.url.split("/")[2]
    assert failure == f"run.on_end: the end of the run was not sent to {host}: it answered 403 Forbidden"
    # Nothing is recorded, so that the next start tries again.
    webhook.codes = [200]
    assert announce(webhook.url, end) == ""


def test_an_address_without_a_server_is_one_line(end: RunEnd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    failure = announce(f"http://127.0.0.1:{port}/", end, longest_s=BOUND_S)
    assert "Connection refused" in failure and "\n" not in failure


def test_a_target_that_nothing_would_reach_is_named_before_the_run(webhook: Webhook) -> None:
    # The server knows POST alone, and receives none.
    assert [obstacle(each) for each in (webhook.url, "true", "cd /; true", "[ -e x ]", "A=1 true", None)] == [""] * 6
    assert webhook.received == []
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        where = "run.on_end: the end of the run would not be sent to"
        assert obstacle(f"http://{address}/secret") == f"{where} {address} now: [Errno 111] Connection refused"
    assert obstacle("no-such-command --all") == f"{where} no-such-command now: no command 'no-such-command'"


def test_a_server_that_never_answers_delays_the_end_for_a_bounded_time(end: RunEnd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        failure = announce(f"http://127.0.0.1:{silent.getsockname()[1]}/", end, longest_s=BOUND_S)
    assert "was not sent to 127.0.0.1" in failure
    assert time.monotonic() - began < 60.0


def test_a_server_that_answers_byte_by_byte_delays_the_end_for_a_bounded_time(end: RunEnd) -> None:
    ended = threading.Event()

    def drip() -> None:
        connection, _ = dripping.accept()
        with connection:
            # Each byte comes in time for a limit on one wait.
            while not ended.wait(0.1):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as dripping:
        threading.Thread(target=drip, daemon=True).start()
        failure = announce(f"http://127.0.0.1:{dripping.getsockname()[1]}/", end, longest_s=BOUND_S)
        ended.set()
    assert "no answer within 5 s" in failure


def test_a_proxy_of_the_environment_applies(webhook: Webhook, end: RunEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", webhook.url)
    assert announce("http://chat.invalid/room", end) == ""
    assert len(webhook.received) == 1


def test_a_command_receives_the_result_in_variables(
    tmp_path: Path, end: RunEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "found"
    assert announce(f"env > {found}", end, longest_s=PATIENCE_S) == ""
    lines = dict(line.split("=", 1) for line in found.read_text().splitlines() if line.startswith("PENSTOCK_RUN_"))
    assert lines.keys() == set(VARIABLES.values())
    assert (lines["PENSTOCK_RUN_NAME"], lines["PENSTOCK_RUN_RETURN"]) == ("walker", "-150.25")
    assert (lines["PENSTOCK_RUN_REASON"], lines["PENSTOCK_RUN_STEPS"]) == ("total_steps", "50000")
    # Penstock refuses unknown variables of its own, and the command may be one of its commands.
    for name, value in lines.items():
        monkeypatch.setenv(name, value)
    assert "run" not in settings_of_variables()


def test_a_command_that_fails_or_hangs_is_one_line_and_leaves_no_process(tmp_path: Path, end: RunEnd) -> None:
    failure = announce("echo no such room >&2; exit 7", end, longest_s=BOUND_S)
    assert failure == "run.on_end: the end of the run was not sent to echo: exit code 7: no such room"
    pid = tmp_path / "pid"
    failure = announce(f"sleep 7200 & echo $! > {pid}; wait", end, longest_s=BOUND_S)
    assert "the command did not end within" in failure
    left = Path(f"/proc/{pid.read_text().strip()}/stat")
    wait_for(lambda: not left.exists() or ") Z " in left.read_text(), "the end of the command's own process")


def test_lists_are_commands_and_other_schemes_are_refused() -> None:
    assert Config(run={"on_end": ["notify", "two words"]}).run.on_end == "notify 'two words'"
    assert Config(run={"on_end": '["notify", "two words"]'}).run.on_end == "notify 'two words'"
    assert Config(run={"on_end": "curl https://example.org"}).run.on_end == "curl https://example.org"
    for wrong in ("ftp://example.org", "", "https://"):
        with pytest.raises(ConfigurationError, match="must be an address http"):
            Config(run={"on_end": wrong})


def test_a_run_does_not_record_it_and_a_recorded_one_is_not_run(tmp_path: Path) -> None:
    config = Config(environment={"id": "Pendulum-v1"}, run={"on_end": "touch /nowhere"})
    assert "on_end" not in config.repeatable().to_toml()
    folder = RunFolder(tmp_path / "foreign")
    folder.create()
    folder.config.write_text(config.to_toml())
    resumed = parse("penstock train", "", ["--resume", str(folder.root)], trains=True).config
    with pytest.raises(ForeignCode, match=r"names code that would run: run.on_end 'touch /nowhere'"):
        resumed.refuse_foreign_code()
    own = parse("penstock train", "", ["--resume", str(folder.root), "--run.on_end=true"], trains=True).config
    own.refuse_foreign_code()


def test_the_record_is_private(webhook: Webhook, folder: RunFolder, end: RunEnd) -> None:
    assert announce(webhook.url, end) == ""
    assert stat.S_IMODE(folder.end_sent.stat().st_mode) == 0o600
