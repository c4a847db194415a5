"""`make e2e-slurm`: runs Penstock over three nodes of a real Slurm, takes away actors, nodes and links, and reports.

Needs root on this Linux machine, and the tool slurm-host, which starts a real Slurm whose nodes are namespaces; the
variable SLURM_HOST may have its path. Writes build/e2e-slurm/report.md and nodes-slurm.json, from which the failure
table of the docs is made. If a requirement was missed, it also copies the logs there and exits with 1.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.runs.folder import RunFolder
from tests.e2e.nodes.cluster import ActorPlace, Direction, RunPlan, Times
from tests.e2e.nodes.command import run
from tests.e2e.stack import ROOT, Failure, command
from tests.support.machine.timing import DRILL_PATIENCE_S, wait_in_drill

FOLDER = ROOT / "build" / "e2e-slurm"
TOOL = os.environ.get("SLURM_HOST", str(ROOT / ".." / "shared" / "tools" / "slurm-host"))
PENSTOCK = (sys.executable, "-m", "penstock")
TIMES = Times(detection_s=20.0, requeue_s=10.0, stop_s=10.0)
"""Times of the Slurm that slurm-host configures: SlurmdTimeout, AuthInfo's cred_expire, KillWait."""

SCHEDULING_S = 8.0
"""Seconds in which Slurm notices by itself that it can start a job: sched_interval and bf_interval."""
CORES = 16
"""Cores of each node."""
ACTOR_CORES = 2
"""Cores of each actor's task: both nodes of the actors have room for all tasks of the array."""
SPREAD_ACTORS = 6
"""Number of actors, and of fewer, which jobs of other users keep from being on one node, by leaving room for half of
them on each. Slurm fills one node before it uses the next."""
OTHERS = "others"
"""Name of these jobs."""
PREEMPTION_S = 4.0
"""Seconds for which a job of higher priority keeps what it has taken away."""


