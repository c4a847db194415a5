"""Assembles a session of a run from its settings, for the learner's service, for studies and for tests."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from penstock.algo.policies import Network
from penstock.config import Config
from penstock.learning.batches import BatchFeed
from penstock.learning.checkpoints import Recovered
from penstock.learning.evaluations import Evaluations
from penstock.learning.journal import Journal
from penstock.learning.learner import Learner
from penstock.learning.protocols import BatchSource, EvaluationDesk, WeightSink
from penstock.learning.records import Records
from penstock.learning.retried_writes import RetriedWrites
from penstock.learning.run_snapshots import RunSnapshots
from penstock.learning.statistics import RunStatistics
from penstock.learning.training import TrainingRun
from penstock.learning.versions import VersionMark
from penstock.run_folder import RunFolder
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class Session:
    """Settings and state that all parts of a learner process share.

    Attributes:
        config: Settings of the run.
        folder: Folder of the run.
        recovered: State that earlier sessions left in the folder.
        statistics: Statistics of the run.
        writes: Writer of the run's files.
    """

    config: Config
    folder: RunFolder
    recovered: Recovered
    statistics: RunStatistics
    writes: RetriedWrites


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParts:
    """The learner of a session, and its connections to the other services.

    Attributes:
        learner: Learner to train.
        feed: Feed of batches to the learner's device.
        source: Source of batches.
        sink: Destination of published weights.
        desk: Interface to the evaluators.
        snapshots: Snapshots of the run.
        stopping: Function that returns whether to end the session. Called between batches.
        largest_window: Function that returns the segments in the largest window of any actor.
    """

    learner: Learner
    feed: BatchFeed
    source: BatchSource
    sink: WeightSink
    desk: EvaluationDesk
    snapshots: RunSnapshots
    stopping: Callable[[], bool]
    largest_window: Callable[[], int]


def open_session(config: Config, folder: RunFolder, recovered: Recovered) -> Session:
    """Begins a session with the state that earlier ones left."""
    resumed = recovered.progress
    statistics = RunStatistics(
        total_steps=config.run.total_steps,
        earlier_s=resumed.training_s,
        # Checkpoints of earlier releases lack `env_steps_taken`.
        earlier_steps_taken=max(resumed.env_steps, resumed.env_steps_taken),
        variants=config.environment.variant_names,
    )
    for complaint in recovered.complaints:
        statistics.notice(complaint)
    return Session(config, folder, recovered, statistics, RetriedWrites(statistics.notice))


def learner_of(config: Config, spec: EnvironmentSpec, device: torch.device) -> Learner:
    """Makes the configured learner for these spaces. Raises `ConfigurationError` as `Learner`."""
    return Learner(
        spec,
        # Passed by name, so that a setting unknown to the architecture is an error.
        Network(**dict(config.policy)),
        ppo=config.ppo,
        sampling=config.sampling,
        device=device,
        seed=config.run.seed,
        precision=config.learner.precision,
        execution=config.learner.execution,
    )


def training_run(session: Session, parts: LearnerParts) -> TrainingRun:
    """Makes the training run of a session, with its records and its evaluations."""
    config, folder, statistics, writes = session.config, session.folder, session.statistics, session.writes
    resumed = session.recovered.progress
    journal = Journal(folder.metrics, writes=writes, notice=statistics.notice)
    records = Records([journal], resumed_at=resumed.env_steps)
    evaluations = Evaluations(
        parts.desk,
        config.evaluation,
        seed=config.run.seed,
        folder=folder,
        records=records,
        statistics=statistics,
        writes=writes,
        resumed=resumed,
        best=session.recovered.best,
        variants=len(config.environment.variants),
    )
    versions = VersionMark(folder.versions, resumed.version if resumed.env_steps else None, notice=statistics.notice)
    return TrainingRun(
        config,
        parts.learner,
        feed=parts.feed,
        source=parts.source,
        sink=parts.sink,
        evaluations=evaluations,
        snapshots=parts.snapshots,
        records=records,
        statistics=statistics,
        versions=versions,
        folder=folder,
        writes=writes,
        resumed=resumed,
        stopping=parts.stopping,
        largest_window=parts.largest_window,
    )
