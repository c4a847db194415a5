"""Tasks with a known best return are solved through all services: every kind of action, action masks and memory."""

from pathlib import Path

import pytest
import tomli_w

from penstock.config import build, merge
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.environments.exact_tasks import BEST_RETURNS, LONGEST_STACK
from tests.support.services.processes import WITH_HELPERS, run
from tests.support.training import single_process

pytestmark = pytest.mark.nightly

MASK_PLACES = ("observation", "info", "method")


def solve(folder: Path, env_id: str, threshold: float, *options: str, steps: int = 160_000) -> float:
    """Trains until an evaluation returns `threshold`; returns the best mean return of an evaluation.

    Most seeds of the locks need 20,000 to 75,000 steps.
    """
    end = run(
        "train",
        f"--env-id={env_id}",
        "--env-import=tests.support.environments.exact_tasks",
        f"--run-dir={folder}",
        "--actors=1",
        f"--total-steps={steps}",
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


@pytest.mark.parametrize("env_id", ["Locks-v0", "Switches-v0", "Gears-v0"])
def test_a_task_of_several_choices_is_solved_exactly(tmp_path: Path, env_id: str) -> None:
    best = BEST_RETURNS[env_id]
    assert solve(tmp_path / "run", env_id, best) == best


@pytest.mark.parametrize("masks", MASK_PLACES)
def test_a_masked_task_is_learnt_without_an_illegal_action(tmp_path: Path, masks: str) -> None:
    # Ninety per cent: actions that are best only under rare masks take far longer. An illegal action raises.
    threshold = 0.9 * BEST_RETURNS["MaskedChoice-v0"]
    folder = tmp_path / "run"
    assert solve(folder, "MaskedChoice-v0", threshold, f"--environment.kwargs=masks={masks}") >= threshold
    assert "illegal" not in (RunFolder(folder).logs / "actor-0.log").read_text()


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_cue_is_remembered(tmp_path: Path, memory: str) -> None:
    # Half of the episodes would be won without memory.
    assert solve(tmp_path / "run", "ShortCue-v0", 1.0, f"--policy.memory={memory}", "--ppo.burn-in-steps=2") == 1.0


LONG_MEMORY: dict[str, object] = {
    "run": {"total_steps": 300_000},
    "environment": {"id": "Cue-v0", "imports": ("tests.support.environments.exact_tasks",)},
    "policy": {"normalise_returns": False},
    # Longer than an episode, so that gradients pass from the answer back to the cue. An action has no effect after its
    # step, so that the trace can end there.
    "actor": {"environments": 32, "unroll_length": 100},
    "sampling": {"batch_segments": 32, "fresh_fraction": 1.0},
    "ppo": {
        "learning_rate": 3e-3,
        "learning_rate_schedule": "linear",
        "discount": 1.0,
        "trace_decay": 0.0,
        "epochs": 4,
        "minibatches": 2,
        # Without a bonus, noise in the many steps that earn nothing may settle the action before the cue matters.
        "entropy_coefficient": 0.03,
    },
    "evaluation": {"mode": "synchronous", "episodes": 40},
}
"""Settings with which a cue that is longer ago than every stack of frames is remembered."""


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_cue_that_is_longer_ago_than_every_stack_of_frames_is_remembered(tmp_path: Path, memory: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(LONG_MEMORY))
    options = (f"--config={config}", f"--policy.memory={memory}")
    assert solve(tmp_path / "run", "Cue-v0", 1.0, *options, steps=300_000) == 1.0


def test_without_memory_the_longest_stack_of_frames_answers_at_chance() -> None:
    stacked: dict[str, object] = {
        "environment": {"frame_stack": LONGEST_STACK},
        "run": {"total_steps": 60_000},
        "evaluation": {"interval_steps": 10_000, "episodes": 400},
    }
    curve = single_process.train(build(merge(LONG_MEMORY, stacked))).curve
    # Six standard deviations of the mean of 400 episodes, each of which is won with probability 1/2.
    assert len(curve) >= 5 and all(abs(mean - 0.5) < 0.15 for _, mean in curve)
