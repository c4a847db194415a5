"""The tasks of `benchmarks.zoo_tasks`, their thresholds, and what Penstock's defaults are to reach on them."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.peers.zoo_settings import SETTINGS
from benchmarks.returns import RANDOM_RETURNS, REPORTED_RETURNS

THRESHOLD_SCORE = 0.9
"""Score at which a task counts as learnt. rl-zoo's table has one run per task, and single evaluations vary."""
TOLERANCE = 0.01
"""Difference in score below which two final returns count as equal: the noise of their evaluations."""
MOST_STEPS = 0.7
"""Largest ratio of Penstock's environment steps to the threshold to those of rl-zoo's PPO."""
LEAST_SAVING = 7
"""Number of tasks on which the steps must have that ratio; on all of them, the final return must be at least equal."""
SHARES = (0.25, 0.5, 1.0)
"""Shares of the environment steps that both systems have, after which their returns are compared."""

Actions = Literal["deterministic", "sampled"]
"""Actions of the episodes that judge a policy: the most probable ones, or drawn as in training."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A task and the returns on it.

    A score of 0 is the return of a random policy, and 1 is that of rl-zoo's PPO, as rl-zoo reports it.

    Attributes:
        env_id: Gymnasium id of the environment.
        interval_steps: Environment steps between evaluations, of which a run has about fifty. Acrobot, which is learnt
            within a hundredth of a run, has more.
        penstock_steps: Environment steps of Penstock's runs, at most those of rl-zoo; fewer where they suffice, because
            PPO with rl-zoo's settings needs its number.
        module: Module that the environment needs besides Gymnasium; empty: none.
        actions: Actions of the evaluations of both systems.
    """

    env_id: str
    interval_steps: int
    penstock_steps: int
    module: str = ""
    actions: Actions = "deterministic"

    @property
    def name(self) -> str:
        """Name of the row: the id, and the actions if they are sampled."""
        return self.env_id if self.actions == "deterministic" else f"{self.env_id}, {self.actions} actions"

    @property
    def judged_as_reported(self) -> bool:
        """Whether rl-zoo's table judges this task by the same actions: by sampled ones in MiniGrid."""
        return (self.actions == "sampled") == self.env_id.startswith("MiniGrid-")

    @property
    def reported_return(self) -> float:
        """Mean return in rl-zoo's table."""
        return REPORTED_RETURNS[self.env_id]

    @property
    def zoo_steps(self) -> int:
        """Environment steps of rl-zoo's runs."""
        return SETTINGS[self.env_id].total_steps

    @property
    def threshold(self) -> float:
        """Return to reach, whose score is `THRESHOLD_SCORE`."""
        random = RANDOM_RETURNS[self.env_id]
        return random + THRESHOLD_SCORE * (self.reported_return - random)

    def score(self, value: float) -> float:
        """Returns the score of a return."""
        random = RANDOM_RETURNS[self.env_id]
        return (value - random) / (self.reported_return - random)


GOALS = (
    Goal("CartPole-v1", 2_000, 100_000),
    Goal("MountainCar-v0", 10_000, 500_000),
    Goal("MountainCarContinuous-v0", 500, 20_000),
    Goal("Acrobot-v1", 4_000, 200_000),
    Goal("Pendulum-v1", 2_000, 100_000),
    Goal("LunarLander-v3", 10_000, 500_000, "Box2D"),
    Goal("LunarLanderContinuous-v3", 10_000, 500_000, "Box2D"),
    Goal("MiniGrid-DoorKey-5x5-v0", 2_000, 100_000, "minigrid", "sampled"),
    Goal("MiniGrid-DoorKey-5x5-v0", 2_000, 100_000, "minigrid"),
    Goal("Hopper-v5", 20_000, 1_000_000, "mujoco"),
    Goal("Walker2d-v5", 20_000, 1_000_000, "mujoco"),
)
"""The rows of the comparison. MiniGrid is judged in both ways, because few peers say in which they judge it."""
