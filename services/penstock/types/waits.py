"""Reasons for which the learner and the replay service wait.

Their texts are part of the contract and label the metrics.
"""

from dataclasses import dataclass
from enum import StrEnum


class Awaited(StrEnum):
    """Condition for which a service waits."""

    NOTHING = ""
    LEARNER = "learner"
    ACTORS = "actors"
    FRESH_SEGMENTS = "fresh segments"
    TRAINING = "training"
    REPLAY_SERVICE = "the replay service"
    EVALUATOR = "evaluator"


_SHARD = " of shard "


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Reason for which a batch is delayed, with the number of the shard if there are several."""

    awaited: Awaited
    shard: int | None = None

    @property
    def for_actors(self) -> bool:
        """Whether actors can end the wait: it is for fresh segments."""
        return self.awaited is Awaited.FRESH_SEGMENTS

    def __str__(self) -> str:
        """Returns the text for the contract, the metrics and the display."""
        return str(self.awaited) if self.shard is None else f"{self.awaited}{_SHARD}{self.shard}"

    @classmethod
    def parse(cls, text: str) -> "WaitReason":
        """Returns the reason of a text. A reason of another version counts as a wait for the replay service."""
        name, _, shard = text.partition(_SHARD)
        awaited = next((each for each in Awaited if each == name), Awaited.REPLAY_SERVICE)
        return cls(awaited, int(shard) if shard.isdecimal() else None)
