"""The actors of a run on one machine: as many processes as are wanted now."""

import time
from collections.abc import Mapping, Sequence

from penstock.cli.actor_count import ActorCount
from penstock.cli.children import Children, free_ports, service_command
from penstock.files import write_json
from penstock.run_folder import RunFolder
from penstock.types import RunStatus

HOST = "127.0.0.1"
_STUCK_MARGIN_S = 15.0
"""Beyond the time after which a stuck actor ends by itself. One that can't is killed: a call holds Python's lock."""


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
        *,
        step_timeout_s: float,
    ) -> None:
        """Lists the first ones among the run's services; `start` starts them.

        Args:
            places: host:port of each of them, and the port of its metrics.
            count: Who decides how many there should be later; None: they stay as many.
            children: Who watches their processes.
            folder: The run's; its list of services is kept up to date.
            settings: Options of every service.
            others: Names and addresses of the services that are no actors.
            step_timeout_s: After which an actor whose environment hangs ends by itself.
        """
        self._stuck_s, self._killed_at = step_timeout_s + _STUCK_MARGIN_S, dict[str, float]()
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
        """Kills those that are stuck, and has as many as are wanted now; returns a line for each change."""
        killed = self._kill_stuck(status)
        if self._count is None:
            return killed
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
        return [*killed, decision] if decision else killed

    def _kill_stuck(self, status: RunStatus) -> list[str]:
        lines, now = [], time.monotonic()
        for state in status.actor_states:
            again_s = now - self._killed_at.get(state.name, -self._stuck_s)
            ours = any(child.name == state.name for child in self._children.members)
            if not ours or min(state.stuck_s, again_s) < self._stuck_s:
                continue
            self._killed_at[state.name] = now
            self._children.kill(state.name)
            lines.append(f"{state.name} took no step for {state.stuck_s:.0f} s and was killed")
        return lines

    def _start(self, number: int, metrics_port: int) -> None:
        name = f"actor-{number}"
        own = [f"--actor.listen={self._addresses[number]}", f"--actor.metrics-port={metrics_port}"]
        self._children.add(name, service_command("actor", *self._settings, *own), self._folder.logs / f"{name}.log")

    def _list_services(self) -> None:
        actors = {f"actor-{number}": address for number, address in enumerate(self._addresses)}
        write_json(self._folder.services, {**self._others, **actors})
