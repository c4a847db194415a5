"""`docker compose up --scale actor=N`: new actors contribute soon, and training goes on without those that leave."""

import time
from concurrent.futures import ThreadPoolExecutor

from helpers.timing import wait_for
from tests.e2e.baselines import compare
from tests.e2e.progress import Progress, work_before, work_of
from tests.e2e.recovery import ACTORS, Recovery
from tests.e2e.report import Report
from tests.e2e.stack import Container, Stack

MANY = 8
"""Actors that the stack is scaled to."""
CONTRIBUTION_MULTIPLE = 2.0
"""Ready until contributing beside one actor's whole start. It is the smaller part of a start, but more actors do it at
once than there may be cores."""


def scale(stack: Stack, report: Report, recovery: Recovery) -> None:
    """Scales up from what runs, and down to `ACTORS`."""
    report.begin(f"actors: up to {MANY}, down to {ACTORS}")
    what = "from ready to contributing, the slowest new actor; one actor's undisturbed start"
    baseline = recovery.starts["actor"]
    baseline.measure()
    compare(report, what, lambda: _up_and_down(stack, report), baseline, multiple=CONTRIBUTION_MULTIPLE)


def _up_and_down(stack: Stack, report: Report) -> float:
    """Seconds from ready to contributing, of the new actor that took longest."""
    progress, old = Progress(stack), {container.id for container in stack.containers("actor")}
    stack.up(actors=MANY)
    new = [container for container in stack.containers("actor") if container.id not in old]
    with ThreadPoolExecutor(len(new)) as pool:
        seconds = list(pool.map(_from_ready_to_contributing, new))
    wanted = MANY - len(old)
    report.check("new actors that contribute", len(seconds) == wanted, str(len(seconds)), str(wanted))
    before = {container.id: work_before(container) for container in new}
    wait_for(lambda: all(work_of(container) > before[container.id] for container in new), "all new actors go on")
    _wait_for_actors(progress, MANY)
    started = time.monotonic()
    stack.up(actors=ACTORS)
    _wait_for_actors(progress, ACTORS)
    progress.trains()
    report.tell(f"from `--scale actor={ACTORS}` to training with these", f"{time.monotonic() - started:.1f} s")
    return max(seconds)


def _wait_for_actors(progress: Progress, actors: int) -> None:
    def there() -> bool:
        return progress.answer("learner").sum("penstock_learner_actors") == actors

    wait_for(there, f"the learner has {actors} actors")


def _from_ready_to_contributing(container: Container) -> float:
    """Seconds; 0 for an actor that contributes before it is seen to be ready."""
    wait_for(lambda: container.ready, "a new actor is ready")
    ready = time.monotonic()
    wait_for(lambda: work_of(container) > 0, "a new actor contributes")
    return time.monotonic() - ready
