"""Tasks with a known best return are solved through all services: every kind of action, action masks and memory."""

from pathlib import Path

import pytest

from helpers.exact_tasks import BEST_RETURNS
from helpers.processes import WITH_HELPERS, run
from penstock.run_folder import RunFolder
from penstock.summary import Summary

MASK_PLACES = ("observation", "info", "method")


def solve(folder: Path, env_id: str, threshold: float, *options: str) -> float:
    """Trains until an evaluation returns `threshold`; returns the best mean return of an evaluation."""
    end = run(
        "train",
        f"--env-id={env_id}",
        "--env-import=helpers.exact_tasks",
        f"--run-dir={folder}",
        "--actors=1",
        "--total-steps=80000",
        "--ppo.learning-rate=3e-3",
        "--ppo.learning-rate-schedule=linear",
        "--evaluation.interval-steps=4096",
        f"--evaluation.threshold={threshold}",
        f"--stop-at-return={threshold}",
        *options,
        environment=WITH_HELPERS,
    )
    assert end.code == 0, end.stdout + end.stderr
    best = Summary.read(RunFolder(folder).summary).best_evaluation
    assert best is not None
    return best.return_mean


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["Locks-v0", "Switches-v0", "Gears-v0"])
def test_a_task_of_several_choices_is_solved_exactly(tmp_path: Path, env_id: str) -> None:
    best = BEST_RETURNS[env_id]
    assert solve(tmp_path / "run", env_id, best) == best


@pytest.mark.slow
@pytest.mark.parametrize("masks", MASK_PLACES)
def test_a_masked_task_is_learnt_without_an_illegal_action(tmp_path: Path, masks: str) -> None:
    # Ninety per cent: actions that are best only under rare masks take far longer. An illegal action raises.
    threshold = 0.9 * BEST_RETURNS["MaskedChoice-v0"]
    folder = tmp_path / "run"
    assert solve(folder, "MaskedChoice-v0", threshold, f"--environment.kwargs=masks={masks}") >= threshold
    assert "illegal" not in (RunFolder(folder).logs / "actor-0.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_cue_is_remembered(tmp_path: Path, memory: str) -> None:
    # Half of the episodes would be won without memory.
    assert solve(tmp_path / "run", "ShortCue-v0", 1.0, f"--policy.memory={memory}", "--ppo.burn-in-steps=2") == 1.0
