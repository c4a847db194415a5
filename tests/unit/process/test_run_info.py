from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from penstock.process.service import commit_of_code, show_run


def test_the_metric_names_the_run_its_environment_preset_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PRESET", "pendulum")
    monkeypatch.setenv("PENSTOCK_COMMIT", "1a2b3c4")
    show_run("second", "Pendulum-v1")
    labels = {"run": "second", "environment": "Pendulum-v1", "preset": "pendulum", "commit": "1a2b3c4"}
    assert REGISTRY.get_sample_value("penstock_run_info", labels) == 1.0


def test_a_variable_does_not_change_the_commit_that_the_build_of_an_image_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_COMMIT", "of .env")
    file = tmp_path / "commit"
    assert commit_of_code(file) == "of .env"
    file.write_text("1a2b3c4\n")
    assert commit_of_code(file) == "1a2b3c4"
    file.write_text("\n")
    assert commit_of_code(file) == ""
