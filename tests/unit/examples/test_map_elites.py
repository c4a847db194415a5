"""The example of MAP-Elites: its bodies, and a short run with an archive of several kinds."""

import csv
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.pages import ROOT
from tests.support.services.processes import run

pytest.importorskip("ribs")
EXAMPLE = ROOT / "examples" / "map_elites.py"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))


@pytest.mark.parametrize("joints", [-3.0, 2.0, 4.7, 99.0])
def test_every_solution_is_a_body_whose_kind_is_in_the_archive(joints: float) -> None:
    map_elites = importlib.import_module("map_elites")
    arguments = map_elites.body(np.array([joints, 9.0, -9.0, 0.0, 0.1, -0.1]))
    assert 2 <= arguments["joints"] <= 5 and len(arguments["lengths"]) == 5
    assert sum(arguments["lengths"]) == pytest.approx(1.0, abs=0.005)
    assert arguments["lengths"][arguments["joints"] :] == [0.0] * (5 - arguments["joints"])
    count, length = map_elites.kind(arguments)
    assert 2 < count < 6 and 0.0 < length < 0.9


@pytest.mark.nightly
def test_a_short_run_fills_an_archive_and_retires_worse_bodies(tmp_path: Path) -> None:
    end = run(
        *("--total-steps=400000", "--bodies=6", "--run-dir=run"),
        directory=tmp_path,
        program=(sys.executable, str(EXAMPLE)),
    )
    assert end.code == 0, end.stderr
    with (tmp_path / "run" / "archive.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({(row["joints"], row["lengths"]) for row in rows}) == len(rows) >= 6
    assert all(int(row["episodes"]) >= 20 and float(row["return_mean"]) < 0.0 for row in rows)
    known = json.loads((tmp_path / "run" / "variants.json").read_text())
    assert any(each["retired"] for each in known) and not all(each["retired"] for each in known)
