"""Three nodes of a real Docker Swarm on this machine, which the tool swarm-host starts, with the stack of deploy/swarm.

Needs root on this Linux machine, and Docker Engine with buildx. The variable SWARM_HOST may have the path of the tool.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock.runs.folder import RunFolder
from tests.e2e.nodes.cluster import ActorPlace, Direction, RunPlan, Times
from tests.e2e.nodes.drill import TASK
from tests.e2e.stack import ROOT, Failure, command
from tests.support.machine.timing import wait_in_drill

FOLDER = ROOT / "build" / "e2e-swarm"
TOOL = os.environ.get("SWARM_HOST", str(ROOT / ".." / "shared" / "tools" / "swarm-host"))
STATE = Path(os.environ.get("SWARM_HOST_STATE", "/var/lib/swarm-host"))
NODES = ("node1", "node2", "node3")
OUTSIDE = "sw-switch"
"""Network namespace of the bridge that joins the nodes, which no fault of a node reaches."""
SERVICES_ADDRESS = "10.178.0.11"
MANAGER = {"DOCKER_HOST": f"unix://{STATE}/node1/docker.sock"}
"""Variable with which the docker command of this machine uses the engine of the manager."""

FILES = ("deploy/swarm/stack.yml", "deploy/swarm/gpu.yml", "tests/e2e/nodes/swarm.yml")
AUTOSCALE = "deploy/swarm/autoscale.yml"
TAG, NEXT_TAG = "e2e", "e2e-next"
CLI = "docker-cli:e2e"
IMAGES = {
    "penstock-actor:e2e": ("penstock-actor", "penstock-learner"),
    "prom/prometheus:v2.53.3": ("prometheus",),
    CLI: ("docker-cli",),
}
"""Images of this machine's engine, and their names on the nodes. No node has a GPU: the learner uses the CPU image."""
REGISTRY = "127.0.0.1:5000/"
"""Where no registry is: a node asks it for newer images at each start of a task, and is refused at once."""

VOLUMES = ("replay", "runs", "prometheus")
NANOSECONDS = 1e9
_WGET = """#!/usr/bin/env python3
import sys, urllib.request
sys.stdout.write(urllib.request.urlopen(sys.argv[-1], timeout=10).read().decode())
"""
"""`wget -q -T 10 -O - URL` of busybox, in an image without it."""

GRACE = 3
"""Heartbeats that a node may miss, by swarmkit's dispatcher, before it is down."""
RESTART_S = 1.0
"""`restart_policy.delay` of the stack."""
ELECTION_S = 10.0
"""Ticks of a second after which a manager that has started again, and finds no leader, becomes it (`docker info`)."""
SYNC_S = 30.0
"""Seconds for which an engine that joins a network again waits for each node to answer (networkdb of libnetwork), and
starts no containers. It logs `Bulk sync to node ... timed out`, which is not rare when a killed node returns."""


