"""Services that are started one by one find each other by files, on one host and on two, and end with their run."""

import json
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.machine.addresses import Address
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import LEARNER, RunFolder
from tests.support.services.link import Host, unavailable
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, run

pytestmark = pytest.mark.nightly

ANY_PORT = [f"--{section}.metrics-port=auto" for section in ("replay", "learner", "actor", "evaluation")]
SHORT = ["--preset=cartpole", *ANY_PORT, "--total-steps=2000", "--evaluation.interval-steps=1000"]
ENDLESS = ["--preset=cartpole", *ANY_PORT, "--total-steps=1e9", "--evaluation.interval-steps=1e9"]


class Services:
    """The services of one run, of which only their files know the ports."""

    def __init__(self, stack: ExitStack, place: Path, settings: list[str], host: Host | None = None) -> None:
        self._stack, self._place, self._settings, self._host = stack, place, settings, host
        self._thread = LoopThread()
        stack.callback(self._thread.close)
        self.folder, self.replay_file = RunFolder(place / "run"), place / "replay.json"
        self._there = [f"--learner.replay-addresses=file:{self.replay_file}"]
        if host is not None:
            address = host.link().there
            self._there += [f"--{name}.listen=0.0.0.0:0" for name in ("replay", "learner")]
            self._there += [f"--{name}.advertise=unknown.invalid,{address}" for name in ("replay", "learner")]
            self._there += ["--security.insecure=true"]
        else:
            self._there += [f"--{name}.listen=127.0.0.1:0" for name in ("replay", "learner")]

    def replay(self) -> Command:
        file = f"--replay.address-file={self.replay_file}"
        return self._start("replay", *self._there, file, "--replay.stop-with-run=true", host=self._host)

    def learner(self) -> Command:
        return self._start("learner", *self._there, f"--run-dir={self.folder.root}", host=self._host)

    def actor(self, *options: str) -> Command:
        return self._start("actor", f"--actor.run={self.folder.root}", *options)

    def evaluator(self) -> Command:
        return self._start("evaluator", f"--evaluation.run={self.folder.root}")

    def batches(self) -> int:
        """Returns the batches that the present learner has trained; 0 while it does not answer."""
        try:
            place = self.folder.places()[LEARNER]
            with closing(StatusClient(self._thread, place)) as client:
                coordinator = client.get(1.0).coordinator
        except (OSError, ValueError, PenstockError):
            return 0
        return coordinator.batches_trained if coordinator is not None else 0

    def _start(self, service: str, *options: str, host: Host | None = None) -> Command:
        command = Command(service, *self._settings, *options, directory=self._place, host=host)
        return self._stack.enter_context(command)


@pytest.mark.parametrize("hosts", [1, 2])
def test_services_find_each_other_by_files_and_end_with_their_run(hosts: int, tmp_path: Path) -> None:
    if hosts == 2 and (reason := unavailable()):
        pytest.skip(reason)
    with ExitStack() as stack:
        services = Services(stack, tmp_path, SHORT, stack.enter_context(Host()) if hosts == 2 else None)
        # The clients of the learner are first: they wait for its file.
        started = [services.actor(), services.actor(), services.evaluator(), services.learner(), services.replay()]
        assert [each.wait() for each in started] == [0] * len(started), "\n".join(each.stderr for each in started)
        assert json.loads(services.folder.summary.read_text())["stopped"] == "total_steps"
        assert not services.folder.services.exists()
        assert not services.replay_file.exists()


def test_an_actor_follows_services_that_are_started_again_at_other_ports(tmp_path: Path) -> None:
    with ExitStack() as stack:
        services = Services(stack, tmp_path, [*ENDLESS, f"--replay.folder={tmp_path / 'store'}"])
        replay, learner, actor = services.replay(), services.learner(), services.actor()
        actor.until(services.batches, "training")
        learner.kill()
        learner.wait()
        former = services.folder.places()[LEARNER]
        services.learner()
        actor.until(lambda: services.folder.places()[LEARNER] != former, "the learner's new place")
        actor.until(services.batches, "training with the next learner")
        replay.kill()
        replay.wait()
        former, before = services.folder.places()["replay"], services.batches()
        services.replay()
        actor.until(lambda: services.folder.places()["replay"] != former, "the replay service's new place")
        actor.until(lambda: services.batches() > before + 1, "training with the next replay service")
        assert "slot lost" not in actor.stderr


@pytest.mark.parametrize("service", ["actor", "evaluator"])
def test_a_service_gives_up_after_its_time_without_the_learner(service: str, tmp_path: Path) -> None:
    section = "evaluation" if service == "evaluator" else service
    missing = Address("127.0.0.1", free_ports(1)[0])
    options = [
        f"--{section}.learner-address={missing}",
        f"--{section}.give-up-after-s=0.5",
        f"--{section}.metrics-port=0",
    ]
    with Command(service, *options, "--env-id=CartPole-v1", directory=tmp_path) as command:
        assert command.wait() == 3
        stderr = command.stderr
    assert "Traceback" not in stderr
    *_, last = stderr.splitlines()
    assert last.startswith("penstock: gave up after ")
    assert f"the learner at {missing} can't be reached" in last


def test_a_service_that_others_could_reach_is_refused_with_one_line(tmp_path: Path) -> None:
    end = run("replay", "--replay.listen=0.0.0.0:0", "--replay.metrics-port=0")
    assert end.code == 2
    assert end.stderr.startswith("penstock: replay.listen 0.0.0.0:0 can be reached from other hosts")
    assert end.stderr.count("\n") == 1


def test_a_service_on_loopback_that_others_look_for_elsewhere_warns(tmp_path: Path) -> None:
    options = ["--replay.listen=127.0.0.1:0", "--replay.metrics-port=0", "--learner.replay-addresses=node1:7431"]
    with Command("replay", *options, directory=tmp_path) as command:
        command.until(lambda: "can't be reached from other hosts" in command.stderr, "the warning")
        assert "learner.replay_addresses has node1:7431" in command.stderr
