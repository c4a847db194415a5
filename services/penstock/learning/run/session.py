"""The state that all parts of a learner process share, and its connections to other ranks and services."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.config import Config
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Recovered, RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.population import Population
from penstock.learning.protocols import BatchSource, EvaluationDesk, OtherRanks, WeightSink
from penstock.learning.ranks.link import LeadingLink, Opening
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.step.batches import BatchFeed
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.types.block import Schema
from penstock.types.run import NO_IDENTITY, RunIdentity


@dataclass(frozen=True, slots=True)
class Lead:
    """Rank 0's connections. Used by the training thread.

    Attributes:
        ranks: The ranks that train together.
        link: Link to the other ranks; None if there are none.
    """

    ranks: Ranks = ALONE
    link: LeadingLink | None = None

    def open(self, config: Config, schema: Schema, learner: Learner) -> None:
        """Has the other ranks begin with the settings, the spaces and the state of this learner."""
        if self.link is not None:
            state = checkpoints.take(learner, RunProgress()).data
            self.link.open(Opening(config.repeatable().to_toml(), schema, state))

    def check(self) -> None:
        """Raises `RankLost` if another rank has ended."""
        if self.link is not None:
            self.link.check()


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
    there are none. `identity` identifies the run to the replay services. `population` has the variants that actors play
    in turn; None: their slots decide.
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
    population: Population | None = None
