"""The pods of deploy/kubernetes, run as their manifests say: a run from its start to its end, with a drained node."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from penstock.errors import BY_SIGNAL, GAVE_UP, USAGE_ERROR, Unavailable
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.loop import LoopThread
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.types.status import RunStatus
from tests.deploy.cluster import Cluster, Running, unavailable
from tests.support.machine.timing import PATIENCE_S, wait_for_run
from tests.support.services.processes import Ended

pytestmark = pytest.mark.nightly

RENEWED = "certificate renewed"
SERVICES = ("replay", "learner", "evaluator")
STOPPED = BY_SIGNAL + signal.SIGTERM
SMALL = {"PENSTOCK__REPLAY__CAPACITY_BYTES": 2**26, "PENSTOCK__CHECKPOINT__SAVE_INTERVAL": 10_000}
ENDLESS_STEPS, MORE_STEPS = 10**9, 200_000
"""The second is enough for actors to join the last learner before its end, which one that comes later would miss."""


@dataclass
class Seen:
    """Observations of the run.

    Attributes:
        probes: By component, the results of the three probes of a pod that works.
        metrics: By component, what Prometheus scrapes.
        frozen: Results of the liveness probe of a stopped process, and after it continued.
        drained: By component, the exit code and the share of the grace period of a pod of a drained node.
        versions: Policy versions before the drain, and after it.
        steps: Steps of the run before the drain, and when the next learner trains.
        ends: By component, exit codes at the end of the run.
        after: What the replay service's probe says after the end.
        again: Exit code of a learner that is started after the end.
        renewed: Components whose pods log renewed certificates.
        status: Result of `penstock status` in the pod of the tools.
        played: Result of `penstock evaluate` in the pod of the tools, after the end.
        summary: The run's summary.
    """

    probes: dict[str, list[bool]] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
    frozen: tuple[bool, bool] = (True, False)
    drained: dict[str, tuple[int, float]] = field(default_factory=dict)
    versions: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)
    ends: dict[str, int] = field(default_factory=dict)
    after: bool = False
    again: int = -1
    renewed: set[str] = field(default_factory=set)
    status: Ended | None = None
    played: Ended | None = None
    summary: Summary | None = None


def status_of(cluster: Cluster, learner: Running) -> RunStatus | None:
    address = f"{learner.address}:{learner.pod.ports['grpc']}"
    with (
        closing(LoopThread(cluster.operator)) as thread,
        closing(StatusClient(thread, address)) as client,
        suppress(Unavailable),
    ):
        return client.get(5.0)
    return None


def until(cluster: Cluster, learner: Running, steps: int) -> RunStatus:
    """Waits until the run has more than this number of steps."""

    def reached() -> RunStatus | None:
        status = status_of(cluster, learner)
        return status if status is not None and status.env_steps > steps else None

    status = learner.command.until(reached, f"step {steps}")
    assert status is not None
    return status


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    if reason := unavailable():
        pytest.skip(reason)
    place, found = tmp_path_factory.mktemp("cluster"), Seen()
    with Cluster(place, PENSTOCK__RUN__TOTAL_STEPS=ENDLESS_STEPS, **SMALL) as cluster:
        cluster.certify()
        running = {each: cluster.start(each) for each in (*SERVICES, "actor")}
        another = cluster.start("actor")
        for pod in (*running.values(), another):
            pod.until_started()
        until(cluster, running["learner"], 20_000)
        for component, pod in running.items():
            found.probes[component] = [pod.probe(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")]
            with urllib.request.urlopen(pod.metrics, timeout=PATIENCE_S) as response:
                found.metrics[component] = response.read().decode()
        found.status = cluster.start("tools").run("status", "cartpole")
        renew(cluster, running, found)
        freeze(another, found)
        drain(cluster, running, found)
        finish(cluster, running, another, found)
    yield found


def has_renewed(pod: Running) -> bool:
    return RENEWED in pod.command.stderr + pod.command.stdout


def renew(cluster: Cluster, running: dict[str, Running], found: Seen) -> None:
    """Does once more what the job of the certificates does, and waits until all pods use the new ones."""
    cluster.certify()
    for component, pod in running.items():
        pod.command.until(partial(has_renewed, pod), f"{pod.pod} to renew its certificate")
        found.renewed.add(component)


def freeze(pod: Running, found: Seen) -> None:
    pod.command.process.send_signal(signal.SIGSTOP)
    # Returns when all threads have stopped, which a busy machine delays.
    os.waitid(os.P_PID, pod.command.pid, os.WSTOPPED)
    alive = pod.probe("livenessProbe")
    pod.command.process.send_signal(signal.SIGCONT)
    found.frozen = (alive, bool(wait_for_run(lambda: pod.probe("livenessProbe"), "an answer of the thawed process")))


def drain(cluster: Cluster, running: dict[str, Running], found: Seen) -> None:
    """Ends all pods but one actor, and starts them again as their controllers do."""
    before = until(cluster, running["learner"], 0)
    for component in (*SERVICES, "actor"):
        found.drained[component] = running[component].drain()
    for component in (*SERVICES, "actor"):
        running[component] = cluster.start(component)
    running["learner"].until_started()
    started = until(cluster, running["learner"], 0)
    after = until(cluster, running["learner"], max(before.env_steps, started.env_steps))
    found.versions = before.version, after.version
    found.steps = before.env_steps, started.env_steps


def finish(cluster: Cluster, running: dict[str, Running], another: Running, found: Seen) -> None:
    """Applies a limit that the run reaches soon, which replaces the learner, and waits for the end."""
    reached = until(cluster, running["learner"], 0).env_steps
    cluster.apply(PENSTOCK__RUN__TOTAL_STEPS=reached + MORE_STEPS, **SMALL)
    running["learner"].drain()
    running["learner"] = cluster.start("learner")
    for component, pod in (("learner", running["learner"]), ("actor", running["actor"]), ("another actor", another)):
        found.ends[component] = pod.command.wait()
    found.ends["evaluator"] = running["evaluator"].command.wait()
    found.after = running["replay"].probe("livenessProbe")
    found.again = cluster.start("learner").command.wait()
    found.played = cluster.start("tools").run("evaluate", "cartpole", "--episodes", "2")
    found.summary = Summary.read(RunFolder(cluster.claim("penstock-runs") / "cartpole").summary)


@pytest.mark.parametrize("component", [*SERVICES, "actor"])
def test_probes_of_a_working_pod_succeed(seen: Seen, component: str) -> None:
    assert seen.probes[component] == [True, True, True]


def test_a_hung_process_fails_its_liveness_probe_and_one_that_continues_does_not(seen: Seen) -> None:
    assert seen.frozen == (False, True)


@pytest.mark.parametrize(
    ("component", "metric"),
    [
        ("replay", "penstock_replay_segments"),
        ("learner", "penstock_learner_policy_version"),
        ("actor", "penstock_actor_environment_steps_total"),
        ("evaluator", "penstock_evaluator_seconds_total"),
    ],
)
def test_metrics_are_where_prometheus_scrapes_and_name_the_node(seen: Seen, component: str, metric: str) -> None:
    assert f"# TYPE {metric} " in seen.metrics[component]
    assert 'penstock_node_info{node="node-1"} 1.0' in seen.metrics[component]


@pytest.mark.parametrize("component", [*SERVICES, "actor"])
def test_a_drained_pod_ends_well_within_its_grace_period(seen: Seen, component: str) -> None:
    code, share = seen.drained[component]
    # A learner's 0 would say that the run is done, and 2 or 3 that a restart does not help.
    assert code == STOPPED and code not in (USAGE_ERROR, GAVE_UP)
    assert share < 0.5


def test_the_run_continues_after_the_drain_where_it_was(seen: Seen) -> None:
    # The learner saves a checkpoint when it is stopped.
    before, resumed = seen.steps
    assert 0 < before <= resumed
    version_before, version_after = seen.versions
    assert version_after > version_before


def test_at_the_end_of_the_run_its_pods_complete_and_the_store_stays(seen: Seen) -> None:
    assert seen.ends == dict.fromkeys(("learner", "actor", "another actor", "evaluator"), 0)
    assert seen.after


def test_a_learner_that_is_started_again_ends_at_once(seen: Seen) -> None:
    assert seen.again == 0


def test_the_run_in_the_volume_can_be_evaluated_by_the_tools(seen: Seen) -> None:
    assert seen.summary is not None and seen.summary.stopped == "total_steps"
    assert seen.played is not None and seen.played.code == 0, seen.played
    assert "return" in seen.played.stdout


def test_renewed_secrets_are_taken_without_a_restart(seen: Seen) -> None:
    assert seen.renewed == {*SERVICES, "actor"}


def test_the_status_of_the_run_is_shown_in_the_pod_of_the_tools(seen: Seen) -> None:
    assert seen.status is not None and seen.status.code == 0, seen.status
    assert "actors" in seen.status.stdout
