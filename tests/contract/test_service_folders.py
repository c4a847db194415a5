"""Processes of services with a folder: on disks that fail, and a replay service at the end of its run."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from penstock.cli.commands.status import disk_lines
from penstock.rpc.health import STORAGE, is_serving, storage_fails
from penstock.runs.folder import RunFolder
from tests.support.machine.disks import make_full, make_read_only, mounted
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, run
from tests.support.services.servers import Loopback, gauge, plan_with, until

pytestmark = pytest.mark.nightly


@contextmanager
def replay(folder: Path, *options: str) -> Iterator[tuple[Command, Any, int]]:
    """Starts the process; returns it, its server's address for helpers, and its metrics port."""
    port, metrics_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    settings = [f"--replay.listen={address}", f"--replay.metrics-port={metrics_port}", f"--replay.folder={folder}"]
    with Command("replay", *settings, "--replay.capacity-bytes=1000000", *options) as command:
        command.until(lambda: is_serving(address, 5.0), "the service to be ready")
        yield command, SimpleNamespace(address=address), metrics_port


def lines(command: Command, event: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in command.stderr.splitlines() if line.startswith("{")]
    return [line for line in events if line["event"] == event]


def stays_broken(disk: Path, breaks: Callable[[Path, bool], None]) -> bool:
    """Breaks the disk again, because a file removed meanwhile leaves room on a full one."""
    breaks(disk, True)
    return True


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "4m")


@pytest.mark.parametrize("breaks", [make_full, make_read_only])
def test_a_store_on_a_disk_that_can_not_be_written_continues_and_reports_it(
    loopback: Loopback, disk: Path, breaks: Callable[[Path, bool], None]
) -> None:
    with replay(disk / "store", "--replay.staging-bytes=0") as (command, server, metrics_port):
        source = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2))
        sink = loopback.sink(0, server)

        def train(number: int) -> None:
            until(lambda: sink.next_grant(0.5), "a grant")
            sink.send(make_window(1 + 2 * number, version=number))
            batch = until(lambda: source.next(0.5), "a batch")
            source.commit(batch, np.ones(2)).result(PATIENCE_S)

        train(0)
        assert not storage_fails(server.address, PATIENCE_S)
        assert gauge(metrics_port, "penstock_storage_fails") == 0
        command.until(
            lambda: stays_broken(disk, breaks) and storage_fails(server.address, 5.0), f"{STORAGE} is not serving"
        )
        train(1)
        assert is_serving(server.address, PATIENCE_S)
        health = run("health", server.address)
        assert (health.code, health.stdout) == (0, "serving; its disk can't be written\n")
        run_folder = RunFolder(disk.parent / "run")
        run_folder.root.mkdir()
        run_folder.services.write_text(json.dumps({"replay": server.address, "learner": "127.0.0.1:9"}))
        (line,) = disk_lines(str(run_folder.root))
        assert line.startswith("the replay service can't write to its disk")
        assert gauge(metrics_port, "penstock_storage_fails") == 1
        (begin,) = lines(command, "disk not writable, service continues")
        assert begin["folder"] == str(disk / "store")
        assert begin["reason"].startswith(("No space left on device (the file", "Read-only file system (the file"))
        breaks(disk, False)
        command.until(lambda: not storage_fails(server.address, 5.0), f"{STORAGE} serves")
        train(2)
        command.until(lambda: gauge(metrics_port, "penstock_storage_fails") == 0, "the metric to be 0")
        command.until(lambda: lines(command, "disk writable again"), "the log of the end of the fault")
        assert len(lines(command, "disk not writable, service continues")) == 1
        assert [path.name for path in (disk / "store").iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("breaks", [make_full, make_read_only])
def test_a_learner_whose_run_folder_can_not_be_written_reports_it(
    disk: Path, breaks: Callable[[Path, bool], None]
) -> None:
    port, metrics_port = free_ports(2)
    address = f"127.0.0.1:{port}"
    options = [f"--run-dir={disk / 'run'}", f"--learner.listen={address}", f"--learner.metrics-port={metrics_port}"]
    with Command("learner", *options) as command:
        command.until(lambda: is_serving(address, 5.0), "the service to be ready")
        command.until(lambda: stays_broken(disk, breaks) and storage_fails(address, 5.0), f"{STORAGE} is not serving")
        assert is_serving(address, PATIENCE_S)
        assert gauge(metrics_port, "penstock_storage_fails") == 1
        breaks(disk, False)
        command.until(lambda: not storage_fails(address, 5.0), f"{STORAGE} serves")
        assert gauge(metrics_port, "penstock_storage_fails") == 0


def test_with_stop_with_run_a_replay_service_ends_with_its_run_and_not_with_a_learner(
    loopback: Loopback, tmp_path: Path
) -> None:
    with replay(tmp_path / "store", "--replay.stop-with-run=true") as (command, server, _):
        first = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2))
        sink = loopback.sink(0, server)
        until(lambda: sink.next_grant(0.5), "a grant")
        sink.send(make_window())
        batch = until(lambda: first.next(0.5), "a batch")
        first.commit(batch, np.ones(2)).result(PATIENCE_S)
        first.close()
        until(lambda: lines(command, "learner left"), "the learner to leave")
        second = loopback.source(server, plan_with(batch_segments=2, fresh_segments=2, next_batch=1))
        assert command.process.poll() is None

        def ended() -> bool:
            # The learner can't finish a run before its plan has arrived.
            second.finish()
            return command.process.poll() is not None

        until(ended, "the end of the service")
        assert command.wait() == 0
        assert len(lines(command, "run finished")) == 1
        assert len(lines(command, "stopped")) == 1
    with replay(tmp_path / "store") as (command, _, _):
        (found,) = lines(command, "store recovered")
        assert (found["segments"], found["damaged"], found["torn"]) == (2, 0, 0)


def test_without_stop_with_run_a_replay_service_outlives_its_run(loopback: Loopback, tmp_path: Path) -> None:
    with replay(tmp_path / "store") as (command, server, metrics_port):
        source = loopback.source(server, plan_with())

        def finished() -> bool:
            source.finish()
            return gauge(metrics_port, "penstock_replay_run_finished") == 1

        until(finished, "the run to finish")
        assert is_serving(server.address, PATIENCE_S)
        command.terminate()
        assert command.wait() == 143
