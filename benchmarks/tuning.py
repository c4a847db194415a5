"""`make bench-tuning`: 20 trials of `penstock tune` for LunarLander, and the best settings on seeds that chose nothing.

The search starts from the default settings, without the preset of the task. The best of 20 values is too good, because
it was partly chosen by chance. So `penstock compare` trains the defaults and the best settings with five other seeds,
or `penstock train` the defaults alone if they are the best. The study and these runs are folders in build/tuning; the
study continues after an interruption. The result is build/bench/tuning.json.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
PLACE, OUTPUT = ROOT / "build" / "tuning", ROOT / "build" / "bench" / "tuning.json"
ENV_ID, NAME = "LunarLander-v3", "lunar_lander"


def _run(*arguments: str) -> None:
    """Runs a command of Penstock. Raises `SystemExit` if it fails."""
    command, environment = [sys.executable, "-m", "penstock", *arguments], {**os.environ, "PENSTOCK_PRESET": "none"}
    if code := subprocess.run(command, cwd=PLACE, env=environment, check=False).returncode:
        raise SystemExit(f"penstock {arguments[0]} ended with code {code}")


def main() -> int:
    """Tunes, compares, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the comparison, from 1 on; the study has seed 0")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of a run")
    arguments = parser.parse_args()
    origin = of_this_run()
    PLACE.mkdir(parents=True, exist_ok=True)
    study, comparison = PLACE / "tune" / NAME, PLACE / "compare" / NAME
    base = PLACE / "defaults.toml"
    base.write_text(f'[environment]\nid = "{ENV_ID}"\n')
    design = f"--trials={arguments.trials}", f"--steps={arguments.steps}"
    _run("tune", str(base), "--name", NAME, *design)
    storage = JournalStorage(JournalFileBackend(str(study / "study.journal")))
    trials = optuna.load_study(study_name="study", storage=storage).get_trials()
    values = [each.values[0] if each.values else -math.inf for each in trials]
    seeds, table = range(1, arguments.seeds + 1), {}
    if values[0] < max(values):
        _run(
            *("compare", str(study / "base.toml"), str(study / "best.toml"), "--name", NAME),
            *("--first-seed=1", f"--seeds={arguments.seeds}"),
        )
        table = json.loads((comparison / "compare.json").read_text())
        final_returns = [each["final_return"] for each in table["runs"]["b"]]
    else:
        final_returns = []
        for seed in seeds:
            run = PLACE / "train" / f"{NAME}-{seed}"
            shutil.rmtree(run, ignore_errors=True)
            _run("train", "--preset=none", f"--config={study / 'best.toml'}", f"--dir={run}", f"--seed={seed}")
            summary = json.loads((run / "summary.json").read_text())
            final_returns.append(summary["evaluation"]["return_mean"])
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        OUTPUT,
        {
            "provenance": origin,
            "env_id": ENV_ID,
            "trials": arguments.trials,
            "steps": arguments.steps,
            "states": [each.state.name.lower() for each in trials],
            "seconds": [each.duration and each.duration.total_seconds() for each in trials],
            "values": [each.values and each.values[0] for each in trials],
            # Of the best settings, with seeds that did not choose them.
            "seeds": list(seeds),
            "final_returns": final_returns,
            # With the defaults; nothing if no trial was better than the first.
            "comparison": table,
        },
    )
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
