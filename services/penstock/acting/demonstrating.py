"""Records demonstrations: an expert acts in one environment, and its steps are kept as the rows of one long segment."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.single_environments import AnswerTogether, StepOutcome
from penstock.acting.environments.vectors import Environments
from penstock.acting.policies.experts import ExpertRunner
from penstock.acting.protocols import Runner
from penstock.acting.values.spaces import segment_schema
from penstock.types.block import Columns, Extent
from penstock.types.demonstrations import Demonstrations
from penstock.types.run import Assignment, Episode
from penstock.types.spaces import Leaves, is_column_of

_WINDOW_STEPS = 128


def record(
    environments: "WatchedEnvironment",
    runner: Runner,
    *,
    steps: int,
    seed: int,
    discount: float,
    largest_magnitude: float,
    show: Callable[[int], None] = lambda taken: None,
) -> tuple[Demonstrations, tuple[Episode, ...]]:
    """Records at least this many steps; returns them and the episodes that ended.

    `seed`, `discount` and `largest_magnitude` are as for `Collector`. `show` is called with the steps taken so far.
    Raises `EnvironmentFailed`, or what the runner raises.
    """
    collector = Collector(
        environments,
        Assignment(0, 1, (0,), b"", seed),
        schema=segment_schema(environments.spec, _WINDOW_STEPS),
        discount=discount,
        largest_magnitude=largest_magnitude,
    )
    windows: list[dict[str, NDArray[Any]]] = []
    taken, episodes = 0, list[Episode]()
    while taken < steps:
        windows.append(_rows(collector.collect(runner).columns))
        for lost in collector.take_losses():
            raise lost
        ended, new = collector.take_episodes()
        episodes += ended
        taken += new
        show(taken)
    recorded = Demonstrations(
        spec=environments.spec,
        squash_actions=runner.network.squash_actions,
        widest_range=runner.network.widest_range,
        has_log_probs=not isinstance(runner, ExpertRunner) or runner.has_log_probs,
        columns=_joined(windows),
    )
    return recorded, tuple(episodes)


class WatchedEnvironment(AnswerTogether):
    """One environment that knows whether its next row only resets it.

    Attributes:
        resets: Whether it does.
    """

    def __init__(self, made: Environments) -> None:
        self._made, self.spec, self.count, self.timed = made, made.spec, made.count, made.timed
        self.progress, self.resets = made.progress, False

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes."""
        self._made.reset(seeds)
        self.resets = False
        self._observe()

    def step(self, action: Leaves) -> StepOutcome:
        """Takes one step."""
        outcome = self._made.step(action)
        self.resets = bool(((outcome.terminated | outcome.truncated) & ~outcome.begun)[0])
        self._observe()
        return outcome

    def close(self) -> None:
        """Closes the environment."""
        self._made.close()

    def _observe(self) -> None:
        made = self._made
        self.observation, self.acting_observation = made.observation, made.acting_observation
        self.action_mask = made.action_mask


def _rows(columns: Columns) -> dict[str, NDArray[Any]]:
    """Returns copies of the rows of a window's only segment, without lead; one more of observations."""
    found = {}
    for column, array in zip(columns.schema.columns, columns.arrays, strict=True):
        if column.extent is Extent.STEP or is_column_of("observation", column.name):
            found[column.name] = array[0, column.lead :].copy()
    return found


def _joined(windows: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Returns the rows of consecutive windows, of which each begins with the last observation of the one before."""
    joined = {}
    for name in windows[0]:
        parts = [window[name] for window in windows]
        steps = len(windows[0]["valid"])
        joined[name] = np.concatenate([*(part[:steps] for part in parts), parts[-1][steps:]])
    return joined
