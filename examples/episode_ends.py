"""A test of what a training library does at the end of an episode. It needs Gymnasium and NumPy only.

`EpisodeEnds-v0` is a chain of five states in which actions do nothing. The last state terminates. Every other step
truncates the episode with probability 1/4, which a learner of values must not notice: the value of a state is the sum
of the discounted rewards that would have followed. Each wrong treatment of an end leads to other values, which are also
known exactly. Train any library on the environment, and compare the values that it has learnt:

    python episode_ends.py                              # prints the values of each treatment
    python episode_ends.py 4.21 2.46 1.62 1.80 2.00     # names the treatment that learns these values

Train with discount 0.9, without normalisation of observations and rewards, and with trace decay (lambda) 0: only then
are the values of trained reset rows exact. Those of the other treatments do not depend on it.

With `gymnasium.make("EpisodeEnds-v0", truncation=0.0)`, no step truncates, and every treatment learns the correct
values. A library that learns others has an error in another place. Choose segments (rollouts, horizons) that always end
at the same states, such as 3 steps, to test whether the last step of a segment is trained.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

ENV_ID = "EpisodeEnds-v0"
REWARDS = (2.0, 1.0, 0.0, 0.0, 2.0)
"""Reward of the step from each state."""
STATES = len(REWARDS)
DISCOUNT = 0.9
TRUNCATION = 0.25
"""Probability that a step truncates the episode. The step from the last state terminates it instead."""

Observation = NDArray[np.float32]


class EpisodeEnds(gymnasium.Env[Observation, np.int64]):
    """The chain. It observes <float32>[STATES + 1]: 1 at the state, and 0 elsewhere; the last element is the end."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (STATES + 1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, truncation: float = TRUNCATION) -> None:
        """Creates a chain in which each step but the last truncates the episode with this probability."""
        self._truncation = truncation
        self._state = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins in the first state."""
        super().reset(seed=seed)
        self._state = 0
        return observe(self._state), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Moves to the next state, for every action."""
        reward = REWARDS[self._state]
        self._state += 1
        terminated = self._state == STATES
        truncated = not terminated and self.np_random.random() < self._truncation
        return observe(self._state), reward, terminated, truncated, {}


def observe(state: int) -> Observation:
    """Returns the observation of a state, <float32>[STATES + 1]."""
    observation = np.zeros(STATES + 1, np.float32)
    observation[state] = 1.0
    return observation


class Treatment(Enum):
    """What a library does with the last step of an episode, and with the step that resets the environment."""

    CORRECT = "correct"
    """A truncated episode continues, for the value, with the last observation; a terminated one does not continue."""
    TERMINATION = "truncation is treated as termination"
    NEXT_EPISODE = "a truncated episode continues with the first observation of the next one"
    STEP_BEFORE = "a truncated episode continues with the observation before its last step"
    RESET_ROW = "the step that resets is trained as a step from the last observation"
    RESET_ROW_AND_TERMINATION = "the step that resets is trained, and truncation is treated as termination"


def exact_values(treatment: Treatment) -> NDArray[np.float64]:
    """Returns the values to which a treatment converges, <float64>[STATES].

    They solve V = R + M V. R are the rewards, and M the discounted probabilities of the states that a step leads to, in
    the eyes of the learner.
    """
    reward, follow = np.array(REWARDS), np.zeros((STATES, STATES))
    for state in range(STATES - 1):
        follow[state, state + 1] += DISCOUNT * (1.0 - TRUNCATION)
        match treatment:
            case Treatment.CORRECT | Treatment.RESET_ROW:
                follow[state, state + 1] += DISCOUNT * TRUNCATION
            case Treatment.NEXT_EPISODE:
                follow[state, 0] += DISCOUNT * TRUNCATION
            case Treatment.STEP_BEFORE:
                follow[state, state] += DISCOUNT * TRUNCATION
    if treatment in (Treatment.RESET_ROW, Treatment.RESET_ROW_AND_TERMINATION):
        # A state that is not the first is reached by a step, which truncates with probability TRUNCATION. That share of
        # its rows resets: no reward, and the first state follows. The learner takes the mean over both kinds of rows.
        reward[1:] *= 1.0 - TRUNCATION
        follow[1:] *= 1.0 - TRUNCATION
        follow[1:, 0] += TRUNCATION * DISCOUNT
    return np.linalg.solve(np.eye(STATES) - follow, reward)


TOLERANCE = min(np.abs(exact_values(a) - exact_values(b)).max() for a, b in combinations(Treatment, 2)) / 4.0
"""Largest error of a value with which a treatment is recognised: a quarter of the least difference between two."""


@dataclass(frozen=True, slots=True)
class Report:
    """The comparison of learnt values with those of each treatment.

    Attributes:
        values: Learnt value of each state.
        errors: Largest difference to the values of each treatment.
        treatment: Treatment whose values are within `TOLERANCE`; None if there is none, because the library does
            something else, or has not learnt the values yet.
    """

    values: tuple[float, ...]
    errors: dict[Treatment, float]
    treatment: Treatment | None

    def __str__(self) -> str:
        """Returns the errors as lines, and the result."""
        lines = [f"{error:8.3f}  {treatment.value}" for treatment, error in self.errors.items()]
        found = self.treatment.value if self.treatment else f"none is within {TOLERANCE:.3f}"
        return "\n".join(["largest error, compared with each treatment:", *lines, f"result: {found}"])


def report(values: Sequence[float] | NDArray[np.floating[Any]]) -> Report:
    """Compares the learnt values of the first STATES states with those of each treatment.

    Raises `ValueError` unless there is one finite value per state.
    """
    learnt = np.asarray(values, np.float64)
    if learnt.shape != (STATES,) or not np.isfinite(learnt).all():
        raise ValueError(f"got the values {learnt.tolist()}; expected {STATES} finite numbers, one for each state")
    errors = {treatment: float(np.abs(learnt - exact_values(treatment)).max()) for treatment in Treatment}
    nearest = min(errors, key=errors.__getitem__)
    return Report(tuple(learnt.tolist()), errors, nearest if errors[nearest] <= TOLERANCE else None)


gymnasium.register(ENV_ID, entry_point=f"{__name__}:EpisodeEnds")


def main() -> int:
    """Prints the exact values, or a report about the values on the command line; returns 1 if they are not correct."""
    if len(sys.argv) == 1:
        for treatment in Treatment:
            print(*(f"{value:6.3f}" for value in exact_values(treatment)), f" {treatment.value}")
        return 0
    found = report([float(value) for value in sys.argv[1:]])
    print(found)
    return 0 if found.treatment is Treatment.CORRECT else 1


if __name__ == "__main__":
    sys.exit(main())
