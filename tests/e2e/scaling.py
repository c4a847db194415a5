"""`docker compose up --scale actor=N`: new actors contribute soon, and training continues when actors leave."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.baselines import compare
from tests.e2e.progress import Progress, work_before, work_of
from tests.e2e.recovery import ACTORS, Recovery
from tests.e2e.report import Report
from tests.e2e.stack import Container, Stack
from tests.support.machine.timing import wait_in_drill

MANY = 8
"""Actors after scaling up."""
CONTRIBUTION_MULTIPLE = 2.0
"""Largest ratio of readiness until contribution to one actor's whole start.

It is the smaller part of a start, but more actors do it at once than there may be cores.
"""


def scale(stack: Stack, report: Report, recovery: Recovery) -> None:
    """Scales up from the current number, and down to `ACTORS`."""
    report.begin(f"actors: up to {MANY}, down to {ACTORS}")
    what = "from ready to contributing, the slowest new actor; one actor's undisturbed start"
    baseline = recovery.starts["actor"]
    baseline.measure()
    compare(report, what, lambda: _up_and_down(stack, report), baseline, multiple=CONTRIBUTION_MULTIPLE)


def _up_and_down(stack: Stack, report: Report) -> float:
    """Returns the seconds from readiness to contribution of the slowest new actor."""
    progress, old = Progress(stack), {container.id for container in stack.containers("actor")}
    stack.up(actors=MANY)
    new = [container for container in stack.containers("actor") if container.id not in old]
    with ThreadPoolExecutor(len(new)) as pool:
        seconds = list(pool.map(_from_ready_to_contributing, new))
    wanted = MANY - len(old)
    report.check("new actors that contribute", len(seconds) == wanted, str(len(seconds)), str(wanted))
    before = {container.id: work_before(container) for container in new}
    wait_in_drill(
        lambda: all(work_of(container) > before[container.id] for container in new), "all new actors to continue"
    )
    _wait_for_actors(progress, MANY)
    started = time.monotonic()
    stack.up(actors=ACTORS)
    _wait_for_actors(progress, ACTORS)
    progress.trains()
    report.note(f"from `--scale actor={ACTORS}` to training with these", f"{time.monotonic() - started:.1f} s")
    return max(seconds)


def _wait_for_actors(progress: Progress, actors: int) -> None:
    def all_joined() -> bool:
        return progress.answer("learner").sum("penstock_learner_actors") == actors

    wait_in_drill(all_joined, f"{actors} actors of the learner")


def _from_ready_to_contributing(container: Container) -> float:
    """Returns the seconds from readiness to contribution; 0 if the actor contributes before it is seen to be ready."""
    wait_in_drill(lambda: container.ready, "a new actor to be ready")
    ready = time.monotonic()
    wait_in_drill(lambda: work_of(container) > 0, "a new actor to contribute")
    return time.monotonic() - ready
