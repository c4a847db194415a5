"""A real Prometheus finds all services of a run by the list in its folder, and knows whether the run has ended."""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.runs.folder import RunFolder
from tests.e2e.panels import JOBS, Prometheus, queries
from tests.support.machine.timing import wait_for_run
from tests.support.services.link import Host, unavailable
from tests.support.services.ports import free_ports
from tests.support.services.processes import WITH_HELPERS, Command, run

DEPLOYED = Path(__file__).parents[2] / "deploy" / "prometheus"
HOST, NODE = "127.0.0.1", "node1"
SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced"
    " --environment.kwargs=pause_s=0.005 --actors=3 --envs-per-actor=2"
    " --actor.unroll-length=4 --sampling.batch-segments=8 --sampling.fresh-fraction=1 --ppo.epochs=1"
    " --ppo.minibatches=1 --evaluation.episodes=1 --evaluation.max-episode-steps=4"
)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt install prometheus)"
    ),
]


class Run:
    """Services that were started one by one on this host; actors and evaluators with their default addresses."""

    def __init__(self, stack: ExitStack, folder: RunFolder, *options: str, learner_host: str = HOST) -> None:
        self._stack, self.folder = stack, folder
        ports = free_ports(2)
        replay, learner = f"{HOST}:{ports[0]}", f"{learner_host}:{ports[1]}"
        self._options = [
            *SETTINGS.split(),
            *(f"--replay.listen={replay}", f"--learner.listen={learner}", f"--learner.replay-addresses={replay}"),
            *("--replay.metrics-port=auto", "--learner.metrics-port=auto", "--replay.stop-with-run=true"),
            *(f"--actor.learner-address={learner}", f"--evaluation.learner-address={learner}"),
            f"--run-dir={folder.root}",
            *options,
        ]
        self.replay, self.learner, self.evaluator = map(self.start, ("replay", "learner", "evaluator"))

    def start(self, service: str, *options: str, on: Host | None = None) -> Command:
        # An option overrides a variable.
        environment = {**WITH_HELPERS, "PENSTOCK__TELEMETRY__NODE": NODE}
        command = Command(service, *self._options, *options, environment=environment, host=on)
        return self._stack.enter_context(command)

    def listed(self) -> list[tuple[str, str]]:
        """Returns the job and the address of each listed target."""
        groups = json.loads(self.folder.targets.read_text()) if self.folder.targets.exists() else []
        return [(group["labels"]["job"], group["targets"][0]) for group in groups]


class PatientPrometheus(Prometheus):
    """Prometheus on a machine that may be too busy to answer, or has not started to."""

    def ask(self, path: str, parameters: Mapping[str, object] | None = None) -> Any:
        return wait_for_run(partial(self._answer, path, parameters), "an answer of Prometheus")[0]

    def _answer(self, path: str, parameters: Mapping[str, object] | None) -> list[Any]:
        try:
            return [super().ask(path, parameters)]
        except (OSError, ValueError):
            # While it starts, it refuses connections, and then answers with text.
            return []


