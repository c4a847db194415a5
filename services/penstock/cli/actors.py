"""The actors of a run on one machine: as many processes as are wanted now."""

from collections.abc import Mapping, Sequence

from penstock.cli.actor_count import ActorCount
from penstock.cli.children import Child, Children, free_ports
from penstock.files import write_json
from penstock.run_folder import RunFolder
from penstock.types import RunStatus

HOST = "127.0.0.1"


class Actors:
    """Starts actors, and with `--actors auto` more of them or fewer while the run goes on."""

    def __init__(
        self,
        places: Sequence[tuple[str, int]],
        count: ActorCount | None,
        children: Children,
        folder: RunFolder,
        settings: Sequence[str],
        others: Mapping[str, str],
    ) -> None:
        """Lists the first ones among the run's services; `start` starts them.

        Args:
            places: host:port of each of them, and the port of its metrics.
            count: Who decides how many there should be later; None: they stay as many.
            children: Who watches their processes.
            folder: The run's; its list of services is kept up to date.
            settings: Options of every service.
            others: Names and addresses of the services that are no actors.
        """
        self._count = count
        self._children, self._folder, self._settings, self._others = children, folder, settings, others
        self._first = places
        self._addresses = [address for address, _ in places]
        self._list_services()

    def start(self) -> None:
        """Starts the first ones."""
        for number, (_, metrics_port) in enumerate(self._first):
            self._start(number, metrics_port)

    def adapt(self, status: RunStatus) -> list[str]:
        """Has as many as are wanted now; returns a line if that changed."""
        if self._count is None:
            return []
        decision = self._count.observe(status)
        while len(self._addresses) < self._count.wanted:
            port, metrics_port = free_ports(2)
            self._addresses.append(f"{HOST}:{port}")
            self._list_services()
            self._start(len(self._addresses) - 1, metrics_port)
        while len(self._addresses) > self._count.wanted:
            self._addresses.pop()
            self._list_services()
            # What it had collected is sent before it ends.
            self._children.dismiss(f"actor-{len(self._addresses)}")
        return [decision] if decision else []

    def _start(self, number: int, metrics_port: int) -> None:
        name = f"actor-{number}"
        own = [f"--actor.listen={self._addresses[number]}", f"--actor.metrics-port={metrics_port}"]
        self._children.add(Child(name, ["actor", *self._settings, *own], self._folder.logs / f"{name}.log"))

    def _list_services(self) -> None:
        actors = {f"actor-{number}": address for number, address in enumerate(self._addresses)}
        write_json(self._folder.services, {**self._others, **actors})
