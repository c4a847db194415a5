"""The number of actors of a run on one machine under `--actors auto`, which follows the number that the learner
requests.

`learning.members.wanted_actors` judges the number. On one machine, actors take processor time from each other and from
the learner. So the number changes by one, and by the next one only when the learner has seen the effect.
"""

from penstock.config import Config
from penstock.machine.cores import usable_cores
from penstock.types.status import RunStatus

STEP_S = 15.0
"""Least seconds between two changes: three looks of the learner."""


def with_workers(config: Config) -> Config:
    """Returns the configuration with the cores of this machine divided among the actors for worker processes."""
    environment = config.environment
    if environment.vectorization != "process" or environment.workers is not None or environment.ready_share < 1.0:
        return config
    actors = config.train.actors if isinstance(config.train.actors, int) else max(1, usable_cores() // 2)
    return config.changed({"environment": {"workers": max(1, usable_cores() // actors)}})


class ActorCount:
    """Follows the number of actors that the learner asks for; `number` is the present one."""

    def __init__(self, least: int = 1, most: int | None = None) -> None:
        """Begins with one actor for every two cores, between `least` and `most` (None: the number of cores)."""
        cores = usable_cores()
        self._least, self._most = least, max(least, cores if most is None else most)
        self.number = min(self._most, max(least, cores // 2))
        self._changed_at_s = 0.0

    @classmethod
    def of(cls, config: Config) -> "ActorCount | None":
        """Returns the count of a run; None if its number of actors does not change."""
        if config.train.actors != "auto":
            return None
        return cls(config.least_wanted_actors, config.learner.most_wanted_actors)

    def follow(self, status: RunStatus) -> str:
        """Adjusts `number` to the run's status; returns the decision in one line, or an empty string."""
        if status.wanted_actors is None or status.phase != "training":
            return ""
        wanted = min(self._most, max(self._least, status.wanted_actors))
        if wanted == self.number:
            return ""
        # The clock of a restarted learner begins again.
        self._changed_at_s = min(self._changed_at_s, status.elapsed_s)
        if status.elapsed_s - self._changed_at_s < STEP_S or (wanted > self.number and status.actors < self.number):
            return ""
        self._changed_at_s = status.elapsed_s
        self.number += 1 if wanted > self.number else -1
        return f"now {self.number} actor{'s' if self.number != 1 else ''}: the learner asks for {wanted}"
