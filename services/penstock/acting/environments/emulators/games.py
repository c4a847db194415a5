"""Games of stable-retro as environments: pixels of Mnih et al. (2015), and refusals that say what to do.

The import registers all games that stable-retro knows with Gymnasium, as retro/Airstriker-Genesis-v0, for example.
Users call `register_games` for games of their own.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from stable_retro.data import EMU_CORES, Integrations, get_romfile_path, list_games, list_scenarios, list_states
from stable_retro.enums import Actions, State
from stable_retro.retro_env import RetroEnv

from penstock.acting.environments.emulators.cores import licence_notice
from penstock.acting.environments.emulators.pictures import Shrinker
from penstock.errors import ConfigurationError
from penstock.machine.spelling import question, similar

_NAMESPACE = "retro"

_GAMES = Integrations.CUSTOM
"""The games that come with stable-retro, and those of `register_games`, which take precedence."""

_MAX_EPISODE_STEPS = 4_500
"""Five minutes of a console with 60 frames per second, of which a step has four; as in stable-retro's example."""

_CONSOLE_FRAMES_PER_S = 60


class RetroGame(gymnasium.Env[NDArray[np.uint8], Any]):
    """A game, whose observations are grey pictures <uint8>[size, size] of the screen.

    Rewards and the end of an episode are those of the game's scenario, over all frames of a step. A process can have
    only one game, because stable-retro loads one emulator.

    Attributes:
        notices: Lines for the user before a run.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15.0}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        *,
        state: str | None = None,
        scenario: str | None = None,
        use_restricted_actions: str = "FILTERED",
        frame_skip: int = 4,
        sticky_probability: float = 0.0,
        most_noops: int = 30,
        random_variable: str | None = None,
        size: int = 84,
        render_mode: str | None = None,
    ) -> None:
        """Starts the game in its emulator.

        Args:
            game: Name of the game in stable-retro.
            state: Name of a saved state in which episodes begin. None: the game's own one; without one, the state in
                which the console is switched on.
            scenario: Name of the rewards and ends of episodes. None: the game's own ones.
            use_restricted_actions: A name of `stable_retro.Actions`: ALL or FILTERED, which leaves out buttons that
                exclude one another, for MultiBinary actions; MULTI_DISCRETE or DISCRETE.
            frame_skip: Frames of a step, in which the same buttons are held.
            sticky_probability: Probability that the buttons of the last step are held for one more frame.
            most_noops: Most frames without a button at the beginning of an episode; the number is random.
            random_variable: Name of a variable of the game that gets a random value at the beginning of an episode,
                such as the seed of its random numbers.
            size: Height and width of the observations, in pixels.
            render_mode: rgb_array to render the screen.

        Raises:
            ConfigurationError: The ROM, the state or the scenario is missing, or an argument is out of range.
        """
        _require_rom(game)
        if frame_skip < 1 or most_noops < 0 or not 0.0 <= sticky_probability < 1.0 or size < 1:
            raise ConfigurationError(
                "a game needs a frame_skip and a size of at least 1, most_noops of at least 0, and a sticky_probability"
                f" from 0 to below 1; got {frame_skip}, {size}, {most_noops} and {sticky_probability}"
            )
        self._emulator = RetroEnv(
            game,
            State.DEFAULT if state is None else _known("state", state, list_states(game, _GAMES)),
            scenario if scenario is None else _known("scenario", scenario, list_scenarios(game, _GAMES)),
            use_restricted_actions=_actions(use_restricted_actions),
            inttype=_GAMES,
            render_mode="rgb_array",
        )
        try:
            self._require_variable(random_variable)
        except ConfigurationError:
            self._emulator.close()
            raise
        # Without a saved state, stable-retro would begin an episode where the last one has ended.
        self._emulator.initial_state = self._emulator.initial_state or self._emulator.em.get_state()
        self._frame_skip, self._sticky_probability = frame_skip, sticky_probability
        self._most_noops, self._random_variable = most_noops, random_variable
        self._no_buttons = self._held = np.zeros(self._emulator.num_buttons, np.uint8)
        height, width, _ = self._emulator.observation_space.shape
        self._shrinker = Shrinker((height, width), (size, size))
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": _CONSOLE_FRAMES_PER_S / frame_skip}
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size), np.uint8)
        self.action_space = self._emulator.action_space
        self.notices = [licence_notice(EMU_CORES[self._emulator.system])]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begins an episode. The info has the game's variables."""
        super().reset(seed=seed)
        self._begin()
        self._held = self._no_buttons
        for _ in range(int(self.np_random.integers(self._most_noops + 1))):
            if self._advance(self._no_buttons)[1]:
                self._begin()
        return self._seen(), dict(self._emulator.data.lookup_all())

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Holds buttons for the frames of a step. The info has the game's variables."""
        (buttons,) = self._emulator.action_to_array(action)
        sticks = self._sticky_probability and self.np_random.random() < self._sticky_probability
        reward, ended, held = 0.0, False, self._held if sticks else buttons
        for _ in range(self._frame_skip):
            more, ended = self._advance(held)
            reward += more
            if ended:
                break
            held = buttons
        self._held = buttons
        return self._seen(), reward, ended, False, dict(self._emulator.data.lookup_all())

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the screen <uint8>[H, W, 3]; None without a render mode."""
        return self._screen() if self.render_mode else None

    def close(self) -> None:
        """Ends the emulator, after which the process can have another one."""
        self._emulator.close()

    def _begin(self) -> None:
        self._emulator.reset()
        if self._random_variable is not None:
            self._emulator.data.set_value(self._random_variable, int(self.np_random.integers(1, 256)))

    def _advance(self, buttons: NDArray[np.uint8]) -> tuple[float, bool]:
        """Computes a frame; returns its reward, and whether the episode has ended.

        `RetroEnv.step` would copy the screen of each frame.
        """
        emulator, data = self._emulator.em, self._emulator.data
        emulator.set_button_mask(buttons, 0)
        emulator.step()
        data.update_ram()
        return float(data.current_reward()), bool(data.is_done())

    def _screen(self) -> NDArray[np.uint8]:
        screen: NDArray[np.uint8] = self._emulator.get_screen(apply_rotation=True)
        return screen

    def _seen(self) -> NDArray[np.uint8]:
        screen = self._screen()
        return self._shrinker(screen)

    def _require_variable(self, name: str | None) -> None:
        if name is not None:
            _known("variable", name, list(self._emulator.data.lookup_all()))


def register_games(folder: str | Path | None = None) -> None:
    """Registers the games of a folder with Gymnasium, as retro/NAME; None: the games that come with stable-retro.

    A game is a folder with a rom.sha, as `docs/emulators.md` describes. Raises `ConfigurationError` if there is none.
    """
    games = list_games(Integrations.STABLE)
    if folder is not None:
        place = Path(folder).absolute()
        games = sorted(file.parent.name for file in place.glob("*/rom.sha"))
        if not games:
            raise ConfigurationError(f"there is no game in {place}; a game is a folder in it that has a rom.sha")
        if str(place) not in _GAMES.paths:
            Integrations.add_custom_path(str(place))
    for game in games:
        if (env_id := f"{_NAMESPACE}/{game}") not in gymnasium.registry:
            gymnasium.register(
                env_id,
                entry_point=f"{__name__}:{RetroGame.__name__}",
                max_episode_steps=_MAX_EPISODE_STEPS,
                kwargs={"game": game},
            )


def _require_rom(game: str) -> None:
    """Raises `ConfigurationError` if the ROM of a game is missing."""
    try:
        get_romfile_path(game, _GAMES)
    except FileNotFoundError:
        raise ConfigurationError(
            f"the game {game} has no ROM; if you own it, import it from your folder of ROMs with: python -m"
            " stable_retro.import FOLDER"
        ) from None


def _actions(name: str) -> Actions:
    return Actions[_known("value of use_restricted_actions", name.upper(), [each.name for each in Actions])]


def _known(what: str, name: str, names: list[str]) -> str:
    """Returns a name that is among the known ones. Raises `ConfigurationError` otherwise."""
    if name not in names:
        meant = question(similar(name, names)) or f"choose from: {', '.join(names) or 'none'}"
        raise ConfigurationError(f"there is no {what} {name!r}; {meant}")
    return name


register_games()
