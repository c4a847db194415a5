"""The data path between actor and learner: its share of the CPU time, and the pace of the same processes without it.

`fifo` is Penstock's own collector and learner over shared memory (`benchmarks.fifo_loop`). Called by `loop`.
"""

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import penstock_loop
from benchmarks.like_for_like import variables
from benchmarks.observed import ROOT, RunFailed

LEAST_OF_FIFO = 0.9
"""Smallest ratio of Penstock's pace to that of the same processes over shared memory."""
MOST_SHARE = 0.1
"""Largest share of the path between actor and learner in the CPU time of a run."""
LIMIT_S = 180.0
SYSTEMS = ("penstock", "fifo")
TASKS = {"CartPole-v1": ("cartpole_no_replay", 1_000_000), "Pendulum-v1": ("pendulum", 500_000)}
"""Preset, and environment steps of a run, by environment id."""


def run(system: str, env_id: str, seed: int) -> dict[str, Any]:
    """Measures a system. Raises `RunFailed`, or `subprocess.SubprocessError` if Penstock fails."""
    preset, steps = TASKS[env_id]
    if system == "fifo":
        return _fifo(preset, steps, seed)
    pace = penstock_loop.throughput(preset, steps, seed)
    return {
        "env_steps_per_s": pace.env_steps_per_s,
        "path_share": pace.path_share,
        **{f"{service}_cpu_s_per_million": value for service, value in pace.cpu_s_per_million.items()},
        **{f"{activity}_path_cpu_s_per_million": value for activity, value in pace.path_cpu_s_per_million.items()},
    }


def _fifo(preset: str, steps: int, seed: int) -> dict[str, Any]:
    options = [f"--preset={preset}", f"--total-steps={steps}", f"--seed={seed}"]
    command = [sys.executable, "-m", "benchmarks.fifo_loop", *options]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **variables()},
    )
    if done.returncode:
        raise RunFailed(done.stderr[-2_000:])
    result = json.loads(done.stdout)
    return {
        "env_steps_per_s": result["env_steps_per_s"],
        **{f"{service}_cpu_s_per_million": value for service, value in result["cpu_s_per_million"].items()},
    }
