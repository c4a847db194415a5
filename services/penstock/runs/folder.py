"""The layout of a run's folder.

config.toml            reproduces the run
metrics.jsonl          one record per line, of training and evaluation; metrics.damaged: lines that are not records
episodes.jsonl         one training episode per line, with run.record_episodes
services.json          addresses of the services, while the run is active
targets.json           addresses of the services' metrics, for Prometheus, while the run is active
summary.json           written at the end
learning_curve.png     drawn at the end
report.html            one page about the run, written at the end of `penstock train`
start.safetensors      the policy from which `penstock.train` has started the run, if it was given one
checkpoints/           the newest few as <env steps>.safetensors, and best.safetensors; best.json: the times at the best
logs/                  one file per service
launch/                scripts, settings and job numbers of `penstock launch`
tensorboard/           event files for TensorBoard
wandb/                 files of W&B, if the run is tracked there
copies.json            what `checkpoint.copy_to` has copied, and why it failed last
end_sent.json          the end of the run that `run.on_end` was told of last
videos/                films of `penstock evaluate --record-video`, and of evaluations (`evaluation.film_every`)
policy.onnx            written by `penstock export --onnx`
versions.json, roster.json           numbers already assigned, so that none repeats, the run's identity and its key;
                                     roster.copy.json is a copy
identity.json          the identity and its key once more, in case both are lost
replay/                the mapped store, while the run is active
store_place.json       where the store is instead, if this folder is on a network file system
snapshots/             snapshots of the policy and that store, if any were taken
certificates/          of the services, if `penstock certificates` made them, and the authority with its key
sockets-*/             the socket files of `penstock train`, while the run is active
"""

import json
import os
from pathlib import Path
from typing import Final

from penstock.errors import ConfigurationError, DamagedFile
from penstock.machine.files import decode_record, make_folder, open_new, temporary_of
from penstock.machine.system_errors import in_words
from penstock.types.location import Place
from penstock.types.run import RunIdentity

LEARNER: Final = "learner"
"""Name of the learner among the services."""

SOCKETS = "sockets-"
"""Beginning of the name of a folder of socket files."""

IDENTITY = "identity"
"""Key of the learner's identity, in hexadecimal, beside the services."""

CERTIFIED = "certified"
"""Key beside the services that is present if they have certificates."""


def replay_services(shards: int) -> list[str]:
    """Returns the names of a run's replay services, which are numbered if there are several."""
    return ["replay"] if shards == 1 else [f"replay-{shard}" for shard in range(shards)]


def of_service(root: Path, service: str, shards: int) -> Path:
    """Returns the folder of one replay service's store or snapshots: `root`, or a subfolder if there are several."""
    return root if shards == 1 else root / service


def copy_of(path: Path) -> Path:
    """Returns the path of the second copy of a file that is kept twice."""
    return path.with_name(f"{path.stem}.copy{path.suffix}")


def identity_file(roster: Path) -> Path:
    """Returns the path of the file that keeps the identity of a run beside its roster."""
    return roster.with_name("identity.json")


def describe_identity(identity: RunIdentity) -> dict[str, str]:
    """Returns the identity of a run as JSON values. `identity_of` reads them."""
    return {"run": f"{identity.number:016x}", "key": identity.key.hex()}


def identity_of(stored: dict[str, str]) -> RunIdentity:
    """Returns the identity of a run from JSON values. Raises `ValueError` or `KeyError` if they have none."""
    return RunIdentity(int(stored["run"], 16), bytes.fromhex(stored["key"]))


def kept_identity(path: Path) -> RunIdentity | None:
    """Returns the identity in a file that `identity_file` names; None if it is missing or damaged."""
    try:
        stored = decode_record(path.read_bytes())
        return identity_of(stored) if isinstance(stored, dict) else None
    except (OSError, ValueError, KeyError, DamagedFile):
        return None


def damaged_lines_of(path: Path) -> Path:
    """Returns the path of the file that keeps the damaged lines of a file of records."""
    return path.with_name(f"{path.stem}.damaged")


