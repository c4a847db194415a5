"""Processor time of the health checks of Compose, including that of Docker, which starts a process for each of them."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.images import TAG
from tests.e2e.report import Report
from tests.e2e.stack import Stack, command
from tests.support.machine.timing import DRILL_PATIENCE_S, wait_in_drill

_MULTIPLE = 2.0
"""Largest ratio of a check's processor time to that of an empty one. A check that starts Python takes far more."""
_READY_FILE = "/tmp/ready"
_CONTAINERS = 4
_MEASURED_S = 20.0
_MANY_ACTORS = 16
_ENGINE = ("dockerd", "containerd")
"""Beginnings of the names of Docker's processes. A container's shim counts all processes that it has started."""


def check_cost(stack: Stack, report: Report) -> None:
    """Compares the processor time of the stack's health check with that of an empty one."""
    report.begin("health checks")
    services = json.loads(stack.compose("config", "--format=json"))["services"]
    own_s, empty_s = _check_s(services["actor"]["healthcheck"]["test"]), _check_s(["CMD-SHELL", "true"])
    report.check(
        "processor time of a health check, with Docker's; of an empty one",
        own_s <= _MULTIPLE * empty_s,
        f"{1000 * own_s:.0f} ms; {1000 * empty_s:.0f} ms",
        f"at most {_MULTIPLE:.0f} times",
    )
    intervals = {name: each["healthcheck"]["interval"] for name, each in services.items() if "healthcheck" in each}
    number = {"actor": _MANY_ACTORS}
    share = sum(number.get(name, 1) * own_s / _seconds(interval) for name, interval in intervals.items())
    report.note(f"health checks of the stack with {_MANY_ACTORS} actors", f"{share:.2%} of a core")


def _check_s(check: Sequence[str]) -> float:
    """Returns the seconds of a core that one health check takes, measured in containers whose check runs once a second.

    `check` is as in a Compose file, and the ready file is touched in them as a service does.
    """
    options = ["--health-cmd", check[-1].replace("$$", "$"), "--health-interval=1s", "--health-retries=1"]
    touching = f"while sleep 5; do touch {_READY_FILE}; done"
    run = ["docker", "run", "--detach", "--rm", "--init", "--tmpfs=/tmp:uid=10001", "--entrypoint=sh"]
    image, ids = f"penstock-actor:{TAG}", list[str]()
    try:
        for _ in range(_CONTAINERS):
            ids.append(command(*run, *options, image, "-c", f"touch {_READY_FILE}; {touching}").strip())
        wait_in_drill(lambda: all(_checks(each) for each in ids), "every container to be healthy")
        used_s = _engine_s()
        time.sleep(_MEASURED_S)
        seconds = _engine_s() - used_s
    finally:
        command("docker", "rm", "--force", *ids)
    # The interval begins when a check has ended, so this counts a few checks too many.
    return seconds / (_CONTAINERS * _MEASURED_S)


def _seconds(duration: str) -> float:
    """Parses a duration as Compose prints it, such as 2m0s."""
    minutes, _, seconds = duration.rpartition("m")
    return 60.0 * float(minutes or 0) + float(seconds.removesuffix("s"))


def _checks(container: str) -> bool:
    health = command("docker", "inspect", "--format={{.State.Health.Status}}", container).strip()
    assert health in ("starting", "healthy"), f"a container's health is {health} within {DRILL_PATIENCE_S:.0f} s"
    return health == "healthy"


def _engine_s() -> float:
    """Returns the seconds of a core that Docker's processes, and the processes of containers that ended, have used."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, values = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            # The process has ended.
            continue
        if name.startswith(_ENGINE):
            ticks += sum(map(int, values.split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
