"""Misbehaving environments under `penstock train`: some of the cases of `make stress-odd-environments`."""

from pathlib import Path

import pytest

from stress.odd_runs import faults_of, train_with
from tests.support.environments.odd import env_id
from tests.support.machine.timing import start_patience_s

pytestmark = pytest.mark.nightly


def test_a_refused_environment_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    run = train_with("constructor_raises", tmp_path, start_patience_s())
    assert faults_of(run) == [], run
    assert run.end.stderr.startswith(f"penstock: can't make the environment '{env_id('constructor_raises')}': ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", ["forked_child", "everything_of_the_process", "late_exit_with_code_2", "late_nan_reward"]
)
def test_an_odd_environment_neither_ends_nor_corrupts_a_run_without_a_message(kind: str, tmp_path: Path) -> None:
    run = train_with(kind, tmp_path, start_patience_s())
    assert faults_of(run) == [], run
