"""Settings of all tests: one torch thread, reproducible hypothesis examples, default signal handlers, and no log lines
among the results, which end with the reasons of skipped tests and the tools that are missing.
"""

import logging
import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
import torch

with pytest.MonkeyPatch.context() as during_import:
    # gRPC's core reads it when it is imported. The processes that tests start have their own.
    during_import.setenv("GRPC_VERBOSITY", os.environ.get("GRPC_VERBOSITY", "NONE"))
    import grpc  # noqa: F401

# Without a handler, Python prints what a test's threads log after its end, such as asyncio about a closed loop.
logging.getLogger().addHandler(logging.NullHandler())

_TOOLS = (
    *("alertmanager", "amtool", "bindfs", "chromium", "docker", "flock", "gcc", "g++", "ip", "openssl", "prometheus"),
    *("promtool", "shellcheck"),
)
"""Programs without which tests are skipped."""

_TESTS = Path(__file__).parent / "tests"
_FIRST = ("unit", "contract", "integration", "exactness")
"""Folders of tests in the order in which they run, before all others."""

# A shell starts background jobs with SIGINT ignored, and their child processes inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup starts its command with SIGHUP ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

torch.set_num_threads(1)

_EXAMPLES = {"gate": 20, "all": 200}
"""Examples of each property: in the runs that leave nightly tests out, and in the others."""

for _profile, _examples in _EXAMPLES.items():
    hypothesis.settings.register_profile(
        _profile, deadline=None, derandomize=True, database=None, max_examples=_examples
    )


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the number of examples before the tests are imported."""
    hypothesis.settings.load_profile("gate" if "not nightly" in config.option.markexpr else "all")


def pytest_xdist_auto_num_workers(config: object) -> int:
    """Returns the number of processes for `-n auto`: two more than cores, because many tests wait."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests first that find most faults in the shortest time, and leaves short ones for the end."""

    def place(item: pytest.Item) -> int:
        folder = next((name for name in _FIRST if item.path.is_relative_to(_TESTS / name)), "")
        return _FIRST.index(folder) if folder else len(_FIRST)

    items.sort(key=place)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints each reason for skipped tests once, with their number, and the tools that this machine does not have."""
    skipped = (report.longrepr for report in terminalreporter.stats.get("skipped", ()))
    reasons = Counter(str(place[2]).removeprefix("Skipped: ") for place in skipped if isinstance(place, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if reasons and missing:
        terminalreporter.write_line(f"not installed: {', '.join(missing)}")
