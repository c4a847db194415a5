"""Checkpoints: one safetensors file each, with policy, optimizer and random state, either complete or absent.

The policy's tensors keep their own names, so a checkpoint is also a set of weights to act with. The names of all other
tensors contain a "/". The file's metadata holds the run's progress as JSON and, in the best checkpoint, the evaluation
that made it the best. Nothing is pickled. `penstock.runs.checkpoint_file` defines the bytes and their digest.

The best checkpoint has no measured values, such as seconds, so that equal runs have equal files. `best.json` has them.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.algo import weights as policy_weights
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.algo.published import METADATA_KEY, of_metadata
from penstock.errors import ConfigurationError, DamagedFile, ForeignCode
from penstock.learning.durable.run_progress import PROGRESS_KEY, of_another_release, progress_of, read, read_policy
from penstock.learning.durable.run_progress import RunProgress as RunProgress
from penstock.learning.durable.run_progress import read_progress as read_progress
from penstock.learning.step.host_copies import HostCopy, on_host
from penstock.learning.step.learner import Learner
from penstock.machine.files import json_of, write_atomically, write_json
from penstock.runs import checkpoint_file
from penstock.runs.checkpoint_file import CheckpointFile
from penstock.runs.folder import RunFolder
from penstock.types.differences import contrast, same_spaces
from penstock.types.evaluation import EvaluationSummary
from penstock.types.records import plain, record_of
from penstock.types.spaces import EnvironmentSpec

_EVALUATION_KEY = "penstock.evaluation"
_OPTIMIZER, _INTRINSIC = "optimizer/0/", "intrinsic/"
_MEASURED = (
    "training_s",
    "learn_wall_s_to_threshold",
    "env_steps_taken",
    "wall_s",
    "clock_s",
    "untimed_episode_steps",
)
"""Progress that differs between runs with equal parameters: it depends on clocks and on the order of reports."""

_REPLACED = "replaced"
"""Key of the measured values at the best checkpoint before, in the file of measured values."""

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError, SafetensorError)
"""Errors raised by parsing bytes that no digest has verified."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Bytes of a checkpoint, taken when the run had this progress."""

    progress: RunProgress
    data: bytes


@dataclass(frozen=True, slots=True)
class Captured:
    """The state of a learner in memory of its own, of which any thread can make a checkpoint.

    Attributes:
        progress: Progress of the run in this state.
        tensors: Parameters, optimizer and randomness, by their names in the checkpoint.
        policy: Description of the policy.
    """

    progress: RunProgress
    tensors: dict[str, Tensor]
    policy: str

    def encoded(self) -> Snapshot:
        """Returns the checkpoint."""
        metadata = {METADATA_KEY: self.policy, PROGRESS_KEY: json_of(dataclasses.asdict(self.progress))}
        return Snapshot(self.progress, checkpoint_file.sealed(safetensors.torch.save(self.tensors), metadata))


@dataclass(frozen=True, slots=True)
class Recovered:
    """State in a run's folder from which the run can resume.

    Attributes:
        path: Newest sound checkpoint; None: the run starts from the beginning.
        progress: Progress at that checkpoint, with the earliest threshold crossing recorded in it or in the best one.
        spec: Spaces for which it was trained.
        best: Evaluation of the best checkpoint; None if there is no sound one.
        complaints: Lines for the user about files that were skipped or could not be verified.
    """

    path: Path | None = None
    progress: RunProgress = field(default_factory=RunProgress)
    spec: EnvironmentSpec | None = None
    best: EvaluationSummary | None = None
    complaints: tuple[str, ...] = ()


def take(learner: Learner, progress: RunProgress) -> Snapshot:
    """Takes a checkpoint of the learner in its current state. Waits for the device once."""
    # Encoded at once, so that on a CPU no tensor needs a copy.
    return _captured(learner, progress, on_host(_state(learner))).encoded()


def capture(learner: Learner, progress: RunProgress) -> Captured:
    """Copies the learner's current state, in a fraction of the time of `take`. Waits for the device once."""
    return _captured(learner, progress, HostCopy(_state(learner)).wait())


def judged(snapshot: Snapshot, progress: RunProgress, evaluation: EvaluationSummary) -> Snapshot:
    """Returns the same parameters with their evaluation and the progress after it, without measured values."""
    reproducible = {name: value for name, value in dataclasses.asdict(progress).items() if name not in _MEASURED}
    metadata = {
        PROGRESS_KEY: json_of(reproducible),
        _EVALUATION_KEY: json_of(dataclasses.asdict(evaluation)),
    }
    return Snapshot(progress, checkpoint_file.sealed(snapshot.data, metadata))


def save(folder: RunFolder, snapshot: Snapshot, keep: int) -> Path:
    """Writes a checkpoint and keeps at most `keep` in total: this one and the newest others. Raises `OSError`."""
    path = folder.checkpoint(snapshot.progress.env_steps)
    write_atomically(path, snapshot.data)
    others = [old for old in folder.numbered_checkpoints() if old != path]
    for old in others[: max(0, len(others) - (keep - 1))]:
        old.unlink()
    return path