class SwarmCluster:
    """Three nodes of Docker Swarm on this machine; implements `tests.e2e.nodes.cluster.Cluster`.

    Attributes:
        variables: Variables of the shell with which the stack was deployed.
    """

    services_node = "node1"
    actor_nodes: tuple[str, ...] = ("node2", "node3")

    def __init__(self) -> None:
        """Starts the nodes, if they do not run, and gives them the images and the label."""
        self._name = ""
        self.variables: dict[str, str] = {}
        # The tool may ask an engine that does not answer yet, and can be used again.
        with suppress(Failure):
            command(TOOL, "up")
        command(TOOL, "up")
        load_images()
        self.docker("node", "update", "--label-add", "penstock=services", self.services_node)
        info = json.loads(self.docker("info", "--format", "{{json .}}"))
        spec = info["Swarm"]["Cluster"]["Spec"]
        self.engine = f"Docker Swarm {info['ServerVersion']}"
        self.times = Times(
            detection_s=GRACE * spec["Dispatcher"]["HeartbeatPeriod"] / NANOSECONDS,
            requeue_s=RESTART_S + ELECTION_S + SYNC_S,
            stop_s=30.0,
        )

    # The run

    def start(self, plan: RunPlan) -> None:
        """Removes the stack and the volumes of earlier runs, and deploys a stack as docs/swarm.md says."""
        self.stop()
        self._name = plan.name
        for node in NODES:
            command(TOOL, "at", node, "volume", "rm", "--force", *(f"{plan.name}_{each}" for each in VOLUMES))
        self._logs.mkdir(parents=True)
        # The containers' user is not this one.
        self._logs.chmod(0o777)
        settings = {"replay.capacity_bytes": "none", **plan.settings}
        names = {f"PENSTOCK__{name.replace('.', '__').upper()}": value for name, value in settings.items()}
        lines = [f"{name}={value}\n" for name, value in {"PENSTOCK_PRESET": plan.preset, **names}.items()]
        file, password = self._logs / "settings.env", self._logs / "grafana-password"
        file.write_text("".join(lines))
        password.write_text("of no Grafana")
        self.variables = {
            "PENSTOCK_REGISTRY": REGISTRY,
            "PENSTOCK_TAG": TAG,
            "PENSTOCK_SETTINGS": str(file),
            "PENSTOCK_ACTORS": str(plan.actors),
            # All nodes have the same two cores.
            "PENSTOCK_ACTOR_CPUS": "0.1",
            "GRAFANA_PASSWORD_FILE": str(password),
            "DRILL_LOGS": str(self._logs),
            "DRILL_TASK": str(TASK),
            **self._certificates(),
        }
        self._deploy(FILES)

    def autoscale(self) -> None:
        """Deploys the stack again with the service that follows the number of actors that the learner wants."""
        socket = MANAGER["DOCKER_HOST"].removeprefix("unix://")
        image = f"{REGISTRY}{CLI}"
        self.variables |= {"DOCKER_CLI_IMAGE": image, "DOCKER_SOCKET": socket, "AUTOSCALE_SECONDS": "5"}
        self._deploy((*FILES, AUTOSCALE))

    def watch_command(self) -> Sequence[str]:
        """Returns the command of the watcher, outside of all nodes."""
        watcher = (sys.executable, "-m", "tests.e2e.nodes.watcher", f"{SERVICES_ADDRESS}:7432")
        certificate = Path(self.variables["PENSTOCK_CERTIFICATES"]) / "operator" / "certificate.pem"
        return (*from_outside(), "env", f"PENSTOCK__SECURITY__CERTIFICATE={certificate}", *watcher)

    def scale(self, actors: int) -> None:
        """Scales the service of the actors."""
        self.docker("service", "scale", "--detach", f"{self._name}_actor={actors}")

    def actors(self) -> list[ActorPlace]:
        """Returns the running tasks of the actors' service."""
        tasks = self._tasks("actor")
        return [ActorPlace(task["id"], task["node"]) for task in tasks if task["state"].startswith("Running")]

    def preempt(self, actors: Iterable[ActorPlace]) -> None:
        """Sends SIGTERM to containers, as the notice that a node is taken away. Swarm itself has no preemption."""
        for actor in actors:
            found = command(TOOL, "at", actor.node, "ps", "-q", f"--filter=label=com.docker.swarm.task.id={actor.id}")
            command(TOOL, "at", actor.node, "kill", "--signal=TERM", *found.split())

    def update_actors(self) -> None:
        """Gives the actors' service a new image, which Swarm starts before it stops the old one."""
        name = f"{REGISTRY}penstock-actor"
        for node in NODES:
            command(TOOL, "at", node, "tag", f"{name}:{TAG}", f"{name}:{NEXT_TAG}")
        self._update("--no-resolve-image", f"--image={name}:{NEXT_TAG}")

    def ended(self) -> bool:
        """Returns whether no task of the run is to run any more. Prometheus is not of the run."""
        tasks = [self._tasks(service) for service in ("replay", "learner", "actor", "evaluator")]
        return all(tasks) and not any(task["desired"] in ("Running", "Ready") for each in tasks for task in each)

    def stop(self) -> None:
        """Removes the stack, and waits for its containers and its network. The volumes stay."""
        for stack in self.docker("stack", "ls", "--format={{.Name}}").split():
            self.docker("stack", "rm", stack)
            wait_in_drill(partial(self._is_gone, stack), f"the stack {stack} to end")

    # The nodes

    def kill(self, node: str) -> None:
        """Kills the engine and all containers of a node."""
        command(TOOL, "kill", node)

    def start_node(self, node: str) -> None:
        """Starts the engine again. Swarm leaves the actors where they are, so the user spreads them again."""
        command(TOOL, "start", node)
        if node in self.actor_nodes:
            self._spread()

    def cut(self, node: str, direction: Direction = "both") -> None:
        """Cuts a node's link."""
        command(TOOL, "cut", node, *(() if direction == "both" else (direction,)))

    def mend(self, node: str) -> None:
        """Mends a node's link. Swarm leaves the actors where they are, so the user spreads them again."""
        command(TOOL, "mend", node)
        self._spread()

    # What remains of the run

    def store(self) -> Path:
        """Returns the folder of the store in the volume, which is on this machine."""
        return self._volume("replay") / self._name

    def actor_log(self) -> Iterator[Mapping[str, Any]]:
        """Yields the JSON lines of the logs of all actors."""
        for path in sorted(self._logs.glob("*.log")):
            for line in path.read_text(errors="replace").splitlines():
                # A killed process may have left a part of a line.
                with suppress(ValueError):
                    entry = json.loads(line)
                    if entry["service"] == "actor":
                        yield entry

    def results(self) -> RunFolder:
        """Returns the run's folder in the volume, which is on this machine."""
        return RunFolder(self._volume("runs") / self._name)

    def save_logs(self, folder: Path) -> None:
        """Copies the engines' logs beside those of the run, which are in the folder of the drill."""
        for node in NODES:
            shutil.copy(STATE / node / "dockerd.log", folder / f"{node}-dockerd.log")
        with suppress(Failure):
            (folder / "tasks.txt").write_text(command(TOOL, "status"))

    def _deploy(self, names: Sequence[str]) -> None:
        files = [f"--compose-file={name}" for name in names]
        self.docker("stack", "deploy", "--resolve-image=never", "--detach=true", *files, self._name)

    @property
    def _logs(self) -> Path:
        return FOLDER / "runs" / self._name

    def _certificates(self) -> dict[str, str]:
        """Makes the certificates of the run on the manager, and returns the variables of the stack that name them."""
        script = ("sh", "deploy/swarm/certificates.sh", str(self._logs / "made"))
        image = {"PENSTOCK_REGISTRY": REGISTRY, "PENSTOCK_TAG": TAG}
        _, *variables = shlex.split(command(*script, environment={**image, **MANAGER}))
        return dict(variable.split("=", 1) for variable in variables)

    def _volume(self, name: str) -> Path:
        return STATE / self.services_node / "data" / "volumes" / f"{self._name}_{name}" / "_data"

    def _tasks(self, service: str) -> list[dict[str, str]]:
        """Returns id, node, desired and actual state of the tasks of a service, former ones included."""
        columns = '{"id":"{{.ID}}","node":"{{.Node}}","desired":"{{.DesiredState}}","state":"{{.CurrentState}}"}'
        listed = self.docker("service", "ps", "--no-trunc", f"--format={columns}", f"{self._name}_{service}")
        return [json.loads(line) for line in listed.splitlines()]

    def _is_gone(self, stack: str) -> bool:
        """Returns whether nothing is left of a removed stack but its volumes."""
        label = f"--filter=label=com.docker.stack.namespace={stack}"
        left = [
            self.docker("network", "ls", "-q", label),
            *(command(TOOL, "at", node, "ps", "-q", label) for node in NODES),
        ]
        return not any(left)

    def _spread(self) -> None:
        """Waits until all nodes are ready, and spreads the actors over them, as docs/swarm.md says."""
        states = ("node", "ls", "--format={{.Status}}")
        wait_in_drill(lambda: self.docker(*states).split() == ["Ready"] * len(NODES), "all nodes to be ready")
        self._update("--force")

    def _update(self, *options: str) -> None:
        self.docker("service", "update", "--detach=false", "--quiet", *options, f"{self._name}_actor")

    def docker(self, *words: str) -> str:
        """Returns the output of a docker command on the manager."""
        return command(TOOL, "docker", *words, environment=self.variables)


