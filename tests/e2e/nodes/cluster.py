"""What the drill over three nodes needs of an engine, such as Slurm or Docker Swarm.

Each engine implements `Cluster`. The steps of the drill use only this.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from penstock.runs.folder import RunFolder

Direction = Literal["both", "in", "out"]
"""Packets that a cut link loses: all, those to the node, or those from it."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run to start.

    Attributes:
        name: Name of the run, unlike that of any other run of the drill.
        settings: Settings by name, such as `run.total_steps`, for all services.
        actors: Number of actors at the start.
        most_actors: Largest number of actors to which the run is scaled.
        preset: Name of the preset of all services.
    """

    name: str
    settings: Mapping[str, str]
    actors: int
    most_actors: int
    preset: str = "none"


@dataclass(frozen=True, slots=True)
class ActorPlace:
    """An actor that its engine runs now.

    Attributes:
        id: The engine's name for this life of the actor.
        node: Name of its node.
    """

    id: str
    node: str


@dataclass(frozen=True, slots=True)
class Times:
    """The engine's own times, in seconds, from its configuration.

    Attributes:
        detection_s: Until it declares a silent node dead.
        requeue_s: From this or a preemption until it starts the work again.
        stop_s: From a request to stop until it kills what remains.
    """

    detection_s: float
    requeue_s: float
    stop_s: float


class Cluster(Protocol):
    """Three nodes of one engine, and one run at a time on them. Called by one thread.

    Methods raise `Failure` if a command of the engine fails.

    Attributes:
        engine: Name of the engine and its version, for the report.
        times: The engine's own times.
        services_node: Node of the services.
        actor_nodes: Nodes of the actors.
    """

    engine: str
    times: Times
    services_node: str
    actor_nodes: tuple[str, ...]

    # The run

    def start(self, plan: RunPlan) -> None:
        """Starts a run as its users do, and returns without waiting for its services."""

    def watch_command(self) -> Sequence[str]:
        """Returns a command that runs `tests.e2e.nodes.watcher` for this run, where it can reach the learner."""

    def scale(self, actors: int) -> None:
        """Changes the number of actors as users do, and returns without waiting for them."""

    def actors(self) -> list[ActorPlace]:
        """Returns the actors that the engine runs, joined to the run or not."""

    def preempt(self, actors: Iterable[ActorPlace]) -> None:
        """Takes away the nodes or slots of these actors as the engine's preemption does; it starts them again later."""

    def update_actors(self) -> None:
        """Replaces all actors while the run continues, as users do for a new version, and waits until it is done."""

    def ended(self) -> bool:
        """Returns whether the engine has ended everything of the run: services and actors."""

    def stop(self) -> None:
        """Ends the run, whatever is left of it, and waits for its end."""

    # The nodes

    def kill(self, node: str) -> None:
        """Kills all processes of a node at once, like a loss of power."""

    def start_node(self, node: str) -> None:
        """Starts a killed node again, and waits until the engine uses it."""

    def cut(self, node: str, direction: Direction = "both") -> None:
        """Cuts a node's link."""

    def mend(self, node: str) -> None:
        """Mends a node's link."""

    # What remains of the run

    def store(self) -> Path:
        """Returns a folder with the files of the run's store as they are now: itself, or a copy. It may be in use."""

    def actor_log(self) -> Iterable[Mapping[str, Any]]:
        """Returns the entries of the logs of all actors that the run ever had, also of those that were killed."""

    def results(self) -> RunFolder:
        """Returns the run's folder, after its end."""

    def save_logs(self, folder: Path) -> None:
        """Copies all logs of the run and of the engine into a folder, for the reader of a failed drill."""
