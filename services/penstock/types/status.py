"""The status of a run, as `penstock status` shows it."""

from dataclasses import dataclass
from typing import Literal

from penstock.types.evaluation import EvaluationSummary, InfoMetric
from penstock.types.extents import RunLimit, Unit
from penstock.types.statistics import CoordinatorStatistics

Phase = Literal["waiting", "training", "evaluating", "finished", "checking", "starting", "stopping"]
"""Phase of a run. The last three are shown by the command that checks the environment, starts the run or stops it, and
not reported by the learner. With `checking` and `starting`, `waiting_for` has the state of each service."""

BETWEEN = " · "
"""Text between the states of two services in `RunStatus.waiting_for`."""

Stopped = Literal[
    "total_steps",
    "total_updates",
    "total_episodes",
    "total_minutes",
    "stop_at_return",
    "learner_callback",
    "interrupted",
    "callback",
]
"""Reason for the end of a run. `learner_callback`: a callback of `learner.callbacks` has ended it; `callback`: the
callback of `penstock.train` returned False."""

RESUMABLE: tuple[Stopped, ...] = ("interrupted", "callback")
"""Reasons for an end at which the run is not done."""

AT_A_LIMIT: dict[Unit, Stopped] = {
    "steps": "total_steps",
    "updates": "total_updates",
    "episodes": "total_episodes",
    "minutes": "total_minutes",
}
"""Reason for the end of a run that has reached its limit in a unit."""


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """Training in one environment variant, with the fields of the contract's VariantStatus."""

    arguments: str
    episodes: int = 0
    return_mean: float | None = None
    planned_share: float | None = None
    fresh_share: float | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class Notice:
    """An event that is reported to the user, with the fields of the contract's Notice."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ActorState:
    """The state of an actor at the learner, with the fields of the contract's ActorState."""

    name: str
    slot: int = 0
    connected: bool = True
    steps: int = 0
    segments: int = 0
    stuck_s: float = 0.0
    failures: int = 0
    dropped_windows: int = 0
    doing: str = ""
    node: str = ""
    job: str = ""
    steps_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeState:
    """The connected actors of a node, with the fields of the contract's NodeState."""

    name: str
    actors: int = 0
    stuck: int = 0
    steps_per_s: float = 0.0
    least_steps_per_s: float = 0.0
    most_steps_per_s: float = 0.0
    waiting_share: float | None = None


@dataclass(frozen=True, slots=True)
class MissingActors:
    """Expected actors that are not connected, with the fields of the contract's MissingActors."""

    expected: int
    seconds: float = 0.0
    command: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run. It has the fields of the contract's GetRunStatusResponse; None where not known yet."""

    phase: Phase = "waiting"
    environment_id: str = ""
    version: int = 0
    env_steps: int = 0
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
    limit: RunLimit | None = None
    nodes: tuple[NodeState, ...] = ()
    wanted_actors: int | None = None
    missing_actors: MissingActors | None = None
    info_metrics: tuple[InfoMetric, ...] = ()

    def notices_after(self, number: int) -> tuple[list[str], int]:
        """Returns the texts of the notices after this one, and the number of the last notice."""
        news = [notice.text for notice in self.notices if notice.number > number]
        return news, max([number, *(notice.number for notice in self.notices)])
