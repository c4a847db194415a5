"""The journal of a peer's run, which `benchmarks.observed` reads while the run goes on; needs only Python.

Its lines have the names of Penstock's metrics.jsonl: `kind`, `env_steps`, and `return_mean` of an evaluation.
"""

import json
from pathlib import Path


class Journal:
    """Appends lines to the journal of a run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def trained(self, env_steps: int) -> None:
        """Notes how many environment steps were trained."""
        self._write({"kind": "training", "env_steps": env_steps})

    def evaluated(self, env_steps: int, return_mean: float) -> None:
        """Notes the mean return of the policy that was trained for this many environment steps."""
        self._write({"kind": "evaluation", "env_steps": env_steps, "return_mean": return_mean})

    def _write(self, line: dict[str, object]) -> None:
        # Opened for each line, so that a reader sees whole lines at once.
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
