"""Processor time of the health checks of Compose, including that of Docker, which starts a process for each of them."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from helpers.timing import PATIENCE_S, wait_for
from tests.e2e.images import TAG
from tests.e2e.stack import Stack, command

_CONTAINERS = 4
_MEASURED_S = 20.0
_MANY_ACTORS = 16
_ENGINE = ("dockerd", "containerd")
"""Beginnings of the names of Docker's processes. A container's shim counts all processes that it has started."""


def check_s(check: Sequence[str], *, ready_file: str) -> float:
    """Returns the seconds of a core that one health check takes, measured in containers whose check runs once a second.

    `check` is as in a Compose file, and `ready_file` is touched in them as a service does.
    """
    options = ["--health-cmd", check[-1].replace("$$", "$"), "--health-interval=1s", "--health-retries=1"]
    touching = f"while sleep 5; do touch {ready_file}; done"
    run = ["docker", "run", "--detach", "--rm", "--init", "--tmpfs=/tmp:uid=10001", "--entrypoint=sh"]
    image, ids = f"penstock-actor:{TAG}", list[str]()
    try:
        for _ in range(_CONTAINERS):
            ids.append(command(*run, *options, image, "-c", f"touch {ready_file}; {touching}").strip())
        wait_for(lambda: all(_checks(each) for each in ids), "every container to be healthy")
        used_s = _engine_s()
        time.sleep(_MEASURED_S)
        seconds = _engine_s() - used_s
    finally:
        command("docker", "rm", "--force", *ids)
    # The interval begins when a check has ended, so this counts a few checks too many.
    return seconds / (_CONTAINERS * _MEASURED_S)


def share_of_a_core(stack: Stack, seconds: float) -> float:
    """Returns the share of a core that the checks of a stack with 16 actors take, at the intervals of its files."""
    services = json.loads(stack.compose("config", "--format=json"))["services"]
    checks = {name: each["healthcheck"]["interval"] for name, each in services.items() if "healthcheck" in each}
    number = {"actor": _MANY_ACTORS}
    return sum(number.get(name, 1) * seconds / _seconds(interval) for name, interval in checks.items())


def declared(stack: Stack, service: str) -> list[str]:
    """Returns the command of a service's health check in the stack's files."""
    services = json.loads(stack.compose("config", "--format=json"))["services"]
    return list(services[service]["healthcheck"]["test"])


def _seconds(duration: str) -> float:
    """Parses a duration as Compose prints it, such as 2m0s."""
    minutes, _, seconds = duration.rpartition("m")
    return 60.0 * float(minutes or 0) + float(seconds.removesuffix("s"))


def _checks(container: str) -> bool:
    health = command("docker", "inspect", "--format={{.State.Health.Status}}", container).strip()
    assert health in ("starting", "healthy"), f"a container's health is {health} within {PATIENCE_S:.0f} s"
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
