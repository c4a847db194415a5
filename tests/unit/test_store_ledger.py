"""The ledger of the drill over nodes notices every segment that is lost, stored twice, torn or out of order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.layout import HEADER, SEGMENTS_FILE
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.replay import Window, WindowHead
from tests.e2e.nodes.task import Marked
from tests.support.segments.direct_buffer import append
from tests.support.segments.segments import PLAN, capacity_bytes
from tests.support.segments.store_ledger import Account, account, acknowledged_in

STEPS, ROWS = 3, 60
SCHEMA = Schema(
    STEPS,
    (
        Column("observation", "float32", (4,), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("behaviour_log_prob", "float32"),
    ),
)
PLACE = (0, 1)


class Recorded:
    """Windows of two environments in slot 0, which are stored as an actor would send them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = RingStore(folder, capacity_bytes(ROWS, SCHEMA))
        self._buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
        self._buffer.adopt_plan(replace(PLAN, batch_segments=16, fresh_segments=16))
        self._buffer.intakes.open(ActorKey(*PLACE), SCHEMA, 2, 0.0)
        self._environments = [Marked(pause_s=0.0), Marked(pause_s=0.0)]
        self._last = [environment.reset()[0] for environment in self._environments]
        self.sent = 0

    def send(self, windows: int = 1, *, skip: bool = False, version: int = 0) -> None:
        """Collects windows and stores them; with `skip`, the first one is lost without a gap in sequence."""
        for number in range(windows):
            columns = self._collect()
            if number == 0 and skip:
                continue
            self.store(columns, version)

    def store(self, columns: Columns, version: int = 0) -> None:
        self._buffer.intakes.issue_grants(0.0)
        head = WindowHead(*PLACE, self.sent + 1, version, np.arange(2, dtype=np.uint32))
        assert append(self._buffer, Window(head, columns)) == self.sent + 2
        self.sent += 2

    def collect(self) -> Columns:
        return self._collect()

    def _collect(self) -> Columns:
        columns = SCHEMA.empty(2)
        for array in columns.arrays:
            array[...] = 0
        for index, environment in enumerate(self._environments):
            columns.arrays[0][index, 0] = self._last[index]
            for step in range(1, STEPS + 1):
                observation, _, terminated, _, _ = environment.step(np.int64(0))
                columns.arrays[0][index, step] = environment.reset()[0] if terminated else observation
            self._last[index] = columns.arrays[0][index, STEPS].copy()
        return columns

    def account(self, acknowledged: int | None = None) -> Account:
        return account({PLACE: self.sent if acknowledged is None else acknowledged}, self.folder)

    def change(self, row: int, field: str, value: int) -> None:
        headers: NDArray[Any] = np.memmap(self.folder / SEGMENTS_FILE, np.uint8, "r+")[: ROWS * HEADER.itemsize]
        headers.view(HEADER)[row][field] = value


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "store")


def test_a_sound_store_is_balanced(recorded: Recorded) -> None:
    recorded.send(4)
    assert recorded.account() == Account(8, 8, 0, 0, 0, 0, 0)
    assert recorded.account().balanced


def test_stored_segments_whose_acknowledgement_was_lost_are_no_fault(recorded: Recorded) -> None:
    recorded.send(4)
    assert recorded.account(6).balanced


def test_nothing_acknowledged_is_not_balanced(recorded: Recorded) -> None:
    recorded.send(1)
    assert not recorded.account(0).balanced


def test_an_acknowledged_segment_that_is_missing_is_lost(recorded: Recorded) -> None:
    recorded.send(4)
    assert recorded.account(9).lost == 1
    recorded.change(3, "key", 0)
    found = recorded.account()
    assert (found.lost, found.balanced) == (1, False)


def test_a_name_that_is_stored_twice_is_a_duplicate(recorded: Recorded) -> None:
    recorded.send(4)
    recorded.change(5, "sequence", 3)
    assert recorded.account().duplicated == 1


def test_content_that_is_stored_under_two_names_is_a_duplicate(recorded: Recorded) -> None:
    columns = recorded.collect()
    recorded.store(columns)
    recorded.store(columns)
    assert recorded.account().duplicated == 2


def test_a_window_that_was_dropped_without_a_gap_in_names_is_noticed_by_its_content(recorded: Recorded) -> None:
    recorded.send(2)
    recorded.send(2, skip=True)
    assert recorded.account().torn == 2


def test_a_segment_that_is_not_one_piece_is_torn(recorded: Recorded) -> None:
    columns = recorded.collect()
    columns.arrays[0][0, 2] = columns.arrays[0][0, 1]
    recorded.store(columns)
    assert recorded.account().torn == 1


def test_versions_that_go_back_within_a_slot_are_counted(recorded: Recorded) -> None:
    recorded.send(2)
    recorded.change(1, "version", 5)
    # The third and the fourth segment follow the first row with version 5.
    assert recorded.account().backwards == 3


def test_the_last_acknowledgement_of_each_life_counts() -> None:
    log = [
        {"event": "stored", "slot": 0, "incarnation": 1, "sequence": 4},
        {"event": "joined", "slot": 0, "incarnation": 1},
        {"event": "stored", "slot": 0, "incarnation": 1, "sequence": 8},
        {"event": "stored", "slot": 0, "incarnation": 2, "sequence": 4},
    ]
    assert acknowledged_in(log) == {(0, 1): 8, (0, 2): 4}
