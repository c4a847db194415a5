"""Batches as tensors on the learner's device, ready when they are needed."""

import warnings
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.learning.devices import send
from penstock.types import Batch

# Columns are views of the message they came in, which is read-only, and nothing here writes to them. Set once:
# `warnings.catch_warnings` is for one thread, and batches are copied by another than trains.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """B segments of T steps, time in the second axis; the first `fresh_segments` were never trained on.

    Attributes:
        fresh_segments: How many are fresh.
        observation: [B, T + 1, ...] raw, as the policy saw it; the last row follows the last step.
        action: <int64>[B, T] or <float32>[B, T, A].
        reward: <float32>[B, T] raw.
        terminated, truncated: <bool>[B, T].
        valid: <bool>[B, T] False where a row only reset.
        behaviour_log_prob: <float32>[B, T].
        discounted_return: <float32>[B, T] running, of raw rewards.
        priorities: <float64>[B] raw, at the draw.
        staleness: <int64>[B] versions between the learner and the policy that acted, as `Batch.ages`.
    """

    fresh_segments: int
    observation: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    behaviour_log_prob: Tensor
    discounted_return: Tensor
    priorities: Tensor
    staleness: NDArray[np.int64]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that is on the device."""
        values = (getattr(self, name) for name in self.__slots__)
        return tuple(value for value in values if isinstance(value, Tensor))


def to_tensors(batch: Batch, device: torch.device) -> TrainingBatch:
    """A batch on a device; on a CPU the columns are shared, not copied. On CUDA, for use in the current stream."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return send(torch.from_numpy(array), device)

    def column(name: str) -> Tensor:
        return tensor(batch.columns.column(name))

    frames = any(each.name == "frame_age" for each in batch.columns.schema.columns)
    return TrainingBatch(
        fresh_segments=batch.fresh_segments,
        observation=_stacked(column("observation"), column("frame_age")) if frames else column("observation"),
        action=column("action"),
        reward=column("reward"),
        terminated=column("terminated"),
        truncated=column("truncated"),
        valid=column("valid"),
        behaviour_log_prob=column("behaviour_log_prob"),
        discounted_return=column("discounted_return"),
        priorities=tensor(batch.priorities),
        staleness=batch.ages,
    )


def _stacked(frames: Tensor, age: Tensor) -> Tensor:
    """The frames that the policy saw at each row, stacked along the first axis, the oldest first.

    Args:
        frames: [B, T + k, C, ...] the k - 1 before the first row, then those of the rows.
        age: <uint8>[B, T + 1] rows since the episode's first frame, which stands in for those before it.

    Returns:
        [B, T + 1, k C, ...].
    """
    segments, rows = age.shape
    count = frames.shape[1] - rows + 1
    back = torch.arange(count - 1, -1, -1, device=age.device)
    newest = torch.arange(count - 1, count - 1 + rows, device=age.device)
    chosen = newest[:, None] - torch.minimum(back, age[..., None].long())
    stacked = frames[torch.arange(segments, device=age.device)[:, None, None], chosen]
    return stacked.flatten(2, 3)


class BatchFeed:
    """Has batches ready on the device: on CUDA they are copied when they arrive, while the batch before them trains.

    `arrived` may be called from another thread than the rest, and returns at once.
    """

    def __init__(self, device: torch.device) -> None:
        """Has one thread and one stream of its own if the device is CUDA's, and nothing of that kind elsewhere."""
        self._device = device
        self._copying = _Copying(device) if device.type == "cuda" else None
        self._arrived: deque[tuple[Batch, Future[_Copied]]] = deque()

    def arrived(self, batch: Batch) -> None:
        """Begins to copy a batch that `tensors` will be asked for, after those that arrived before it."""
        if self._copying is not None:
            self._arrived.append((batch, self._copying.begin(batch)))

    def tensors(self, batch: Batch) -> TrainingBatch:
        """The batch on the device, for use in the current stream. One that never arrived is copied now."""
        if self._copying is None:
            return to_tensors(batch, self._device)
        while self._arrived:
            arrived, copy = self._arrived.popleft()
            if arrived is batch:
                return self._copying.finish(copy)
        return self._copying.finish(self._copying.begin(batch))

    def close(self) -> None:
        """Ends the thread, if there is one."""
        if self._copying is not None:
            self._copying.close()


@dataclass(frozen=True, slots=True)
class _Copied:
    """A batch whose copy is done at an event on the device."""

    batch: TrainingBatch
    done: torch.cuda.Event


class _Copying:
    """Copies batches by a thread and a stream beside those that train."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # One, so that batches are copied in the order in which they are used.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-copies")

    def begin(self, batch: Batch) -> Future[_Copied]:
        return self._thread.submit(self._copy, batch)

    def finish(self, copy: Future[_Copied]) -> TrainingBatch:
        """The batch, once its copy is in line before whatever the current stream is given next."""
        copied, current = copy.result(), torch.cuda.current_stream(self._device)
        current.wait_event(copied.done)
        for tensor in copied.batch.tensors:
            # Else the next batch might be copied over it while the current stream still reads.
            tensor.record_stream(current)
        return copied.batch

    def close(self) -> None:
        self._thread.shutdown()

    def _copy(self, batch: Batch) -> _Copied:
        with torch.cuda.stream(self._stream):
            tensors = to_tensors(batch, self._device)
            return _Copied(tensors, self._stream.record_event())
