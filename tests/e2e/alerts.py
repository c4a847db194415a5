"""Durations until an alert of Prometheus fires and clears, and the minimum that its settings imply."""

import re
import time

import yaml

from tests.e2e.panels import Prometheus
from tests.e2e.stack import ROOT
from tests.support.machine.timing import wait_in_drill

_SETTINGS = ROOT / "deploy" / "prometheus"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Alert:
    """One alert about one job.

    Attributes:
        clears_after_s: Seconds in which Prometheus notices a change by its settings: it resolves a name, scrapes an
            address and evaluates the rule, each after an interval, and one interval more if it just missed it.
        fires_after_s: The same, plus the seconds for which the rule must hold.
    """

    def __init__(self, prometheus: Prometheus, name: str, job: str) -> None:
        self.name = name
        self._prometheus, self._job = prometheus, job
        settings = yaml.safe_load((_SETTINGS / "prometheus.yml").read_text())
        (scrape,) = [each for each in settings["scrape_configs"] if each["job_name"] == job]
        intervals = [
            scrape["dns_sd_configs"][0]["refresh_interval"],
            settings["global"]["scrape_interval"],
            settings["global"]["evaluation_interval"],
        ]
        self.clears_after_s = 2.0 * sum(map(_seconds, intervals))
        self.fires_after_s = self.clears_after_s + _seconds(_rule(name)["for"])

    def seconds_until(self, *, firing: bool) -> float:
        """Waits until the alert fires, or no longer does; returns the seconds that this took."""
        started = time.monotonic()
        what = f"{self.name} {'fires' if firing else 'clears'}"
        wait_in_drill(lambda: ((self.name, self._job) in self._prometheus.firing()) is firing, what)
        return time.monotonic() - started


def _rule(name: str) -> dict[str, str]:
    files = [yaml.safe_load(path.read_text()) for path in sorted((_SETTINGS / "rules").glob("*.yml"))]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    (found,) = [rule for rule in rules if rule.get("alert") == name]
    return dict(found)


def _seconds(duration: str) -> float:
    """Parses a duration in Prometheus' notation, such as 1m30s."""
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))
