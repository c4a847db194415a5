"""The layout of a run's folder.

config.toml            reproduces the run
metrics.jsonl          one record per line, of training and evaluation; metrics.damaged: lines that are not records
services.json          addresses of the services, while the run is active
summary.json           written at the end
learning_curve.png     drawn at the end
checkpoints/           the newest few as <env steps>.safetensors, and best.safetensors
logs/                  one file per service
videos/                recordings of `penstock evaluate --record-video`
versions.json, roster.json           numbers already assigned, so that none repeats; roster.copy.json is a copy
replay/                the mapped store, while the run is active
snapshots/             snapshots of the policy and that store, if any were taken
"""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError


def replay_services(shards: int) -> list[str]:
    """Returns the names of a run's replay services, which are numbered if there are several."""
    return ["replay"] if shards == 1 else [f"replay-{shard}" for shard in range(shards)]


def of_service(root: Path, service: str, shards: int) -> Path:
    """Returns the folder of one replay service's store or snapshots: `root`, or a subfolder if there are several."""
    return root if shards == 1 else root / service


def copy_of(path: Path) -> Path:
    """Returns the path of the second copy of a file that is kept twice."""
    return path.with_name(f"{path.stem}.copy{path.suffix}")


def damaged_lines_of(path: Path) -> Path:
    """Returns the path of the file that keeps the damaged lines of a file of records."""
    return path.with_name(f"{path.stem}.damaged")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run."""

    root: Path

    @property
    def config(self) -> Path:
        """The configuration of the run."""
        return self.root / "config.toml"

    @property
    def metrics(self) -> Path:
        """Records of training and evaluation, one JSON object per line."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The results of the run."""
        return self.root / "summary.json"

    @property
    def learning_curve(self) -> Path:
        """The plot of the returns."""
        return self.root / "learning_curve.png"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def best_checkpoint(self) -> Path:
        """The checkpoint with the best evaluation."""
        return self.checkpoints / "best.safetensors"

    @property
    def logs(self) -> Path:
        """The folder of the services' logs."""
        return self.root / "logs"

    @property
    def versions(self) -> Path:
        """The high-water mark of published versions."""
        return self.root / "versions.json"

    @property
    def roster(self) -> Path:
        """The actors with their slots and incarnations."""
        return self.root / "roster.json"

    @property
    def roster_copy(self) -> Path:
        """The copy of the roster."""
        return copy_of(self.roster)

    @property
    def damaged_metrics(self) -> Path:
        """Lines of the metrics file that are not records."""
        return damaged_lines_of(self.metrics)

    @property
    def replay(self) -> Path:
        """The folder of the mapped store."""
        return self.root / "replay"

    @property
    def snapshots(self) -> Path:
        """The folder of the run's snapshots, which outlive its store."""
        return self.root / "snapshots"

    @property
    def services(self) -> Path:
        """The addresses of the services of a local run, while it is active."""
        return self.root / "services.json"

    def checkpoint(self, env_steps: int) -> Path:
        """Returns the path of the checkpoint at this number of environment steps."""
        return self.checkpoints / f"{env_steps:012d}.safetensors"

    def everything(self) -> tuple[Path, ...]:
        """Returns every file and folder that a run creates in its folder."""
        return (
            self.config,
            self.metrics,
            self.damaged_metrics,
            self.summary,
            self.learning_curve,
            self.checkpoints,
            self.logs,
            self.versions,
            self.roster,
            self.roster_copy,
            self.replay,
            self.snapshots,
            self.services,
        )

    def create(self) -> None:
        """Creates the folder. Raises `ConfigurationError` if it can't be written."""
        try:
            for folder in (self.root, self.checkpoints, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.root / f".writable-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"can't write the run's folder {self.root}: {error.strerror}; choose another with --run-dir"
            ) from None

    def numbered_checkpoints(self) -> list[Path]:
        """Returns all checkpoints except the best, oldest first."""
        found = (path for path in self.checkpoints.glob("*.safetensors") if path.stem.isdigit())
        return sorted(found, key=lambda path: int(path.stem))
