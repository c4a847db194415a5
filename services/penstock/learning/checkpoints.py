"""Checkpoints: one safetensors file each, with policy, optimizer and randomness, complete or absent.

The policy's tensors have their own names, so a checkpoint is also a set of weights to act with; all others have a "/"
in theirs. Where the run stood is JSON in the file's metadata. Nothing is pickled.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from penstock.algo import weights as policy_weights
from penstock.errors import ConfigurationError
from penstock.files import write_atomically
from penstock.learning.learner import Learner
from penstock.run_folder import RunFolder
from penstock.types import EnvironmentSpec

_PROGRESS_KEY = "penstock.progress"


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands.

    Attributes:
        version: Policy version; training batches, but for jumps at a resume.
        env_steps: Environment steps trained.
        updates: Gradient steps.
        segments_trained: Uses of segments, replayed ones included.
        segments_fresh: Segments trained for the first time.
        training_s: Seconds of training since the first environment step, over all sessions of the run.
        env_steps_to_threshold: When an evaluation first reached the threshold; None: not yet.
        learn_wall_s_to_threshold: The same in seconds from the first environment step.
        best_return: Best mean return of an evaluation; None before the first.
    """

    version: int = 0
    env_steps: int = 0
    updates: int = 0
    segments_trained: int = 0
    segments_fresh: int = 0
    training_s: float = 0.0
    env_steps_to_threshold: int | None = None
    learn_wall_s_to_threshold: float | None = None
    best_return: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint's bytes, made when the parameters were those of `progress`."""

    progress: RunProgress
    data: bytes


def take(learner: Learner, progress: RunProgress) -> Snapshot:
    """The learner as it is now."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in learner.policy.state_dict().items()}
    for index, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value.detach().cpu().contiguous() for name, value in state.items()}
    tensors["randomness/shuffling"] = learner.generator.get_state()
    metadata = {
        policy_weights.METADATA_KEY: policy_weights.describe(learner.policy, progress.version),
        _PROGRESS_KEY: json.dumps(dataclasses.asdict(progress)),
    }
    return Snapshot(progress, safetensors.torch.save(tensors, metadata))


def save(folder: RunFolder, snapshot: Snapshot, keep: int) -> Path:
    """Writes a checkpoint and removes all but the newest `keep`."""
    path = folder.checkpoints / f"{snapshot.progress.env_steps:012d}.safetensors"
    write_atomically(path, snapshot.data)
    for old in folder.numbered_checkpoints()[:-keep]:
        old.unlink()
    return path


def save_best(folder: RunFolder, snapshot: Snapshot) -> None:
    """Writes the checkpoint that evaluated best."""
    write_atomically(folder.best_checkpoint, snapshot.data)


def read_spec(path: Path) -> EnvironmentSpec:
    """The spaces a checkpoint was trained for. Raises `ConfigurationError` as `restore`."""
    return policy_weights.build(_read_metadata(path)[policy_weights.METADATA_KEY]).spec


def read_progress(path: Path) -> RunProgress:
    """Where the run stood. Raises `ConfigurationError` as `restore`."""
    return _progress(path, _read_metadata(path))


def restore(learner: Learner, path: Path) -> RunProgress:
    """Puts a checkpoint's policy, optimizer and randomness into a learner of the same architecture.

    Raises:
        ConfigurationError: The file is cut short or damaged, or belongs to other spaces or another architecture.
    """
    metadata = _read_metadata(path)
    saved, present = policy_weights.build(metadata[policy_weights.METADATA_KEY]), learner.policy
    if (saved.spec.observation, saved.spec.action, saved.network) != (
        present.spec.observation,
        present.spec.action,
        present.network,
    ):
        raise ConfigurationError(
            f"{path} does not fit this run: it was saved for {saved.spec.id} and {saved.network}, and the run has"
            f" {present.spec.id} and {present.network}; resume with the settings it was trained with"
        )
    tensors = safetensors.torch.load_file(path)
    learner.policy.load_state_dict({name: tensor for name, tensor in tensors.items() if "/" not in name})
    learner.optimizer.load_state_dict({**learner.optimizer.state_dict(), "state": _optimizer_state(tensors)})
    learner.generator.set_state(tensors["randomness/shuffling"])
    return _progress(path, metadata)


def _progress(path: Path, metadata: dict[str, str]) -> RunProgress:
    try:
        return RunProgress(**json.loads(metadata[_PROGRESS_KEY]))
    except TypeError:
        raise ConfigurationError(
            f"the checkpoint {path} was written by another version of Penstock; resume with that version, or from an"
            " older checkpoint by removing this one"
        ) from None


def _optimizer_state(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, part = name.split("/")
            state.setdefault(int(index), {})[part] = tensor
    return state


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(
            f"the checkpoint {path} can't be read or is cut short ({error}); remove it to resume from the one before"
        ) from None
    if _PROGRESS_KEY not in metadata or policy_weights.METADATA_KEY not in metadata:
        raise ConfigurationError(f"{path} is not a Penstock checkpoint")
    return metadata


def newest(folder: RunFolder) -> Path | None:
    """The newest checkpoint of a run."""
    numbered = folder.numbered_checkpoints()
    return numbered[-1] if numbered else None
