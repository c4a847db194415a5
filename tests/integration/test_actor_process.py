"""The process of an actor with intrusive environments; the test acts as its learner."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from penstock.errors import BY_SIGNAL
from tests.support.services.processes import WITH_HELPERS, Command, end_of
from tests.support.services.servers import LiveRun, Loopback, until

pytestmark = pytest.mark.nightly


@contextmanager
def actor(server: LiveRun, folder: Path, env_id: str, *options: str) -> Iterator[Command]:
    """Starts an actor that has joined. Without a replay service, it never receives a grant."""
    arguments = [
        f"--env-id={env_id}",
        "--env-import=tests.support.environments.failing",
        "--envs-per-actor=1",
        # So that the first reset is that of the first window, and not a search for masks.
        "--environment.action-masks=false",
        f"--actor.learner-address={server.address}",
        "--actor.listen=127.0.0.1:0",
        "--actor.metrics-port=0",
        *options,
    ]
    with Command("actor", *arguments, environment=WITH_HELPERS, directory=folder) as command:
        command.until(lambda: server.statistics.status().actor_states, "the actor to join")
        yield command


def ignores_sigterm(pid: int) -> bool:
    """Returns whether a process ignores SIGTERM, as Linux shows it in a mask."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("later", [False, True], ids=["constructor", "reset"])
def test_an_actor_overrides_process_settings_changed_by_its_environment(tmp_path: Path, later: bool) -> None:
    with Loopback() as loopback:
        server = loopback.run(tmp_path / "roster.json")
        with actor(server, tmp_path, "Rude-v0", f"--environment.kwargs=later={later}") as command:
            until(lambda: server.statistics.status().actor_states[0].doing == "", "the environments to be reset")
            until(lambda: not ignores_sigterm(command.pid), "the actor to take its signals")
            assert Path(psutil.Process(command.pid).cwd()) == tmp_path
            command.terminate()
            ended = end_of(command)
    assert ended.code == BY_SIGNAL + signal.SIGTERM
    assert "Traceback" not in ended.stderr
    assert "RuntimeError: can't close" in ended.stderr


def test_a_child_forked_by_an_environment_can_be_ended_by_a_signal(tmp_path: Path) -> None:
    with Loopback() as loopback:
        server = loopback.run(tmp_path / "roster.json")
        with actor(server, tmp_path, "Parent-v0") as command:
            command.terminate()
            ended = end_of(command)
    assert ended.code == BY_SIGNAL + signal.SIGTERM
    assert ended.left_behind == []


def test_an_actor_ends_on_sigterm_even_if_its_environment_hangs(tmp_path: Path) -> None:
    with Loopback() as loopback:
        server = loopback.run(tmp_path / "roster.json")
        kwargs = "--environment.kwargs=kind=reset hangs,at=0"
        with actor(server, tmp_path, "Failing-v0", kwargs) as command:
            until(lambda: server.statistics.status().actor_states[0].doing == "reset of environment 0", "the hang")
            command.terminate()
            ended = end_of(command)
    assert ended.code == 1
    assert "Traceback" not in ended.stderr


def test_an_actor_whose_environment_hangs_too_long_reports_it_and_ends(tmp_path: Path) -> None:
    with Loopback() as loopback:
        server = loopback.run(tmp_path / "roster.json")
        options = ["--environment.kwargs=kind=reset hangs,at=0", "--actor.step-timeout-s=10"]
        with actor(server, tmp_path, "Failing-v0", *options) as command:
            ended = end_of(command)
        # The learner may have reported the stuck actor before; the actor's own report is the last.
        notice = [each for each in server.statistics.status().notices if "has not returned" in each.text][-1]
    assert ended.code == 1
    failure = "environment 0: reset has not returned for 10 s (Failing-v0)"
    assert ended.stderr.splitlines()[-1] == f"penstock: {failure}"
    assert notice.text.endswith(f", {failure}")
