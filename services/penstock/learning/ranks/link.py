"""Messages of rank 0 to the other ranks: how to begin, the batches, which to train next, and the end.

Batches are sent ahead, while the batch before trains. Each end has a thread for the messages. Rank 0 sends a sign of
life when it has nothing else to say: either end then notices within seconds that the other has ended, however long the
learner waits for actors.
"""

import enum
import functools
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from penstock.learning.ranks.group import RankGroup, lost
from penstock.types.block import Column, Schema
from penstock.types.payloads import Memory, PayloadPool, columns_in, layout
from penstock.types.records import plain, record_of
from penstock.types.replay import Batch, BatchHead, StoreCounts

_SIGN_OF_LIFE_S = 2.0
_FAREWELL_S = 5.0
_END_S = 15.0
"""Seconds for a clean end after a rank was lost. The process then ends anyway: on CUDA, a sum can't be interrupted."""


class _Kind(enum.IntEnum):
    """Kind of a message."""

    SIGN_OF_LIFE = 0
    OPENING = 1
    BATCH = 2
    TRAIN = 3
    END = 4


_HEADER = np.dtype(
    [
        ("kind", np.int64),
        ("number", np.int64),
        ("fresh_segments", np.int64),
        ("segments", np.int64),
        ("progress", np.float64),
        ("content_bytes", np.int64),
    ]
)
"""First part of a message. The ranks are processes of one release on hosts with one byte order."""

_Header = NDArray[np.void]
_Content = NDArray[np.uint8]

_OF_SEGMENTS = 3
"""Numbers of 8 bytes that a batch's content has for each segment, before the columns: age, priority, probability."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Message with which a rank begins.

    Attributes:
        config: Configuration of rank 0, as TOML.
        schema: Schema of the segments.
        checkpoint: The learner's state, as the bytes of a checkpoint.
    """

    config: str
    schema: Schema
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class Task:
    """A batch to train now, with the run's progress, 0 to 1, which schedules follow."""

    batch: Batch
    progress: float


def _nothing() -> _Content:
    return np.zeros(0, np.uint8)


class LeadingLink:
    """Rank 0's end. Any thread may call its methods, which return at once, except for `close`.

    Batches are encoded on the thread that sends them: they arrive on the event loop, which must not wait for a copy.
    """

    def __init__(self, group: RankGroup) -> None:
        """Starts the thread that sends."""
        self._group, self._pool = group, PayloadPool()
        self._messages: queue.SimpleQueue[tuple[_Header, Callable[[], _Content]]] = queue.SimpleQueue()
        self._carrier = _Carrier(group, self._send)

    def open(self, opening: Opening) -> None:
        """Has the other ranks begin."""
        self._put(_Kind.OPENING, functools.partial(_encode_opening, opening))

    def send(self, batch: Batch) -> None:
        """Sends a batch ahead of its training."""
        self._put(
            _Kind.BATCH,
            functools.partial(_encode_batch, batch, self._pool),
            number=batch.number,
            fresh_segments=batch.fresh_segments,
            segments=batch.keys.size,
        )

    def train(self, batch: Batch, progress: float) -> None:
        """Has the other ranks train a batch that was sent. Raises `RankLost` as `check`."""
        self.check()
        self._put(_Kind.TRAIN, number=batch.number, progress=progress)

    def check(self) -> None:
        """Raises `RankLost` if another rank is known to have ended."""
        self._carrier.check()

    def close(self) -> None:
        """Has the other ranks end, and waits until they know."""
        self._put(_Kind.END)
        self._carrier.close(_FAREWELL_S)

    def _put(self, kind: _Kind, encode: Callable[[], _Content] = _nothing, **values: float) -> None:
        header = np.zeros(1, _HEADER)
        for name, value in {"kind": kind, **values}.items():
            header[name] = value
        self._messages.put((header, encode))

    def _send(self) -> None:
        kind = _Kind.SIGN_OF_LIFE
        while kind != _Kind.END:
            try:
                header, encode = self._messages.get(timeout=_SIGN_OF_LIFE_S)
            except queue.Empty:
                header, encode = np.zeros(1, _HEADER), _nothing
            content = encode()
            header["content_bytes"] = content.size
            _broadcast(self._group, header.view(np.uint8))
            if content.size:
                _broadcast(self._group, content)
            kind = _Kind(header["kind"][0])


