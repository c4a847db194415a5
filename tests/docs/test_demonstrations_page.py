"""docs/demonstrations.md: its expert is recorded, and a run is trained with the file, as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import penstock
from penstock.runs.folder import RunFolder
from tests.docs.pages import ROOT, files_of
from tests.support.machine.timing import start_patience_s

PAGE = ROOT / "docs" / "demonstrations.md"


def test_the_expert_of_the_page_is_recorded_and_trained_with(tmp_path: Path) -> None:
    (tmp_path / "expert.py").write_text(files_of(PAGE)["expert.py"])
    printed = subprocess.run(
        [sys.executable, "expert.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        check=True,
        timeout=start_patience_s(),
        capture_output=True,
        text=True,
    ).stdout
    expected = r"5,\d{3} steps, \d{2} episodes \(mean return 9\d(\.\d+)?\) in expert.safetensors\n"
    assert re.fullmatch(expected, printed)
    run = penstock.train(
        "MountainCarContinuous-v0",
        preset="none",
        demonstrations=tmp_path / "expert.safetensors",
        total_steps=2_048,
        run_dir=str(tmp_path / "run"),
        progress=False,
        evaluation={"episodes": 1, "max_episode_steps": 50},
    )
    log = RunFolder(Path(run.run_dir)).root.joinpath("logs", "learner.log").read_text()
    assert re.search(r"demonstrations: \d+ of \d+ segments \(5,\d{3} steps\) are added to each batch", log)
    assert run.env_steps >= 2_048 and (run.metrics().training["gradient_norm"] > 0.0).all()
