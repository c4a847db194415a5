"""Environments of Gym, the predecessor of Gymnasium, in this process, under names such as gym:CartPole-v1.

`workers.foreign_worker` converts their interface, as in a process of another Python. Gym before 0.26 does not install
beside Penstock and needs `environment.python`.
"""

from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from penstock.acting.environments.workers import foreign_worker
from penstock.acting.environments.workers.foreign import describe_as
from penstock.errors import UnknownEnvironment
from penstock.machine import extras

PLACE = "gym"


def gym_spec(name: str) -> EnvSpec:
    """Returns the specification of an environment of Gym. Raises `UnknownEnvironment` if Gym is not installed."""
    if extras.missing(PLACE):
        how = extras.installation(PLACE, "gym==0.26.2")
        raise UnknownEnvironment(f"the environment '{PLACE}:{name}' needs gym; {how}")
    return EnvSpec(id=name, entry_point=partial(GymEnvironment, name))


class GymEnvironment(gymnasium.Env[Any, Any]):
    """An environment of Gym.

    Attributes:
        timed: Whether a registered time limit ends each episode.
    """

    def __init__(self, name: str, /, **kwargs: Any) -> None:
        """Makes the environment with this id. Raises what Gym raises."""
        self._env = foreign_worker.Environment(f"{PLACE}:{name}", dict(kwargs), [])
        described = self._env.describe()
        describe_as(self, described, kwargs.get("render_mode"))
        self.timed = described["timed"]
        if described["masks"]:
            self.action_masks = self._env.masks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins an episode."""
        return self._env.reset(seed, options)

    def step(self, action: Any) -> Any:
        """Takes a step. A step of Gym before 0.26 is converted."""
        return self._env.step(action)

    def render(self) -> Any:
        """Returns the rendered frame."""
        return self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()
