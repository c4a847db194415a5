"""The file for health checks of containers: new while the service is ready, absent afterwards."""

import os
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.rpc import ready_file
from penstock.rpc.server import serve_health_only
from tests.support.machine.timing import wait_for
from tests.support.services.servers import Loopback


def test_a_ready_file_is_new_while_the_service_is_ready(
    loopback: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_file, "INTERVAL_S", 0.01)
    file = tmp_path / "ready"
    server = loopback.thread.run(serve_health_only("127.0.0.1:0", str(file)))
    os.utime(file, (0, 0))
    wait_for(lambda: file.stat().st_mtime > 0, "the file to be touched")
    loopback.thread.run(server.stop())
    assert not file.exists()


def test_a_ready_file_that_cannot_be_written_is_a_user_error(loopback: Loopback, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't write telemetry.ready_file .*absent/ready: No such file"):
        loopback.thread.run(serve_health_only("127.0.0.1:0", str(tmp_path / "absent" / "ready")))
