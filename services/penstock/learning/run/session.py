"""The state that all parts of a learner process share, and its connections to the other services."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.config import Config
from penstock.learning.durable.checkpoints import Recovered
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.protocols import BatchSource, EvaluationDesk, OtherRanks, WeightSink
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.step.batches import BatchFeed
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.types.run import NO_IDENTITY, RunIdentity


@dataclass(frozen=True, slots=True)
class Session:
    """Settings and state that all parts of a learner process share."""

    config: Config
    folder: RunFolder
    recovered: Recovered
    statistics: RunStatistics
    writes: RetriedWrites


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerParts:
    """The learner of a session, and its connections to the other services.

    `stopping` is called between batches and returns whether to end the session. `others` are the other ranks; None if
    there are none. `identity` is that of the run, for the replay services.
    """

    learner: Learner
    feed: BatchFeed
    source: BatchSource
    sink: WeightSink
    desk: EvaluationDesk
    snapshots: RunSnapshots
    stopping: Callable[[], bool]
    others: OtherRanks | None = None
    identity: RunIdentity = NO_IDENTITY
