"""Games of OpenSpiel for one player, under names such as open_spiel:2048.

The arguments are the game's parameters. Legal actions are its action masks, and chance is drawn from the environment's
generator. Games of several players are refused: one policy can't play against another yet.
"""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import extras
from penstock.machine.spelling import question, similar

PLACE, _MODULE = "open_spiel", "pyspiel"


def open_spiel_spec(name: str) -> EnvSpec:
    """Returns the specification of a game. Raises `UnknownEnvironment` if OpenSpiel or the game does not exist."""
    if extras.missing(_MODULE):
        raise UnknownEnvironment(f"the environment '{PLACE}:{name}' needs {PLACE}; {extras.installation(_MODULE)}")
    import pyspiel

    known = [game.short_name for game in pyspiel.registered_games()]
    if name not in known:
        remedy = question(similar(name, known)) or "`pyspiel.registered_games()` lists the games"
        raise UnknownEnvironment(f"OpenSpiel has no game {name!r}; {remedy}")
    return EnvSpec(id=name, entry_point=partial(OpenSpielEnvironment, name))


class OpenSpielEnvironment(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A game of OpenSpiel for one player.

    Observations are <float32> of the shape that the game declares, and a reward is the growth of the player's return.
    """

    def __init__(self, name: str, /, *, render_mode: str | None = None, **parameters: Any) -> None:
        """Loads the game. Raises `ConfigurationError` if it is for several players or has no observations."""
        import pyspiel

        game = pyspiel.load_game(name, parameters)
        kind, players = game.get_type(), game.num_players()
        if players != 1 or kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            who = "a population" if players == 1 else f"{players} players"
            raise ConfigurationError(
                f"the game {PLACE}:{name} is for {who}, and one policy plays alone; choose a game for one player, such"
                f" as {PLACE}:2048"
            )
        if not kind.provides_observation_tensor:
            raise ConfigurationError(f"the game {PLACE}:{name} has no observations as numbers; choose another game")
        sequential = kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        self._game = game if sequential else pyspiel.convert_to_turn_based(game)
        self._shape = tuple(self._game.observation_tensor_shape())
        self.observation_space = spaces.Box(-np.inf, np.inf, self._shape, np.float32)
        self.action_space = spaces.Discrete(self._game.num_distinct_actions())
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins a game."""
        super().reset(seed=seed)
        self._state, self._return = self._game.new_initial_state(), 0.0
        self._draw()
        return self._observed(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Makes a move. Raises `ValueError` for an illegal one, which some games take without an error."""
        if int(action) not in self._state.legal_actions(0):
            raise ValueError(f"the move {action} is illegal; environment.action_masks must be true")
        self._state.apply_action(int(action))
        self._draw()
        before, self._return = self._return, self._state.player_return(0)
        return self._observed(), self._return - before, self._state.is_terminal(), False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns <bool>[actions], the legal moves."""
        return np.array(self._state.legal_actions_mask(0), np.bool_)

    def _draw(self) -> None:
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(int(self.np_random.choice(outcomes, p=probabilities)))

    def _observed(self) -> NDArray[np.float32]:
        return np.array(self._state.observation_tensor(0), np.float32).reshape(self._shape)
