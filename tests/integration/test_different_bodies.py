"""A run in which one policy controls arms with different numbers of joints, with real services."""

import json
from pathlib import Path

import penstock
from penstock.config import build, load_toml
from tests.support.services.processes import run

ARM = str(Path(__file__).parents[2] / "examples" / "arms.py") + ":Arm"
OPTIONS = (
    f"--env-id={ARM} --actors=2 --total-steps=2000 --ppo.epochs=1 --evaluation.episodes=4"
    " --environment.pad-spaces=auto --environment.show-variant=true"
)
JOINTS = '--environment.variants=[{"joints": 2}, {"joints": 4}]'


def test_arms_of_different_shapes_share_a_policy(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = run("train", *OPTIONS.split(), JOINTS, f"--run-dir={folder}")
    assert trained.code == 0, trained.stderr
    assert "padded to the same sizes, 0 for one that is the same (environment.pad_spaces 16,4)" in trained.stdout
    config = build(load_toml(folder / "config.toml"))
    assert config.environment.pad_spaces == (16, 4)
    variants = json.loads((folder / "summary.json").read_text())["variants"]
    assert [(each["arguments"], each["evaluation"]["episodes"]) for each in variants] == [
        ("joints=2", 2),
        ("joints=4", 2),
    ]

    evaluated = run("evaluate", str(folder), "--trust-code", "--episodes=2", "--variant=0")
    assert evaluated.code == 0, evaluated.stderr
    policy = penstock.load_policy(folder)
    for variant, joints in enumerate((2, 4)):
        env = penstock.make(folder, variant=variant, trust_code=True)
        observation, _ = env.reset(seed=1)
        # The numbers of the body, zeros, and the number of its joints.
        assert observation.shape == (17,) and observation[-1] == joints
        assert not observation[3 * joints + 4 : -1].any()
        assert env.step(policy.act(observation))[0].shape == (17,)
        env.close()

    # A shape that is not larger than the padded spaces may replace another one.
    changed = JOINTS.replace("2", "3")
    resumed = run("train", f"--resume={folder}", "--trust-code", "--total-steps=3000", changed)
    assert resumed.code == 0, resumed.stderr
    refused = run("train", f"--resume={folder}", "--trust-code", "--total-steps=4000", changed.replace("3", "5"))
    assert refused.code == 2
    assert refused.stderr.endswith(
        "5 numbers of an action, and environment.pad_spaces has room for 4; raise it, or set it to auto\n"
    )
