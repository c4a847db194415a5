"""deploy/kubernetes/keda: as many actors as the learner wants, and none after the end of the run."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import named, of_kind, pods, rendered, settings
from tests.deploy.test_watching import EXPOSED
from tests.support.machine.timing import PATIENCE_S

KEDA = "deploy/kubernetes/keda"


def scaled_object() -> Any:
    [found] = of_kind(rendered(KEDA), "ScaledObject")
    return found


def test_keda_alone_sets_the_number_of_actors() -> None:
    target = scaled_object()["spec"]["scaleTargetRef"]["name"]
    assert "replicas" not in named(rendered(KEDA), "Deployment", target)["spec"]
    assert target == "penstock-actor"
    learner = next(pod for pod in pods(rendered(KEDA)) if pod.component == "learner")
    wanted = settings(learner, rendered(KEDA)).learner
    assert scaled_object()["spec"]["maxReplicaCount"] == wanted.most_wanted_actors
    assert wanted.most_wanted_actors is not None and wanted.most_wanted_actors <= wanted.max_actors


def test_keda_asks_for_metrics_that_exist_in_the_jobs_that_have_them() -> None:
    [trigger] = scaled_object()["spec"]["triggers"]
    asked = re.findall(r"(penstock_\w+)\{job=\"(\w+)\",namespace=\"penstock\"\}", trigger["metadata"]["query"])
    assert dict(asked) == {"penstock_learner_wanted_actors": "learner", "penstock_replay_run_finished": "replay"}
    assert {name for name, _ in asked} <= EXPOSED


PROMTOOL = shutil.which("promtool")
CASES = {
    # By minute until the query at 20: what the learner and the replay service report, and what KEDA gets.
    "the learner wants six": ("6x20", "0x20", 6),
    "the learner has not judged yet": ("0x20", "0x20", 1),
    "the learner restarts for some minutes": ("6x15 _x5", "0x20", 6),
    "the learner is gone for longer": ("6x5 _x15", "0x20", None),
    "the run has finished": ("6x18 _x2", "0x18 1x2", None),
    "the next run has begun": ("_x10 6x10", "1x10 0x10", 6),
}


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool of Prometheus")
@pytest.mark.parametrize("case", CASES)
def test_keda_gets_what_the_learner_wants_until_the_run_has_ended(case: str, tmp_path: Path) -> None:
    wanted, finished, expected = CASES[case]
    query = scaled_object()["spec"]["triggers"][0]["metadata"]["query"]
    series = {
        'penstock_learner_wanted_actors{job="learner",namespace="penstock",instance="a"}': wanted,
        'penstock_replay_run_finished{job="replay",namespace="penstock",instance="b"}': finished,
        'penstock_learner_wanted_actors{job="learner",namespace="another"}': "9x20",
    }
    samples = [] if expected is None else [{"labels": "{}", "value": expected}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "20m", "exp_samples": samples}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    assert PROMTOOL is not None
    shown = subprocess.run(
        [PROMTOOL, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
