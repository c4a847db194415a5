"""A text game in a house: find the key and the lamp, then the treasure in the dark cellar.

    penstock train --env-id examples/text_game.py:House

The observation is a text alone, of which the policy reads the words. An episode ends with the treasure or after 60
commands. The key and the lamp lie in other rooms in every episode.
"""

import string
from typing import Any

import gymnasium
from gymnasium import spaces

COMMANDS = (
    "go north",
    "go south",
    "go east",
    "go west",
    "take key",
    "take lamp",
    "open door",
    "take treasure",
)

ROOMS: dict[str, dict[str, str]] = {
    "hall": {"north": "kitchen", "east": "library", "west": "garden"},
    "kitchen": {"south": "hall", "east": "pantry"},
    "library": {"west": "hall", "north": "pantry"},
    "pantry": {"west": "kitchen", "south": "library"},
    "garden": {"east": "hall"},
    "cellar": {"north": "kitchen"},
}
"""Exits of each room. A locked door leads from the kitchen down to the cellar."""

DESCRIPTIONS = {
    "hall": "You are in the hall of an old house. A clock ticks.",
    "kitchen": "You are in the kitchen. There is a heavy door in the floor.",
    "library": "You are in the library. Dust lies on the books.",
    "pantry": "You are in the pantry. The shelves are empty.",
    "garden": "You are in the garden. Rain falls on the roses.",
}


class House(gymnasium.Env[str, Any]):
    """The game. The reward is 1 for the key and for the lamp, 1 for the open door, and 2 for the treasure."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - the form of gymnasium.Env
    observation_space = spaces.Text(max_length=400, charset=string.ascii_letters + " .,:!")
    action_space = spaces.Discrete(len(COMMANDS))

    def __init__(self, most_commands: int = 60, render_mode: str | None = None) -> None:
        self._most_commands, self.render_mode = most_commands, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Hides the key and the lamp, and chooses the first room."""
        super().reset(seed=seed)
        rooms = list(DESCRIPTIONS)
        self._room = rooms[self.np_random.integers(len(rooms))]
        self._places = {thing: rooms[self.np_random.integers(len(rooms))] for thing in ("key", "lamp")}
        self._carried: list[str] = []
        self._is_open, self._commands, self._answer = False, 0, "Find the treasure in the cellar."
        return self._text(), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out a command."""
        verb, what = COMMANDS[action].split()
        reward = {"go": self._go, "take": self._take, "open": self._open}[verb](what)
        self._commands += 1
        done = "treasure" in self._carried
        return self._text(), reward, done, not done and self._commands == self._most_commands, {}

    def render(self) -> str:
        """Returns the text of the observation."""
        return self._text()

    def _go(self, direction: str) -> float:
        exits = ROOMS[self._room]
        if self._room == "kitchen" and self._is_open:
            exits = {**exits, "north": "cellar"}
        self._answer = "" if direction in exits else "You can not go there."
        self._room = exits.get(direction, self._room)
        return 0.0

    def _take(self, thing: str) -> float:
        if thing == "treasure":
            if self._room != "cellar" or "lamp" not in self._carried:
                self._answer = "You see no treasure here."
                return 0.0
        elif self._places[thing] != self._room or thing in self._carried:
            self._answer = f"There is no {thing} here."
            return 0.0
        self._carried.append(thing)
        self._answer = f"Taken: the {thing}."
        return 2.0 if thing == "treasure" else 1.0

    def _open(self, what: str) -> float:
        if self._room != "kitchen" or self._is_open or "key" not in self._carried:
            self._answer = f"You can not open the {what}."
            return 0.0
        self._is_open, self._answer = True, "The door opens. Stairs lead north, down to the cellar."
        return 1.0

    def _text(self) -> str:
        if self._room == "cellar":
            place = "You are in the cellar. Gold shines: the treasure!"
            if "lamp" not in self._carried:
                place = "You are in the cellar. It is too dark to see."
        else:
            place = DESCRIPTIONS[self._room]
        if self._room == "kitchen" and self._is_open:
            place += " It is open."
        here = [
            f"A {thing} lies here."
            for thing, room in self._places.items()
            if room == self._room and thing not in self._carried
        ]
        carried = f"You carry {' and '.join(self._carried) or 'nothing'}."
        exits = f"Exits: {' '.join(ROOMS[self._room])}."
        return " ".join(filter(None, [self._answer, place, *here, exits, carried]))
