"""The actor processes of a run on one machine."""

import time
from collections.abc import Mapping, Sequence

from penstock.local.actor_count import ActorCount
from penstock.local.children import Children, service_command
from penstock.local.sockets import Sockets
from penstock.machine.files import write_json
from penstock.machine.system_errors import in_words
from penstock.runs.folder import RunFolder
from penstock.types.status import RunStatus

_STUCK_MARGIN_S = 15.0
"""Seconds after the step timeout until a stuck actor is killed: it can't end itself if a call holds Python's lock."""


class Actors:
    """The actors of a run; their number changes during the run with `--actors auto`."""

    def __init__(
        self,
        sockets: Sockets,
        first: int,
        count: ActorCount | None,
        children: Children,
        *,
        folder: RunFolder,
        settings: Sequence[str],
        others: Mapping[str, str],
        step_timeout_s: float,
    ) -> None:
        """Adds the first actors to the run's list of services; `start` starts them.

        `first` is the number of the first actors. `count` decides on it later; None: it does not change. `settings` are
        the command-line options of every service, and `others` the names and addresses of all services other than
        actors. An actor whose environment hangs ends itself after `step_timeout_s` seconds.
        """
        self._stuck_s, self._killed_at = step_timeout_s + _STUCK_MARGIN_S, dict[str, float]()
        self._sockets, self._number, self._count = sockets, first, count
        self._children, self._folder, self._settings, self._others = children, folder, settings, others
        self._unlisted = False
        self._list_services(first)

    def start(self) -> None:
        """Starts the first actors."""
        for number in range(self._number):
            self._start(number)

    def adapt(self, status: RunStatus) -> list[str]:
        """Kills stuck actors and adjusts the number of actors; returns a line for each kill and for a decision."""
        killed = self._kill_stuck(status)
        if self._count is None:
            return killed
        decision = self._count.follow(status)
        lines = [*killed, decision] if decision else killed
        try:
            self._reach(self._count.number)
            self._unlisted = False
        except OSError as error:
            # Tried again with the next status.
            if not self._unlisted:
                services = self._folder.services
                lines.append(f"{self._number} actors for now: can't write {services}: {in_words(error, services)}")
            self._unlisted = True
        return lines

    def _reach(self, number: int) -> None:
        """Starts or dismisses actors. Raises `OSError`, before the change, if the services can't be listed."""
        while self._number < number:
            self._list_services(self._number + 1)
            self._start(self._number)
            self._number += 1
        while self._number > number:
            self._list_services(self._number - 1)
            self._number -= 1
            # The actor may finish and send its window before it ends.
            self._children.dismiss(_name(self._number))

    def _kill_stuck(self, status: RunStatus) -> list[str]:
        lines, now = [], time.monotonic()
        for state in status.actor_states:
            again_s = now - self._killed_at.get(state.name, -self._stuck_s)
            ours = any(child.name == state.name for child in self._children.members)
            if not ours or min(state.stuck_s, again_s) < self._stuck_s:
                continue
            self._killed_at[state.name] = now
            self._children.kill(state.name)
            lines.append(f"{state.name} was killed after {state.stuck_s:.0f} s without a step")
        return lines

    def _start(self, number: int) -> None:
        name = _name(number)
        command = service_command("actor", *self._settings, f"--actor.listen={self._sockets.address(name)}")
        self._children.add(name, command, self._folder.logs / f"{name}.log")

    def _list_services(self, actors_listed: int) -> None:
        actors = {name: self._sockets.address(name) for name in map(_name, range(actors_listed))}
        write_json(self._folder.services, {**self._others, **actors})


def _name(number: int) -> str:
    return f"actor-{number}"
