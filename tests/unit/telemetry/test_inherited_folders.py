import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
@pytest.mark.parametrize("exists", [True, False], ids=["there", "missing"])
def test_no_metric_is_written_to_the_folder_of_another_server(name: str, exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    if exists:
        folder.mkdir()
    code = f"from penstock.telemetry import metrics; import os; print(os.environ[{name!r}])"
    ended = subprocess.run(
        [sys.executable, "-Pc", code], env={**os.environ, name: str(folder)}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(folder)
    assert not list(tmp_path.rglob("*.db"))
