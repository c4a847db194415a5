"""Games of OpenSpiel for one or two players, under names such as open_spiel:2048 and open_spiel:connect_four.

The arguments are the game's parameters. Legal actions are its action masks, and chance is drawn from the environment's
generator. Of two players in a zero-sum game, the policy is one, and the argument `opponent` says who the other is.
Games of more players are refused.
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
OPPONENTS = ("self", "random", "search")
_DEPTH = 2
"""Moves that the opponent `search` looks ahead: its own, and the answer."""


def open_spiel_spec(name: str) -> EnvSpec:
    """Returns the specification of a game. Raises `UnknownEnvironment` if OpenSpiel or the game does not exist."""
    if extras.missing(_MODULE):
        raise UnknownEnvironment(f"the environment '{PLACE}:{name}' needs {PLACE}; {extras.installation(_MODULE)}")
    import pyspiel

    known = [game.short_name for game in pyspiel.registered_games()]
    if name not in known:
        remedy = question(similar(name, known)) or "`pyspiel.registered_games()` lists the games"
        raise UnknownEnvironment(f"OpenSpiel has no game {name!r}; {remedy}")
    return EnvSpec(id=name, entry_point=partial(_made, name))


def _made(name: str, /, *, render_mode: str | None = None, opponent: str | None = None, **parameters: Any) -> Any:
    """Makes the environment of a game. Raises `ConfigurationError` if its players do not fit."""
    import pyspiel

    game = pyspiel.load_game(name, parameters)
    kind, players = game.get_type(), game.num_players()
    population = kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD
    if players == 2 and not population and kind.utility == pyspiel.GameType.Utility.ZERO_SUM:
        if opponent not in OPPONENTS:
            raise ConfigurationError(
                f"the game {PLACE}:{name} is for 2 players, so its argument opponent must be {', '.join(OPPONENTS)},"
                f" not {opponent!r}; train with --environment.training-kwargs opponent=self --ppo.discount -0.99, and"
                " evaluate with --environment.kwargs opponent=random"
            )
        return TwoPlayers(game, opponent, render_mode=render_mode)
    if players != 1 or population:
        who = "a population" if population else f"{players} players"
        raise ConfigurationError(
            f"the game {PLACE}:{name} is for {who}, and a policy plays alone or in a zero-sum game of two; choose"
            f" another game, such as {PLACE}:2048 or {PLACE}:connect_four"
        )
    if opponent is not None:
        raise ConfigurationError(f"the game {PLACE}:{name} is for one player, and has no opponent")
    return OpenSpielEnvironment(game, render_mode=render_mode)


class _Game(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A game whose `_state` changes by moves and by chance."""

    _state: Any

    def _move(self, action: np.int64, player: int) -> None:
        """Makes a move of a player. Raises `ValueError` for an illegal one, which some games take without an error."""
        if int(action) not in self._state.legal_actions(player):
            raise ValueError(f"the move {action} is illegal; environment.action_masks must be true")
        self._state.apply_action(int(action))
        self._draw()

    def _draw(self) -> None:
        while self._state.is_chance_node():
            outcomes, probabilities = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(int(self.np_random.choice(outcomes, p=probabilities)))


class OpenSpielEnvironment(_Game):
    """A game of OpenSpiel for one player.

    Observations are <float32> of the shape that the game declares, and a reward is the growth of the player's return.
    """

    def __init__(self, game: Any, *, render_mode: str | None = None) -> None:
        """Takes a game. Raises `ConfigurationError` if it has no observations."""
        import pyspiel

        kind = game.get_type()
        if not kind.provides_observation_tensor:
            raise ConfigurationError(
                f"the game {PLACE}:{kind.short_name} has no observations as numbers; choose another game"
            )
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
        """Makes a move. Raises `ValueError` for an illegal one."""
        self._move(action, 0)
        before, self._return = self._return, self._state.player_return(0)
        return self._observed(), self._return - before, self._state.is_terminal(), False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns <bool>[actions], the legal moves."""
        return np.array(self._state.legal_actions_mask(0), np.bool_)

    def _observed(self) -> NDArray[np.float32]:
        return np.array(self._state.observation_tensor(0), np.float32).reshape(self._shape)


class TwoPlayers(_Game):
    """A zero-sum game of two players who take turns.

    Against `self`, an action is a move of the player whose turn it is, and the reward is what it gains by this move.
    Against another opponent, the policy has either seat, and a step ends when it is its turn again. An observation,
    <float32>[numbers + 2], is that of the player to move; its last two numbers are 1, 0 for the first player and 0, 1
    for the second.
    """

    def __init__(self, game: Any, opponent: str, *, render_mode: str | None = None) -> None:
        """Takes a game. Raises `ConfigurationError` if it has no turns, no observations, or chance beside a search."""
        import pyspiel

        kind = game.get_type()
        self._name = f"{PLACE}:{kind.short_name}"
        if kind.dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL or not kind.provides_observation_tensor:
            raise ConfigurationError(f"the game {self._name} has no turns, or no observations as numbers")
        if opponent == "search" and kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC:
            raise ConfigurationError(f"the opponent search can't play {self._name}, which has chance; use random")
        self._game, self._opponent = game, opponent
        size = int(np.prod(game.observation_tensor_shape())) + 2
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.action_space = spaces.Discrete(game.num_distinct_actions())
        self.render_mode, self._seat = render_mode, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins a game, with a seat that is drawn."""
        super().reset(seed=seed)
        self._state = self._game.new_initial_state()
        self._draw()
        if self._opponent != "self":
            self._seat = int(self.np_random.integers(2))
            self._answer()
        return self._observed(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Makes a move. Raises `ValueError` for an illegal one, and if a player moves twice against itself."""
        mover = self._turn()
        before = self._state.returns()[mover]
        self._move(action, mover)
        if self._opponent != "self":
            self._answer()
        elif not self._state.is_terminal() and self._turn() == mover:
            raise ValueError(f"player {mover} of {self._name} moves twice, and a policy against itself needs turns")
        return self._observed(), self._state.returns()[mover] - before, self._state.is_terminal(), False, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns <bool>[actions], the legal moves."""
        return np.array(self._state.legal_actions_mask(self._turn()), np.bool_)

    def _turn(self) -> int:
        """Returns the player whose turn it is; after the end, the one whose turn it would be against itself."""
        if self._opponent != "self":
            return self._seat
        return 0 if self._state.is_terminal() else int(self._state.current_player())

    def _answer(self) -> None:
        """Makes the opponent's moves until it is the policy's turn."""
        while not self._state.is_terminal() and self._state.current_player() != self._seat:
            legal = self._state.legal_actions()
            if self._opponent == "search":
                values = [_value(self._state.child(move), _DEPTH - 1, 1 - self._seat) for move in legal]
                legal = [move for move, value in zip(legal, values, strict=True) if value == max(values)]
            self._state.apply_action(int(self.np_random.choice(legal)))
            self._draw()

    def _observed(self) -> NDArray[np.float32]:
        turn = self._turn()
        numbers = self._state.observation_tensor(turn)
        return np.array([*numbers, turn == 0, turn == 1], np.float32)


def _value(state: Any, depth: int, player: int) -> float:
    """Returns what a player gains at least by the best of `depth` moves; 0 where the game has not ended."""
    if state.is_terminal() or not depth:
        return float(state.returns()[player])
    values = (_value(state.child(move), depth - 1, player) for move in state.legal_actions())
    return max(values) if state.current_player() == player else min(values)
