"""Actions for the game Catch of `examples/nes`, by its variables."""

from collections.abc import Mapping

GAME = "retro/Catch-Nes-v0"
NOTHING, LEFT, RIGHT = range(3)
"""Actions of DISCRETE, as the game's scenario.json has them."""


def catching(variables: Mapping[str, int]) -> int:
    """Returns the action that moves the basket below the fruit."""
    distance = variables["fruit_x"] + 8 - (variables["basket"] + 16)
    return NOTHING if abs(distance) < 8 else LEFT if distance < 0 else RIGHT
