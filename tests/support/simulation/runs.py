"""Simulated runs by seed or schedule, and the report of one that violates a guarantee."""

import gc
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.support.simulation.schedule import Schedule
from tests.support.simulation.world import Outcome, simulate

_IN_MEMORY = Path("/dev/shm")
_NOTES = 40


def run(schedule: Schedule | int) -> Outcome:
    """Simulates a schedule, or the one of a seed."""
    schedule = Schedule.of(schedule) if isinstance(schedule, int) else schedule
    # When the collector runs depends on everything that this process did before, and it may end a generator.
    collects = gc.isenabled()
    gc.disable()
    try:
        with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
            return simulate(schedule, Path(folder))
    finally:
        if collects:
            gc.enable()


def first_failure(schedules: Iterable[Schedule | int]) -> Outcome | None:
    """Simulates schedules until one violates a guarantee; None if none does."""
    return next((outcome for schedule in schedules if (outcome := run(schedule)).violations), None)


def shrunk(failure: Outcome) -> Outcome:
    """Leaves out the faults without which a run still violates a guarantee."""
    for fault in failure.schedule.faults:
        without = run(failure.schedule.without(fault))
        if without.violations:
            failure = without
    return failure


def report(failure: Outcome) -> str:
    """Describes a run that violates a guarantee: a schedule for the list of regressions, and its last log lines."""
    return "\n".join(
        (
            f"seed {failure.schedule.seed} violates a guarantee after {failure.virtual_s:.3f} virtual seconds:",
            *(f"  {violation}" for violation in failure.violations),
            f"with {failure.schedule.settings}",
            "and, as a regression:",
            f"  {failure.schedule.call}",
            "Its last log lines:",
            *(f"  {note}" for note in failure.notes[-_NOTES:]),
        )
    )