class RunFolder:
    """Paths of one run, below its folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.toml"
        self.metrics = root / "metrics.jsonl"
        self.episodes = root / "episodes.jsonl"
        self.damaged_metrics = damaged_lines_of(self.metrics)
        self.event_files = root / "tensorboard"
        self.wandb = root / "wandb"
        self.services = root / "services.json"
        self.targets = root / "targets.json"
        self.summary = root / "summary.json"
        self.learning_curve = root / "learning_curve.png"
        self.report = root / "report.html"
        self.start = root / "start.safetensors"
        self.checkpoints = root / "checkpoints"
        self.best_checkpoint = self.checkpoints / "best.safetensors"
        self.best_measured = self.checkpoints / "best.json"
        self.logs = root / "logs"
        self.videos = root / "videos"
        self.copies = root / "copies.json"
        self.end_sent = root / "end_sent.json"
        self.launch = root / "launch"
        self.certificates = root / "certificates"
        self.versions = root / "versions.json"
        self.roster = root / "roster.json"
        self.roster_copy = copy_of(self.roster)
        self.identity = identity_file(self.roster)
        self.variants = root / "variants.json"
        self.replay = root / "replay"
        self.store_place = root / "store_place.json"
        self.snapshots = root / "snapshots"

    def checkpoint(self, env_steps: int) -> Path:
        """Returns the path of the checkpoint at this number of environment steps."""
        return self.checkpoints / f"{env_steps:012d}.safetensors"

    def everything(self) -> set[Path]:
        """Returns every file and folder that a run creates directly in its folder."""
        return {path for path in vars(self).values() if path.parent == self.root != path}

    def places(self) -> dict[str, Place]:
        """Returns where each service is by name, while the run is active.

        Raises `OSError` if the run is not active, or `ValueError` if the list of its services is damaged.
        """
        listed = json.loads(self.services.read_text())
        if not isinstance(listed, dict) or LEARNER not in listed:
            raise ValueError(f"{self.services} lists no learner")
        identity = int(str(listed.pop(IDENTITY, "0")), 16)
        listed.pop(CERTIFIED, None)
        return {
            name: Place(tuple(str(each).split(",")), identity if name == LEARNER else 0)
            for name, each in listed.items()
        }

    @property
    def certified(self) -> bool:
        """Whether the services of the active run have certificates, so that only clients with one reach them."""
        try:
            listed = json.loads(self.services.read_text())
        except (OSError, ValueError):
            return False
        return isinstance(listed, dict) and CERTIFIED in listed

    def create(self) -> None:
        """Creates the folder. Raises `ConfigurationError` if it can't be written."""
        try:
            for folder in (self.root, self.checkpoints, self.logs):
                make_folder(folder)
            probe = temporary_of(self.root / "writable")
            os.close(open_new(probe))
            probe.unlink()
        except OSError as error:
            reason = in_words(error, self.root, "choose another with --run-dir")
            raise ConfigurationError(f"can't write the run's folder {self.root}: {reason}") from None

    def numbered_checkpoints(self) -> list[Path]:
        """Returns all checkpoints except the best, oldest first."""
        found = (path for path in self.checkpoints.glob("*.safetensors") if path.stem.isdigit())
        return sorted(found, key=lambda path: int(path.stem))

    def newest_checkpoint_steps(self) -> int | None:
        """Returns the environment steps of the newest numbered checkpoint; None if there is none."""
        numbered = self.numbered_checkpoints()
        return int(numbered[-1].stem) if numbered else None


def has_checkpoint(folder: RunFolder) -> bool:
    """Returns whether a run has saved a checkpoint."""
    return folder.best_checkpoint.exists() or bool(folder.numbered_checkpoints())


def has_records(folder: RunFolder) -> bool:
    """Returns whether a run has recorded metrics."""
    return folder.metrics.exists() and folder.metrics.stat().st_size > 0


def find_checkpoint(path: Path) -> Path:
    """Returns the file itself, or a run's checkpoint to use. Raises `ConfigurationError` if there is none."""
    if path.is_file():
        return path
    folder = RunFolder(path)
    if folder.best_checkpoint.exists():
        return folder.best_checkpoint
    numbered = folder.numbered_checkpoints()
    if not numbered:
        raise ConfigurationError(f"{path} holds no checkpoint; name a run's folder or a .safetensors file")
    return numbered[-1]
