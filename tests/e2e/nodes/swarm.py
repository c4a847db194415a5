"""`make e2e-swarm`: runs Penstock over three nodes of a real Swarm, takes away actors, nodes and links, and reports.

Needs what `tests.e2e.nodes.swarm_cluster` needs. Writes build/e2e-swarm/report.md and nodes-swarm.json, from which the
failure table of the docs is made. If a requirement was missed, it also copies the logs there and exits with 1.
"""

import argparse
import shutil
import signal
import sys
from contextlib import suppress

from tests.e2e.nodes.drill import Drill, conclude
from tests.e2e.nodes.swarm_cluster import FOLDER, TOOL, SwarmCluster
from tests.e2e.nodes.swarm_steps import evaluate, scale_and_drain
from tests.e2e.report import Report
from tests.e2e.stack import ROOT, Failure, command


def main() -> int:
    parser = argparse.ArgumentParser(description="Run Penstock over three nodes of Swarm, break them, and report.")
    parser.add_argument("--keep", action="store_true", help="leave the nodes running")
    parser.add_argument("--adopt", action="store_true", help="copy the results to docs/results")
    arguments = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    report = Report()
    # Like Ctrl-C, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    cluster = SwarmCluster()
    drill = Drill(cluster, report)
    try:
        drill.run()
        evaluate(report, "cartpole")
        scale_and_drain(cluster, report)
    except Exception as error:
        reason = str(error) if isinstance(error, (Failure, AssertionError)) else repr(error)
        report.check("the drill completed", False, reason, "yes")
    finally:
        conclude(drill, cluster, FOLDER, "nodes-swarm.json")
        with suppress(Failure):
            cluster.stop()
        if not arguments.keep:
            command(TOOL, "down")
    if arguments.adopt:
        shutil.copy(FOLDER / "nodes-swarm.json", ROOT / "docs" / "results")
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
