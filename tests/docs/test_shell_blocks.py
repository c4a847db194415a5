"""The shell blocks of the documentation run as they are printed, page by page, in an empty folder.

So do the Python blocks of the pages for users of other libraries, if they use Penstock.

A block that can't be run has a comment above it, which no reader sees: `<!-- not run: REASON -->`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, files_of
from tests.support.machine.timing import start_patience_s

STEPS = 4096
SHORT = {
    # So that a block takes seconds. Every setting may be given by a variable (docs/training.md).
    "PENSTOCK__ENVIRONMENT__CHECK_TIMEOUT_S": "600",
    "PENSTOCK__EVALUATION__EPISODES": "2",
    "PENSTOCK__RUN__TOTAL_STEPS": str(STEPS),
}
BLOCKS = [block for page in PAGES for block in blocks(page)]
SCRIPTS = [
    block
    for block in BLOCKS
    if block.language == "python" and block.page.startswith("from-") and "import penstock" in block.text
]
RUN = [block for block in BLOCKS if block.language == "sh" and not block.not_run]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each page, with the package that the pages name."""
    found = {}
    for page in {block.page for block in (*RUN, *SCRIPTS)}:
        folder = found[page] = tmp_path_factory.mktemp("page")
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        _write_environments(folder)
        for file, text in files_of(next(each for each in PAGES if each.name == page)).items():
            (folder / file).write_text(text)
        (folder / "bin").mkdir()
        for name, arguments in (("penstock", "-m penstock"), ("python", "")):
            command = folder / "bin" / name
            command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            command.chmod(0o755)
    return found


def _write_environments(folder: Path) -> None:
    """Writes the package and the file that the pages name."""
    text = (ROOT / "examples" / "reach.py").read_text().replace("Reach-v0", "MyEnv-v0")
    of_size = "(Reach):\n    def __init__(self, size: float = 1.0) -> None:\n        super().__init__(size)\n"
    for file, module, class_name in (
        ("my_package/__init__.py", "my_package", ""),
        ("my_package/my_module.py", "my_package.my_module", "MyEnv"),
        ("my_folder/my_file.py", "my_file", "MyEnv"),
    ):
        written = text.replace("reach:", f"{module}:") + (f"\n\nclass {class_name}{of_size}" if class_name else "")
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(written)


@pytest.mark.nightly
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
        timeout=start_patience_s(),
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_a_python_block_can_be_parsed() -> None:
    for block in BLOCKS:
        if block.language == "python":
            compile(block.text, str(block), "exec")


@pytest.mark.nightly
@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_a_script_of_a_page_for_users_of_another_library_runs(block: Block, folders: dict[str, Path]) -> None:
    file = folders[block.page] / "script.py"
    text, limits = re.subn(r"(total_(?:timesteps|steps|frames))=[\d_]+", rf"\1={STEPS}", block.text)
    assert limits == 1
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, str(file)], cwd=file.parent, capture_output=True, text=True, timeout=start_patience_s()
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
