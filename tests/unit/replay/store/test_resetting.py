"""A store's version, set back on purpose: what remains of the store, and that a learner of its run can go on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.commands.reset_version import command
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ages import Ages
from penstock.replay.store.resetting import reset_version
from penstock.replay.store.store_files import held
from penstock.types.replay import SamplingPlan
from tests.support.segments.direct_buffer import Actor, commit, make_buffer, take
from tests.support.segments.segments import PLAN

RUN, KEY = 0xABC, b"\x01" * 32
WIDE = replace(PLAN, run=RUN, batch_segments=2, fresh_segments=2, off_policy_degree=2)
JUMP = 10**6


def opened(folder: Path) -> ReplayBuffer:
    return make_buffer(None, folder=folder)


def trained(folder: Path, batches: int = 3) -> ReplayBuffer:
    """Returns a store of the run that was trained on some batches."""
    buffer = opened(folder)
    buffer.adopt_plan(WIDE, KEY)
    actor = Actor(buffer)
    for number in range(batches):
        actor.send(version=number)
        commit(buffer, take(buffer, number), session=WIDE.session)
    return buffer


def plan(next_batch: int) -> SamplingPlan:
    return replace(WIDE, session=77, next_batch=next_batch)


def test_a_store_whose_version_was_moved_far_ahead_can_be_set_back(tmp_path: Path) -> None:
    buffer = trained(tmp_path)
    buffer.adopt_plan(plan(3 + JUMP), KEY)
    del buffer
    with pytest.raises(SchemaMismatch) as refused:
        opened(tmp_path).adopt_plan(replace(WIDE, session=78, next_batch=3), KEY)
    message = str(refused.value)
    assert "both are of this run" in message and "another run" not in message and "\n" not in message
    assert f"penstock replay reset-version {tmp_path} --to 3" in message
    assert reset_version(tmp_path, 3).former_version == 3 + JUMP
    again = opened(tmp_path)
    again.adopt_plan(replace(WIDE, session=78, next_batch=3), KEY)
    assert (again.version, again.counts().stored) == (3, 6)
    # No segment became older by the numbers that were passed over, also after more training and another start.
    actor = Actor(again, slot=1)
    for number in range(3, 6):
        actor.send(version=number)
        commit(again, take(again, number), session=78)
    assert again.sample_replayable()[1].tolist() == [6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]
    assert opened(tmp_path).sample_replayable()[1].tolist() == [6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]


def test_a_version_further_ahead_makes_no_segment_older(tmp_path: Path) -> None:
    trained(tmp_path)
    done = reset_version(tmp_path, 10**9)
    assert (done.run, done.former_version, done.kept, done.removed) == (RUN, 3, 6, 0)
    buffer = opened(tmp_path)
    buffer.adopt_plan(plan(10**9), KEY)
    assert buffer.sample_replayable()[1].tolist() == [3, 3, 2, 2, 1, 1]


def test_segments_of_later_versions_are_removed_and_leases_end(tmp_path: Path) -> None:
    buffer = trained(tmp_path)
    actor = Actor(buffer, slot=1)
    actor.send(version=3)
    take(buffer, 3)
    done = reset_version(tmp_path, 1)
    assert (done.kept, done.removed) == (4, 4)
    again = opened(tmp_path)
    again.adopt_plan(plan(1), KEY)
    assert (again.counts().leased, again.counts().stored) == (0, 4)


def test_the_store_keeps_its_run_and_its_key(tmp_path: Path) -> None:
    owner = trained(tmp_path).store.owner
    reset_version(tmp_path, 0)
    assert opened(tmp_path).store.owner == owner


def test_a_store_in_use_is_refused_and_unchanged(tmp_path: Path) -> None:
    trained(tmp_path)
    with held(tmp_path, alone=False), pytest.raises(ConfigurationError, match="a replay service uses the store"):
        reset_version(tmp_path, 0)
    assert opened(tmp_path).version == 3


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_without_a_store_is_refused_and_stays_as_it_is(tmp_path: Path, missing: bool) -> None:
    folder = tmp_path / "absent" if missing else tmp_path
    with pytest.raises(ConfigurationError, match="there is no store"):
        reset_version(folder, 0)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path)
    assert command(["reset-version", str(tmp_path), "--to", "1"]) == 0
    assert capsys.readouterr().out == (
        f"store {tmp_path} of run {RUN:016x}: version 3 -> 1; 4 segments kept, 2 of later versions removed\n"
    )
    with pytest.raises(ConfigurationError, match="a version is from 0"):
        command(["reset-version", str(tmp_path), "--to=-1"])


def test_a_gap_above_a_version_that_was_set_back_does_not_return(tmp_path: Path) -> None:
    buffer = trained(tmp_path)
    buffer.adopt_plan(plan(3 + JUMP), KEY)
    reset_version(tmp_path, 3)
    records = opened(tmp_path).store.records
    assert Ages(records, 500).clock(np.array([400])).tolist() == [400]