def save_best(folder: RunFolder, snapshot: Snapshot) -> None:
    """Writes the best checkpoint, and before it the measured values at it. Raises `OSError`.

    The values at the checkpoint that is replaced remain beside them, for a process that is killed in between.
    """
    measured = {name: getattr(snapshot.progress, name) for name in _MEASURED}
    replaced = _measured_at(_version_of(folder.best_checkpoint), folder.best_measured)
    replaced = {} if replaced is None else {_REPLACED: replaced}
    write_json(folder.best_measured, {"version": snapshot.progress.version, **measured, **replaced})
    write_atomically(folder.best_checkpoint, snapshot.data)


def recover(folder: RunFolder, module: str | None = None) -> Recovered:
    """Finds the state to resume from. Renames damaged files by appending `.damaged`, and changes nothing else.

    `module` is the only module that may be imported (`policy.module`). Raises `ConfigurationError` if all checkpoints
    are damaged, or one was written by another release, and `ForeignCode` if one names another module.
    """
    damaged: dict[Path, DamagedFile] = {}
    best = _first_sound([folder.best_checkpoint] if folder.best_checkpoint.exists() else [], damaged, module)
    numbered = _first_sound(folder.numbered_checkpoints()[::-1], damaged, module)
    # The best checkpoint is as complete as the others, and a learner that was killed early may have left no other.
    newest = max(filter(None, (numbered, best)), key=lambda file: progress_of(file).env_steps, default=None)
    if newest is None:
        if damaged:
            findings = "; ".join(error.finding for error in damaged.values())
            raise ConfigurationError(
                f"all checkpoints of the run are damaged: {findings}; restore one from a backup, or remove them to"
                " train from the beginning"
            )
        return Recovered()
    complaints = [f"{error.finding}; it was moved to {_set_aside(path).name}" for path, error in damaged.items()]
    if damaged:
        complaints.append(f"the run continues from {newest.path}")
    if not newest.verified:
        complaints.append(
            f"the checkpoint {newest.path} was written by a release without digests, so it can't be verified"
        )
    progress, evaluation = progress_of(newest), None
    if best is not None:
        of_best = _with_measured(progress_of(best), folder.best_measured)
        if newest is best:
            progress = of_best
            if not progress.training_s:
                complaints.append(
                    f"the times at {newest.path} are unknown, because {folder.best_measured.name} has none of its"
                    " version; minutes of training and environment steps taken count from 0"
                )
        evaluation = _evaluation(best, progress)
        progress = _with_earlier_threshold(progress, of_best)
    return Recovered(newest.path, progress, _policy_of(newest, module).spec, evaluation, tuple(complaints))


def read_snapshot(path: Path) -> Snapshot:
    """Reads a checkpoint as it was taken. Raises `ConfigurationError` as `restore` does."""
    file = read(path)
    return Snapshot(progress_of(file), file.data)


def read_network(path: Path) -> Network:
    """Returns the architecture of the policy in a file. Raises `ConfigurationError` as `start_from` does."""
    return of_metadata(read_policy(path).metadata[METADATA_KEY]).network


def restore(learner: Learner, path: Path) -> RunProgress:
    """Loads a checkpoint's policy, optimizer, intrinsic rewards and random state into a learner; returns its progress.

    Raises `DamagedFile` if the file is damaged, `ConfigurationError` if it belongs to other spaces, another
    architecture, another optimizer or another release.
    """
    file = _fitting(read(path), learner.policy, "resume with the settings it was trained with")
    try:
        load(learner, file.data)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} does not fit this run: {error}") from None
    except _UNREADABLE as error:
        raise checkpoint_file.damaged(path, f"its tensors can't be loaded ({error})") from None
    return progress_of(file)


