"""A run of several agents that join and leave, with real services."""

import json
from pathlib import Path

import pytest

from tests.support.services.processes import run

pytest.importorskip("pettingzoo")

RELAY = "tests.support.environments.relay:Relay"
SMALL = ["--total-steps=2000", "--actor.unroll-length=16", "--sampling.batch-segments=16", "--evaluation.episodes=4"]


def test_several_agents_are_trained_evaluated_resumed_and_filmed(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    folder = tmp_path / "run"
    trained = run("train", RELAY, f"--run-dir={folder}", *SMALL)
    assert trained.code == 0, trained.stderr
    assert "actor.environments is 9 in place of 8, and evaluation.episodes 6 in place of 4" in trained.stdout
    evaluation = json.loads((folder / "summary.json").read_text())["evaluation"]
    # Every agent plays an episode: with returns of 3, 8 and 18, whatever the policy does.
    assert (evaluation["episodes"], evaluation["return_mean"]) == (6, pytest.approx(29 / 3))
    resumed = run("train", f"--resume={folder}", "--trust-code", "--total-steps=3000")
    assert resumed.code == 0, resumed.stderr
    evaluated = run("evaluate", str(folder), "--trust-code", "--episodes=4", "--record-video")
    assert evaluated.code == 0, evaluated.stderr
    assert "over 6 episodes" in evaluated.stdout
    (video,) = (folder / "videos").iterdir()
    assert video.read_bytes()[4:8] == b"ftyp"
