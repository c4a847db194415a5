"""Records the inputs and outputs of a policy in the columns of a window: observations, masks, states and actions."""

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Columns
from penstock.types.spaces import EnvironmentSpec, Leaves


class Recorder:
    """Writer of the columns that depend on the spaces and the policy. Used by one thread.

    The last rows of a window precede the first step of the next one, where columns have a lead.

    Attributes:
        begun: <bool>[N] whether the current row is the first of an episode.
    """

    def __init__(self, spec: EnvironmentSpec, columns: Columns) -> None:
        """Writes into these columns, which have the schema `segment_schema` for this spec."""
        schema = self._schema = columns.schema
        names = {column.name: column for column in schema.columns}
        self._observations = [columns.column(name) for name in spec.observation.columns("observation")]
        self._leads = [names[name].lead for name in spec.observation.columns("observation")]
        self._actions = [columns.column(name) for name in spec.action.columns("action")]
        self._log_prob = columns.column("behaviour_log_prob")
        self._mask = columns.column("action_mask") if spec.mask_bits else None
        self._age = columns.column("frame_age") if "frame_age" in names else None
        self._age_lead = names["frame_age"].lead if "frame_age" in names else 0
        self._oldest = max(spec.frames - 1, 1)
        self._memory = columns.column("memory") if "memory" in names else None
        segments, steps = columns.segments, schema.unroll_length
        # Views of the rows, one for each leaf, whose making takes as long as the copies into them.
        self._observed = [
            [column[:, lead + step] for column, lead in zip(self._observations, self._leads, strict=True)]
            for step in range(steps + 1)
        ]
        self._acted = [[column[:, step] for column in self._actions] for step in range(steps)]
        shape = () if self._memory is None else self._memory.shape[2:]
        # States before each row from which a later segment may begin.
        self._states = np.zeros((segments, self._age_lead + steps, *shape), np.float32)
        self.begun = np.ones(segments, np.bool_)
        self._rows_before = np.zeros(segments, np.uint8)

    def forget(self) -> None:
        """Begins new episodes, after a failure in a window."""
        self.advance(np.ones(len(self.begun), np.bool_))
        # A dropped window may hold anything.
        self._states[:] = 0.0
        for column in self._observations:
            column[:] = 0
        if self._age is not None:
            self._age[:] = 0

    def begin_window(self) -> None:
        """Moves the last rows of the previous window before the first step of the next one."""
        steps = self._schema.unroll_length
        for column, lead in zip(self._observations, self._leads, strict=True):
            column[:, :lead] = column[:, steps : steps + lead].copy()
        if self._age is not None:
            self._age[:, : self._age_lead] = self._age[:, steps : steps + self._age_lead].copy()
        if self._memory is not None:
            self._states[:, : self._age_lead] = self._states[:, steps:].copy()

    def observe(
        self,
        step: int,
        observation: Leaves,
        mask: NDArray[np.bool_] | None = None,
        state: NDArray[np.float32] | None = None,
    ) -> NDArray[np.bool_]:
        """Records row `step` of T + 1: the policy's observation, [N, ...] for each leaf, its legal actions,
        <bool>[N, bits], and its states before it. Returns `begun`.
        """
        for row, leaf in zip(self._observed[step], observation, strict=True):
            row[...] = leaf
        if self._age is not None:
            self._age[:, self._age_lead + step] = self._rows_before
        if step == self._schema.unroll_length:
            return self.begun
        if self._mask is not None:
            assert mask is not None
            self._mask[:, step] = np.packbits(mask, axis=-1, bitorder="little")
        if self._memory is not None:
            before = self._states[:, self._age_lead + step]
            before[:] = state
            # The state after another episode, or after a failure, may even be NaN.
            before[self.begun] = 0.0
        return self.begun

    def advance(self, begun: NDArray[np.bool_]) -> None:
        """Moves on to the next row. `begun`, <bool>[N], marks first rows of episodes."""
        self.begun = begun
        if self._age is not None:
            older = np.minimum(self._rows_before + 1, self._oldest)
            self._rows_before = np.where(begun, 0, older).astype(np.uint8)

    def act(self, step: int, action: tuple[NDArray[np.generic], ...]) -> None:
        """Records the actions at row `step` of T, one array [N, ...] per leaf."""
        for row, leaf in zip(self._acted[step], action, strict=True):
            row[...] = leaf

    def finish(self, log_probs: NDArray[np.float32]) -> None:
        """Records the log probabilities of the actions of a window, <float32>[N, T], and the states before it."""
        self._log_prob[...] = log_probs
        if self._memory is not None:
            self._memory[:, 0] = self._states[:, 0]
