"""Arguments and results of the peers of the loop benchmark; imported in the environment of each peer."""

import json
import sys
from dataclasses import asdict, dataclass, field

from benchmarks.peers.command_line import CommandLine


@dataclass(frozen=True, slots=True)
class Task(CommandLine):
    """A training run.

    Attributes:
        env_id: Gymnasium id of the environment.
        threshold: Return to reach.
        total_steps: Environment steps of the run.
        interval_steps: Environment steps between evaluations, if the peer evaluates.
        seed: Seed of the run.
    """

    env_id: str
    threshold: float
    total_steps: int
    interval_steps: int
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        env_steps_per_s: Environment steps per second from the first report to the last, without evaluations.
        learn_wall_s_to_threshold: Seconds from the first environment step to the threshold, without evaluations; None
            if it was not reached.
        env_steps_to_threshold: Environment steps to the threshold; None if it was not reached.
        final_return: Last measured mean return; None if there is none.
        judged_by: Episodes over which returns are averaged.
        settings: Settings of the run, as text.
        cpu_s_to_threshold: CPU seconds of the peer's process to the threshold; None if unknown or not reached.
        curve: Environment steps and mean return, one pair per evaluation.
    """

    env_steps_per_s: float
    learn_wall_s_to_threshold: float | None
    env_steps_to_threshold: int | None
    final_return: float | None
    judged_by: str
    settings: str
    cpu_s_to_threshold: float | None = None
    curve: tuple[tuple[int, float], ...] = ()

    def print_json(self) -> None:
        """Prints the result as JSON."""
        json.dump(asdict(self), sys.stdout)


@dataclass(slots=True)
class Course:
    """Progress reports of a run: seconds on any clock, environment steps, the mean return, and CPU seconds then."""

    threshold: float
    _points: list[tuple[float, int, float, float]] = field(default_factory=list)

    def add(
        self, seconds: float, env_steps: int, mean_return: float = float("nan"), cpu_s: float = float("nan")
    ) -> None:
        """Adds a report; NaN if the return or the CPU time is unknown."""
        if not self._points or env_steps > self._points[-1][1]:
            self._points.append((seconds, env_steps, mean_return, cpu_s))

    def outcome(self, judged_by: str, settings: str) -> Outcome:
        """Returns the result of the whole run.

        If a peer does not report its first environment step, the start is extrapolated from its first report at its
        later pace. The start time of its processes is not counted.
        """
        (first_s, first_steps, _, first_cpu_s), (last_s, last_steps, *_) = self._points[0], self._points[-1]
        curve = tuple((steps, value) for _, steps, value, _ in self._points if value == value)
        pace = (last_steps - first_steps) / (last_s - first_s)
        began_s = first_s - first_steps / pace
        met = next((point for point in self._points if point[2] >= self.threshold), None)
        return Outcome(
            pace,
            met[0] - began_s if met else None,
            met[1] if met else None,
            curve[-1][1] if curve else None,
            judged_by,
            settings,
            met[3] - first_cpu_s if met and met[3] == met[3] else None,
            curve,
        )
