"""What the peers of the loop benchmark are asked and what they answer; imported in each one's own environment."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be trained.

    Attributes:
        env_id: Of Gymnasium.
        threshold: The return to reach.
        total_steps: Environment steps of the run.
        interval_steps: Environment steps from one evaluation to the next, where a peer has evaluations.
        seed: The run's.
        epochs: Uses of a batch, where they are for the caller to say.
    """

    env_id: str
    threshold: float
    total_steps: int
    interval_steps: int
    seed: int
    epochs: int

    @classmethod
    def asked(cls) -> "Task":
        """From the command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--env-id", required=True)
        parser.add_argument("--threshold", type=float, required=True)
        for name in ("--total-steps", "--interval-steps", "--seed"):
            parser.add_argument(name, type=int, required=True)
        parser.add_argument("--epochs", type=int, default=1)
        return cls(**vars(parser.parse_args()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went.

    Attributes:
        env_steps_per_s: From the first report to the last, without evaluations.
        learn_wall_s_to_threshold: Seconds from the first environment step until the threshold was met, without
            evaluations; None if it never was.
        env_steps_to_threshold: The same in environment steps.
        final_return: The last mean return that was measured; None if none was.
        judged_by: What the return is the mean of.
        settings: What was set how.
    """

    env_steps_per_s: float
    learn_wall_s_to_threshold: float | None
    env_steps_to_threshold: int | None
    final_return: float | None
    judged_by: str
    settings: str

    def say(self) -> None:
        """Prints it, for whoever asked."""
        json.dump(asdict(self), sys.stdout)


@dataclass(slots=True)
class Course:
    """A run as it went on: seconds on any clock, environment steps, and the mean return known then."""

    threshold: float
    _points: list[tuple[float, int, float]] = field(default_factory=list)

    def add(self, seconds: float, env_steps: int, mean_return: float = float("nan")) -> None:
        """Takes down how far it has come; NaN where no return is known."""
        if not self._points or env_steps > self._points[-1][1]:
            self._points.append((seconds, env_steps, mean_return))

    def outcome(self, judged_by: str, settings: str) -> Outcome:
        """Of the whole run.

        A peer that says nothing of its first environment step began, at its later pace, before its first report: the
        start of its processes is not counted.
        """
        (first_s, first_steps, _), (last_s, last_steps, _) = self._points[0], self._points[-1]
        latest = next((value for *_, value in reversed(self._points) if value == value), None)
        pace = (last_steps - first_steps) / (last_s - first_s)
        began_s = first_s - first_steps / pace
        met = next(((at, steps) for at, steps, value in self._points if value >= self.threshold), None)
        return Outcome(pace, met[0] - began_s if met else None, met[1] if met else None, latest, judged_by, settings)
