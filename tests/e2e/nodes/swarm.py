"""`make e2e-swarm`: runs Penstock over three nodes of a real Swarm, takes away actors, nodes and links, and reports.

Needs what `tests.e2e.nodes.swarm_cluster` needs. Writes build/e2e-swarm/report.md and nodes-swarm.json, from which the
failure table of the docs is made. If a requirement was missed, it also copies the logs there and exits with 1.
"""

import sys

from tests.e2e.nodes.command import run
from tests.e2e.nodes.swarm_cluster import FOLDER, TOOL, SwarmCluster
from tests.e2e.nodes.swarm_steps import evaluate, scale_and_drain
from tests.e2e.report import Report


def further(cluster: SwarmCluster, report: Report) -> None:
    """Runs the steps that only Swarm has."""
    evaluate(report, "cartpole")
    scale_and_drain(cluster, report)


if __name__ == "__main__":
    sys.exit(run(SwarmCluster, TOOL, FOLDER, "nodes-swarm.json", further))