class FollowingLink:
    """The end of another rank. One thread calls its methods."""

    def __init__(self, group: RankGroup, arrived: Callable[[Batch], None], memory: Memory | None = None) -> None:
        """Starts the thread that receives, which calls `arrived` with each batch. `memory` allocates a batch's."""
        self._group, self._arrived, self._pool = group, arrived, PayloadPool(memory=memory)
        self._received: queue.SimpleQueue[Opening | Task | Exception | None] = queue.SimpleQueue()
        self._carrier = _Carrier(group, self._receive, self._received.put)

    def opening(self) -> Opening | None:
        """Waits until rank 0 has begun; None if it ends the run before. Raises `RankLost` if it fails."""
        opening = self._next()
        assert opening is None or isinstance(opening, Opening)
        return opening

    def tasks(self) -> Iterator[Task]:
        """Yields the batches to train until rank 0 ends the run. Raises `RankLost` if it fails."""
        while (task := self._next()) is not None:
            assert isinstance(task, Task)
            yield task

    def close(self) -> None:
        """Stops waiting for rank 0, which learns at the end of this process that the rank has ended."""
        self._carrier.close(0.0)

    def _next(self) -> Opening | Task | None:
        received = self._received.get()
        if isinstance(received, Exception):
            raise received
        return received

    def _receive(self) -> None:
        header, batches, schema = np.zeros(1, _HEADER), dict[int, Batch](), Schema(0, ())
        while True:
            _broadcast(self._group, header.view(np.uint8))
            kind, size, number = _Kind(header["kind"][0]), int(header["content_bytes"][0]), int(header["number"][0])
            content = self._pool.take(size) if kind == _Kind.BATCH else np.empty(size, np.uint8)
            if size:
                _broadcast(self._group, content)
            match kind:
                case _Kind.OPENING:
                    opening = _decode_opening(content)
                    schema = opening.schema
                    self._received.put(opening)
                case _Kind.BATCH:
                    batches[number] = _decode_batch(header, content, schema)
                    self._arrived(batches[number])
                case _Kind.TRAIN:
                    self._received.put(Task(batches[number], float(header["progress"][0])))
                    # Without those before it, which are not trained.
                    batches = {later: batch for later, batch in batches.items() if later > number}
                case _Kind.END:
                    self._received.put(None)
                    return
                case _Kind.SIGN_OF_LIFE:
                    pass


class _Carrier:
    """Thread of one end of the link. It ends the process if nothing else does so after a failure."""

    def __init__(
        self, group: RankGroup, work: Callable[[], None], failed: Callable[[Exception], None] = lambda failure: None
    ) -> None:
        """Starts the work. `failed` is called with its failure, which is `RankLost` if torch reports it."""
        self._group, self._work, self._failed = group, work, failed
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self, wait_s: float) -> None:
        """Leaves the end of the process to the caller, after waiting up to `wait_s` for the end of the work."""
        self._closing.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self._failure = lost(self._group.place, error) if isinstance(error, RuntimeError) else error
            self._failed(self._failure)
            if not self._closing.wait(_END_S):
                sys.stderr.write(f"penstock: {self._failure}\n")
                sys.stderr.flush()
                os._exit(1)


def _broadcast(group: RankGroup, content: _Content) -> None:
    dist.broadcast(torch.from_numpy(content), src=0, group=group.link)


def _encode_opening(opening: Opening) -> _Content:
    columns = [plain(column) for column in opening.schema.columns]
    described = {"config": opening.config, "unroll_length": opening.schema.unroll_length, "columns": columns}
    text = json.dumps(described).encode()
    return np.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + opening.checkpoint), np.uint8)


def _decode_opening(content: _Content) -> Opening:
    data = content.tobytes()
    end = 8 + int.from_bytes(data[:8], "little")
    described = json.loads(data[8:end])
    columns = tuple(record_of(Column, column) for column in described["columns"])
    return Opening(described["config"], Schema(described["unroll_length"], columns), data[end:])


def _encode_batch(batch: Batch, pool: PayloadPool) -> _Content:
    schema, segments = batch.columns.schema, batch.keys.size
    before = 8 * _OF_SEGMENTS * segments
    content = pool.take(before + layout(schema, segments)[1])
    ages, priorities, probabilities = content[:before].reshape(_OF_SEGMENTS, -1)
    ages.view(np.int64)[:] = batch.ages
    priorities.view(np.float64)[:] = batch.priorities
    probabilities.view(np.float64)[:] = batch.head.probabilities
    columns = columns_in(schema, segments, content[before:])
    for room, column in zip(columns.arrays, batch.columns.arrays, strict=True):
        room[...] = column
    return content


def _decode_batch(header: _Header, content: _Content, schema: Schema) -> Batch:
    """Returns a batch whose columns are views of the content. Its keys, which only a commit needs, are 0."""
    number, fresh, segments = (int(header[name][0]) for name in ("number", "fresh_segments", "segments"))
    before = 8 * _OF_SEGMENTS * segments
    ages, priorities, probabilities = content[:before].reshape(_OF_SEGMENTS, -1)
    head = BatchHead(
        number,
        fresh,
        keys=np.zeros(segments, np.uint64),
        versions=number - ages.view(np.int64),
        priorities=priorities.view(np.float64),
        probabilities=probabilities.view(np.float64),
        counts=StoreCounts(),
    )
    return Batch(head, columns_in(schema, segments, content[before:]))
