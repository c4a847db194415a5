"""Real runs with the corners of the grid of `make stress-grid`."""

from pathlib import Path

import pytest

from stress.grid import BATCHES, Combination, combinations, train_with

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("combination", [Combination(64, 1, 1, 0), Combination(1, 4, 4, 8)], ids=str)
def test_a_corner_of_the_grid_trains_batches_and_replays(combination: Combination, tmp_path: Path) -> None:
    result = train_with(combination, tmp_path)
    assert result.faults == []
    assert result.batches >= BATCHES


def test_a_grid_has_at_least_as_many_actors_as_shards() -> None:
    grid = combinations([1, 2], [1, 2], [1, 2, 4], [0])
    assert [(each.actors, each.shards) for each in grid if each.environments == 1] == [(1, 1), (2, 1), (2, 2)]
