"""Conversion of batches to tensors on the learner's device, before they are needed."""

import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.policies import Inputs, Policy
from penstock.errors import SchemaMismatch
from penstock.learning.step.demonstrations import DemonstratedSegments
from penstock.learning.step.devices import send
from penstock.types.block import Schema
from penstock.types.replay import Batch
from penstock.types.spaces import is_column_of

# Columns are views of the received message, which is read-only, and nothing here writes to them. Set globally, because
# `warnings.catch_warnings` is not thread-safe and batches are copied on a thread of their own.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


_AGE = "frame_age"
_COLUMNS = {
    *("reward", "terminated", "truncated", "valid", "behaviour_log_prob", "discounted_return"),
    *("action_mask", "memory", _AGE),
}
"""Columns that are trained on, besides the columns of observations and actions."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of the valid rows of a batch.

    Attributes:
        valid: Number of valid rows.
        stored_steps: Number of valid rows in segments of the store.
        fresh_steps: Number of valid rows in fresh segments.
        fresh_episodes: Number of episodes whose last step is in a fresh segment.
    """

    valid: int
    stored_steps: int
    fresh_steps: int
    fresh_episodes: int


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Facts about the rows of a batch that the host knows. Otherwise it would wait for the device to count them.

    Attributes:
        segment, step: <int64>[N] positions of the valid rows in [B, T], in order, so that the rows of fresh segments
            come first.
        segments: <int64>[S] segments with valid rows.
        counts: Their numbers.
    """

    segment: Tensor
    step: Tensor
    segments: Tensor
    counts: RowCounts

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> "KnownRows":
        """Counts the rows of a batch, and sends their positions to the device in one copy."""
        valid, terminated, truncated = (
            batch.columns.column(name).astype(np.bool_, copy=False) for name in ("valid", "terminated", "truncated")
        )
        fresh = slice(None, batch.fresh_segments)
        positions, segments = np.nonzero(valid), np.flatnonzero(valid.any(1))
        count = len(positions[0])
        sent = send(torch.from_numpy(np.concatenate([*positions, segments]).astype(np.int64, copy=False)), device)
        segment, step, segments_there = torch.split(sent, [count, count, len(segments)])
        ended = (valid & (terminated | truncated))[fresh]
        stored = int(np.count_nonzero(valid[: batch.keys.size]))
        counts = RowCounts(count, stored, int(np.count_nonzero(valid[fresh])), int(np.count_nonzero(ended)))
        return cls(segment, step, segments_there, counts)

    @property
    def steps(self) -> tuple[Tensor, Tensor]:
        """The index of the valid rows in columns, [B, T, ...]."""
        return self.segment, self.step

    def fresh(self, first: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the index of the valid rows of fresh segments in columns whose step 0 is row `first`."""
        count = self.counts.fresh_steps
        return self.segment[:count], self.step[:count] + first


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Batch of B segments of T steps, with time on the second axis and the fresh segments first.

    The S segments of the store come before those of demonstrations; without any, S is B.

    Attributes:
        fresh_segments: Number of fresh segments.
        observation: [B, burn-in + T + 1, ...] raw observations, as the policy saw them, one tensor per leaf. The last
            row follows the last step. Without memory there is no burn-in.
        action: <int64>[B, T], <int64>[B, T, k] or <float32>[B, T, A] actions, one tensor per leaf.
        reward: <float32>[B, T] raw rewards.
        terminated, truncated: <bool>[B, T] rows that terminate or truncate an episode.
        valid: <bool>[B, T] False for reset rows.
        behaviour_log_prob: <float32>[B, T] log probabilities of the actions when they were taken; NaN in
            demonstrations without them.
        discounted_return: <float32>[B, T] running discounted returns of raw rewards.
        action_mask: <uint8>[B, T, bytes] packed action masks, as the policy used them; None without masks.
        memory: <float32>[B, parts, H] states before the first row; None without memory.
        begun: <bool>[B, burn-in + T + 1] first rows of episodes; None without memory.
        priorities: <float64>[S] raw priorities at the draw.
        probabilities: <float64>[S] probabilities of the draw; 1 where fresh.
        staleness: <int64>[S] staleness in versions, as `Batch.ages`.
        rows: Facts about the rows that the host knows, with which training waits for the device once; None: it asks the
            device, which costs nothing on a CPU.
    """

    fresh_segments: int
    observation: tuple[Tensor, ...]
    action: tuple[Tensor, ...]
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    behaviour_log_prob: Tensor
    discounted_return: Tensor
    action_mask: Tensor | None
    memory: Tensor | None
    begun: Tensor | None
    priorities: Tensor
    probabilities: Tensor
    staleness: NDArray[np.int64]
    rows: KnownRows | None = None

    @property
    def inputs(self) -> Inputs:
        """The policy's inputs, and the row after the last step."""
        return Inputs(self.observation, self.action_mask, self.memory, self.begun)

    @property
    def counts(self) -> RowCounts:
        """Numbers of the valid rows."""
        if self.rows is not None:
            return self.rows.counts
        fresh = slice(None, self.fresh_segments)
        ended = ((self.terminated | self.truncated) & self.valid)[fresh]
        valid = int(self.valid.sum())
        stored = int(self.valid[: self.stored_segments].sum()) if self.demonstrations else valid
        return RowCounts(valid, stored, int(self.valid[fresh].sum()), int(ended.sum()))

    @property
    def stored_segments(self) -> int:
        """Number of segments of the store, S."""
        return len(self.staleness)

    @property
    def demonstrations(self) -> int:
        """Number of segments of demonstrations."""
        return self.valid.shape[0] - self.stored_segments

    def fresh_rows(self, column: Tensor, first: int = 0) -> Tensor:
        """Returns the valid rows of the fresh segments, [N, ...], of a column whose step 0 is row `first`."""
        if self.rows is not None:
            return column[self.rows.fresh(first)]
        fresh = slice(None, self.fresh_segments)
        return column[fresh, first : first + self.valid.shape[1]][self.valid[fresh]]

    @property
    def replayed(self) -> "TrainingBatch":
        """The replayed segments alone."""

        def part(value: object) -> object:
            if isinstance(value, tuple):
                return tuple(map(part, value))
            stored = slice(self.fresh_segments, self.stored_segments)
            return value[stored] if isinstance(value, Tensor | np.ndarray) else value

        values = {name: part(getattr(self, name)) for name in self.__slots__}
        return TrainingBatch(**(values | {"fresh_segments": 0, "rows": None}))  # type: ignore[arg-type]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the batch, which are on the device."""
        values = [getattr(self, name) for name in self.__slots__]
        rows = () if self.rows is None else (self.rows.segment, self.rows.step, self.rows.segments)
        return tuple(value for value in (*self.observation, *self.action, *values, *rows) if isinstance(value, Tensor))


