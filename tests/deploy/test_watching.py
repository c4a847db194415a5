"""Monitoring: the metrics in rules, dashboards and the runbook exist, and these files match each other."""

import contextlib
import json
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as grafana
from grafana_foundation_sdk.models import units
from prometheus_client import REGISTRY, Metric, generate_latest

from penstock.runs.folder import RunFolder
from penstock.telemetry import metrics
from tests.e2e.panels import DASHBOARDS, VARIABLES, queries
from tests.rules import for_each
from tests.support.machine.timing import PATIENCE_S, wait_for
from tests.support.services.ports import free_ports

ROOT = Path(__file__).parents[2]
PROMETHEUS, GRAFANA = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana"
RUNBOOK = ROOT / "docs" / "alerts.md"
JOBS = {"replay", "learner", "actor", "evaluator"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}

RULES = [
    rule
    for file in sorted((PROMETHEUS / "rules").glob("*.yml"))
    for group in yaml.safe_load(file.read_text())["groups"]
    for rule in group["rules"]
]
# An alert of two severities has two rules.
ALERTS = list(dict.fromkeys(rule["alert"] for rule in RULES if "alert" in rule))
ALERT_RULES = [
    pytest.param(rule, id=f"{rule['alert']} {rule['labels']['severity'][:8]}") for rule in RULES if "alert" in rule
]
SEVERITIES = {"critical", "warning", "info", "none"}
ABOUT_SPEED = {rule["alert"] for rule in RULES if rule.get("labels", {}).get("about") == "speed"}
CAUSES = {"PenstockServiceDown", "PenstockNoProgress"}
"""Alerts that mute others. All others may fire together with them."""
ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
BOARDS = {file.name: json.loads(file.read_text()) for file in sorted(DASHBOARDS.glob("*.json"))}
PANELS = [
    pytest.param(panel, id=f"{board['uid']}: {panel['title']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]
EXPRESSIONS = [
    *(pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in RULES),
    *(pytest.param(query.expression, id=f"{query.dashboard}: {query.panel}") for query in queries()),
]
# Names of the exported series, with the suffixes that prometheus-client adds.
EXPOSED = {family.name + suffix for family in REGISTRY.collect() for suffix in SUFFIXES.get(family.type, ("",))}


def load_yaml(*path: str) -> Any:
    return yaml.safe_load(ROOT.joinpath("deploy", *path).read_text())


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Metrics


@for_each("expression", EXPRESSIONS)
def test_every_queried_metric_exists(expression: str) -> None:
    named = re.findall(
        r"\b[a-z]+:[a-z0-9_:]+|\b(?:penstock|grpc_server|process)_\w+", re.sub(r"\{.*?\}", "", expression)
    )
    assert named or re.search(r"\b(up|ALERTS|prometheus_\w+)\{", expression) or expression == "vector(1)"
    assert set(named) <= EXPOSED | RECORDED


@for_each(
    "family",
    [family for family in REGISTRY.collect() if family.name.startswith(("penstock_", "grpc_server_"))],
)
def test_every_metric_is_in_a_panel_or_a_rule(family: Metric) -> None:
    names = {family.name + suffix for suffix in SUFFIXES.get(family.type, ("",))}
    asked = "\n".join(str(expression.values[0]) for expression in EXPRESSIONS)
    assert names & set(re.findall(r"\w+", asked))


@for_each("expression", EXPRESSIONS)
def test_queries_select_the_service_that_measures_the_metric(expression: str) -> None:
    # Other services export the metric at zero. A recorded series already has one job.
    bare = re.sub(r"\b[a-z]+:[a-z0-9_:]+", "", expression)
    assert all("job=" in labels for labels in re.findall(r"\bpenstock_(?!stream|machine|gpu)\w+(\{[^}]*\})?", bare))


@for_each("expression", EXPRESSIONS)
def test_queried_services_have_the_metric(expression: str) -> None:
    for name, jobs in re.findall(r'\b((?:penstock|grpc_server)_\w+)\{[^}]*job=~?"([\w|]+)"', expression):
        family = re.sub(r"_(total|bucket|count|sum)$", "", name)
        assert all(metrics.belongs(family, job) for job in jobs.split("|")), (name, jobs)


@for_each("service", sorted(JOBS))
def test_a_service_exposes_no_metric_of_another_service(service: str) -> None:
    own = {family.name for family in metrics.OfService(service).collect()}
    others = tuple(f"penstock_{each}_" for each in JOBS - {service})
    assert not [name for name in own if name.startswith(others)]
    assert {"penstock_node_info", "grpc_server_handled", "process_cpu_seconds"} <= own


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
def test_promtool_objects_to_no_metric() -> None:
    for quantiles in (metrics.REPLAY_PRIORITY, metrics.REPLAY_AGE, metrics.REPLAY_DRAWN_AGE):
        metrics.set_quantiles(quantiles, np.arange(3))
    for name, each in vars(metrics).items():
        # Metrics with labels have no series before they are used.
        if name.isupper() and getattr(each, "_labelnames", None) and not each._metrics:
            each.labels(*each._labelnames)
        if isinstance(each, metrics.Total):
            each.set(1)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(), capture_output=True, timeout=PATIENCE_S
    )
    assert (checked.returncode, checked.stderr.decode()) == (0, "")


# Prometheus


def test_prometheus_finds_every_service_of_compose_by_its_name() -> None:
    # tests/deploy/test_compose_files.py compares the ports.
    found = {
        job["job_name"]: job["dns_sd_configs"]
        for job in load_yaml("prometheus", "prometheus.yml")["scrape_configs"]
        if job["job_name"] != "prometheus"
    }
    assert set(found) == JOBS
    for job, [names] in found.items():
        assert (names["names"], names["type"]) == ([job], "A")


def test_prometheus_finds_services_on_any_node_by_the_list_in_the_runs_folder() -> None:
    of_compose, of_nodes = (load_yaml("prometheus", name) for name in ("prometheus.yml", "nodes.yml"))
    assert {name: of_nodes[name] for name in ("global", "rule_files")} == {
        name: of_compose[name] for name in ("global", "rule_files")
    }
    [scrape, itself] = of_nodes["scrape_configs"]
    assert itself == of_compose["scrape_configs"][-1] and itself["job_name"] == "prometheus"
    [discovery] = scrape["file_sd_configs"]
    assert discovery["files"] == [f"run/{RunFolder(Path()).targets.name}"]
    assert discovery["refresh_interval"] == of_nodes["global"]["scrape_interval"]
    # The list has the jobs that rules and dashboards name, and this is none of them.
    assert scrape["job_name"] not in JOBS


def severities(rule: Any) -> set[str]:
    """Returns the severities of a rule, which may choose by a condition."""
    severity = rule["labels"]["severity"]
    return {severity} if severity in SEVERITIES else set(re.findall(r"\}\}(\w+)\{\{", severity))


@for_each("rule", ALERT_RULES)
def test_every_alert_has_a_summary_a_severity_and_a_link_to_the_runbook(rule: Any) -> None:
    alert = rule["alert"]
    assert severities(rule) and severities(rule) <= SEVERITIES
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    # With the values, or those whom it concerns.
    assert "{{" in rule["annotations"]["description"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == "{{ $externalLabels.runbook }}"
    assert anchor == alert.lower() and anchor in anchors(RUNBOOK)


def test_the_address_of_the_runbook_is_a_url_that_alerts_do_not_carry_as_a_label() -> None:
    settings = load_yaml("prometheus", "prometheus.yml")
    address = urlsplit(settings["global"]["external_labels"]["runbook"])
    assert address.scheme in {"http", "https"} and address.netloc
    assert Path(address.path).with_suffix(".md").name == RUNBOOK.name
    assert settings["alerting"]["alert_relabel_configs"] == [{"action": "labeldrop", "regex": "runbook"}]


def test_the_example_of_a_channel_is_a_service_that_prometheus_finds_and_has_its_secret() -> None:
    [finding] = load_yaml("prometheus", "prometheus.yml")["alerting"]["alertmanagers"]
    override = yaml.safe_load((ROOT / "compose.alertmanager.yaml").read_text())
    [(name, service)] = override["services"].items()
    assert (finding["dns_sd_configs"][0]["names"], finding["dns_sd_configs"][0]["port"]) == ([name], 9093)
    config = load_yaml("alertmanager", "alertmanager.yml")
    [channel] = [each for receiver in config["receivers"] for each in receiver.get("slack_configs", ())]
    assert channel["api_url_file"] == f"/run/secrets/{service['secrets'][0]}"
    assert "./deploy/alertmanager:/etc/alertmanager:ro" in service["volumes"]


def test_the_example_of_a_channel_sends_every_alert_except_information() -> None:
    config = load_yaml("alertmanager", "alertmanager.yml")
    route, names = config["route"], {receiver["name"] for receiver in config["receivers"]}
    assert {route["receiver"], *(each["receiver"] for each in route["routes"])} == names
    [silent, heartbeat] = route["routes"]
    assert silent == {"receiver": "none", "matchers": ["severity = info"]}
    assert heartbeat["matchers"] == ["alertname = PenstockWatchdog"]


def test_alerts_without_which_data_is_lost_are_critical() -> None:
    # They say that state exists in memory alone.
    rules = [rule for rule in RULES if rule.get("alert") in ("PenstockStorageFails", "PenstockWritesFail")]
    assert [severities(rule) for rule in rules] == [{"critical"}, {"critical"}]


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the alerts of an Alertmanager with the example's configuration."""
    place, [port] = tmp_path_factory.mktemp("alertmanager"), free_ports(1)
    command = [str(ALERTMANAGER), f"--config.file={GRAFANA.parent / 'alertmanager' / 'alertmanager.yml'}"]
    command += [f"--storage.path={place}", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v2/alerts"
        finally:
            process.terminate()


def ask(url: str, alerts: list[dict[str, str]] | None = None, *, until: str = "2100-01-01T00:00:00Z") -> Any:
    """Returns all alerts, or sends these. None without an answer."""
    sent = None if alerts is None else json.dumps([{"labels": labels, "endsAt": until} for labels in alerts]).encode()
    request = urllib.request.Request(url, sent, {"Content-Type": "application/json"})
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read() or b'"sent"')
    return None


def muted_by(url: str, cause: dict[str, str]) -> set[str]:
    """Lets every alert fire together with its cause, and returns the names of those of which no message is sent."""
    expiring = {"alertname": "PenstockCertificateExpires", "instance": secrets.token_hex(8)}
    pair = [{**expiring, "severity": severity} for severity in ("critical", "warning")]
    others = [
        {**rule["labels"], "alertname": rule["alert"], "severity": severity, "instance": "a"}
        for rule in RULES
        if rule.get("alert", "") not in {"", *CAUSES}
        for severity in severities(rule)
    ]

    def muted() -> list[dict[str, str]]:
        return [each["labels"] for each in ask(url) or () if each["status"]["inhibitedBy"]]

    # Causes are read in their order, so that the pair's warning is muted after the others.
    wait_for(lambda: ask(url, [*others, cause]) and ask(url, pair), "Alertmanager")
    wait_for(lambda: pair[1] in muted(), "the warning to be muted by the critical alert")
    names = {labels["alertname"] for labels in muted() if labels["instance"] == "a"}
    assert ask(url, [cause], until="2020-01-01T00:00:00Z")
    return names


@pytest.mark.skipif(ALERTMANAGER is None, reason="needs Alertmanager (Debian: apt install prometheus-alertmanager)")
@for_each(
    ("cause", "muted"),
    [
        ({"alertname": "PenstockServiceDown", "severity": "critical", "job": "learner"}, ABOUT_SPEED),
        ({"alertname": "PenstockServiceDown", "severity": "critical", "job": "replay"}, ABOUT_SPEED),
        ({"alertname": "PenstockNoProgress", "severity": "critical"}, ABOUT_SPEED),
        ({"alertname": "PenstockServiceDown", "severity": "warning", "job": "actor", "instance": "b"}, set()),
        ({"alertname": "PenstockNotFinite", "severity": "critical"}, set()),
        ({"alertname": "PenstockStorageFails", "severity": "critical", "job": "replay"}, set()),
    ],
)
def test_alerts_are_muted_only_by_their_cause(alertmanager: str, cause: dict[str, str], muted: set[str]) -> None:
    # The warning about the same certificate is muted, whatever the cause.
    assert muted_by(alertmanager, cause) == {*muted, "PenstockCertificateExpires"}


@pytest.mark.skipif(
    shutil.which("amtool") is None, reason="amtool is not installed (Debian: apt install prometheus-alertmanager)"
)
def test_amtool_accepts_the_example_of_a_channel() -> None:
    file = GRAFANA.parent / "alertmanager" / "alertmanager.yml"
    checked = subprocess.run(["amtool", "check-config", file], capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_runbook_has_a_section_for_each_alert_and_for_no_other() -> None:
    sections = re.findall(r"^## (Penstock\w+)\n(.*?)(?=^##|\Z)", RUNBOOK.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == list(ALERTS)
    for _, text in sections:
        parts = re.findall(r"^\*\*([\w ]+)\.\*\*", text, re.MULTILINE)
        assert parts == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_links_within_the_runbook_have_a_target() -> None:
    linked = set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK.read_text()))
    assert linked <= anchors(RUNBOOK)


def test_panels_that_the_runbook_names_exist() -> None:
    titles = {panel["title"] for board in BOARDS.values() for panel in board["panels"] if panel["type"] != "row"}
    named = set(re.findall(r"(?<!\*)\*([A-Z][\w' ]+)\*(?!\*)", RUNBOOK.read_text()))
    assert named and named <= titles


@for_each("alert", ALERTS)
def test_every_alert_is_tested_to_fire_and_to_clear(alert: str) -> None:
    outcomes = [
        bool(case["exp_alerts"])
        for group in load_yaml("prometheus", "tests", "alerts.yml")["tests"]
        for case in group["alert_rule_test"]
        if case["alertname"] == alert
    ]
    # The heartbeat never ends.
    assert set(outcomes) == ({True} if alert == "PenstockWatchdog" else {True, False})


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
@for_each(
    "command",
    [
        ["check", "config", "prometheus.yml"],
        ["check", "config", "nodes.yml"],
        ["check", "rules", "--lint=all", "--lint-fatal", "rules/recording.yml", "rules/alerts.yml"],
        ["test", "rules", "tests/recording.yml", "tests/alerts.yml"],
    ],
)
def test_promtool_reports_no_problem(command: list[str]) -> None:
    checked = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# Grafana


def test_the_dashboards_are_current() -> None:
    rendered = subprocess.run(
        [sys.executable, "-c", "import dashboards, json; print(json.dumps(dashboards.render()))"],
        cwd=GRAFANA,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    committed = {file.name: file.read_text() for file in DASHBOARDS.iterdir()}
    assert committed == json.loads(rendered.stdout), "run `make dashboards`"


@for_each("name", BOARDS)
def test_dashboards_have_only_keys_of_grafanas_schema(name: str) -> None:
    register_default_plugins()
    read = grafana.Dashboard.from_json(BOARDS[name])
    for link in read.links or []:
        link.placement = None  # type: ignore[assignment]
    assert json.loads(JSONEncoder().encode(read)) == BOARDS[name]


def test_dashboards_have_stable_unique_ids() -> None:
    assert {board["uid"] for board in BOARDS.values()} == {
        "penstock-training",
        "penstock-data-path",
        "penstock-machine",
    }
    for board in BOARDS.values():
        ids = [panel["id"] for panel in board["panels"]]
        titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
        assert (len({*ids}), len({*titles})) == (len(ids), len(titles))
        assert all(0 < number < 2**31 for number in ids)


@for_each("name", BOARDS)
def test_each_dashboard_links_to_the_others(name: str) -> None:
    others = {f"/d/{board['uid']}" for board in BOARDS.values() if board is not BOARDS[name]}
    assert {link["url"] for link in BOARDS[name]["links"]} == others


@for_each("panel", PANELS)
def test_every_panel_has_a_description_and_a_unit(panel: dict[str, Any]) -> None:
    known = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert unit in known or re.fullmatch(r"suffix: ?\S+", unit)
    assert panel["description"].endswith(".")
    assert panel["datasource"]["uid"] == "${datasource}"
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert legends and all(legends) and len({*legends}) == len(legends)


@for_each("name", BOARDS)
def test_panels_do_not_overlap_and_fit_the_screen(name: str) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            taken.update((x, y) for y in range(place["y"], place["y"] + place["h"]))
    assert max(taken.values()) == 1
    # And leave no gap.
    assert len(taken) == 24 * (1 + max(y for _, y in taken))


@for_each("name", BOARDS)
def test_variables_in_queries_are_those_of_the_dashboard(name: str) -> None:
    board = BOARDS[name]
    offered = {f"${variable['name']}" for variable in board["templating"]["list"]} - {"$datasource"}
    used = {
        variable
        for query in queries()
        if query.dashboard == board["uid"]
        for variable in re.findall(r"\$\w+", query.expression)
    }
    assert used - {"$__rate_interval"} == offered
    assert used <= set(VARIABLES)


def test_grafana_is_provisioned_with_its_dashboards_and_prometheus() -> None:
    [provider] = load_yaml("grafana", "provisioning", "dashboards", "penstock.yml")["providers"]
    assert provider["type"] == "file" and not provider["allowUiUpdates"]
    [source] = load_yaml("grafana", "provisioning", "datasources", "prometheus.yml")["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    scraped = load_yaml("prometheus", "prometheus.yml")["global"]
    assert source["jsonData"]["timeInterval"] == scraped["scrape_interval"] == scraped["evaluation_interval"]
