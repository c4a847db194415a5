"""A game with action masks: Colour Lines, whose 6,561 actions are legal only along free paths.

Penstock finds the masks by the name of their method, `action_masks`, as sb3-contrib does. Run this in this folder:

    penstock train --preset colour_lines

`ColourLines-v0` begins with 20 balls instead of the usual 5, so that 18% of the actions are legal on a first board
instead of 6%, and a game of random moves takes 21 turns instead of 26.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

POINTS_PER_BALL = 2

_NO_CELL = 255

_COLOURS = np.array(
    [(228, 26, 28), (55, 126, 184), (77, 175, 74), (255, 217, 47), (152, 78, 163), (255, 127, 0), (166, 86, 40)],
    np.uint8,
)
"""Colours of the balls in pictures, which repeat if a game has more."""
_PIXELS = 40
"""Height and width of a cell in pictures."""

Cells = int
"""A set of cells, as the bits of an integer: a few operations on it follow all paths or lines at once."""

Observation = dict[str, NDArray[Any]]


class ColourLines(gymnasium.Env[Observation, np.int64]):
    """Balls of several colours on a square board, where a line of balls of one colour vanishes and scores.

    In each turn, the player moves a ball to an empty cell. A path of empty cells must connect them, in which each cell
    is above, below, left or right of the one before. A row, column or diagonal of `line` or more balls of one colour
    vanishes, and scores 2 points per ball. If the move completes none, the announced balls appear on random empty
    cells, and the next ones are announced. Lines that they complete vanish and score too. The announced balls also
    appear if no ball is left to move. The game ends when the board is full.

    The observation is a Dict:

    - `board` <uint8>[size, size]: 0 for an empty cell, otherwise 1 + the colour of its ball
    - `next` <int64>[balls]: the announced colours

    Rendered as `ansi`, the board is text with a digit for each ball, and as `rgb_array` a picture; the announced balls
    are in the last row of both.

    The action is `source * size**2 + target`; cells are numbered row by row. The reward is the score of the turn.

    Random moves complete one line in 1,500 turns, which is too rare to learn from. `shaping` adds the growth of a
    potential of the board to the reward: Phi(s') - Phi(s), where Phi is the sum of (k - 1)**2 over all places for a
    line in which the only balls are k > 0 of one colour. Phi is 0 on a full board, so the rewards of a game sum to its
    score minus Phi of its first board, and the policy with the best expected sum is the same (Ng, Harada & Russell
    1999, "Policy invariance under reward transformations").
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - the form of gymnasium.Env

    def __init__(
        self,
        size: int = 9,
        colours: int = 7,
        line: int = 5,
        balls: int = 3,
        first_balls: int = 5,
        shaping: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Creates a game.

        Args:
            size: Number of rows, and of columns.
            colours: Number of colours.
            line: Number of balls in the shortest line that vanishes.
            balls: Number of balls that are announced.
            first_balls: Number of balls on the first board.
            shaping: Weight of the growth of the potential in the reward. 0: the reward is the score.
            render_mode: Form of `render`, `ansi` or `rgb_array`; None: no rendering.
        """
        self.observation_space = spaces.Dict(  # type: ignore[assignment]
            {"board": spaces.Box(0, colours, (size, size), np.uint8), "next": spaces.MultiDiscrete([colours] * balls)}
        )
        self.action_space = spaces.Discrete(size**4)
        self.render_mode = render_mode
        self._colours, self._line, self._balls, self._first_balls = colours, line, balls, first_balls
        # A last column without cells ends each row, so that no shift of bits leads from one row to the next.
        self._padded = np.full((size, size + 1), _NO_CELL, np.uint8)
        self._board, self._width = self._padded[:, :size], size + 1
        self._next = np.zeros(balls, np.int64)
        self._places = _places(size, line)
        self._shaping, self._potential = shaping, 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts a game."""
        super().reset(seed=seed)
        self._board[:] = 0
        self._next = self.np_random.integers(self._colours, size=self._first_balls)
        self._let_balls_appear()
        self._potential = self._potential_of_board()
        return self._observation(), {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Returns the legal actions, <bool>[size**4]. None is legal at the end of the game."""
        empty = self._cells(self._padded == 0)
        balls = self._cells(self._padded != _NO_CELL) & ~empty
        regions = list(self._regions(empty))
        # A ball beside a region of empty cells can move to each of its cells.
        sources = [self._neighbours(region) & balls for region in regions]
        # Products in floating point are much faster, and exact: regions have no cell in common.
        mask: NDArray[np.bool_] = self._arrays(sources).astype(np.float32).T @ self._arrays(regions) > 0
        return mask.ravel()

    def render(self) -> str | NDArray[np.uint8] | None:
        """Returns the board and the announced balls as text, or as a picture <uint8>[H, W, 3]."""
        if self.render_mode == "ansi":
            rows = [" ".join(str(ball) if ball else "." for ball in row) for row in self._board.tolist()]
            return "\n".join([*rows, f"next: {' '.join(str(colour + 1) for colour in self._next)}"])
        return self._picture() if self.render_mode == "rgb_array" else None

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Plays a turn.

        Raises:
            ValueError: The action is illegal.
        """
        if not self._is_legal(action):
            raise ValueError(f"action {action} is illegal on this board; choose one that action_masks() allows")
        source, target = divmod(int(action), self._board.size)
        colour = int(self._board.flat[source])
        self._board.flat[source], self._board.flat[target] = 0, colour
        vanished = self._remove_lines([colour])
        if not vanished or not self._board.any():
            vanished += self._let_balls_appear()
        before, self._potential = self._potential, self._potential_of_board()
        reward = POINTS_PER_BALL * vanished + self._potential - before
        return self._observation(), float(reward), bool(self._board.all()), False, {}

    def _observation(self) -> Observation:
        return {"board": self._board.copy(), "next": self._next.copy()}

    def _picture(self) -> NDArray[np.uint8]:
        announced = np.zeros((1, len(self._board)), np.uint8)
        announced[0, : self._next.size] = self._next[: announced.size] + 1
        balls = np.concatenate([self._board, announced]).repeat(_PIXELS, 0).repeat(_PIXELS, 1)
        middle = np.arange(_PIXELS) - (_PIXELS - 1) / 2
        inside = np.tile(
            np.hypot(*np.meshgrid(middle, middle)) < 0.4 * _PIXELS, (len(self._board) + 1, len(self._board))
        )
        picture = np.full((*balls.shape, 3), 235, np.uint8)
        # Grid lines around the cells of the board.
        picture[:-_PIXELS:_PIXELS] = picture[:-_PIXELS, ::_PIXELS] = 180
        drawn = inside & (balls > 0)
        picture[drawn] = _COLOURS[(balls[drawn] - 1) % len(_COLOURS)]
        return picture

    def _let_balls_appear(self) -> int:
        """Places the announced balls, and announces the next ones. Returns how many balls vanished."""
        vanished = 0
        while True:
            free = np.flatnonzero(self._board == 0)
            places = self.np_random.choice(free, min(self._next.size, free.size), replace=False)
            self._board.flat[places] = self._next[: places.size] + 1
            vanished += self._remove_lines(set(self._board.flat[places].tolist()))
            self._next = self.np_random.integers(self._colours, size=self._balls)
            if self._board.any():
                return vanished

    def _remove_lines(self, colours: Iterable[int]) -> int:
        """Removes all lines of these colours, given as on the board. Returns how many balls vanished."""
        lines = 0
        for colour in colours:
            balls = self._cells(self._padded == colour)
            for step in (1, self._width - 1, self._width, self._width + 1):
                starts = balls
                for distance in range(step, self._line * step, step):
                    starts &= balls >> distance
                for distance in range(0, self._line * step if starts else 0, step):
                    lines |= starts << distance
        if lines:
            self._board[self._arrays([lines])[0].reshape(self._board.shape)] = 0
        return lines.bit_count()

    def _potential_of_board(self) -> float:
        if not self._shaping:
            return 0.0
        values = self._board.ravel()[self._places]
        colour, balls = values.max(1, keepdims=True), np.count_nonzero(values, axis=1)
        alone = ((values == colour) | (values == 0)).all(1) & (balls > 0)
        return self._shaping * float((alone * (balls - 1) ** 2).sum())

    def _is_legal(self, action: np.int64) -> bool:
        if not self.action_space.contains(action):
            return False
        source, target = (1 << cell + cell // len(self._board) for cell in divmod(int(action), self._board.size))
        empty = self._cells(self._padded == 0)
        return bool(source & ~empty & self._neighbours(self._region(target & empty, empty)))

    def _regions(self, empty: Cells) -> Iterator[Cells]:
        """Yields the sets of empty cells that paths connect."""
        while empty:
            region = self._region(empty & -empty, empty)
            yield region
            empty ^= region

    def _region(self, cells: Cells, empty: Cells) -> Cells:
        """Returns all empty cells that paths connect with these empty cells."""
        while (grown := cells | self._neighbours(cells) & empty) != cells:
            cells = grown
        return cells

    def _neighbours(self, cells: Cells) -> Cells:
        return cells << 1 | cells >> 1 | cells << self._width | cells >> self._width

    def _cells(self, chosen: NDArray[np.bool_]) -> Cells:
        return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")

    def _arrays(self, sets: Sequence[Cells]) -> NDArray[np.bool_]:
        """Returns sets as arrays, <bool>[sets, size**2]."""
        bytes_each = (self._padded.size + 7) // 8
        packed = np.frombuffer(b"".join(cells.to_bytes(bytes_each, "little") for cells in sets), np.uint8)
        bits = np.unpackbits(packed.reshape(len(sets), bytes_each), axis=1, count=self._padded.size, bitorder="little")
        return (
            bits.reshape(len(sets), *self._padded.shape)[:, :, :-1]
            .reshape(len(sets), self._board.size)
            .astype(np.bool_)
        )


def _places(size: int, line: int) -> NDArray[np.int64]:
    """Returns the cells of all places for a line, <int64>[places, line]."""
    cells = np.arange(size**2).reshape(size, size)
    short = size - line + 1
    starts = ((cells[:, :short], 1), (cells[:short], size), (cells[:short, :short], size + 1))
    rising = (cells[:short, line - 1 :], size - 1)
    return np.concatenate([first.reshape(-1, 1) + step * np.arange(line) for first, step in (*starts, rising)])


gymnasium.register("ColourLines-v0", entry_point=f"{__name__}:ColourLines", kwargs={"first_balls": 20})