def from_outside() -> tuple[str, ...]:
    """Returns the beginning of a command that runs in the network outside of all nodes."""
    return ("nsenter", f"--net=/run/netns/{OUTSIDE}")


def load_images() -> None:
    """Builds the image of the actors, and copies what a node does not have yet."""
    command("docker", "build", "--quiet", "--file=Dockerfile.actor", f"--tag=penstock-actor:{TAG}", ".")
    _build_cli()
    for image, names in IMAGES.items():
        wanted = command("docker", "image", "inspect", "--format={{.Id}}", image)
        if any(_id_on(node, f"{REGISTRY}{names[0]}:{image.partition(':')[2]}") != wanted for node in NODES):
            command(TOOL, "load", image)
        for node in NODES:
            for name in names:
                command(TOOL, "at", node, "tag", image, f"{REGISTRY}{name}:{image.partition(':')[2]}")


def _build_cli() -> None:
    """Builds an image of this machine's Docker client, which is one file: Docker's own is not available everywhere."""
    client = shutil.which("docker")
    assert client is not None
    folder = FOLDER / "docker-cli"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(client, folder / "docker")
    (folder / "wget").write_text(_WGET)
    (folder / "wget").chmod(0o755)
    (folder / "Dockerfile").write_text(f"FROM penstock-actor:{TAG}\nUSER root\nCOPY docker wget /usr/local/bin/\n")
    command("docker", "build", "--quiet", f"--tag={CLI}", str(folder))


def _id_on(node: str, image: str) -> str:
    try:
        return command(TOOL, "at", node, "image", "inspect", "--format={{.Id}}", image)
    except Failure:
        return ""
