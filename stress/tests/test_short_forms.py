"""Short forms of stress programs without a test of their own: they run, and their results are complete and shown."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stress import fuzz, hostile, learner_kills, priority_updates, snapshot_latency, tables

pytestmark = pytest.mark.nightly

SHORT = {
    "priority_updates": (priority_updates.main, ["--updates", "40000"]),
    "hostile": (hostile.main, ["--requests", "150", "--per-s", "100"]),
    "fuzz": (fuzz.main, ["--inputs", "200"]),
    "learner_kills": (learner_kills.main, ["--kills", "1"]),
    "snapshot_latency": (
        snapshot_latency.main,
        ["--segments", "vector", "--capacity-bytes", str(2**24), "--rounds", "1", "--seconds", "1"],
    ),
}
OF_PACE = {"hostile": "kept 90% of its throughput", "fuzz": "", "snapshot_latency": ""}
"""Programs whose exit code depends on the machine's other load."""


@pytest.fixture
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, values in (
        (hostile, {"ALONE_S": 0.5, "ROUNDS": 3}),
        (fuzz, {"SPAN_S": 0.5, "SETTLE_S": 0.5}),
    ):
        for name, value in values.items():
            monkeypatch.setattr(program, name, value)


@pytest.mark.parametrize("name", SHORT)
def test_a_short_form_writes_a_complete_result(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_spans: None
) -> None:
    main: Callable[[], Any]
    main, options = SHORT[name]
    path = tmp_path / f"{name}.json"
    monkeypatch.setattr(sys, "argv", [name, *options, "--output", str(path)])
    code: object = None
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code
    found = json.loads(path.read_text())
    assert list(found)[:7] == ["machine", "commit", "python", "packages", "date", "command", "took_s"]
    assert found["command"] == f"make stress-{name.replace('_', '-')} ARGS='{' '.join(options)}'"
    if name not in OF_PACE:
        assert not code
    failed = [what for what, holds in found.get("checks", {}).items() if not holds]
    assert all(OF_PACE.get(name, "nothing") in what for what in failed), failed
    (line,) = [line for line in tables.promises(tmp_path).splitlines() if f"(../results/{name}.json)" in line]
    assert "not measured" not in line and found["command"] in line
