"""`make bench-intrinsic-rewards`: a task with rare rewards, with and without random network distillation.

The module of rewards is the example of docs/change-the-algorithm.md; all other settings are the defaults. An episode of
the task succeeds if its return is above 0. Runs are made one after another. The result is
build/bench/intrinsic_rewards.json.
"""

import argparse
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import penstock
from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "intrinsic_rewards.json"
EVALUATIONS, PLAYED = 30, 100
EXAMPLE = re.compile(r'^```python\n("""rnd\.py""".*?)^```$', re.MULTILINE | re.DOTALL)

ROWS = "none", "random network distillation"


@dataclass(frozen=True, slots=True)
class Trained:
    """A run.

    Attributes:
        row, seed: What was run.
        env_steps, seconds, returns: Environment steps, seconds of training and mean return at each evaluation.
        final_returns: Returns of 100 further episodes with the best policy.
        successes: Share of these episodes whose return is above 0.
    """

    row: str
    seed: int
    env_steps: list[int]
    seconds: list[float]
    returns: list[float]
    final_returns: list[float]
    successes: float


def trained(env_id: str, row: str, seed: int, steps: int, folder: Path) -> Trained:
    """Trains a run."""
    settings: dict[str, Any] = {}
    if row != ROWS[0]:
        module = folder / "rnd.py"
        if not (found := EXAMPLE.search((ROOT / "docs" / "change-the-algorithm.md").read_text())):
            raise SystemExit("docs/change-the-algorithm.md has no rnd.py")
        module.write_text(found[1])
        settings = {"ppo": {"intrinsic_reward": f"{module}:Rnd"}}
    run = penstock.train(
        env_id,
        preset="none",
        progress=False,
        seed=seed,
        total_steps=steps,
        run_dir=str(folder / f"{row}-{seed}"),
        evaluation={"interval_steps": steps // EVALUATIONS},
        **settings,
    )
    found_curve = run.metrics().evaluation
    env_steps, seconds, returns = (found_curve[key].tolist() for key in ("env_steps", "training_s", "return_mean"))
    finals = list(run.evaluate(episodes=PLAYED).returns)
    successes = sum(each > 0.0 for each in finals) / PLAYED
    return Trained(row, seed, [int(each) for each in env_steps], seconds, returns, finals, successes)


def main() -> int:
    """Trains all runs in turn, and writes what they reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000, help="environment steps of a run")
    parser.add_argument("--env-id", default="MiniGrid-MultiRoom-N4-S5-v0")
    chosen = parser.parse_args()
    origin, runs = of_this_run(), list[Trained]()
    with tempfile.TemporaryDirectory(prefix="penstock-intrinsic-") as temporary:
        for seed in range(1, chosen.seeds + 1):
            for row in ROWS:
                run = trained(chosen.env_id, row, seed, chosen.steps, Path(temporary))
                runs.append(run)
                print(f"{row}, seed {seed}: {run.seconds[-1]:.0f} s, {run.successes:.0%} successful", flush=True)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    about = {"env_id": chosen.env_id, "seeds": chosen.seeds, "steps": chosen.steps}
    write_json(OUTPUT, {"provenance": origin, **about, "runs": [asdict(each) for each in runs]})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
