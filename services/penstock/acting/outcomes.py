"""Records how the environments answered in the columns of a window, and finds the episodes that ended in it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import StepOutcome
from penstock.types.block import Columns
from penstock.types.run import Episode


class Outcomes:
    """Writer of the columns of rewards and of the ends of episodes. Used by one thread.

    A step costs four copies of contiguous rows. Everything that is not needed before the window's end is computed then,
    for all steps at once.
    """

    def __init__(self, columns: Columns, environments: Sequence[int], discount: float) -> None:
        """Writes into these columns.

        `environments` are the run-wide numbers of the environments. `discount` is the gamma of the running discounted
        return.
        """
        self._columns, self._environments, self._discount = columns, environments, np.float32(discount)
        shape = columns.schema.unroll_length, columns.segments
        self._reward, self._discounted = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._terminated, self._truncated, self._valid = (np.zeros(shape, np.bool_) for _ in range(3))
        # Sums over the rows of unfinished episodes in earlier windows.
        self._return, self._steps = np.zeros(columns.segments), np.zeros(columns.segments, np.int64)
        self._running, self._factors = np.zeros(columns.segments, np.float32), np.full(shape, self._discount)
        # Rows of steps and environments whose episode was lost.
        self._lost: list[tuple[int, int]] = []
        # <float64>[T, N, M] values of `StepOutcome.info`, once there are any.
        self._info: NDArray[np.float64] | None = None
        # Views, whose making takes as long as an operation on a row.
        self._rows = list(zip(self._factors, self._reward, self._discounted, strict=True))

    def forget(self) -> None:
        """Begins new episodes, after a failure in a window."""
        self._return[:], self._steps[:], self._running[:], self._lost = 0.0, 0, 0.0, []

    def record(self, step: int, outcome: StepOutcome) -> None:
        """Records the outcome of row `step` of T."""
        self._reward[step], self._terminated[step], self._truncated[step], self._valid[step] = outcome[:4]
        if outcome.lost:
            self._lost += [(step, index) for index in outcome.lost]
        if outcome.info is not None:
            self._info_rows(outcome.info)[step] = outcome.info

    def record_some(self, rows: NDArray[np.intp], environments: NDArray[np.intp], outcome: StepOutcome) -> None:
        """Records the outcome of some environments: row `rows[n]` of environment n."""
        recorded = self._reward, self._terminated, self._truncated, self._valid
        for values, new in zip(recorded, outcome[:4], strict=True):
            values[rows[environments], environments] = new[environments]
        self._lost += [(int(rows[index]), index) for index in outcome.lost]
        if outcome.info is not None:
            self._info_rows(outcome.info)[rows[environments], environments] = outcome.info[environments]

    def _info_rows(self, info: NDArray[np.float64]) -> NDArray[np.float64]:
        if self._info is None:
            self._info = np.full((len(self._reward), *info.shape), np.nan)
        return self._info

    def finish(self, recorded: NDArray[np.intp] | None = None) -> list[Episode]:
        """Fills the columns of a window; returns the episodes that ended, in time order.

        `recorded` has the number of recorded rows of each environment; None: T. The others are not valid, and cut the
        rows before them from what follows, as a truncation does. An episode that was lost is not an episode that ended.
        """
        missing = None if recorded is None else np.arange(len(self._reward))[:, None] >= recorded
        if missing is not None:
            for values in (self._reward, self._terminated, self._truncated, self._valid):
                values[missing] = 0
        ended = self._terminated | self._truncated
        self._discount_rewards(ended, missing)
        for name, values in (
            ("reward", self._reward),
            ("terminated", self._terminated),
            ("truncated", self._truncated),
            ("valid", self._valid),
            ("discounted_return", self._discounted),
        ):
            self._columns.column(name)[...] = values.T
        if missing is not None:
            self._columns.column("truncated")[missing.T] = True
        return self._episodes(ended.T)

    def _discount_rewards(self, ended: NDArray[np.bool_], missing: NDArray[np.bool_] | None) -> None:
        """Computes the running discounted returns, which restart after each row of <bool>[T, N] where one ended, and
        pass through missing rows.
        """
        self._factors[1:] = np.where(ended[:-1], np.float32(0.0), self._discount)
        if missing is not None:
            self._factors[0] = self._discount
            self._factors[missing & (self._factors > 0.0)] = 1.0
        running = self._running
        # The collector refuses an infinite sum with a reason.
        with np.errstate(over="ignore"):
            for factor, reward, discounted in self._rows:
                np.multiply(running, factor, out=discounted)
                np.add(discounted, reward, out=discounted)
                running = discounted
        self._running = np.where(ended[-1], np.float32(0.0), running)

    def _episodes(self, ended: NDArray[np.bool_]) -> list[Episode]:
        """Sums the rows of each episode, and keeps the sums of unfinished ones. `ended` is <bool>[N, T]."""
        segments, steps = ended.shape
        first = np.zeros((segments, steps + 1), np.bool_)
        first[:, 0], first[:, 1:] = True, ended
        # Rows of different environments are separate parts, and so is each episode.
        starts = np.flatnonzero(first[:, :-1])
        returns = np.add.reduceat(self._reward.T.ravel(), starts, dtype=np.float64)
        lengths = np.add.reduceat(self._valid.T.ravel(), starts, dtype=np.int64)
        opening = np.flatnonzero(starts % steps == 0)
        returns[opening] += self._return
        lengths[opening] += self._steps
        environment, step = np.divmod(np.append(starts[1:], segments * steps) - 1, steps)
        closing, complete = np.append(opening[1:], len(starts)) - 1, ended[environment, step]
        self._return = np.where(complete[closing], 0.0, returns[closing])
        self._steps = np.where(complete[closing], 0, lengths[closing])
        for lost_step, index in self._lost:
            complete &= (step != lost_step) | (environment != index)
        self._lost = []
        done = np.flatnonzero(complete)
        done = done[np.lexsort((environment[done], step[done]))]
        truncated = self._truncated[step[done], environment[done]]
        parts = (each.tolist() for each in (returns[done], lengths[done], environment[done], truncated))
        if self._info is None:
            info: list[tuple[float, ...]] = [()] * len(done)
        else:
            info = [tuple(row) for row in self._info[step[done], environment[done]].tolist()]
        return [
            Episode(total, length, self._environments[index], cut, values)
            for total, length, index, cut, values in zip(*parts, info, strict=True)
        ]
