"""Recurrent layers: a state that a policy carries from row to row of an episode.

A state is <float32>[..., parts, H]. A GRU (Cho et al. 2014) has one part, and an LSTM (Hochreiter & Schmidhuber 1997)
has two: its output and its cell. At the first row of an episode the state before the row is zero.

`Memory` computes row by row, and `lstm_by_sequences` computes the same with torch's kernel. Gates have torch's order.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from penstock.algo.encoders import initialised
from penstock.types.spaces import MEMORY_PARTS, MemoryKind

_GATES: dict[MemoryKind, int] = {"gru": 3, "lstm": 4}

_LONGEST_TIME = 1000.0
"""Steps over which the slowest unit keeps its state before training."""


Unroll = Callable[["Memory", Tensor, Tensor, Tensor], Tensor]
"""Function that computes the outputs of `Memory.unroll` from its arguments."""


class Memory(nn.Module):
    """One recurrent layer of H units.

    The state stays in float32 under autocast.

    Attributes:
        shape: Shape of one state, (parts, H).
    """

    def __init__(self, kind: MemoryKind, features: int, size: int) -> None:
        super().__init__()
        self.shape = (MEMORY_PARTS[kind], size)
        self._cell: Callable[[Tensor, Tensor, Tensor], Tensor] = _gru if kind == "gru" else _lstm
        self.inputs = initialised(nn.Linear(features, _GATES[kind] * size), 1.0)
        self.recurrence = initialised(nn.Linear(size, _GATES[kind] * size), 1.0)
        self._slow_down_half(kind, size)
        self._rows: Callable[[Memory, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = Memory._unroll_rows

    def leave_out_of_compilation(self) -> None:
        """Excludes `unroll` from torch.compile, which would compile each row for itself. That takes minutes."""
        self._rows = torch.compiler.disable(Memory._unroll_rows)  # type: ignore[no-untyped-call]

    def step(self, features: Tensor, state: Tensor, begun: Tensor) -> Tensor:
        """Returns the state after a row of features, <float32>[N, F], from the state before it, [N, parts, H].

        `begun`, <bool>[N], marks first rows of episodes.
        """
        return self._after(self.inputs(features), state, begun)

    def unroll(self, features: Tensor, state: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the outputs after each of L rows, <float32>[B, L, H], and the state after the last, [B, parts, H].

        Args:
            features: <float32>[B, L, F] features of the rows.
            state: <float32>[B, parts, H] state before the first row.
            begun: <bool>[B, L] first rows of episodes.
        """
        return self._rows(self, features, state, begun)

    def _unroll_rows(self, features: Tensor, state: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for inputs, first in zip(self.inputs(features).unbind(1), begun.unbind(1), strict=True):
            state = self._after(inputs, state, first)
            outputs.append(state[:, 0])
        return torch.stack(outputs, 1), state

    def _after(self, inputs: Tensor, state: Tensor, begun: Tensor) -> Tensor:
        # `where`, because multiplying by 0 would let NaN through.
        state = torch.where(begun[:, None, None], 0.0, state)
        return self._cell(inputs, self.recurrence(state[:, 0]), state)

    @torch.no_grad()
    def _slow_down_half(self, kind: MemoryKind, size: int) -> None:
        """Initialises the gates of half of the units, so that gradients reach rows that are long ago.

        With biases of 0 a state halves in each step. These units instead keep T / (T + 1) of it, as in the chrono
        initialisation of Tallec & Ollivier (2018), but with T spaced geometrically up to `_LONGEST_TIME`, because the
        time that a task needs is not known.
        """
        slow = size // 2
        times = torch.linspace(0.0, math.log(_LONGEST_TIME), slow + 1)[1:]
        # In both kinds of layers, the second gate keeps the state.
        self.inputs.bias[2 * size - slow : 2 * size] = times
        if kind == "lstm":
            self.inputs.bias[size - slow : size] = -times


def by_rows(memory: Memory, features: Tensor, state: Tensor, begun: Tensor) -> Tensor:
    """Returns the outputs of `Memory.unroll`."""
    return memory.unroll(features, state, begun)[0]


def lstm_by_sequences(memory: Memory, features: Tensor, state: Tensor, begun: Tensor) -> Tensor:
    """Computes `by_rows` of an LSTM in float32 up to rounding, on a CPU in a fifth of the time.

    Segments are divided at the first rows of episodes into sequences, which torch's kernel unrolls side by side. Short
    sequences are padded at their ends.
    """
    segments, length = begun.shape
    row = torch.arange(length, device=begun.device)
    first = begun | (row == 0)
    sequence = (first.flatten().cumsum(0) - 1).view(segments, length)
    place = row - torch.where(first, row, 0).cummax(1).values
    count, longest = int(sequence[-1, -1]) + 1, int(place.max()) + 1
    # Rows of padding come from no row, and no row takes their outputs.
    index = (place * count + sequence).flatten()
    padded = features.new_zeros(longest * count, features.shape[-1]).index_copy(0, index, features.flatten(0, 1))
    before = state.new_zeros(count, *memory.shape)
    before[sequence[:, 0]] = torch.where(begun[:, 0, None, None], 0.0, state)
    layers = (memory.inputs, memory.recurrence)
    outputs, _, _ = torch.lstm(
        padded.view(longest, count, -1),
        [part.unsqueeze(0) for part in before.unbind(1)],
        [*(layer.weight for layer in layers), *(layer.bias for layer in layers)],
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=True,
        bidirectional=False,
        batch_first=False,
    )
    return outputs.flatten(0, 1).index_select(0, index).view(segments, length, -1)


def _gru(inputs: Tensor, recurrence: Tensor, state: Tensor) -> Tensor:
    """Computes r, z = sigmoid(i + h), n = tanh(i_n + r h_n), and (1 - z) n + z state."""
    width = state.shape[-1]
    gates = torch.sigmoid(inputs[:, : 2 * width] + recurrence[:, : 2 * width]).float()
    reset, update = gates.chunk(2, -1)
    proposal = torch.tanh(torch.addcmul(inputs[:, 2 * width :].float(), reset, recurrence[:, 2 * width :].float()))
    return torch.lerp(proposal, state[:, 0], update).unsqueeze(1)


def _lstm(inputs: Tensor, recurrence: Tensor, state: Tensor) -> Tensor:
    """Computes i, f, o = sigmoid, g = tanh, the cell f c + i g, and the output o tanh(c)."""
    sums = (inputs + recurrence).float()
    enter, keep, _, leave = torch.sigmoid(sums).chunk(4, -1)
    proposal = torch.tanh(sums.chunk(4, -1)[2])
    cell = keep * state[:, 1] + enter * proposal
    return torch.stack([leave * torch.tanh(cell), cell], 1)
