"""Kills and pauses of the services of a stack, and the time until each works again.

Durations are compared with an undisturbed start of the same service. Such starts are made between the kills.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial

from penstock.config import Config
from tests.e2e.baselines import Baseline, compare
from tests.e2e.images import bare_start_s
from tests.e2e.progress import SERVICES, Progress, answer_of, work_before, work_of
from tests.e2e.report import Report
from tests.e2e.stack import Container, Failure, Stack, command, look_again
from tests.support.machine.timing import Bound, wait_in_drill

ACTORS = 2
"""Replicas while services are killed: if one of them is killed or paused, training can continue with the other."""

START_MULTIPLE = 3.0
"""Largest ratio of a start to that of a container of the same service that imports the code and ends.

The rest of a start (opening the store or loading the checkpoint, finding the peers, first work) took about as long as
the imports.
"""
RESTART_MULTIPLE = 2.0
"""Largest ratio of progress after a kill to progress after an undisturbed start: the same work, except for recovery."""
WAKING_MULTIPLE = 1.0
"""Largest ratio of progress after a pause to an undisturbed start: a service in memory must not take longer."""
WITHOUT_MULTIPLE = 4.0
"""Largest ratio of training without one of two actors to training with both: twice as long if collection limits it."""

GRANT_TIMEOUT_S = Config().replay.grant_timeout_s
PAUSED_S = 3.0 * GRANT_TIMEOUT_S
"""Length of a pause in seconds, after which an actor's grants have returned, and the other actor can use them."""
VERSIONS = 20
"""Versions to wait for: more than can be trained from the segments in transit when a pause began."""
_WITHOUT_S = {"actor": GRANT_TIMEOUT_S, "evaluator": 0.0}
"""Services that training can do without, and the longest wait before it continues."""
_REST_S = 3.0


