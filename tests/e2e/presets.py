"""`make e2e-presets`: which alerts fire while each preset trains for 20 minutes at the defaults of Docker Compose.

Needs what `make e2e` needs. All presets or the named ones train without a GPU, `--together` at the same time. Any alert
that fires, but the watchdog, is a fault. Writes build/e2e/presets.md and .json, and ends with 1 if one fired.
"""

import argparse
import contextlib
import sys
import time

from tests.e2e.panels import Prometheus
from tests.e2e.progress import SERVICES
from tests.e2e.report import Report
from tests.e2e.stack import ROOT, Failure, Stack

FILES = ("docker-compose.yml", "compose.cpu.yaml")
PRESETS = sorted(path.stem for path in (ROOT / "services" / "penstock" / "presets").glob("*.toml"))
PACKAGES = "gymnasium[box2d,mujoco] ale-py"
REPORT = ROOT / "build" / "e2e" / "presets.md"
STEPS = "max_over_time(penstock_learner_environment_steps{job='learner'}[1h])"


class Trained:
    """A preset that trains under Docker Compose."""

    def __init__(self, preset: str) -> None:
        self.preset = preset
        settings = {"PENSTOCK_PRESET": preset, "PENSTOCK_TAG": "presets", "PENSTOCK_PACKAGES": PACKAGES}
        self._stack = Stack(f"penstock-preset-{preset.replace('_', '-')}", FILES, settings)

    def build(self) -> None:
        """Builds the image of all presets."""
        self._stack.compose("build")

    def up(self) -> None:
        """Starts all services but Grafana, whose image is not available everywhere, without any state."""
        self.down()
        self._stack.compose("up", "--detach", "--no-build", *SERVICES, "prometheus")

    def down(self) -> None:
        """Ends the services and removes their volumes."""
        self._stack.compose("down", "--volumes")

    def look(self, report: Report) -> None:
        """Reports the progress of the run, and its alerts since its start."""
        prometheus = Prometheus(self._stack.prometheus())
        fired, pending = prometheus.alerts("firing"), prometheus.alerts("pending")
        steps = prometheus.value(STEPS)
        learner = self._stack.one("learner")
        state = "trains" if learner.address else f"ended with code {learner.exit_code}"
        measured = f"{steps:,.0f} steps, {state}; fired: {', '.join(fired) or 'none'}"
        if held := sorted(set(pending) - set(fired)):
            measured += f"; for less time than their rule requires: {', '.join(held)}"
        met = steps > 0 and learner.exit_code == 0 and not fired
        report.check(self.preset, met, measured, "steps, no fault, and no alert")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="default: all")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of each run (default: %(default)g)")
    parser.add_argument("--together", type=int, default=1, help="runs at the same time (default: %(default)d)")
    given = parser.parse_args()
    report = Report()
    presets, together = given.presets or PRESETS, given.together
    for first in range(0, len(presets), together):
        runs = [Trained(preset) for preset in presets[first : first + together]]
        report.begin(", ".join(run.preset for run in runs))
        try:
            runs[0].build()
            for run in runs:
                run.up()
            time.sleep(60.0 * given.minutes)
            for run in runs:
                run.look(report)
        finally:
            for run in runs:
                with contextlib.suppress(Failure):
                    run.down()
        title = f"Alerts of each preset in {given.minutes:g} minutes under Docker Compose, {together} at the same time"
        report.write(REPORT, title)
        report.save(REPORT)
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
