"""Batches as tensors on the learner's device."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.types import Batch


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
        staleness: <int64>[B] versions between the learner and the policy that acted.
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


def to_tensors(batch: Batch, device: torch.device) -> TrainingBatch:
    """A batch on a device; on a CPU the columns are shared, not copied."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        with warnings.catch_warnings():
            # Columns are views of the message they came in, which is read-only; nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array).to(device, non_blocking=True)

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
        staleness=batch.number - batch.versions,
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
