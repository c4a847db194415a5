"""Training on the pixels of an Atari game, with real services."""

import json
from pathlib import Path

import pytest

from penstock.acting.policies.trained import load_policy
from penstock.types.spaces import BoxSpace
from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

SMALL = [
    *("--environment.kwargs=max_num_frames_per_episode=240", "--total-steps=600", "--checkpoint.save-interval=200"),
    *("--actor.environments=4", "--actor.unroll-length=16", "--sampling.batch-segments=8", "--evaluation.episodes=2"),
]


@pytest.mark.parametrize("preset", ["pong", "breakout", "atari"])
def test_a_game_is_trained_evaluated_and_filmed_from_its_pixels(preset: str, tmp_path: Path) -> None:
    folder = tmp_path / preset
    trained = run("train", f"--preset={preset}", f"--run-dir={folder}", *SMALL)
    assert trained.code == 0, trained.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["env_steps"] >= 600
    assert summary["evaluation"]["episodes"] == 2
    spec = load_policy(folder).policy.spec
    (space,) = spec.observation.spaces
    assert isinstance(space, BoxSpace)
    assert (space.shape, spec.frames) == ((4, 84, 84), 4)
    evaluated = run("evaluate", str(folder), "--episodes=1", "--seed=3", "--record-video")
    assert evaluated.code == 0, evaluated.stderr
    (video,) = (folder / "videos").iterdir()
    assert str(video) in evaluated.stdout
    assert video.read_bytes()[4:8] == b"ftyp"
