"""The status of a run, as `penstock status` shows it."""

from dataclasses import dataclass
from typing import Literal

from penstock.types.evaluation import EvaluationSummary
from penstock.types.statistics import CoordinatorStatistics

Phase = Literal["waiting", "training", "evaluating", "finished", "stopping"]
"""Phase of a run. `stopping` is shown by the command that stops the run; the learner does not report it."""

Stopped = Literal["total_steps", "stop_at_return", "interrupted"]
"""Reason for the end of a run."""


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """Training in one environment variant.

    Attributes:
        arguments: Arguments that distinguish the variant, as text for display.
        episodes: Training episodes that ended in the variant.
        return_mean: Mean return of the last 100 of these episodes; None before the first.
    """

    arguments: str
    episodes: int = 0
    return_mean: float | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that is reported to the user.

    Attributes:
        number: Number that increases with every notice, also when the learner restarts on the same host.
        text: Description of the event in one line.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ActorState:
    """The state of an actor at the learner. A process that replaces one of the same name continues its counts.

    Attributes:
        name: Name of the actor, for display.
        slot: Place of the actor in the run.
        connected: Whether the actor's stream to the learner is open.
        steps: Environment calls that have returned since the actor's process started.
        segments: Segments sent to the replay service.
        stuck_s: Seconds since the actor last took a step or had nothing to do; 0 while it is not connected.
        failures: Failures of its environments since it last sent segments.
        dropped_windows: Windows dropped since the learner started.
        doing: Environment call in progress, as text for display; empty if there is none.
    """

    name: str
    slot: int = 0
    connected: bool = True
    steps: int = 0
    segments: int = 0
    stuck_s: float = 0.0
    failures: int = 0
    dropped_windows: int = 0
    doing: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run. The fields are those of the contract's GetRunStatusResponse; None where not known yet."""

    phase: Phase = "waiting"
    environment_id: str = ""
    version: int = 0
    env_steps: int = 0
    total_steps: int = 0
    elapsed_s: float = 0.0
    env_steps_per_s: float = 0.0
    updates_per_s: float = 0.0
    episodes: int = 0
    return_mean: float | None = None
    last_evaluation: EvaluationSummary | None = None
    best_evaluation: EvaluationSummary | None = None
    lag_mean: float = 0.0
    staleness_mean: float = 0.0
    replay_stored: int = 0
    replay_capacity: int = 0
    actors: int = 0
    remaining_s: float | None = None
    waiting_for: str = ""
    samples_per_insert: float = 0.0
    variants: tuple[VariantStatus, ...] = ()
    coordinator: CoordinatorStatistics | None = None
    notices: tuple[Notice, ...] = ()
    actor_states: tuple[ActorState, ...] = ()
    env_steps_taken: int = 0
