"""The judge of the peers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.judge import EPISODES, Goal, Judge


def balance(observation: NDArray[np.float32]) -> NDArray[Any]:
    """Keeps the pole of CartPole up for hundreds of steps."""
    return (observation[:, 2] + 0.5 * observation[:, 3] > 0).astype(np.int64)


def always_right(observation: NDArray[np.float32]) -> NDArray[Any]:
    return np.ones(len(observation), np.int64)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_policies_are_judged_at_the_intervals_and_by_whole_episodes(tmp_path: Path) -> None:
    goal = Goal("CartPole-v1", 1_000, 0, tmp_path / "journal.jsonl")
    judge, rows = Judge(goal), []

    def act(observation: NDArray[np.float32]) -> NDArray[Any]:
        rows.append(len(observation))
        return always_right(observation)

    judge.look(999, act)
    assert rows == []
    judge.look(1_500, act)
    assert set(rows) == {EPISODES}
    # The next one is due at 2,000, not at 2,500.
    judge.look(1_999, balance)
    judge.look(2_000, balance)
    lines = lines_of(goal.journal)
    assert [(line["kind"], line["env_steps"]) for line in lines] == [
        ("training", 0),
        ("training", 999),
        ("evaluation", 1_500),
        ("training", 1_999),
        ("evaluation", 2_000),
    ]
    # A pole that is pushed to one side falls after eight to eleven steps.
    assert 8.0 <= lines[2]["return_mean"] <= 11.0
    assert lines[4]["return_mean"] > 100.0


def test_a_seed_repeats_its_evaluations_and_each_has_other_episodes(tmp_path: Path) -> None:
    found = []
    for name in ("first", "again"):
        goal = Goal("CartPole-v1", 100, 3, tmp_path / name)
        judge = Judge(goal)
        judge.look(100, always_right)
        judge.look(200, always_right)
        judge.look(300, always_right)
        found.append([line["return_mean"] for line in lines_of(goal.journal) if line["kind"] == "evaluation"])
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


def test_a_command_line_is_parsed_again(tmp_path: Path, monkeypatch: Any) -> None:
    goal = Goal("Acrobot-v1", 8_192, 2, tmp_path / "journal.jsonl")
    monkeypatch.setattr("sys.argv", ["program", *goal.options()])
    assert Goal.from_arguments() == goal
