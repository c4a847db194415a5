"""Amounts: how far a run is and goes, in steps, updates, episodes and minutes; recurrences; the size of a store."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["steps", "updates", "episodes", "minutes"]

_UNITS: tuple[Unit, ...] = ("steps", "updates", "episodes", "minutes")


@dataclass(frozen=True, slots=True)
class Extent:
    """Work of a run in all its sessions.

    Attributes:
        steps: Environment steps trained.
        updates: Gradient steps.
        episodes: Episodes whose last step was trained.
        minutes: Minutes of training since the first environment step of each session, including waits for evaluations.
    """

    steps: int = 0
    updates: int = 0
    episodes: int = 0
    minutes: float = 0.0

    def of(self, unit: Unit) -> float:
        """Returns the amount in this unit."""
        amount: float = getattr(self, unit)
        return amount

    def trained_since(self, earlier: "Extent") -> bool:
        """Returns whether anything was trained after `earlier`."""
        return self.steps > earlier.steps or self.updates > earlier.updates


@dataclass(frozen=True, slots=True)
class RunLimit:
    """Progress towards a limit of a run, with the fields of the contract's RunLimit."""

    unit: Unit
    done: float
    total: float

    @property
    def share(self) -> float:
        """Share of the limit that is done, 0 to 1."""
        return min(1.0, self.done / self.total)


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of training, of which the first that is reached counts; None: no amount in that unit.

    They are positive. As limits of a run there is at least one.
    """

    steps: float | None = None
    updates: float | None = None
    episodes: float | None = None
    minutes: float | None = None

    @property
    def given(self) -> tuple[tuple[Unit, float], ...]:
        """The units with an amount, each with its amount."""
        amounts: list[tuple[Unit, float | None]] = [(unit, getattr(self, unit)) for unit in _UNITS]
        return tuple((unit, amount) for unit, amount in amounts if amount is not None)

    def share_of(self, share: float) -> "Amounts":
        """Returns this share of each amount."""
        return Amounts(**{unit: share * amount for unit, amount in self.given})

    def after(self, begin: Extent) -> "Amounts":
        """Returns the amounts of a run that has done each amount beyond `begin`."""
        return Amounts(**{unit: begin.of(unit) + amount for unit, amount in self.given})

    def reached(self, done: Extent) -> Unit | None:
        """Returns the unit of a limit that is reached; None if none is."""
        return next((unit for unit, amount in self.given if done.of(unit) >= amount), None)

    def nearest(self, done: Extent) -> RunLimit:
        """Returns the limit of which the largest share is done."""
        limits = [RunLimit(unit, done.of(unit), amount) for unit, amount in self.given]
        return max(limits, key=lambda limit: limit.done / limit.total)

    def remaining_s(self, done: Extent, per_second: Callable[[Unit], float]) -> float | None:
        """Returns the expected seconds until the first limit is reached; None if no rate is above 0 before that."""
        if self.reached(done):
            return 0.0
        rates = {unit: per_second(unit) for unit, _ in self.given}
        seconds = [max(0.0, amount - done.of(unit)) / rates[unit] for unit, amount in self.given if rates[unit] > 0.0]
        return min(seconds, default=None)


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


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Size of a store. Its bytes are known when the schema of the segments is, unless it is in bytes."""

    amount: int
    unit: Literal["bytes", "segments", "steps"] = "bytes"

    def segments(self, unroll_length: int) -> int | None:
        """Returns the segments of `unroll_length` steps that it has room for, rounded up; None if it is in bytes."""
        match self.unit:
            case "bytes":
                return None
            case "segments":
                return self.amount
            case "steps":
                return -(-self.amount // unroll_length)

    @property
    def setting(self) -> str:
        """The name of its setting within `replay`."""
        return f"capacity_{self.unit}"

    def __str__(self) -> str:
        """Returns the setting and its value."""
        return f"replay.{self.setting} {self.amount}"