def load(learner: Learner, data: bytes) -> None:
    """Loads a checkpoint's policy, optimizer and random state into a learner from its bytes, which are not verified."""
    tensors = safetensors.torch.load(data)
    learner.policy.load(tensors)
    of_optimizer, intrinsic = (
        {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
        for kind in (_OPTIMIZER, _INTRINSIC)
    )
    learner.optimizer.load(of_optimizer)
    learner.own.load_intrinsic(intrinsic)
    learner.generator.set_state(tensors["randomness/shuffling"])


def start_from(learner: Learner, path: Path) -> None:
    """Loads the policy of another run's checkpoint, or of a file with a policy alone, and nothing else.

    Raises as `restore` does.
    """
    remedy = "give this run the settings of [policy] and the environment with which it was saved"
    file = _fitting(read_policy(path), learner.policy, remedy)
    try:
        learner.policy.load(safetensors.torch.load(file.data))
    except _UNREADABLE as error:
        raise checkpoint_file.damaged(path, f"its tensors can't be loaded ({error})") from None


def _state(learner: Learner) -> dict[str, Tensor]:
    """Returns the tensors on the learner's device that a checkpoint has."""
    state = {name: tensor.detach() for name, tensor in learner.policy.state_dict().items()}
    intrinsic = {f"{_INTRINSIC}{name}": value for name, value in learner.own.intrinsic_state.items()}
    return state | {f"{_OPTIMIZER}{name}": value for name, value in learner.optimizer.state.items()} | intrinsic


def _captured(learner: Learner, progress: RunProgress, tensors: dict[str, Tensor]) -> Captured:
    randomness = {"randomness/shuffling": learner.generator.get_state()}
    return Captured(progress, tensors | randomness, policy_weights.describe(learner.policy, progress.version))


def _fitting(file: CheckpointFile, present: Policy, remedy: str) -> CheckpointFile:
    """Returns a checkpoint that has the spaces and the architecture of a policy, or raises `ConfigurationError`."""
    saved = _policy_of(file, present.network.module)
    if not same_spaces(saved.spec, present.spec) or saved.network != present.network:
        then, now = contrast(saved.spec, present.spec, _network_differences(saved.network, present.network))
        raise ConfigurationError(
            f"{file.path} does not fit this run: it was saved for {then}, and the run has {now}; {remedy}"
        )
    return file


def newest(folder: RunFolder) -> Path | None:
    """Returns the newest numbered checkpoint of a run; None if there is none."""
    return next(reversed(folder.numbered_checkpoints()), None)


def _network_differences(saved: Network, present: Network) -> list[tuple[str, str]]:
    before, now = plain(saved), plain(present)
    return [
        (f"policy.{name} {before[name]}", f"policy.{name} {now[name]}") for name in now if before[name] != now[name]
    ]


def _first_sound(paths: list[Path], damaged: dict[Path, DamagedFile], module: str | None) -> CheckpointFile | None:
    """Returns the first sound file and adds the damaged files before it to `damaged`."""
    for path in paths:
        try:
            file = read(path)
            policy = _policy_of(file, module)
            progress_of(file)
            if not file.verified:
                _check_tensors(file, policy)
            return file
        except DamagedFile as error:
            damaged[path] = error
    return None


def _set_aside(path: Path) -> Path:
    """Renames a damaged file so that it is not taken for a checkpoint, and returns its current path."""
    try:
        return path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError:
        # On a read-only disk the file is skipped again at the next start.
        return path


def _check_tensors(file: CheckpointFile, policy: Policy) -> None:
    """Loads tensors that no digest has verified. Raises `DamagedFile`."""
    try:
        policy.load(safetensors.torch.load(file.data))
    except _UNREADABLE as error:
        raise checkpoint_file.damaged(file.path, f"its tensors can't be loaded ({error})") from None


def _with_earlier_threshold(progress: RunProgress, other: RunProgress) -> RunProgress:
    """Returns the progress with the other's threshold crossing if that was earlier."""
    theirs, ours = other.env_steps_to_threshold, progress.env_steps_to_threshold
    if theirs is None or (ours is not None and ours <= theirs):
        return progress
    return dataclasses.replace(
        progress, env_steps_to_threshold=theirs, learn_wall_s_to_threshold=other.learn_wall_s_to_threshold
    )


def _with_measured(progress: RunProgress, path: Path) -> RunProgress:
    """Returns the best checkpoint's progress with the measured values in a file.

    Without values of the same version, measured values remain as in the checkpoint, where earlier releases wrote them.
    """
    found = _measured_at(progress.version, path)
    return progress if found is None else dataclasses.replace(progress, **{name: found[name] for name in _MEASURED})


def _measured_at(version: int | None, path: Path) -> dict[str, Any] | None:
    """Returns the entry of this policy version in a file of measured values; None if it has none, or can't be read."""
    try:
        newest = json.loads(path.read_bytes())
        for entry in (newest, newest.get(_REPLACED, {})):
            if entry.get("version", None) == version and version is not None:
                # Earlier releases did not keep the bound of evaluations.
                entry = {"untimed_episode_steps": 0, **entry}
                return {name: entry[name] for name in ("version", *_MEASURED)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def _version_of(path: Path) -> int | None:
    try:
        return read_progress(path).version
    except ConfigurationError:
        return None


def _evaluation(best: CheckpointFile, newest_progress: RunProgress) -> EvaluationSummary | None:
    """Returns the evaluation in the best checkpoint.

    Earlier releases did not store it. Its mean is then the best return that either checkpoint's progress records.
    """
    if _EVALUATION_KEY in best.metadata:
        try:
            return record_of(EvaluationSummary, json.loads(best.metadata[_EVALUATION_KEY]))
        except (ValueError, TypeError):
            raise of_another_release(best.path) from None
    of_best = progress_of(best)
    means = [mean for mean in (of_best.best_return, newest_progress.best_return) if mean is not None]
    if not means:
        return None
    return EvaluationSummary(of_best.version, of_best.env_steps, episodes=0, return_mean=max(means), return_std=0.0)


def _policy_of(file: CheckpointFile, module: str | None) -> Policy:
    try:
        return policy_weights.build(file.metadata[METADATA_KEY], module)
    except ForeignCode as error:
        raise ForeignCode(f"{file.path}: {error.finding}", error.remedy) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{file.path}: {error}") from None
    except _UNREADABLE as error:
        raise checkpoint_file.damaged(file.path, f"its policy can't be built ({error})") from None
