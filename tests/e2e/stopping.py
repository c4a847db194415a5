"""`docker compose stop`, as `down` stops the services: their exit codes, and what their logs have until then."""

import signal
import time

from penstock.errors import BY_SIGNAL
from tests.e2e.progress import SERVICES
from tests.e2e.report import Report
from tests.e2e.stack import Stack
from tests.support.machine.timing import wait_in_drill

_CODE = BY_SIGNAL + signal.SIGTERM
"""Exit code of each service, because the run is not done."""


def stop(stack: Stack, report: Report) -> None:
    """Waits for a line of progress in the learner's log, stops all services, and checks how they ended."""
    wait_in_drill(
        lambda: stack.events("learner", "progress"), "a line of progress, one minute after the learner's start"
    )
    line = stack.events("learner", "progress")[-1]
    report.check(
        "the learner's log has a line of progress per minute",
        line["env_steps"] > 0 and line["limit_share"] is not None,
        f"{line['env_steps']:,} steps, {line['env_steps_per_s']:,.0f} per second, return {line['return_mean']}",
        "yes",
    )
    started = time.monotonic()
    stack.compose("stop")
    report.note("stop", f"{time.monotonic() - started:.1f} s")
    ends = {service: [each.exit_code for each in stack.containers(service)] for service in SERVICES}
    report.check(
        "exit codes of the stopped services",
        all(code == _CODE for codes in ends.values() for code in codes),
        "; ".join(f"{service} {', '.join(map(str, codes))}" for service, codes in ends.items()),
        str(_CODE),
    )
    traced = [service for service in SERVICES if stack.traces(service)]
    report.check("tracebacks in their logs", not traced, ", ".join(traced) or "none", "none")
