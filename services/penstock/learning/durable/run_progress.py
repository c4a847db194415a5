"""Progress of a run at a checkpoint. This module does not import torch, which a host that restores a run may lack."""

import json
from dataclasses import dataclass
from pathlib import Path

from penstock.algo.published import METADATA_KEY
from penstock.errors import ConfigurationError
from penstock.runs import checkpoint_file
from penstock.runs.checkpoint_file import CheckpointFile
from penstock.types.extents import Extent

PROGRESS_KEY = "penstock.progress"
"""Key of the progress, as JSON, in a checkpoint's metadata."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run over all its sessions.

    Attributes:
        version: Policy version; the number of batches trained, except for jumps at a resume.
        env_steps: Environment steps trained.
        updates: Gradient steps.
        segments_trained: Segments trained, counting each use.
        segments_fresh: Segments trained for the first time.
        training_s: Seconds of training since the first environment step.
        env_steps_to_threshold: Environment steps when an evaluation first reached the threshold; None: not yet.
        learn_wall_s_to_threshold: Seconds from the first environment step to the same point.
        best_return: Best mean return of an evaluation; None before the first.
        untimed_episode_steps: Bound on the steps of evaluated episodes without a time limit; 0 before the first.
        env_steps_taken: Environment steps that actors reported, including those that were late or refused.
        wall_s: Seconds that learner processes have run.
        sessions: Learner processes that have trained the run, including this one.
        episodes: Episodes whose last step was trained.
        clock_s: Seconds from the first environment step to the end of training in each session, including waits for
            evaluations.
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
    untimed_episode_steps: int = 0
    env_steps_taken: int = 0
    wall_s: float = 0.0
    sessions: int = 0
    episodes: int = 0
    clock_s: float = 0.0

    @property
    def extent(self) -> Extent:
        """Work that the run has done."""
        return Extent(self.env_steps, self.updates, self.episodes, self.clock_s / 60.0)


def read_progress(path: Path) -> RunProgress:
    """Returns the run's progress at a checkpoint. Raises `ConfigurationError` as `read` and `progress_of` do."""
    return progress_of(read(path))


def read(path: Path) -> CheckpointFile:
    """Reads a checkpoint file. Raises `DamagedFile` for a file without a policy or without progress."""
    file = read_policy(path)
    if PROGRESS_KEY not in file.metadata:
        raise checkpoint_file.damaged(path, "it contains no progress of a run")
    return file


def read_policy(path: Path) -> CheckpointFile:
    """Reads a checkpoint, or a file of a policy alone. Raises `DamagedFile` for a file without a policy."""
    file = checkpoint_file.read(path)
    if METADATA_KEY not in file.metadata:
        raise checkpoint_file.damaged(path, "it contains no Penstock policy")
    return file


def progress_of(file: CheckpointFile) -> RunProgress:
    """Returns the progress in a checkpoint. Raises `ConfigurationError` if another release wrote it."""
    try:
        values = json.loads(file.metadata[PROGRESS_KEY])
        # Checkpoints of earlier releases lack `clock_s`.
        return RunProgress(**{"clock_s": values.get("training_s", 0.0), **values})
    except TypeError:
        raise of_another_release(file.path) from None
    except ValueError:
        raise checkpoint_file.damaged(file.path, "its progress can't be read") from None


def of_another_release(path: Path) -> ConfigurationError:
    """Returns the refusal of a checkpoint that another release wrote."""
    return ConfigurationError(
        f"the checkpoint {path} was written by another version of Penstock; resume with that version, or from an"
        " older checkpoint by removing this one"
    )
