"""The layout of a run's folder.

config.toml            reproduces the run
metrics.jsonl          one record a line: training and evaluations; metrics.damaged: lines that were no records
summary.json           written at the end
learning_curve.png     drawn at the end
checkpoints/           <env steps>.safetensors, the newest few, and best.safetensors
logs/                  one file a service
versions.json, roster.json           numbers that were given out, so that none repeats; roster.copy.json is a copy
replay/                the mapped store, while the run is going on
snapshots/             of the policy and that store, if any were taken
"""

import os
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError


def replay_services(shards: int) -> list[str]:
    """The names of a run's replay services: by numbers, where there are several."""
    return ["replay"] if shards == 1 else [f"replay-{shard}" for shard in range(shards)]


def of_service(root: Path, service: str, shards: int) -> Path:
    """The folder of one replay service's store, or of its snapshots, where there are so many services."""
    return root if shards == 1 else root / service


def copy_of(path: Path) -> Path:
    """The second copy of a file that is kept twice."""
    return path.with_name(f"{path.stem}.copy{path.suffix}")


def damaged_lines_of(path: Path) -> Path:
    """The file that keeps the damaged lines of a file of records."""
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
        """Records of training and evaluation, a JSON object a line."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What came out."""
        return self.root / "summary.json"

    @property
    def learning_curve(self) -> Path:
        """The picture of the returns."""
        return self.root / "learning_curve.png"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def best_checkpoint(self) -> Path:
        """The checkpoint that evaluated best."""
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
        """Actors, their places and incarnations."""
        return self.root / "roster.json"

    @property
    def roster_copy(self) -> Path:
        """The copy of the roster."""
        return copy_of(self.roster)

    @property
    def damaged_metrics(self) -> Path:
        """Lines of the records that were no records."""
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
        """Where the services of a local run can be reached, while it is going on."""
        return self.root / "services.json"

    def checkpoint(self, env_steps: int) -> Path:
        """The numbered checkpoint of this many environment steps."""
        return self.checkpoints / f"{env_steps:012d}.safetensors"

    def everything(self) -> tuple[Path, ...]:
        """Every file and folder that a run makes in its folder."""
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
        """Makes the folder. Raises `ConfigurationError` if it can't be written."""
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
        """Checkpoints but the best, oldest first."""
        found = (path for path in self.checkpoints.glob("*.safetensors") if path.stem.isdigit())
        return sorted(found, key=lambda path: int(path.stem))
