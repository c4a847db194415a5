"""The parts of a run that an experiment may replace (`helpers.single_process.train`)."""

from dataclasses import dataclass

import torch

from penstock.config import Config
from penstock.learning.assembly import learner_of
from penstock.learning.learner import Learner
from penstock.learning.protocols import BatchSource
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True)
class Rule:
    """Penstock's own algorithm. The rule of an experiment is a subclass, whose fields are its parameters.

    A rule has no state, so it can be sent to another process, and its `repr` identifies it.
    """

    def parts(
        self, config: Config, spec: EnvironmentSpec, device: torch.device, source: BatchSource
    ) -> tuple[Learner, BatchSource]:
        """Returns a new learner, and the source from which it gets batches: this one or one around it."""
        return learner_of(config, spec, device), source


PENSTOCK = Rule()
