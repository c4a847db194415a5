"""Watches the policy versions of learner and actors during the drill: they must never decrease."""

import threading
from collections.abc import Iterator

from tests.e2e.stack import Container, Failure, Metrics, Stack, look_again

_LOOK_S = 0.5


class VersionWatch:
    """A thread that reads the versions until it is stopped.

    Attributes:
        wrong: Observed decreases, one sentence each.
        looks: Number of observations of the learner's version.
        highest: Highest version of the learner.
    """

    def __init__(self, stack: Stack) -> None:
        self.wrong: list[str] = []
        self.looks, self.highest = 0, 0
        self._stack, self._ending = stack, threading.Event()
        self._of_actors: dict[tuple[str, str], float] = {}
        self._thread = threading.Thread(target=self._run, name="versions", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops the thread."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_S):
            try:
                self._look()
            except Failure:
                # Containers may disappear between two commands.
                continue
            except Exception as error:
                self.wrong.append(f"the watch ended with {error!r}")
                return

    def _look(self) -> None:
        for _, seen in self._answers("learner"):
            # A process that has trained nothing yet has no version.
            if seen.sum("penstock_learner_gradient_steps_total"):
                version = int(seen.sum("penstock_learner_policy_version"))
                if version < self.highest:
                    self.wrong.append(f"the learner went from {self.highest} to {version}")
                self.highest = max(self.highest, version)
                self.looks += 1
        for container, seen in self._answers("actor"):
            key, version = (container.id, container.started_at), int(seen.sum("penstock_actor_policy_version"))
            if version < self._of_actors.get(key, 0):
                self.wrong.append(f"an actor went from {self._of_actors[key]} to {version}")
            self._of_actors[key] = version

    def _answers(self, service: str) -> Iterator[tuple[Container, Metrics]]:
        for container in self._stack.containers(service):
            seen = container.metrics()
            # Another process may have answered.
            if seen is not None and look_again(container).started_at == container.started_at:
                yield container, seen
