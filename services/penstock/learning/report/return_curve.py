"""Returns of a session's training episodes and evaluations, of which hints on the learning curve are made."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from penstock.types.evaluation import EvaluationSummary
from penstock.types.run import Episode
from penstock.types.statistics import Curve, CurvePoint, Returns

_RECENT_EPISODES = 100
_POINTS = 10
_LEAST_BLOCK, _MOST_BLOCKS = 20, 20


class ReturnCurve:
    """Collects the returns of a session. Not thread-safe.

    Training episodes are summed in blocks of equal size, which are joined in pairs as their number grows, so that the
    first and the last block are at most a tenth of a session of any length.
    """

    def __init__(self, *, resumed: bool = False, comparable: bool = False) -> None:
        """Begins a session. `comparable` has the meaning of `Curve.comparable`."""
        self._resumed, self._comparable = resumed, comparable
        self._recent: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._steps: deque[int] = deque(maxlen=_RECENT_EPISODES)
        self._blocks: list[Returns] = []
        self._open: Returns | None = None
        self._size = _LEAST_BLOCK
        self._low, self._high = math.inf, -math.inf
        self._points: deque[CurvePoint] = deque(maxlen=_POINTS)
        self._best: Returns | None = None
        self._worst: Returns | None = None

    def ended(self, episodes: Sequence[Episode]) -> None:
        """Adds training episodes."""
        if not episodes:
            return
        returns = [episode.episode_return for episode in episodes]
        self._recent.extend(returns)
        self._steps.extend(episode.steps for episode in episodes)
        self._low, self._high = min(self._low, *returns), max(self._high, *returns)
        for begin in range(0, len(returns), _LEAST_BLOCK):
            self._add(_of(returns[begin : begin + _LEAST_BLOCK]))

    def _add(self, returns: Returns) -> None:
        self._open = returns if self._open is None else self._open.combined(returns)
        if self._open.episodes < self._size:
            return
        self._blocks.append(self._open)
        self._open = None
        if len(self._blocks) == _MOST_BLOCKS:
            pairs = zip(self._blocks[::2], self._blocks[1::2], strict=True)
            self._blocks = [earlier.combined(later) for earlier, later in pairs]
            self._size *= 2

    def evaluated(self, evaluation: EvaluationSummary) -> None:
        """Adds an evaluation."""
        returns = Returns(evaluation.episodes, evaluation.return_mean, evaluation.return_std)
        self._points.append(CurvePoint(evaluation.env_steps, returns, evaluation.unfinished, self._training))
        if self._best is None or returns.mean >= self._best.mean:
            self._best = returns
        if self._worst is None or returns.mean < self._worst.mean:
            self._worst = returns

    @property
    def recent_mean(self) -> float | None:
        """Mean return of the last 100 training episodes; None if there are none."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    @property
    def longest_steps(self) -> int:
        """Steps of the longest of the last 100 training episodes; 0 if there are none."""
        return max(self._steps, default=0)

    @property
    def _training(self) -> Returns | None:
        return _of(self._recent) if self._recent else None

    def curve(self) -> Curve:
        """Returns the curve until now."""
        known = len(self._blocks) >= 2
        return Curve(
            points=tuple(self._points),
            best=self._best,
            worst=self._worst,
            first=self._blocks[0] if known and not self._resumed else None,
            newest=self._blocks[-1] if known else None,
            low=self._low if self._recent else None,
            high=self._high if self._recent else None,
            comparable=self._comparable,
        )


def _of(returns: Sequence[float]) -> Returns:
    return Returns(len(returns), float(np.mean(returns)), float(np.std(returns)))
