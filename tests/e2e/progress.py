"""Progress of the services of a stack: the counter of each service's work, and waits for an increase."""

import time
from typing import Any

from tests.e2e.stack import Container, Failure, Metrics, Stack, command, look_again
from tests.support.machine.timing import wait_in_drill

SERVICES = ("actor", "replay", "learner", "evaluator")
WORK = {
    "actor": "penstock_actor_environment_steps_total",
    "replay": "penstock_replay_inserted_segments_total",
    "learner": "penstock_learner_gradient_steps_total",
    "evaluator": "penstock_evaluator_seconds_total",
}
"""Counter that increases while a service works."""


def work_of(container: Container) -> float:
    """Returns the service's work since its process started; 0 while it does not answer."""
    seen = container.metrics()
    return seen.sum(WORK[container.service]) if seen else 0.0


def answer_of(container: Container) -> Metrics:
    """Waits until the service answers; returns its metrics."""
    return wait_in_drill(container.metrics, f"{container.service} answers")


def work_before(container: Container) -> float:
    """Waits until the service answers; returns its work since its process started."""
    return answer_of(container).sum(WORK[container.service])


class Progress:
    """Reads the progress of the services of one stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def answer(self, service: str) -> Metrics:
        """Returns the metrics of the first replica, as soon as it answers."""
        return answer_of(self._stack.one(service))

    def trained(self) -> float:
        """Returns the gradient steps of the learner's process; 0 while it does not answer."""
        return work_of(self._stack.one("learner"))

    def version(self) -> float:
        """Returns the learner's policy version, as soon as it answers."""
        return self.answer("learner").sum("penstock_learner_policy_version")

    def stored(self) -> float:
        """Returns the number of segments in the store, as soon as the replay service answers."""
        return self.answer("replay").sum("penstock_replay_segments")

    def trains(self) -> None:
        """Waits until the learner makes another gradient step."""
        trained = work_before(self._stack.one("learner"))
        wait_in_drill(lambda: self.trained() > trained, "the learner to train")

    def works_again(self, container: Container, before: float) -> None:
        """Waits until a service has worked more than `before`, or at all as a new process, and the learner trains."""

        def works() -> bool:
            now = look_again(container)
            return work_of(now) > (before if now.started_at == container.started_at else 0.0)

        wait_in_drill(works, f"{container.service} to work again")
        self.trains()

    def start(self, service: str, *, actors: int) -> float:
        """Stops the first replica in order and starts it again, while everything else continues.

        Returns the seconds from its start until it works and the learner trains.
        """
        container = self._stack.one(service)
        command("docker", "stop", container.id)
        started = time.monotonic()
        self._stack.up(actors=actors)
        # Its former process has ended, so that its work does not count.
        self.works_again(container, float("inf"))
        return time.monotonic() - started

    def last_event(self, service: str, event: str) -> dict[str, Any]:
        """Returns the newest entry of this name in a service's log. Raises `Failure` if there is none."""
        events = self._stack.events(service, event)
        if not events:
            raise Failure(f"{service} did not log {event!r}")
        return events[-1]