def check_schema(schema: Schema, policy: Policy, burn_in: int) -> None:
    """Raises `SchemaMismatch` if actors record other states, rows of burn-in or masks than a policy trains on."""
    columns = {column.name: column for column in schema.columns}
    memory, age, mask = columns.get("memory"), columns.get(_AGE), columns.get("action_mask")
    for what, needed, recorded in (
        ("states of policy.memory of shape", policy.memory_shape, None if memory is None else memory.shape),
        ("rows of ppo.burn_in_steps:", burn_in, 0 if age is None else age.lead),
        ("bytes of action masks:", -(-policy.spec.mask_bits // 8), 0 if mask is None else mask.shape[0]),
    ):
        if needed != recorded:
            raise SchemaMismatch(
                f"the learner trains on {what} {needed}, and the actors' segments have {recorded}; start all services"
                " with the run's configuration"
            )


def to_tensors(batch: Batch, device: torch.device) -> TrainingBatch:
    """Moves a batch to a device.

    On a CPU the tensors share the columns' memory. On CUDA they are ready for use on the current stream.
    """

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return send(torch.from_numpy(array), device)

    schema = batch.columns.schema
    columns = {each.name: tensor(batch.columns.column(each.name)) for each in schema.columns if _is_used(each.name)}
    age, memory = columns.pop(_AGE, None), columns.pop("memory", None)
    observation = tuple(columns.pop(name) for name in tuple(columns) if is_column_of("observation", name))
    action = tuple(columns.pop(name) for name in tuple(columns) if is_column_of("action", name))
    if age is not None:
        observation = tuple(_stacked(frames, age) for frames in observation)
    return TrainingBatch(
        batch.fresh_segments,
        observation=observation,
        action=action,
        action_mask=columns.pop("action_mask", None),
        memory=None if memory is None else memory[:, 0],
        begun=None if age is None or memory is None else age == 0,
        **columns,
        priorities=tensor(batch.priorities),
        probabilities=tensor(batch.head.probabilities),
        staleness=batch.ages,
        rows=None if device.type == "cpu" else KnownRows.of(batch, device),
    )


def _is_used(name: str) -> bool:
    """Returns whether a column is trained on. A schema of another client may have further columns."""
    return name in _COLUMNS or is_column_of("observation", name) or is_column_of("action", name)


def _stacked(frames: Tensor, age: Tensor) -> Tensor:
    """Stacks the k frames that the policy saw at each of R rows along the channel axis, oldest first: [B, R, k C, ...].

    `frames`, [B, k - 1 + R, C, ...], has the k - 1 frames before the first row, then one per row. `age`, <uint8>[B, R],
    counts the rows since the episode's first frame, which replaces the frames before it. A leaf without stacked frames
    is returned unchanged.
    """
    segments, rows = age.shape
    count = frames.shape[1] - rows + 1
    if count == 1:
        return frames
    back = torch.arange(count - 1, -1, -1, device=age.device)
    newest = torch.arange(count - 1, count - 1 + rows, device=age.device)
    chosen = newest[:, None] - torch.minimum(back, age[..., None].long())
    stacked = frames[torch.arange(segments, device=age.device)[:, None, None], chosen]
    return stacked.flatten(2, 3)


class BatchFeed:
    """Feed of batches to the device. On CUDA a batch is copied when it arrives, while the previous one trains.

    `arrived` returns at once and may be called from a different thread than the other methods.
    """

    def __init__(self, device: torch.device, demonstrations: DemonstratedSegments | None = None) -> None:
        """Creates a thread and a stream for copies if this is a CUDA device. Adds `demonstrations` to each batch."""
        self._device, self._demonstrations = device, demonstrations
        self._copying = _Copying(device, self._to_tensors) if device.type == "cuda" else None
        self._arrived: deque[tuple[Batch, Future[_Copied]]] = deque()

    def arrived(self, batch: Batch) -> None:
        """Begins to copy a batch. `tensors` must be called for batches in the order of their arrival."""
        if self._copying is not None:
            self._arrived.append((batch, self._copying.begin(batch)))

    def tensors(self, batch: Batch) -> TrainingBatch:
        """Returns the batch on the device, for use on the current stream. A batch that never arrived is copied now."""
        if self._copying is None:
            return self._to_tensors(batch)
        while self._arrived:
            arrived, copy = self._arrived.popleft()
            if arrived is batch:
                return self._copying.finish(copy)
        return self._copying.finish(self._copying.begin(batch))

    def close(self) -> None:
        """Stops the thread, if there is one."""
        if self._copying is not None:
            self._copying.close()

    def _to_tensors(self, batch: Batch) -> TrainingBatch:
        whole = batch if self._demonstrations is None else self._demonstrations.added_to(batch)
        return to_tensors(whole, self._device)


@dataclass(frozen=True, slots=True)
class _Copied:
    """Batch with the event on the device that marks the end of its copy."""

    batch: TrainingBatch
    done: torch.cuda.Event


class _Copying:
    """Copies of batches on a thread and a stream separate from those that train."""

    def __init__(self, device: torch.device, to_tensors: Callable[[Batch], TrainingBatch]) -> None:
        self._device, self._to_tensors = device, to_tensors
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # One thread, so that batches are copied in the order in which they are used.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-copies")

    def begin(self, batch: Batch) -> Future[_Copied]:
        copied: Future[_Copied] = Future()
        self._thread.submit(self._copy, batch, copied)
        return copied

    def finish(self, copy: Future[_Copied]) -> TrainingBatch:
        """Returns the batch after ordering its copy before all later work on the current stream."""
        copied, current = copy.result(), torch.cuda.current_stream(self._device)
        current.wait_event(copied.done)
        for tensor in copied.batch.tensors:
            # Otherwise the next batch could be copied into this memory while the current stream still reads it.
            tensor.record_stream(current)
        return copied.batch

    def close(self) -> None:
        self._thread.shutdown()

    def _copy(self, batch: Batch, copied: Future[_Copied]) -> None:
        # Blocking, so that its wait does not use a core.
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(self._stream):
                tensors = self._to_tensors(batch)
                done.record(self._stream)
        except Exception as error:
            copied.set_exception(error)
            return
        copied.set_result(_Copied(tensors, done))
        # This call holds the batch, whose memory returns to its pool once nothing does, until it has been read.
        done.synchronize()
