"""Rank 0's connections to the other ranks of a learner; a learner of one rank has none."""

from dataclasses import dataclass

from penstock.config import Config
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.ranks.link import LeadingLink, Opening
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.learning.step.learner import Learner
from penstock.types.block import Schema


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
