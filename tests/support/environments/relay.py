"""A game of several agents that join and leave, whose every value is known, in PettingZoo's parallel form."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

PRESENT = {"first": (0, 3), "second": (2, 6), "third": (0, 6)}
"""Steps from which on, and until which, an agent of the game is in it. It ends after 6 steps."""

Values = dict[str, Any]


class Relay(ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """Observations are (number of the game, steps taken, number of the agent); rewards are 1 + the number of the agent.

    `first` is terminated, `second` is truncated with the game, and `third` is terminated with it.
    """

    metadata = {"name": "relay", "render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, spaces_of: Mapping[str, tuple[Any, Any]] | None = None) -> None:
        self.possible_agents, self.render_mode = list(PRESENT), render_mode
        own = spaces.Box(-100.0, 100.0, (3,), np.float32), spaces.Discrete(2)
        self._spaces = dict.fromkeys(PRESENT, own) if spaces_of is None else dict(spaces_of)
        self.state_space = spaces.Box(0.0, np.inf, (2, 1), np.float64)
        self.agents: list[str] = []
        self._game = self._steps = 0
        self.actions: list[Values] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._spaces[agent][1]

    def reset(self, seed: int | None = None, options: Values | None = None) -> tuple[Values, Values]:
        self._game = self._game + 1 if seed is None else seed % 100
        self._steps = 0
        self.agents = self._now()
        return {agent: self._seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        assert set(actions) == set(self.agents)
        self.actions.append(actions)
        before, self._steps = self.agents, self._steps + 1
        self.agents = self._now()
        reported = [agent for agent in PRESENT if agent in before or agent in self.agents]
        rewards = {agent: 1.0 + list(PRESENT).index(agent) for agent in before}
        gone = [agent for agent in before if agent not in self.agents]
        ended = {agent: agent in gone and agent != "second" for agent in reported}
        cut = {agent: agent in gone and agent == "second" for agent in reported}
        infos = {agent: {"steps": self._steps} for agent in reported}
        return {agent: self._seen(agent) for agent in reported}, rewards, ended, cut, infos

    def state(self) -> Any:
        return np.array([[self._game], [self._steps]], np.float64)

    def render(self) -> Any:
        return np.full((32, 48, 3), self._steps, np.uint8)

    def _now(self) -> list[str]:
        return [agent for agent, (start, end) in PRESENT.items() if start <= self._steps < end]

    def _seen(self, agent: str) -> Any:
        values = np.array([self._game, self._steps, list(PRESENT).index(agent)], np.float32)
        return values[: self._spaces[agent][0].shape[0]]


class Silent(Relay):
    """A game whose first agent leaves without an end."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        observations, rewards, ended, cut, infos = super().step(actions)
        return observations, rewards, dict.fromkeys(ended, False), cut, infos


class Blind(Relay):
    """A game that forgets an observation."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        observations, *others = super().step(actions)
        return ({agent: seen for agent, seen in observations.items() if agent != "third"}, *others)  # type: ignore[return-value]


class Cut(Relay):
    """A game that truncates an agent without its last observation."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        observations, *others = super().step(actions)
        return ({agent: seen for agent, seen in observations.items() if agent in self.agents}, *others)  # type: ignore[return-value]


class Crowded(Relay):
    """A game with an agent that it has not named."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        outcome = super().step(actions)
        self.agents = [*self.agents, "fourth"]
        return outcome


class Enduring(Relay):
    """A game whose agents stay after their end, for a step."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        observations, rewards, ended, cut, infos = super().step(actions)
        return observations, rewards, {**ended, "third": self._steps == 2}, cut, infos
