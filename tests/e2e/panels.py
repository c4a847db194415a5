"""Checks that the dashboards show the run of a Prometheus: `python tests/e2e/panels.py http://localhost:9090`.

Every query of every panel must have data, those of the GPU only with `--gpu`, and forecasts only after an hour. The
data may be NaN where it is of continuous actions, which a run need not have. Every rule must evaluate, and every
service must answer. It retries until its patience ends; then it lists the faults, and exits with 1.
"""

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana" / "dashboards"
JOBS = {"replay", "learner", "actor", "evaluator"}
LOOK_BACK_S, STEP_S = 120, 10
PAUSE_S = 5.0
VARIABLES = {"$__rate_interval": "20s", "$run": ".*", "$actor": ".*", "$job": ".*", "$node": ".*"}
"""Values of Grafana's variables: four scrapes, and everything."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel."""

    dashboard: str
    panel: str
    expression: str

    @property
    def of_gpu(self) -> bool:
        return "penstock_gpu_" in self.expression

    @property
    def may_be_empty(self) -> bool:
        """Whether a run of some minutes may have no data: firing alerts, forecasts, environment.info_metrics."""
        return self.expression.startswith("ALERTS{") or any(
            part in self.expression for part in ("offset 1h", "penstock_episode_info", "penstock_evaluation_info")
        )

    @property
    def of_continuous_actions(self) -> bool:
        return "actions_at_bound" in self.expression


def queries(folder: Path = DASHBOARDS) -> Iterator[Query]:
    """Yields the queries of all panels of all dashboards."""
    for file in sorted(folder.glob("*.json")):
        dashboard = json.loads(file.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield Query(dashboard["uid"], panel["title"], target["expr"])


class Prometheus:
    """Prometheus' HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def ask(self, path: str, parameters: Mapping[str, object] | None = None) -> Any:
        """Returns the content of `data`, or the text of an error."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters or {})}"
        try:
            with urllib.request.urlopen(url, timeout=10.0) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            return json.load(error)["error"]

    def value(self, expression: str) -> float:
        """Returns the sum of an expression's values now; 0 without any."""
        return sum(float(found["value"][1]) for found in self.ask("query", {"query": expression})["result"])

    def alerts(self, state: str) -> list[str]:
        """Returns the alerts but the watchdog that were "firing" or "pending" within an hour."""
        labels = f"alertstate='{state}',alertname!='PenstockWatchdog'"
        found = self.ask("query", {"query": f"group by (alertname) (last_over_time(ALERTS{{{labels}}}[1h]))"})["result"]
        return sorted(each["metric"]["alertname"] for each in found)

    def has_data(self, query: Query) -> bool:
        """Returns whether a query had a finite value recently; of continuous actions, any value."""
        expression = query.expression
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        now = time.time()
        data = self.ask("query_range", {"query": expression, "start": now - LOOK_BACK_S, "end": now, "step": STEP_S})
        if isinstance(data, str):
            raise ValueError(f"{data}: {expression}")
        values = [float(value) for series in data["result"] for _, value in series["values"]]
        return any(query.of_continuous_actions or math.isfinite(value) for value in values)

    def answering(self) -> int:
        """Returns the number of discovered addresses of services that answer."""
        targets = self.ask("targets", {"state": "active"})["activeTargets"]
        return sum(target["health"] == "up" and target["labels"]["job"] in JOBS for target in targets)

    def firing(self) -> set[tuple[str, str]]:
        """Returns the names of firing alerts, and their jobs."""
        found = self.ask("query", {"query": 'ALERTS{alertstate="firing"}'})["result"]
        return {(series["metric"]["alertname"], series["metric"].get("job", "")) for series in found}


def missing(prometheus: Prometheus, *, gpu: bool) -> list[str]:
    """Returns the faults, one per line."""
    targets = prometheus.ask("targets", {"state": "active"})["activeTargets"]
    answering = {target["labels"]["job"] for target in targets if target["health"] == "up"}
    lines = [f"no {job} answers" for job in sorted(JOBS - answering)]
    for group in prometheus.ask("rules")["groups"]:
        lines += [
            f"rule {rule['name']}: {rule.get('lastError') or 'not evaluated'}"
            for rule in group["rules"]
            if rule["health"] != "ok"
        ]
    lines += [
        f"{query.dashboard}, {query.panel}: no data for {query.expression}"
        for query in required(gpu=gpu)
        if not prometheus.has_data(query)
    ]
    return lines


def missing_at_last(prometheus: Prometheus, *, gpu: bool, patience_s: float) -> list[str]:
    """Returns the faults that remain after this time."""
    deadline = time.monotonic() + patience_s
    while (lines := missing(prometheus, gpu=gpu)) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return lines


def required(*, gpu: bool) -> list[Query]:
    """Returns the queries that must have data."""
    return [query for query in queries() if (gpu or not query.of_gpu) and not query.may_be_empty]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check that the dashboards show the run of a Prometheus.")
    parser.add_argument("url", help="address of the Prometheus, such as http://localhost:9090")
    parser.add_argument("--gpu", action="store_true", help="also require data of the GPU panels")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds of retries before faults are reported")
    arguments = parser.parse_args()
    lines = missing_at_last(Prometheus(arguments.url), gpu=arguments.gpu, patience_s=arguments.patience)
    if lines:
        print("\n".join(lines))
        return 1
    print(f"{len(required(gpu=arguments.gpu))} queries have data, and all rules evaluate")
    return 0


if __name__ == "__main__":
    sys.exit(main())
