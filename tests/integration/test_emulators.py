"""Training on a game in emulators, each in a process of its own, with real services."""

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.acting.policies.trained import load_policy
from penstock.presets import preset
from penstock.types.spaces import BoxSpace
from tests.support.environments.made import variants_of
from tests.support.services.processes import ROOT, run

pytest.importorskip("stable_retro")
pytestmark = pytest.mark.nightly

SMALL = [
    *("--total-steps=300", "--actor.environments=2", "--actor.unroll-length=16", "--sampling.batch-segments=4"),
    *("--evaluation.episodes=2", "--evaluation.max-episode-steps=32"),
]


@pytest.mark.parametrize(
    ("name", "size", "screen", "licence"),
    [
        ("retro", 84, (320, 224), "Genesis Plus GX"),
        ("catch", 42, (240, 224), "licence of its emulator FCEUmm: GPL-2.0"),
    ],
)
def test_a_game_is_trained_evaluated_and_filmed(
    name: str, size: int, screen: tuple[int, int], licence: str, tmp_path: Path
) -> None:
    pytest.importorskip("moviepy")
    folder, place = tmp_path / name, ROOT / "examples"
    trained = run("train", f"--preset={name}", f"--run-dir={folder}", *SMALL, directory=place)
    assert trained.code == 0, trained.stderr
    assert licence in trained.stdout + trained.stderr
    assert json.loads((folder / "summary.json").read_text())["evaluation"]["episodes"] == 2
    (space,) = load_policy(folder).policy.spec.observation.spaces
    assert isinstance(space, BoxSpace) and space.shape == (4, size, size)
    evaluated = run("evaluate", str(folder), "--trust-code", "--episodes=0", "--record-video", directory=place)
    assert evaluated.code == 0, evaluated.stderr
    (video,) = (folder / "videos").iterdir()
    from moviepy.video.io.ffmpeg_reader import ffmpeg_parse_infos

    assert tuple(ffmpeg_parse_infos(str(video))["video_size"]) == screen


@pytest.mark.learning
def test_catch_is_learnt(tmp_path: Path) -> None:
    """A policy with random actions catches four of twenty."""
    # 200,000 steps of an emulator, which take six minutes on two quiet cores.
    hour_s = 3600.0
    trained = run(
        "train", "--preset=catch", f"--run-dir={tmp_path / 'run'}", directory=ROOT / "examples", timeout_s=hour_s
    )
    assert trained.code == 0, trained.stderr
    threshold = preset("catch").evaluation.threshold
    assert threshold is not None
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]["return_mean"] >= threshold


def test_eight_emulators_play_the_same_episodes_as_one_process_each_time() -> None:
    variants = variants_of(
        "retro/Catch-Nes-v0",
        [{"use_restricted_actions": "DISCRETE", "random_variable": "seed"}],
        imports=[str(ROOT / "examples" / "nes" / "catch_game.py")],
        vectorization="process",
        workers=8,
        frames=4,
    )
    seen = []
    for _ in range(2):
        made = variants.make(0, 8)
        made.reset(range(8))
        rewards = [made.step((np.arange(8) % 3,)).reward.tolist() for _ in range(100)]
        seen.append((rewards, made.acting_observation[0].copy()))
        made.close()
    assert seen[0][0] == seen[1][0]
    np.testing.assert_array_equal(seen[0][1], seen[1][1])
