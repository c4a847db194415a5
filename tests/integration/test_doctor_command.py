import socket

import pytest

from tests.support.services.processes import run

pytestmark = pytest.mark.nightly


def test_doctor_reports_a_fault_and_continues_with_the_other_checks() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        end = run("doctor", f"--replay.listen=127.0.0.1:{port}")
    assert end.code == 1, end.stdout
    lines = [" ".join(line.split()) for line in end.stdout.splitlines()]
    assert any(line.startswith(f"no ports 127.0.0.1:{port} (replay.listen) in use") for line in lines), end.stdout
    assert any(line.startswith("ok versions") for line in lines), end.stdout
    assert any(line.split()[1:2] == ["GPU"] for line in lines), end.stdout