class SlurmCluster:
    """Three nodes of Slurm on this machine; implements `tests.e2e.nodes.cluster.Cluster`."""

    services_node = "node1"
    actor_nodes: tuple[str, ...] = ("node2", "node3")
    times = Times(TIMES.detection_s, TIMES.requeue_s + SCHEDULING_S, TIMES.stop_s)

    def __init__(self) -> None:
        """Starts the nodes, if they do not run."""
        command(TOOL, "up")
        self.engine = self._slurm("sinfo", "--version").strip().replace("slurm-wlm", "Slurm")
        self._folder = RunFolder(FOLDER)
        self._jobs: tuple[str, ...] = ()
        self._launch: subprocess.Popen[bytes] | None = None

    # The run

    def start(self, plan: RunPlan) -> None:
        """Starts a run with `penstock launch slurm`, which then follows it."""
        self._folder = RunFolder(FOLDER / "runs" / plan.name)
        settings = [f"--{name.replace('_', '-')}={value}" for name, value in plan.settings.items()]
        launch = (
            *(TOOL, "run", *PENSTOCK, "launch", "slurm", f"--preset={plan.preset}", *settings),
            *(f"--run-dir={self._folder.root}", f"--replay.folder={self.store()}", f"--actors={plan.actors}"),
            *(f"--spare={plan.most_actors - plan.actors}", "--gpus=1", "--learner.device=cpu"),
            *("--partition=main", "--actor-partition=preemptible", "--actor-sbatch=--exclude=node1"),
            f"--actor-sbatch=--cpus-per-task={ACTOR_CORES}",
        )
        with self._shown.open("w") as output:
            self._launch = subprocess.Popen(launch, stdout=output, stderr=subprocess.STDOUT)
        numbers = [self._folder.launch / f"{name}.job" for name in ("services", "actors")]
        wait_in_drill(
            lambda: self._launch_failed() or all(path.exists() for path in numbers), "both jobs to be submitted"
        )
        if self._launch_failed():
            raise Failure(self._shown.read_text())
        self._jobs = tuple(path.read_text().strip() for path in numbers)

    def watch_command(self) -> Sequence[str]:
        """Returns the command of the watcher, on the head."""
        return (TOOL, "run", sys.executable, "-m", "tests.e2e.nodes.watcher", str(self._folder.root))

    def scale(self, actors: int) -> None:
        """Changes the number of tasks with `penstock launch slurm-actors`."""
        if actors > SPREAD_ACTORS:
            self._slurm("scancel", f"--name={OTHERS}")
        self._slurm(*PENSTOCK, "launch", "slurm-actors", str(self._folder.root), str(actors))
        if actors <= SPREAD_ACTORS:
            self._fill()

    def actors(self) -> list[ActorPlace]:
        """Returns the running tasks of the array."""
        lines = self._queue("--array", "--states=RUNNING", f"--jobs={self._jobs[1]}", "--format=%i_%S %N").splitlines()
        return [ActorPlace(*line.split()) for line in lines]

    def preempt(self, actors: Iterable[ActorPlace]) -> None:
        """Submits jobs of higher priority that need the cores of so many actors on their nodes.

        Slurm chooses which of the actors on a node it takes away.
        """
        for node, taken in Counter(actor.node for actor in actors).items():
            # sinfo takes cores that can be had by preemption for idle ones.
            used = re.search(r"CPUAlloc=(\d+)", self._slurm("scontrol", "show", "node", node))
            idle = CORES - int(used[1]) if used else 0
            cores = idle + taken * ACTOR_CORES
            wanted = ("--partition=main", f"--nodelist={node}", f"--cpus-per-task={cores}", "--output=/dev/null")
            self._slurm("sbatch", *wanted, f"--wrap=sleep {PREEMPTION_S}")

    def update_actors(self) -> None:
        """Replaces all tasks with `penstock launch slurm-actors RUN restart`, which waits."""
        self._slurm(*PENSTOCK, "launch", "slurm-actors", str(self._folder.root), "restart")

    def ended(self) -> bool:
        """Returns whether both jobs have left the queue, and the command that follows them has ended."""
        if self._launch_failed():
            raise Failure(self._shown.read_text())
        left = self._queue(f"--name={','.join(self._names)}", "--format=%i").split()
        return not left and (self._launch is None or self._launch.poll() is not None)

    def stop(self) -> None:
        """Presses Ctrl-C in the command that follows the run, which must leave the run alone, and cancels both jobs."""
        if self._launch is not None and self._launch.poll() is None:
            self._launch.send_signal(signal.SIGINT)
            if self._launch.wait(DRILL_PATIENCE_S) or "the run goes on" not in self._shown.read_text():
                raise Failure(f"Ctrl-C ended the command with {self._launch.returncode}: {self._shown.read_text()}")
        self._slurm("scancel", f"--name={OTHERS}")
        self._slurm("scancel", *self._jobs)
        wait_in_drill(self.ended, "the end of the cancelled jobs", poll_s=0.5)

    # The nodes

    def kill(self, node: str) -> None:
        """Kills slurmd and all processes of a node."""
        command(TOOL, "kill", node)

    def start_node(self, node: str) -> None:
        """Starts slurmd again."""
        self._fill()
        command(TOOL, "start", node)

    def cut(self, node: str, direction: Direction = "both") -> None:
        """Cuts a node's link."""
        command(TOOL, "cut", node, *(() if direction == "both" else (direction,)))

    def mend(self, node: str) -> None:
        """Mends a node's link."""
        self._fill()
        command(TOOL, "mend", node)

    # What remains of the run

    def store(self) -> Path:
        """Returns the folder of the store, which is on this machine."""
        return self._folder.root / "store"

    def actor_log(self) -> Iterator[Mapping[str, Any]]:
        """Yields the JSON lines of the logs of all tasks."""
        for path in sorted(self._folder.logs.glob("actors-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                # A killed process may have left a part of a line, and Slurm writes lines of its own.
                with suppress(ValueError):
                    if line.startswith("{"):
                        yield json.loads(line)

    def results(self) -> RunFolder:
        """Returns the run's folder, which all nodes share."""
        return self._folder

    def save_logs(self, folder: Path) -> None:
        """Copies the logs of Slurm beside those of the runs, which are in the folder of the drill."""
        for path in Path("/var/lib/slurm-host").rglob("*.log"):
            shutil.copy(path, folder / f"{path.parent.name}-{path.name}")

    def _fill(self) -> None:
        """Submits a job of another user to each node of actors that has none, also to one that is down for now."""
        present = self._queue(f"--name={OTHERS}", "--format=%n").split()
        for node in self.actor_nodes:
            if node not in present:
                cores = CORES - SPREAD_ACTORS // 2 * ACTOR_CORES
                asked = ("--partition=main", f"--nodelist={node}", f"--cpus-per-task={cores}", "--no-requeue")
                wrapped = ("--output=/dev/null", f"--job-name={OTHERS}", "--wrap=exec sleep infinity")
                self._slurm("sbatch", *asked, *wrapped)

    @property
    def _shown(self) -> Path:
        """File with the output of the command that follows the run."""
        return FOLDER / f"{self._folder.root.name}-launch.log"

    def _launch_failed(self) -> bool:
        return self._launch is not None and bool(self._launch.poll())

    @property
    def _names(self) -> tuple[str, str]:
        name = f"penstock-{self._folder.root.name}"
        return name, f"{name}-actors"

    def _queue(self, *options: str) -> str:
        return self._slurm("squeue", "--noheader", *options)

    def _slurm(self, *words: str) -> str:
        """Returns the output of a command on the head."""
        return command(TOOL, "run", *words)


if __name__ == "__main__":
    sys.exit(run(SlurmCluster, TOOL, FOLDER, "nodes-slurm.json"))
