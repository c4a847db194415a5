from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Returns the folder of a new run."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder
