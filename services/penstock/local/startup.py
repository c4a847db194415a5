"""The states of a run's services while it starts, as the launcher knows them, for its user.

A state is a report of a process: the template about its imports (`local.template`), a service about being ready (its
health), and the learner about its reason for waiting.
"""

import dataclasses
import time

from penstock.config import Config
from penstock.local.children import Child, Children
from penstock.local.template import Template
from penstock.rpc.health import is_serving
from penstock.runs.folder import LEARNER
from penstock.types.extents import Extent
from penstock.types.status import BETWEEN, Phase, RunStatus

_ANSWER_S = 0.2


def beginning(config: Config) -> RunStatus:
    """Returns the status of a run before the learner's."""
    return RunStatus(environment_id=config.environment.short_name, limit=config.run.limits.nearest(Extent()))


class Startup:
    """The start of one session, used by the launcher's main thread alone."""

    def __init__(self, beginning: RunStatus, template: Template, *, replays: int, actors: int) -> None:
        """Begins before there are services.

        Args:
            beginning: Status of the run before the learner knows one.
            template: Process from which the services are forked.
            replays: Number of replay services.
            actors: Number of actors at the start.
        """
        self._beginning, self._template = beginning, template
        self._replays, self.actors = replays, actors
        self._children: Children | None = None
        self._addresses: dict[str, str] = {}
        self._ready: dict[str, object] = {}
        self._text, self._changed_at = "", time.monotonic()

    def started(self, children: Children, addresses: dict[str, str]) -> None:
        """Adds the processes of the services, and the addresses of those other than actors by name."""
        self._children, self._addresses = children, addresses

    def look(self) -> list[str]:
        """Asks the services that are not known to be ready; returns the names of those that are not."""
        late = [name for name in self._addresses if not self._is_ready(name)]
        for name in late:
            child = self._child(name)
            if child is not None and is_serving(self._addresses[name], _ANSWER_S):
                self._ready[name] = child.group
        return [name for name in late if not self._is_ready(name)]

    def status(self, phase: Phase = "starting", learner: RunStatus | None = None) -> RunStatus:
        """Returns the status to show: a phase with the state of each service. `learner` is the learner's, if known."""
        replays = [name for name in self._addresses if name not in (LEARNER, "evaluator")]
        ready = sum(map(self._is_ready, replays))
        states = {
            "replay": f"{ready}/{self._replays}" if self._replays > 1 else self._state("replay"),
            "learner": self._state(LEARNER) if learner is None or not self._is_ready(LEARNER) else _doing(learner),
            "actors": f"{learner.actors if learner else 0}/{self.actors}",
            "evaluator": self._state("evaluator"),
        }
        text = BETWEEN.join(f"{name} {state}" for name, state in states.items())
        if text != self._text:
            self._text, self._changed_at = text, time.monotonic()
        return dataclasses.replace(learner or self._beginning, phase=phase, waiting_for=text)

    @property
    def unchanged_s(self) -> float:
        """Seconds for which all states that `status` returned were the same."""
        return time.monotonic() - self._changed_at

    def _state(self, name: str) -> str:
        child = self._child(name)
        if child is None:
            loading = self._template.state_of(name)
            # It takes tens of seconds, once for an installation.
            return "compiling, once" if loading == "compiling" else loading or "not started"
        if child.exit_code is not None:
            return "ended"
        return "ready" if self._is_ready(name) else "starting"

    def _is_ready(self, name: str) -> bool:
        """Whether the present process of a service has said that it is ready."""
        child = self._child(name)
        return child is not None and child.exit_code is None and self._ready.get(name, self) is child.group

    def _child(self, name: str) -> Child | None:
        members = self._children.members if self._children is not None else []
        return next((child for child in members if child.name == name), None)


def _doing(learner: RunStatus) -> str:
    """Returns the activity of a learner that serves before its first batch is trained."""
    match learner.phase:
        case "training":
            return "training its first batch"
        case "waiting" if learner.waiting_for:
            return f"waiting for {learner.waiting_for}"
        case "waiting":
            return "ready"
        case _:
            return learner.phase