@contextmanager
def prometheus(place: Path, folder: RunFolder) -> Iterator[Prometheus]:
    """Runs Prometheus with nodes.yml, as docs/OPERATIONS.md describes it."""
    (port,) = free_ports(1)
    shutil.copytree(DEPLOYED, place)
    (place / "run").symlink_to(folder.root, target_is_directory=True)
    command = ["prometheus", f"--config.file={place / 'nodes.yml'}", f"--storage.tsdb.path={place / 'data'}"]
    command += [f"--web.listen-address={HOST}:{port}", "--log.level=warn"]
    with (place / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield PatientPrometheus(f"http://{HOST}:{port}")
        finally:
            process.terminate()


def targets(client: Prometheus) -> list[dict[str, Any]]:
    active: list[dict[str, Any]] = client.ask("targets", {"state": "active"})["activeTargets"]
    return [each for each in active if each["labels"]["job"] in JOBS]


def up(client: Prometheus, *jobs: str) -> list[dict[str, str]]:
    """Returns the labels of all targets, by job and slot, once they are these and all are up; else none."""
    found = targets(client)
    labels = sorted((each["labels"] for each in found), key=lambda each: (each["job"], each.get("slot", "")))
    healthy = all(each["health"] == "up" for each in found)
    return labels if healthy and [each["job"] for each in labels] == sorted(jobs) else []


def value(client: Prometheus, expression: str) -> float | None:
    """Returns the present value of an expression without labels; None if it has none."""
    result = client.ask("query", {"query": expression})["result"]
    return float(result[0]["value"][1]) if result else None


def alert(name: str) -> str:
    """Returns the condition of an alert."""
    rules = yaml.safe_load((DEPLOYED / "rules" / "alerts.yml").read_text())["groups"][0]["rules"]
    return str(next(rule["expr"] for rule in rules if rule["alert"] == name))


def test_prometheus_finds_every_service_of_a_run_also_after_an_actor_was_replaced(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with ExitStack() as stack, prometheus(tmp_path / "prometheus", folder) as client:
        run = Run(
            stack, folder, "--run.total-steps=none", "--run.total-minutes=1000", "--evaluation.interval-steps=100"
        )
        actors = [run.start("actor") for _ in range(3)]
        jobs = ("actor", "actor", "actor", "evaluator", "learner", "replay")
        labels = wait_for_run(lambda: up(client, *jobs), "all targets to be up")
        assert [each.get("slot") for each in labels] == ["0", "1", "2", *[None] * (len(jobs) - 3)]
        assert {each["node"] for each in labels} == {NODE}
        before = {address for job, address in run.listed() if job == "actor"}
        assert len(before) == 3

        actors[0].kill()
        actors[0].wait()
        wait_for_run(lambda: up(client, *jobs[1:]), "the target of the killed actor to go")
        run.start("actor")
        wait_for_run(lambda: up(client, *jobs), "the target of the other actor")
        after = {address for job, address in run.listed() if job == "actor"}
        assert len(after & before) == 2 and len(after) == 3

        # What the dashboards show by node has data, and the nodes' variable has a value.
        of_nodes = [query for query in queries() if "node:" in query.expression]
        assert of_nodes
        for query in of_nodes:
            wait_for_run(lambda: client.has_data(query), f"data of {query.panel}")  # noqa: B023
        wait_for_run(lambda: value(client, "sum(node:penstock_actors:count)") == 3.0, "the number of actors")
        assert client.ask("label/node/values") == [NODE]

        run.learner.process.send_signal(signal.SIGTERM)
        run.learner.wait()
        assert not folder.targets.exists()
        wait_for_run(lambda: targets(client) == [], "the end of all targets")
        # The run was interrupted and is not over.
        assert value(client, "run:penstock_learner_finished:last") == 0.0
        condition = {"query": alert("PenstockServiceDown")}
        wait_for_run(lambda: len(client.ask("query", condition)["result"]) == len(JOBS), "the alert's condition")


def test_prometheus_knows_the_end_of_a_run_after_all_its_services_have_ended(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with ExitStack() as stack, prometheus(tmp_path / "prometheus", folder) as client:
        assert client.ask("query", {"query": alert("PenstockServiceDown")})["result"] == []
        # Long enough for several scrapes, and short.
        run = Run(stack, folder, "--run.total-steps=none", "--run.total-minutes=0.3")
        services = [run.replay, run.learner, run.evaluator, run.start("actor")]
        wait_for_run(
            lambda: value(client, "run:penstock_learner_finished:last") == 0.0, "the first scrape of the learner"
        )
        assert [each.wait() for each in services] == [0, 0, 0, 0]
        wait_for_run(lambda: value(client, "run:penstock_learner_finished:last") == 1.0, "the learner's last word")
        wait_for_run(lambda: targets(client) == [], "the end of all targets")
        wait_for_run(lambda: value(client, 'count(up{job!="prometheus"})') is None, "the end of their series")
        assert value(client, "run:penstock_learner_finished:last") == 1.0
        assert value(client, 'reason:penstock_learner_run_end:last{reason="total_minutes"}') == 1.0
        assert client.ask("query", {"query": alert("PenstockServiceDown")})["result"] == []


def test_an_actor_of_another_node_is_shown_with_its_node(tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    folder = RunFolder(tmp_path / "run")
    with ExitStack() as stack, Host() as other, prometheus(tmp_path / "prometheus", folder) as client:
        link = other.link()
        endless = ("--run.total-steps=none", "--run.total-minutes=1000", "--security.insecure=true")
        # Only the learner can be reached from the other node.
        services = Run(stack, folder, *endless, learner_host=link.here)
        services.start("actor")
        there = ["--telemetry.node=node2", "--telemetry.job=17_4", f"--telemetry.metrics-host={link.there}"]
        # The other namespace has no route to the replay service, so its actor joins and collects nothing.
        remote = services.start("actor", *there, on=other)
        wait_for_run(lambda: up(client, "actor", "actor", "evaluator", "learner", "replay"), "all targets to be up")
        assert {each["labels"]["node"] for each in targets(client)} == {"node1", "node2"}
        of_node = 'sum(node:penstock_actors:count{node="%s"})'
        for node in ("node1", "node2"):
            wait_for_run(lambda: value(client, of_node % node) == 1.0, f"the actor of {node}")  # noqa: B023
        shown = run("status", str(folder.root)).stdout
        assert "node1: 1 actor, " in shown and "node2: 1 actor, " in shown
        entries = [json.loads(line) for line in remote.stderr.splitlines()]
        assert {(entry["node"], entry["job"]) for entry in entries} == {("node2", "17_4")}
        listed = {
            each["labels"]["node"]: each["labels"]["slot"] for each in targets(client) if "slot" in each["labels"]
        }
        assert str(entries[-1]["slot"]) == listed["node2"]
