"""The shell blocks of the documentation run as they are printed, page by page, in an empty folder.

A block that can't be run has a comment above it, which no reader sees: `<!-- not run: REASON -->`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.timing import PATIENCE_S
from tests.docs.pages import PAGES, ROOT, Block, blocks

STEPS = 4096
SHORT = {
    # So that a block takes seconds. Every setting may be given by a variable (docs/training.md).
    "PENSTOCK__ENVIRONMENT__CHECK_TIMEOUT_S": "600",
    "PENSTOCK__EVALUATION__EPISODES": "2",
    "PENSTOCK__RUN__TOTAL_STEPS": str(STEPS),
}
RUN = [block for page in PAGES for block in blocks(page) if block.language == "sh" and not block.not_run]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each page, with the package that the pages name."""
    found = {}
    for page in {block.page for block in RUN}:
        folder = found[page] = tmp_path_factory.mktemp("page")
        shutil.copy(ROOT / "examples" / "reach.py", folder / "my_package.py")
        text = (folder / "my_package.py").read_text()
        (folder / "my_package.py").write_text(text.replace("Reach-v0", "MyEnv-v0").replace("reach:", "my_package:"))
        penstock = folder / "bin" / "penstock"
        penstock.parent.mkdir()
        penstock.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
        penstock.chmod(0o755)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_shell_block_runs(block: Block, folders: dict[str, Path]) -> None:
    folder = folders[block.page]
    # A later block of a page continues the run of an earlier one, which has trained its steps.
    steps = STEPS * (1 + [each for each in RUN if each.page == block.page].index(block))
    done = subprocess.run(
        ["bash", "-euc", block.text],
        cwd=folder,
        env=os.environ
        | SHORT
        | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PENSTOCK__RUN__TOTAL_STEPS": str(steps)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
