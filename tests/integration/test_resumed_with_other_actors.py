"""A run that is moved, and resumed with other numbers of actors and environments and another discount.

Its batches stay, unless the user derives them again.
"""

from pathlib import Path

import pytest

from penstock.config import build, load_toml
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.services.processes import Ended, run

pytestmark = pytest.mark.nightly

OPTIONS = (
    "--env-id=CartPole-v1 --preset=none --actors=2 --envs-per-actor=8 --actor.unroll-length=4 --ppo.epochs=1"
    " --sampling.fresh-fraction=0.5"
    " --policy.hidden-sizes=8 --evaluation.episodes=1 --evaluation.interval-steps=1000000000 --total-steps=1000"
)


def sizes(folder: Path) -> tuple[int, int]:
    config = build(load_toml(RunFolder(folder).config))
    return config.sampling.batch_segments, config.ppo.minibatches


def resume(folder: Path, *options: str) -> Ended:
    return run("train", f"--resume={folder}", *options)


def test_batches_of_a_resumed_run_change_only_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    begun = run("train", *OPTIONS.split(), f"--run-dir={folder}")
    assert begun.code == 0, begun.stderr
    line = "batch of 32 segments (16 fresh), 1 minibatch; derived from 2 actors x 8 environments"
    assert line in begun.stdout.splitlines()[:2]
    assert sizes(folder) == (32, 1)

    moved = tmp_path / "moved läufe" / "run 1"
    moved.parent.mkdir()
    folder = folder.rename(moved)
    twice = ("--actors=4", "--envs-per-actor=16", "--ppo.discount=0.9")
    more = resume(folder, *twice, "--total-steps=2000")
    assert more.code == 0, more.stderr
    assert more.stdout.splitlines()[0] == (
        "batch of 32 segments (16 fresh), 1 minibatch, as recorded; for 4 actors x 16 environments,"
        " --sampling.batch-segments auto --ppo.minibatches auto would choose 128 segments and 2 minibatches"
    )
    assert sizes(folder) == (32, 1)
    assert build(load_toml(RunFolder(folder).config)).ppo.discount == 0.9
    assert Summary.read(RunFolder(folder).summary).sessions == 2

    adopted = resume(folder, "--total-steps=3000", "--sampling.batch-segments=auto", "--ppo.minibatches=auto")
    assert adopted.code == 0, adopted.stderr
    line = "batch of 128 segments (64 fresh), 2 minibatches; derived from 4 actors x 16 environments"
    assert adopted.stdout.splitlines()[0] == line
    assert sizes(folder) == (128, 2)
    assert Summary.read(RunFolder(folder).summary).env_steps >= 3000

    refused = resume(folder, "--total-steps=4000", "--envs-per-actor=128")
    assert refused.code == 2
    (reason,) = refused.stderr.splitlines()
    assert "actor.environments 128" in reason and "(sampling.batch_segments 1024 fits)" in reason
    assert sizes(folder) == (128, 2)
