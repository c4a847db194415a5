"""The start of Ray for the programs of RLlib. Import it before `ray`, which reads the variables when it is imported."""

import os
from pathlib import Path

os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# Ray lowers the priority of its workers, which would starve beside other programs.
os.environ.setdefault("RAY_worker_niceness", "0")

import ray


def start(folder: Path) -> None:
    """Starts Ray on two cores, with its temporary files in this folder."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=str(folder))
