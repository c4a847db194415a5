"""The fields that every log entry of a service has."""

import json
import socket
import subprocess
import sys

import pytest

from tests.support.machine.timing import PATIENCE_S

SCRIPT = """
import threading
from penstock.config import Config
from penstock.process.service import Service
from penstock.telemetry import logs
telemetry = dict(log_format="json", {settings})
with Service("actor", Config(security=dict(insecure=True), telemetry=telemetry)) as service:
    service.logger.info("first")
    service.set_slot(7)
    service.logger.info("second")
    thread = threading.Thread(target=logs.note, args=("third",))
    thread.start()
    thread.join()
    service.logger.info("fourth", slot=8)
"""


def entries(**settings: str) -> dict[str, dict[str, object]]:
    """Runs a service with these settings of [telemetry]; returns its log entries by their event."""
    script = SCRIPT.format(settings=", ".join(f"{name}={value!r}" for name, value in settings.items()))
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return {entry["event"]: entry for entry in map(json.loads, ended.stderr.splitlines())}


def test_every_entry_names_service_node_and_job_and_an_actors_slot_once_it_has_one() -> None:
    found = entries(node="node3", job="4711_12")
    assert set(found) == {"serving metrics", "first", "second", "third", "fourth", "stopped"}
    for entry in found.values():
        assert (entry["service"], entry["node"], entry["job"]) == ("actor", "node3", "4711_12")
    slots = {event: entry.get("slot") for event, entry in found.items()}
    assert slots == {"serving metrics": None, "first": None, "second": 7, "third": 7, "fourth": 8, "stopped": 7}


@pytest.mark.nightly
def test_without_settings_the_node_is_the_host_and_there_is_no_job() -> None:
    found = entries()
    assert {entry["node"] for entry in found.values()} == {socket.gethostname()}
    assert not any("job" in entry for entry in found.values())


@pytest.mark.nightly
def test_the_log_names_the_address_of_the_metrics_by_which_others_reach_it() -> None:
    address = str(entries()["serving metrics"]["address"])
    host, _, port = address.rpartition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    everywhere = str(entries(metrics_host="0.0.0.0")["serving metrics"]["address"])
    assert everywhere.rpartition(":")[0] == socket.gethostname()
