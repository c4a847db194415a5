"""Serves the report on this machine: at 127.0.0.1, below a random token that other users can't guess.

A page of another site that the user visits could reach the server under a name that leads to 127.0.0.1 (DNS rebinding),
so requests with another name of the host are refused. Every refusal is the same 404.
"""

import hmac
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.cli.report.contents import read_runs
from penstock.cli.report.page import page
from penstock.errors import PenstockError
from penstock.machine.addresses import LOOPBACK
from penstock.machine.files import mark_of
from penstock.runs.folder import RunFolder

_REFRESH_S = 5
"""Seconds after which a browser asks for the page again."""

_CLIENT_S = 10.0
"""Seconds after which a client that sends no request is disconnected."""

_TOKEN_BYTES = 16


class CurrentReport:
    """The report of runs as they are now. Used by any thread; it is made again only if a file has changed."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        """Makes the first report. Raises `ConfigurationError` if a run can't be read."""
        self._folders = tuple(folders)
        self._lock = threading.Lock()
        self._marks, self._text = self._found(), page(read_runs(folders))

    def text(self) -> str:
        """Returns the page. Raises `ConfigurationError` if a run can't be read any more."""
        with self._lock:
            if (marks := self._found()) != self._marks:
                # The mark is older than the page, so that a record that is written meanwhile is not missed.
                self._text, self._marks = page(read_runs(self._folders)), marks
            return self._text

    def _found(self) -> list[tuple[int, int] | None]:
        files = [file for each in self._folders for file in (each.metrics, each.summary, each.services, each.config)]
        return [mark_of(file) for file in files]


class ReportServer(ThreadingHTTPServer):
    """Server of one page at a free port of this machine. `serve_forever` is called by one thread."""

    daemon_threads = True

    def __init__(self, text: Callable[[], str]) -> None:
        """Binds the port. `text` returns the page, and is called by many threads."""
        super().__init__((LOOPBACK, 0), _Handler)
        self.text = text
        self.path = f"/{secrets.token_urlsafe(_TOKEN_BYTES)}/"
        self.hosts = {f"{host}:{self.server_port}" for host in (LOOPBACK, "localhost")}

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports an error as the base class does, unless the client has left."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "penstock", ""
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        # Compared in constant time: other users of this machine could measure how much of a token is right.
        if not hmac.compare_digest(self.path.encode(), self.server.path.encode()) or host not in self.server.hosts:
            self._answer(HTTPStatus.NOT_FOUND, "not found\n", "text/plain")
            return
        try:
            self._answer(HTTPStatus.OK, self.server.text(), "text/html")
        except PenstockError as error:
            # The run may be back at the next request.
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"<!doctype html><p>{escape(str(error))}</p>", "text/html")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header(
            "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        )
        if status is not HTTPStatus.NOT_FOUND:
            self.send_header("Refresh", str(_REFRESH_S))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def serve(folders: Sequence[RunFolder], announce: Callable[[str], None]) -> None:
    """Serves the report of runs until Ctrl-C. `announce` receives its address once the server listens.

    Raises `ConfigurationError` if a run can't be read.
    """
    with ReportServer(CurrentReport(folders).text) as server:
        announce(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
