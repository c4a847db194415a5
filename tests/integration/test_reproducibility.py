"""At degree 0 and without replay, a run's parameters are a function of its seed alone."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from helpers.processes import run
from penstock.learning import checkpoints
from penstock.run_folder import RunFolder


def train(folder: Path, *, actors: int, environments: int, seed: int) -> dict[str, np.ndarray]:
    ended = run(
        "train",
        f"--run-dir={folder}",
        f"--actors={actors}",
        f"--envs-per-actor={environments}",
        f"--seed={seed}",
        "--total-steps=2500",
        "--sampling.off-policy-degree=0",
        "--sampling.fresh-fraction=1",
        "--sampling.batch-segments=16",
        "--evaluation.episodes=2",
    )
    assert ended.code == 0, ended.stderr
    newest = checkpoints.newest(RunFolder(folder))
    assert newest is not None
    return load_file(newest)


def test_synchronous_training_does_not_depend_on_how_environments_are_spread_over_actors(tmp_path: Path) -> None:
    alone = train(tmp_path / "alone", actors=1, environments=16, seed=3)
    spread = train(tmp_path / "spread", actors=4, environments=4, seed=3)
    other = train(tmp_path / "other", actors=1, environments=16, seed=4)
    assert alone.keys() == spread.keys()
    for name in alone:
        np.testing.assert_array_equal(alone[name], spread[name], err_msg=name)
    assert any(not np.array_equal(alone[name], other[name]) for name in alone)
