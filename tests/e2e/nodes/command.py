"""The command of a drill over nodes, the same for each engine: its options, its end, and what it leaves."""

import argparse
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from tests.e2e.nodes.cluster import Cluster
from tests.e2e.nodes.drill import Drill
from tests.e2e.nodes.results import table
from tests.e2e.report import Report
from tests.e2e.stack import ROOT, Failure, command
from tests.support.results.provenance import of_this_run

AnyCluster = TypeVar("AnyCluster", bound=Cluster)


def run(
    start: Callable[[], AnyCluster],
    tool: str,
    folder: Path,
    results: str,
    further: Callable[[AnyCluster, Report], None] | None = None,
) -> int:
    """Runs the drill and `further` steps on the nodes that `start` starts; returns the exit code.

    Reports, and logs if a requirement was missed, are written into the folder, and the results under this name. `tool`
    ends the nodes.
    """
    parser = argparse.ArgumentParser(description="Run Penstock over three nodes, break them, and report.")
    parser.add_argument("--keep", action="store_true", help="leave the nodes running")
    parser.add_argument("--adopt", action="store_true", help="publish the results in results/")
    arguments = parser.parse_args()
    if shutil.which(tool) is None:
        print(
            f"there is no {tool}, which starts the nodes; name another one in SLURM_HOST or SWARM_HOST", file=sys.stderr
        )
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report = Report()
    # Like Ctrl-C, so that nothing is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cluster = start()
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    drill = Drill(cluster, report)
    try:
        drill.run()
        if further is not None:
            further(cluster, report)
    except Exception as error:
        reason = str(error) if isinstance(error, (Failure, AssertionError)) else repr(error)
        report.check("the drill completed", False, reason, "yes")
    finally:
        _conclude(drill, cluster, folder, results)
        with suppress(Failure):
            cluster.stop()
        if not arguments.keep:
            command(tool, "down")
    if arguments.adopt:
        shutil.copy(folder / results, ROOT / "results")
    return 0 if report.met else 1


def _conclude(drill: Drill, cluster: Cluster, folder: Path, results: str) -> None:
    report = drill.results.report
    report.write(folder / "report.md", f"Three nodes of {cluster.engine}")
    drill.results.write(folder / results, of_this_run())
    if not report.met:
        cluster.save_logs(folder)
    print(f"\n{table([asdict(row) for row in drill.results.rows])}")
    print(f"{report.seconds:5.0f} s  {'all requirements met' if report.met else 'MISSED'}: {folder / 'report.md'}")
