"""When a task that recurs during a run is due: an evaluation, a checkpoint, a record of progress."""

from penstock.types.extents import Amounts, Extent


class Recurrence:
    """A task that is due at intervals of training. Used by the training thread.

    With intervals in several units, the first that has passed makes it due, and all of them begin again.
    """

    def __init__(self, intervals: Amounts, begin: Extent) -> None:
        """Makes the task due one interval after `begin`."""
        self._intervals = intervals
        self.restart(begin)

    def is_due(self, now: Extent) -> bool:
        """Returns whether an interval has passed and something was trained in it."""
        return self._due.reached(now) is not None and now.trained_since(self._begin)

    def restart(self, now: Extent) -> None:
        """Makes the task due one interval after `now`."""
        self._begin, self._due = now, self._intervals.after(now)
