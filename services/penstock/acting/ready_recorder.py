"""Records the inputs and outputs of a policy that acts for the environments that have answered."""

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.vectors import Environments
from penstock.acting.recorder import Recorder
from penstock.types.spaces import Leaves

_EVERY_BIT = 0xFF


class ReadyRecorder(Recorder):
    """A recorder in which each environment has a row of its own. Used by one thread.

    `row`, <int64>[N], has the rows of all environments, and `which` the indices of those that a call concerns.
    """

    def begin_from(self, row: NDArray[np.intp]) -> None:
        """Moves the rows `row` of the previous window, with the rows before them, to the first step of the next one."""
        for column, lead in zip(self._observations, self._leads, strict=True):
            _move(column, row, lead)
        for column in (*self._actions, self._log_prob, *([] if self._mask is None else [self._mask])):
            _move(column, row, 0)
        if self._age is not None:
            _move(self._age, row, self._age_lead)
        if self._memory is not None:
            _move(self._states, row, self._age_lead)

    def observe_some(
        self,
        which: NDArray[np.intp],
        row: NDArray[np.intp],
        environments: Environments,
        state: NDArray[np.float32] | None,
    ) -> None:
        """Records observations, and the states of the policy before them, [N, parts, H] or [1, parts, H]."""
        for column, lead, leaf in zip(self._observations, self._leads, environments.observation, strict=True):
            column[which, lead + row[which]] = leaf[which]
        if self._age is not None:
            self._age[which, self._age_lead + row[which]] = self._rows_before[which]
        acting = which[row[which] < self._schema.unroll_length]
        if self._mask is not None:
            assert environments.action_mask is not None
            bits = np.packbits(environments.action_mask[acting], axis=-1, bitorder="little")
            self._mask[acting, row[acting]] = bits
        if self._memory is not None:
            assert state is not None
            before = np.where(self.begun[:, None, None], np.float32(0.0), state)
            self._states[acting, self._age_lead + row[acting]] = before[acting]

    def act_some(
        self, which: NDArray[np.intp], row: NDArray[np.intp], action: Leaves, log_prob: NDArray[np.float32]
    ) -> None:
        """Records actions and their log probabilities, which have a row for each of the N environments."""
        for column, leaf in zip(self._actions, action, strict=True):
            column[which, row[which]] = leaf[which]
        self._log_prob[which, row[which]] = log_prob[which]

    def advance_some(self, which: NDArray[np.intp], begun: NDArray[np.bool_]) -> None:
        """Moves on to the next row of some environments. `begun`, <bool>[N], marks first rows of episodes."""
        self.begun[which] = begun[which]
        older = np.minimum(self._rows_before + 1, self._oldest)
        self._rows_before[which] = np.where(begun, 0, older)[which]

    def finish_from(self, row: NDArray[np.intp], in_step: NDArray[np.bool_]) -> None:
        """Fills the rows after the last observation of each environment, at `row`, with that observation.

        Where an environment is `in_step`, <bool>[N], that row has an action. In the others every action is legal.
        """
        for index in np.flatnonzero(row < self._schema.unroll_length).tolist():
            last = int(row[index])
            for column, lead in zip(self._observations, self._leads, strict=True):
                column[index, lead + last + 1 :] = column[index, lead + last]
            if self._age is not None:
                self._age[index, self._age_lead + last + 1 :] = 0
            for column in (*self._actions, self._log_prob):
                column[index, last + in_step[index] :] = 0
            if self._mask is not None:
                self._mask[index, last + in_step[index] :] = _EVERY_BIT
        if self._memory is not None:
            self._memory[:, 0] = self._states[:, 0]


def _move(column: NDArray[np.generic], row: NDArray[np.intp], lead: int) -> None:
    """Moves row `row[n]` of environment n, and the `lead` rows before it, to the beginning of [N, lead + rows, ...]."""
    rows = np.minimum(row[:, None] + np.arange(lead + 1), column.shape[1] - 1)
    column[:, : lead + 1] = column[np.arange(len(column))[:, None], rows]
