"""Runs that end by each kind of limit, with evaluations, checkpoints and a store in the same units."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.config import build, load_toml
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.types.extents import StoreSize
from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

OPTIONS = (
    "--env-id=CartPole-v1 --preset=none --seed=1 --actors=1 --envs-per-actor=8 --ppo.epochs=1 --ppo.minibatches=2"
    " --sampling.batch-segments=16 --sampling.fresh-fraction=0.5 --evaluation.episodes=5"
)
LIMITS: dict[str, tuple[float, str]] = {
    "steps": (3_000, "--evaluation.interval-steps=1000 --checkpoint.save-interval=1000"),
    "updates": (
        30,
        "--evaluation.interval-updates=10 --checkpoint.save-interval-updates=10 --replay.capacity-segments=100",
    ),
    "episodes": (
        60,
        "--evaluation.interval-episodes=20 --checkpoint.save-interval-episodes=20 --replay.capacity-steps=3200",
    ),
    "minutes": (0.05, "--evaluation.interval-minutes=0.01 --checkpoint.save-interval-minutes=0.01"),
}
"""Limit in each unit, and further options in the same unit."""

STORES = {"updates": StoreSize(100, "segments"), "episodes": StoreSize(3_200, "steps")}


def option_of(unit: str) -> str:
    return "--total-steps" if unit == "steps" else f"--run.total-{unit}"


def done(summary: Summary, unit: str) -> float:
    amount: float = getattr(summary, "env_steps" if unit == "steps" else unit)
    return amount


def records(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


@pytest.mark.parametrize("unit", sorted(LIMITS))
def test_a_run_ends_at_its_limit_and_continues_with_a_larger_one(unit: str, tmp_path: Path) -> None:
    (limit, more), folder = LIMITS[unit], RunFolder(tmp_path / "run")
    end = run("train", *OPTIONS.split(), f"{option_of(unit)}={limit}", *more.split(), f"--run-dir={folder.root}")
    assert end.code == 0, end.stderr
    summary = Summary.read(folder.summary)
    assert summary.stopped == f"total_{unit}"
    assert done(summary, unit) >= limit
    assert summary.limit is not None
    assert (summary.limit.unit, summary.limit.total, summary.limit.share) == (unit, limit, 1.0)

    # Evaluations and checkpoints have the same unit. The conclusion adds one evaluation.
    written = records(folder)
    assert sum(record["kind"] == "evaluation" for record in written) >= 2
    shares = [record["progress_share"] for record in written if record["kind"] == "training"]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert len(folder.numbered_checkpoints()) >= 2

    if size := STORES.get(unit):
        assert build(load_toml(folder.config)).replay.store_size == size
        assert f"{size}: a store of 100 segments, " in end.stdout
        log = (folder.logs / "replay.log").read_text()
        assert "store sized" in log and str(size) in log

    shown = run("status", str(folder.root))
    assert f"ended by total_{unit}" in shown.stdout
    assert f"this run has already trained {limit:,} {unit}; raise {option_of(unit)} to continue" in shown.stdout

    again = run("train", f"--resume={folder.root}")
    assert again.code == 2
    assert again.stderr.count("\n") == 1 and f"raise {option_of(unit)} to continue" in again.stderr

    larger = 2 * limit
    resumed = run("train", f"--resume={folder.root}", f"{option_of(unit)}={larger}")
    assert resumed.code == 0, resumed.stderr
    after = Summary.read(folder.summary)
    assert after.stopped == f"total_{unit}" and after.sessions == 2
    assert done(after, unit) >= larger
    for each in ("steps", "updates", "episodes", "minutes"):
        assert done(after, each) > done(summary, each)
    if unit == "minutes":
        # The second session trained for the other half alone, so it counted the time of the first.
        assert after.minutes < larger + limit


def test_the_first_of_two_limits_ends_a_run_and_a_resumed_run_may_have_another(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    options = [*OPTIONS.split(), "--run.total-minutes=60", "--run.total-updates=10", f"--run-dir={folder.root}"]
    first = run("train", *options)
    assert first.code == 0, first.stderr
    summary = Summary.read(folder.summary)
    assert summary.stopped == "total_updates" and summary.limit is not None and summary.limit.unit == "updates"

    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(folder.root, copy.root)
    steps = summary.env_steps + 1_000
    second = run("train", f"--resume={copy.root}", f"--total-steps={steps}")
    assert second.code == 0, second.stderr
    after = Summary.read(copy.summary)
    assert after.stopped == "total_steps" and after.env_steps >= steps
    limits = build(load_toml(copy.config)).run.limits
    assert limits.given == (("steps", steps),)