class Recovery:
    """Disturbs one service at a time, and reports."""

    def __init__(self, stack: Stack, report: Report) -> None:
        self._stack, self._report = stack, report
        self._progress = Progress(stack)
        self.starts = {service: Baseline(partial(self._start, service)) for service in SERVICES}
        self.actors = ACTORS

    def check_start(self, service: str) -> None:
        """Compares undisturbed starts of a service with bare starts, which only import its code."""
        self._report.begin(f"{service}: stopped in order and started")
        bare = Baseline(lambda: bare_start_s(self._stack, service))
        bare.measure()
        what = f"{service}: from an undisturbed start to progress; bare start"
        compare(self._report, what, self.starts[service].measure, bare, multiple=START_MULTIPLE)

    def kill_process(self, service: str) -> None:
        """Kills a service's process like the kernel when memory runs out, so that Docker restarts it."""
        self._report.begin(f"{service}: process killed")
        self._kill(service, kill_inside, "from its process's death to progress")

    def kill_container(self, service: str) -> None:
        """Kills a service's container like an operator, who must then start it again."""

        def kill_and_start(container: Container) -> None:
            command("docker", "kill", container.id)
            self._stack.up(actors=self.actors)

        self._report.begin(f"{service}: docker kill, docker compose up")
        self.starts[service].measure()
        self._kill(service, kill_and_start, "from `docker kill`, then `up`, to progress")

    def kill_replay_at_rest(self) -> None:
        """Kills the replay service while the learner is paused and all segments are acknowledged and counted."""
        self._report.begin("replay: killed while the learner is paused and everything is acknowledged")
        learner, replay = self._stack.one("learner"), self._stack.one("replay")
        command("docker", "pause", learner.id)
        try:
            wait_in_drill(self._is_at_rest, "all windows to be acknowledged")
            stored = self._progress.stored()
            kill_inside(replay)
            wait_in_drill(lambda: look_again(replay).started_at != replay.started_at, "replay to be restarted")
            wait_in_drill(lambda: look_again(replay).ready, "replay to be ready again")
            found = self._progress.last_event("replay", "store recovered")
        finally:
            command("docker", "unpause", learner.id)
        self._report.check(
            "acknowledged segments found by the new process",
            found["segments"] == stored and found["damaged"] == 0,
            f"{found['segments']:,.0f} of {stored:,.0f}, {found['damaged']} damaged",
            "all",
        )
        self._progress.trains()

    def pause(self, service: str) -> None:
        """Pauses a service, like a machine that swaps or a network outage of half a minute."""
        self._report.begin(f"{service}: docker pause of {PAUSED_S:.0f} s")
        compare(
            self._report,
            f"{service}: from the end of the pause to progress",
            lambda: self._paused(service),
            self.starts[service],
            multiple=WAKING_MULTIPLE,
        )

    def check_checkpoint(self) -> None:
        """Checks that a restarted learner has its state from a checkpoint."""
        path = self._progress.last_event("learner", "serving")["resumed_from"]
        self._report.check("the learner continues from its checkpoint", bool(path), str(path).rpartition("/")[2], "yes")

    def _start(self, service: str) -> float:
        return self._progress.start(service, actors=self.actors)

    def _kill(self, service: str, kill: Callable[[Container], None], timed: str) -> None:
        def kill_and_wait() -> float:
            container, stored = self._stack.one(service), self._progress.stored()
            started = time.monotonic()
            kill(container)
            self._progress.works_again(container, float("inf"))
            seconds = time.monotonic() - started
            if service == "replay":
                self._check_store(stored)
            if service == "learner":
                self.check_checkpoint()
            return seconds

        what = f"{service}: {timed}; undisturbed start"
        compare(self._report, what, kill_and_wait, self.starts[service], multiple=RESTART_MULTIPLE)

    def _paused(self, service: str) -> float:
        """Pauses a service; returns the seconds from the end of the pause until it works and the learner trains."""
        container, with_it = self._stack.one(service), Baseline(self._versions_s)
        if service in _WITHOUT_S:
            with_it.measure()
        command("docker", "pause", container.id)
        resumes_at = time.monotonic() + PAUSED_S
        try:
            if service in _WITHOUT_S:
                bound = Bound(WITHOUT_MULTIPLE, with_it.recent, _WITHOUT_S[service])
                self._report.within(f"{VERSIONS} versions without the {service}; with it", [self._versions_s()], bound)
            time.sleep(max(0.0, resumes_at - time.monotonic()))
        finally:
            started = time.monotonic()
            command("docker", "unpause", container.id)
        self._progress.works_again(container, work_before(container))
        return time.monotonic() - started

    def _versions_s(self) -> float:
        """Returns the seconds until the learner has trained `VERSIONS` more versions."""
        started, first = time.monotonic(), self._progress.version()
        wait_in_drill(lambda: self._progress.version() >= first + VERSIONS, f"{VERSIONS} versions")
        return time.monotonic() - started

    def _check_store(self, stored: float) -> None:
        """Checks the segments found by a new replay service, after `stored` segments were acknowledged."""
        found = self._progress.last_event("replay", "store recovered")
        self._report.check(
            "acknowledged segments found by the new process",
            found["segments"] >= stored > 0 and found["damaged"] == 0,
            f"{found['segments']:,}, {found['damaged']} damaged",
            f"{stored:,.0f} or more, none",
        )

    def _is_at_rest(self) -> bool:
        """Returns whether actors neither step nor wait for an answer, for as long as one of them takes to start."""
        actors = self._stack.containers("actor")
        steps = [work_of(actor) for actor in actors]
        time.sleep(max(_REST_S, self.starts["actor"].recent))
        seen = [answer_of(actor) for actor in actors]
        waiting = sum(each.sum("penstock_actor_unacknowledged_windows") for each in seen)
        return waiting == 0 and steps == [work_of(actor) for actor in actors]


def kill_inside(container: Container) -> None:
    """Kills all processes of a container except its init, which then ends."""
    # This also kills the shell that runs the command.
    with contextlib.suppress(Failure):
        command("docker", "exec", container.id, "sh", "-c", "kill -9 -1")
