"""Tests kills of the replay service before each line of its code that follows a change of the store's memory.

The test runs a short sequence of windows, batches and learners. It copies the files when a line of `penstock.replay` is
about to run and the mapped memory has changed. Each copy is the store after a kill. It must open undamaged, with all
acknowledged segments and commits.
"""

import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import penstock.replay
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.layout import RECORDS_FILE, SEGMENTS_FILE
from penstock.replay.store.ring_store import RingStore
from penstock.types.replay import Batch, SamplingPlan
from tests.support.segments.direct_buffer import append, gather, read_rows
from tests.support.segments.segments import PLAN, SCHEMA, assert_same_columns, capacity_bytes, make_columns, make_window

ROWS, WINDOW = 24, 4
ACTOR = ActorKey(0, 1)
FIRST = replace(PLAN, batch_segments=8, fresh_segments=WINDOW, off_policy_degree=2)
SECOND = replace(FIRST, session=FIRST.session + 1)


@dataclass(frozen=True, slots=True)
class Copy:
    """Store after a kill, and the state acknowledged before the kill.

    Attributes:
        files: Contents of the files by name.
        stored: Last sequence that was acknowledged to the actor.
        sent: Last sequence that the actor had sent.
        trained: Number of batches whose commits were answered.
        plan: Last plan of the learner.
        batch: Batch that the learner holds.
    """

    files: dict[str, bytes]
    stored: int
    sent: int
    trained: int
    plan: SamplingPlan
    batch: Batch | None


@dataclass
class Story:
    """Events of one store, and its copies."""

    folder: Path
    copies: list[Copy] = field(default_factory=list)
    stored: int = 0
    sent: int = 0
    trained: int = 0
    plan: SamplingPlan = FIRST
    batch: Batch | None = None
    last: int = 0

    def play(self) -> None:
        store = RingStore(self.folder, capacity_bytes(ROWS))
        buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            buffer.adopt_plan(self.plan)
            buffer.intakes.open(ACTOR, SCHEMA, WINDOW, 0.0)
            # The windows have more segments than the ring has rows, so that the ring wraps around.
            for number in range(9):
                if number == 5:
                    self.plan = replace(SECOND, next_batch=self.trained + 3)
                    buffer.adopt_plan(self.plan)
                self._send(buffer)
                self._train(buffer, self.plan.next_batch + (number - 5 if number >= 5 else number))
        finally:
            sys.settrace(before)

    def _send(self, buffer: ReplayBuffer) -> None:
        buffer.intakes.issue_grants(0.0)
        window = make_window(self.sent + 1, segments=WINDOW, version=buffer.version)
        self.sent += WINDOW
        assert append(buffer, window, 0.0) == self.sent
        self.stored = self.sent

    def _train(self, buffer: ReplayBuffer, number: int) -> None:
        lease = buffer.leases.draw(number)
        assert lease is not None
        self.batch = gather(buffer, lease)
        buffer.leases.commit(self.plan.session, number, self.batch.keys, np.ones(self.batch.keys.size))
        self.trained, self.batch = self.trained + 1, None

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(str(Path(penstock.replay.__file__).parent)):
            return None
        files = {path.name: path.read_bytes() for path in self.folder.iterdir() if path.is_file()}
        now = zlib.crc32(b"".join(files[name] for name in sorted(files)))
        if now != self.last:
            self.last = now
            self.copies.append(Copy(files, self.stored, self.sent, self.trained, self.plan, self.batch))
        return self._trace


def check(copy: Copy, folder: Path) -> None:
    for name, content in copy.files.items():
        (folder / name).write_bytes(content)
    store = RingStore(folder, capacity_bytes(ROWS))
    assert store.recovery.damaged == 0
    rows = np.flatnonzero(store.headers["key"])
    sequences = store.headers["sequence"][rows]
    if rows.size:
        into = SCHEMA.empty(rows.size)
        read_rows(store, rows, into)
        assert_same_columns(into, make_columns([(0, 1, int(sequence)) for sequence in sequences]))
    present = set(sequences.tolist())
    assert len(present) == rows.size
    # Each batch trains the fresh segments of one window, in order. Later segments are untrained and must be present.
    assert set(range(copy.trained * WINDOW + 1, copy.stored + 1)) <= present
    # Trained segments may be overwritten by newer ones, including the window that is being written.
    assert set(range(max(1, copy.sent + 1 - ROWS), copy.stored + 1)) <= present
    # The only rows that a kill empties are those that were being written, even before their keys are recorded.
    keys = set(store.headers["key"][rows].tolist())
    newest = range(max(1, store.session.next_key - ROWS), store.session.next_key)
    assert len(set(newest) - keys) <= store.recovery.torn
    buffer = ReplayBuffer(store, Gate(10.0, max_actors=8))
    buffer.adopt_plan(copy.plan)
    watermark = buffer.intakes.open(ACTOR, SCHEMA, WINDOW, 0.0).stored_sequence
    assert copy.stored <= watermark <= copy.sent
    # All segments up to the sequence that is acknowledged now are stored.
    assert set(range(copy.trained * WINDOW + 1, watermark + 1)) <= present
    if copy.batch is not None:
        drawn = copy.batch.keys
        outcome = buffer.leases.commit(copy.plan.session, copy.batch.number, drawn, np.ones(drawn.size))
        assert outcome.repeated or outcome.updated == drawn.size
    # The actor sends the unacknowledged window again.
    if watermark < copy.sent:
        buffer.intakes.issue_grants(0.0)
        window = make_window(watermark + 1, segments=copy.sent - watermark, version=buffer.version)
        assert append(buffer, window, 0.0) == copy.sent


def test_a_kill_before_any_line_loses_no_acknowledged_data(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    story = Story(folder)
    story.play()
    # Each window, lease and commit changes the memory at several lines.
    assert len(story.copies) > 100
    assert {SEGMENTS_FILE, RECORDS_FILE} <= story.copies[0].files.keys()
    for number, copy in enumerate(story.copies):
        place = tmp_path / str(number)
        place.mkdir()
        check(copy, place)
