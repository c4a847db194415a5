"""Data that the learner refused to learn from: counts, notices to the user, and the end of a run that diverges."""

import math

from penstock.config import Config
from penstock.config.foreign_code import named_code
from penstock.errors import Diverged
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.step.learner import TrainingOutcome
from penstock.machine import installation

_LARGE_CHANGE = 100.0
"""Factor of change in a normaliser's scale within a batch above which the user is notified, because the learnt
parameters no longer fit."""


class Refusals:
    """Counters of refused gradient steps, rows and values in a session. Used by one thread."""

    def __init__(self, config: Config, statistics: RunStatistics) -> None:
        """Starts all counts at 0. `statistics` receives counts and notices."""
        self._max_batches, self._advice = config.ppo.max_refused_batches, _advice(config)
        self._priority = config.sampling.priority
        self._statistics = statistics
        self._batches_in_a_row = 0
        self._steps, self._rows, self._values, self._changes, self._priorities = (_Milestones() for _ in range(5))

    def observe(self, outcome: TrainingOutcome) -> None:
        """Counts a batch's refusals. Raises `Diverged` after `ppo.max_refused_batches` in a row with refused steps."""
        moments = {"observations": outcome.moments.observations, "returns": outcome.moments.returns}
        values = {kind: update.left_out for kind, update in moments.items()}
        self._statistics.session.left_out(steps=outcome.refused_steps, rows=outcome.unsound_rows, values=values)
        if self._steps.passes(outcome.refused_steps):
            self._statistics.notice(
                f"{self._steps.count:,} gradient steps were refused because their gradients had no finite norm:"
                f" {self._advice}"
            )
        if self._rows.passes(outcome.unsound_rows):
            self._statistics.notice(
                f"{self._rows.count:,} steps were left out of training because a value in them or estimated from them"
                " was not finite or a million times larger than the others: check the environment's rewards and"
                " observations"
            )
        if self._priorities.passes(outcome.refused_priorities) and self._priority is not None:
            self._statistics.notice(
                f"{self._priorities.count:,} priorities of segments were NaN, infinite or negative, and count as 0:"
                f" correct sampling.priority {self._priority}"
            )
        if self._values.passes(sum(values.values())):
            self._statistics.notice(
                f"{self._values.count:,} observations or discounted returns were excluded from the running"
                " normalisation because they were not finite or a million times larger than the others: check the"
                " environment's rewards and observations"
            )
        for kind, update in moments.items():
            if update.scale_change > _LARGE_CHANGE and self._changes.passes(1):
                self._statistics.notice(
                    f"the scale of the {kind} changed by a factor of {update.scale_change:,.0f} within one batch, so"
                    " the policy no longer fits it: check the environment's rewards and observations"
                )
        self._end_if_diverged(outcome)

    def _end_if_diverged(self, outcome: TrainingOutcome) -> None:
        self._batches_in_a_row = self._batches_in_a_row + 1 if outcome.refused_steps else 0
        if self._batches_in_a_row >= self._max_batches:
            raise Diverged(
                f"training has diverged: {self._batches_in_a_row} batches in a row had gradient steps without a finite"
                f" norm ({outcome.refused_steps} of {outcome.refused_steps + outcome.updates} in the last);"
                f" {self._advice}, and resume from the newest checkpoint with"
                f" {installation.how_to_resume('--resume')}"
            )


class _Milestones:
    """Count with milestones at 1, 10, 100, and so on."""

    def __init__(self) -> None:
        self.count, self._next = 0, 1

    def passes(self, more: int) -> bool:
        """Adds `more` and returns whether the count thereby passed a milestone."""
        self.count += more
        if self.count < self._next:
            return False
        self._next = 10 ** (math.floor(math.log10(self.count)) + 1)
        return True


def _advice(config: Config) -> str:
    """Returns the remedies available to the user."""
    unset = [name for name in ("normalise_returns", "normalise_observations") if not getattr(config.policy, name)]
    own = {name: value for name, value in named_code(config).items() if name.startswith(("learner.", "ppo."))}
    ways = [
        *(f"correct {name} {', '.join(value)}" for name, value in own.items() if name != "learner.callbacks"),
        f"lower ppo.learning_rate (now {config.ppo.learning_rate:g})",
        "lower the scale of the environment's rewards",
        *(f"set policy.{name} to true" for name in unset),
    ]
    return ", ".join(ways[:-1]) + f" or {ways[-1]}"
