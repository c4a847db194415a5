"""Steps of the drill that only Swarm has: automatic scaling, Prometheus, a drained node, and the run's evaluation."""

import re

from tests.e2e.nodes.cluster import RunPlan
from tests.e2e.nodes.drill import FEW, PACED, TASK
from tests.e2e.nodes.swarm_cluster import REGISTRY, TAG, TOOL, SwarmCluster
from tests.e2e.nodes.watch import Watch
from tests.e2e.report import Report
from tests.e2e.stack import command
from tests.support.machine.timing import wait_in_drill

ACTORS = 4
RUNS = "/var/lib/penstock/runs"
_SERVICES = 3
"""Services besides the actors that Prometheus scrapes."""


def scale_and_drain(cluster: SwarmCluster, report: Report) -> None:
    """Lets a run of its own choose its number of actors, compares what Prometheus finds with it, and drains a node."""
    settings = {**PACED, "learner.most_wanted_actors": str(ACTORS)}
    cluster.start(RunPlan("watched", settings, FEW, ACTORS))
    with Watch(cluster.watch_command()) as watch:
        report.begin(f"deploy/swarm/autoscale.yml, with {FEW} actors and a learner that starves")
        watch.trains()
        cluster.autoscale()
        watch.until(lambda sample: sample.actors == ACTORS, f"{ACTORS} actors")
        report.note("actors of a learner that may want as many", str(ACTORS))
        _check_prometheus(cluster, report)
        report.begin("docker node update --availability drain")
        drained = cluster.actor_nodes[0]
        cluster.docker("node", "update", "--availability=drain", drained)
        wait_in_drill(lambda: len(_elsewhere(cluster, drained)) == ACTORS, "all actors on the other nodes")
        watch.until(lambda sample: sample.actors == ACTORS, f"{ACTORS} actors")
        watch.trains()
        cluster.docker("node", "update", "--availability=active", drained)
        report.note("actors of a drained node work elsewhere", f"{ACTORS} on {', '.join(sorted(_nodes(cluster)))}")
    cluster.stop()


def evaluate(report: Report, name: str) -> None:
    """Evaluates a run that has ended, with the command of docs/swarm.md. Its environment is a file of the drill."""
    report.begin("the run that ended")
    run = ("docker", "run", "--rm", "-v", f"{name}_runs:{RUNS}", "-v", f"{TASK}:{TASK}:ro")
    evaluate = ("evaluate", f"{RUNS}/{name}", "--trust-code")
    report.attempt(
        "`docker run ... evaluate` on the services' node",
        "yes",
        lambda: command(TOOL, *run, f"{REGISTRY}penstock-actor:{TAG}", *evaluate).splitlines()[1],
    )


def _check_prometheus(cluster: SwarmCluster, report: Report) -> None:
    targets = _SERVICES + ACTORS
    wait_in_drill(lambda: _query(cluster, "sum(up)") == str(targets), f"Prometheus to find {targets} targets, all up")
    nodes = wait_in_drill(lambda: _query(cluster, "count(node:penstock_actors:count)"), "Prometheus to name nodes")
    report.check(
        "targets of Prometheus that are up, and nodes of actors",
        nodes == str(len(_nodes(cluster))),
        f"{targets}; {nodes}",
        f"{targets}; {len(_nodes(cluster))}",
    )


def _query(cluster: SwarmCluster, expression: str) -> str:
    """Returns the value of an expression; empty if it has none."""
    at = (TOOL, "at", cluster.services_node)
    found = command(*at, "ps", "-q", "--filter=label=com.docker.swarm.service.name=watched_prometheus").split()
    if not found:
        return ""
    asked = command(*at, "exec", found[0], "promtool", "query", "instant", "http://localhost:9090", expression)
    value = re.search(r"=> (\S+) @", asked)
    return value[1] if value else ""


def _nodes(cluster: SwarmCluster) -> set[str]:
    return {actor.node for actor in cluster.actors()}


def _elsewhere(cluster: SwarmCluster, node: str) -> list[str]:
    return [actor.id for actor in cluster.actors() if actor.node != node]
