"""The size of a store as it is configured: in bytes, segments or steps."""

from dataclasses import dataclass
from typing import Literal


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
