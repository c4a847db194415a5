"""Actions for the game Catch of `examples/nes`, by its variables."""

from collections.abc import Mapping

GAME = "retro/Catch-Nes-v0"
NOTHING, LEFT, RIGHT = [0, 0, 0], [0, 1, 0], [0, 2, 0]
"""Actions of MULTI_DISCRETE: up or down, left or right, and the other buttons."""


def catching(variables: Mapping[str, int]) -> list[int]:
    """Returns the action that moves the basket below the fruit."""
    distance = variables["fruit_x"] + 4 - (variables["basket"] + 12)
    return NOTHING if abs(distance) < 8 else LEFT if distance < 0 else RIGHT
