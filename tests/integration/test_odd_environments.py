"""Environments that misbehave, under `penstock train`: a few of those that `make odd-environments` tries."""

from pathlib import Path

import pytest

from helpers.odd_environments import env_id
from helpers.odd_runs import broken_promises, train_with
from helpers.processes import PATIENCE_S


def test_an_environment_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    run = train_with("constructor_raises", tmp_path, PATIENCE_S)
    assert broken_promises(run) == [], run
    assert run.end.stderr.startswith(f"penstock: can't make the environment '{env_id('constructor_raises')}': ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["forked_child", "late_exit_with_code_2", "late_nan_reward"])
def test_an_odd_environment_neither_ends_a_run_silently_nor_spoils_it(kind: str, tmp_path: Path) -> None:
    run = train_with(kind, tmp_path, PATIENCE_S)
    assert broken_promises(run) == [], run
