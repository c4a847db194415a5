"""The rules of Colour Lines, and its masks compared with a slow search."""

from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from examples.colour_lines import ColourLines

Cell = tuple[int, int]


def game(on_board: Iterable[tuple[Cell, int]] = (), **settings: Any) -> ColourLines:
    """A game with these balls alone on the board: their cells, and their values on the board."""
    env = ColourLines(**settings)
    env.reset(seed=3)
    # There is no other way to reach a chosen board.
    env._board[:] = 0
    for cell, value in on_board:
        env._board[cell] = value
    return env


def move(source: Cell, target: Cell, size: int = 9) -> np.int64:
    return np.int64((source[0] * size + source[1]) * size**2 + target[0] * size + target[1])


def legal_moves(board: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Follows the paths of every ball cell by cell."""
    size = len(board)
    legal = np.zeros((size, size, size, size), np.bool_)
    for source in np.argwhere(board):
        open_ends = [tuple(source)]
        while open_ends:
            row, column = open_ends.pop()
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if min(near) >= 0 and max(near) < size and not board[near] and not legal[(*source, *near)]:
                    legal[(*source, *near)] = True
                    open_ends.append(near)
    return legal.ravel()


def potential(board: NDArray[np.uint8], line: int = 5) -> int:
    """Adds up the places for a line, one after another."""
    total, size = 0, len(board)
    for row, column in np.ndindex(board.shape):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            cells = [(row + i * down, column + i * right) for i in range(line)]
            if all(0 <= index < size for cell in cells for index in cell):
                values = [int(board[cell]) for cell in cells if board[cell]]
                total += (len(values) - 1) ** 2 if len(set(values)) == 1 else 0
    return total


def play(env: ColourLines, seed: int) -> list[tuple[NDArray[np.uint8], float]]:
    """Plays a game of random legal actions; returns each board with its reward."""
    observation, _ = env.reset(seed=seed)
    random, turns, ended = np.random.default_rng(seed), [(observation["board"], 0.0)], False
    while not ended:
        action = random.choice(np.flatnonzero(env.action_masks()))
        observation, reward, ended, _, _ = env.step(action)
        turns.append((observation["board"], float(reward)))
    return turns


@pytest.mark.parametrize("size", [4, 9])
def test_the_mask_is_that_of_a_slow_search(size: int) -> None:
    random = np.random.default_rng(1)
    for share in np.linspace(0.0, 1.0, 60):
        board = np.where(random.random((size, size)) < share, random.integers(1, 8, (size, size)), 0)
        env = game(line=4, size=size, first_balls=1)
        env._board[:] = board
        np.testing.assert_array_equal(env.action_masks(), legal_moves(board.astype(np.uint8)))


@pytest.mark.parametrize(("first_balls", "share"), [(5, 0.058), (20, 0.176)])
def test_the_share_of_legal_actions_on_a_first_board(first_balls: int, share: float) -> None:
    env, shares = ColourLines(first_balls=first_balls), []
    for seed in range(200):
        env.reset(seed=seed)
        shares.append(env.action_masks().mean())
    assert np.mean(shares) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (1, 1), (1, -1)])
@pytest.mark.parametrize("length", [5, 6])
def test_a_line_in_any_direction_vanishes_and_scores_and_no_ball_appears(step: Cell, length: int) -> None:
    line = [(1 + i * step[0], (1 if step[1] >= 0 else 7) + i * step[1]) for i in range(length)]
    middle = line.pop(2)
    env = game([*((cell, 4) for cell in line), ((8, 8), 4), ((8, 0), 2)])
    announced = env._next
    observation, reward, ended, cut, _ = env.step(move((8, 8), middle))
    assert (reward, ended, cut) == (2.0 * length, False, False)
    assert np.argwhere(observation["board"]).tolist() == [[8, 0]]
    np.testing.assert_array_equal(observation["next"], announced)


def test_crossing_lines_score_each_ball_once() -> None:
    cross = {(4, column) for column in range(2, 7)} | {(row, 4) for row in range(2, 7)}
    env = game([*((cell, 1) for cell in cross - {(4, 4)}), ((0, 0), 1), ((4, 3), 1), ((0, 8), 5)])
    # The centre is enclosed, so the ball that completes the cross comes from one of its arms.
    env._board[4, 3], env._board[4, 4] = 0, 1
    _, reward, *_ = env.step(move((0, 0), (4, 3)))
    assert reward == 18.0
    assert np.argwhere(env._board).tolist() == [[0, 8]]


def test_four_balls_or_five_across_the_edge_are_no_line() -> None:
    env = game([*(((2, column), 3) for column in (6, 7, 8)), ((3, 0), 3), ((5, 5), 3)], balls=1)
    env._next[:] = 6
    observation, reward, *_ = env.step(move((5, 5), (3, 1)))
    assert reward == 0.0
    assert np.count_nonzero(observation["board"]) == 6


def test_the_announced_balls_appear_after_a_move_that_completes_nothing() -> None:
    env = game([((0, 0), 1)])
    announced = env._next.copy()
    observation, reward, *_ = env.step(move((0, 0), (5, 5)))
    appeared = np.delete(observation["board"].ravel(), 5 * 9 + 5)
    assert (reward, observation["board"][5, 5]) == (0.0, 1)
    assert sorted(appeared[appeared > 0]) == sorted(announced + 1)


def test_lines_that_appearing_balls_complete_score() -> None:
    env = game(balls=1)
    # A full board without lines, except for four balls at the beginning of the first row and one empty cell.
    env._board[:] = np.add.outer(np.arange(9), 2 * np.arange(9)) % 5 + 2
    env._board[0, :5], env._board[1, 4] = [1, 1, 1, 1, 7], 0
    env._next = np.array([0])
    observation, reward, ended, *_ = env.step(move((0, 4), (1, 4)))
    assert (reward, ended) == (10.0, False)
    assert np.argwhere(observation["board"] == 0).tolist() == [[0, column] for column in range(5)]


def test_the_announced_balls_appear_if_no_ball_is_left() -> None:
    env = game([*(((0, column), 2) for column in range(4)), ((4, 4), 2)])
    observation, reward, ended, *_ = env.step(move((4, 4), (0, 4)))
    assert (reward, ended) == (10.0, False)
    assert np.count_nonzero(observation["board"]) == 3


def test_a_game_ends_on_a_full_board_and_has_a_legal_action_until_then() -> None:
    env = ColourLines(size=5, line=4, first_balls=3)
    for seed in range(20):
        boards = [board for board, _ in play(env, seed)]
        assert boards[-1].all()
        assert not env.action_masks().any()
        assert not any(board.all() for board in boards[:-1])


@pytest.mark.parametrize(
    "action",
    [
        move((4, 4), (5, 5)),  # from an empty cell
        move((0, 1), (1, 0)),  # to a ball
        move((0, 1), (0, 1)),
        move((3, 3), (0, 0)),  # to an enclosed cell
        np.int64(-1),
        np.int64(6561),
    ],
)
def test_an_illegal_action_is_refused_and_changes_nothing(action: np.int64) -> None:
    env = game([((0, 1), 1), ((1, 0), 2), ((3, 3), 3)])
    before = env._board.copy()
    with pytest.raises(ValueError, match=rf"action {action} is illegal on this board; choose one that action_masks"):
        env.step(action)
    np.testing.assert_array_equal(env._board, before)


@pytest.mark.parametrize(("size", "line"), [(9, 5), (6, 3), (4, 4)])
def test_shaping_adds_the_growth_of_the_potential(size: int, line: int) -> None:
    plain, shaped = (ColourLines(size, line=line, first_balls=4, shaping=weight) for weight in (0.0, 0.5))
    for seed in range(5):
        scored, turns = play(plain, seed), play(shaped, seed)
        for (before, _), (after, reward), (_, score) in zip(turns[:-1], turns[1:], scored[1:], strict=True):
            assert reward == score + 0.5 * (potential(after, line) - potential(before, line))


def test_the_rewards_of_a_game_sum_to_its_score_minus_the_potential_of_the_first_board() -> None:
    for seed in range(10):
        score = sum(reward for _, reward in play(ColourLines(first_balls=20), seed))
        turns = play(ColourLines(first_balls=20, shaping=0.25), seed)
        assert sum(reward for _, reward in turns) == score - 0.25 * potential(turns[0][0])


def test_a_board_is_rendered_as_text_and_as_a_picture() -> None:
    env = game([((0, 1), 3), ((2, 0), 7)], size=3, line=3, render_mode="ansi")
    env._next = np.array([0, 6, 1])
    assert env.render() == ". 3 .\n. . .\n7 . .\nnext: 1 7 2"
    env.render_mode = "rgb_array"
    picture = env.render()
    assert isinstance(picture, np.ndarray)
    side = picture.shape[1] // 3
    assert picture.shape == (4 * side, 3 * side, 3)
    assert picture.dtype == np.uint8
    middles = picture[side // 2 :: side, side // 2 :: side].reshape(-1, 3).tolist()
    ground, balls = middles[0], {cell: middles[cell] for cell in (1, 6, 9, 10, 11)}
    assert all(middles[cell] == ground for cell in range(9) if cell not in balls)
    assert len({tuple(colour) for colour in balls.values()}) == 4
    assert balls[6] == balls[10]


def test_nothing_is_rendered_unless_requested() -> None:
    assert game().render() is None


def test_the_registered_game_begins_with_20_balls() -> None:
    observation, _ = gymnasium.make("ColourLines-v0").reset(seed=0)
    assert np.count_nonzero(observation["board"]) == 20


def test_equal_seeds_give_equal_games() -> None:
    first, again, other = (play(ColourLines(), seed) for seed in (5, 5, 6))
    assert len(first) == len(again)
    for (board, reward), (same_board, same_reward) in zip(first, again, strict=True):
        np.testing.assert_array_equal(board, same_board)
        assert reward == same_reward
    assert any((a != b).any() for (a, _), (b, _) in zip(first, other, strict=False))


class _Legal(gymnasium.ActionWrapper[dict[str, NDArray[np.int64]], np.int64, np.int64]):
    """Replaces each action by a legal one, because the checker draws actions without a mask."""

    def action(self, action: np.int64) -> np.int64:
        legal = np.flatnonzero(self.get_wrapper_attr("action_masks")())
        return np.int64(legal[action % legal.size])


def test_gymnasiums_checker_accepts_it() -> None:
    check_env(_Legal(ColourLines(render_mode="rgb_array")), skip_render_check=True)
