"""The network for actions that move a piece from one cell of a board to another."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from penstock.algo.encoders import Activation, Features, Preparation, initialised

_WIDTH = 16
"""Features of each cell."""
_REACH = 4
"""Distance in rows and columns at which the features of a cell depend on other cells; 4 covers a line of five."""


class Moves(nn.Module):
    """Logits of all moves on a board whose pieces are of interchangeable kinds, such as colours.

    The logit of a move is the gain of a piece of its kind on the target, minus its worth on the source; both are
    outputs of the same convolutions, which see where the pieces of this kind are and which cells are empty:

        logit[source, target] = gain[kind at the source, target] + loss[kind at the source, source]

    The convolutions are the same for every kind and cell. An example of one kind in one place is therefore an example
    of all kinds in all places, and the number of parameters does not depend on the number of actions.
    """

    def __init__(self, parts: Sequence[Preparation], position: int, activation: Activation) -> None:
        """Creates the network.

        Args:
            parts: Preparations of the leaves of the observation.
            position: Position of the board among them. Its lowest value is an empty cell.
            activation: Activation function after each hidden layer.
        """
        super().__init__()
        self._position, self._board = position, parts[position]
        size = 2 * _REACH + 1
        # Of the pieces of one kind, without a bias, and of empty cells and the extent of the board, which all kinds
        # share. Together they are one layer.
        self.own = nn.Conv2d(1, _WIDTH, size, padding=_REACH, bias=False)
        self.common = initialised(nn.Conv2d(2, _WIDTH, size, padding=_REACH), 1.0)
        nn.init.orthogonal_(self.own.weight, 1.0)
        self.hidden = initialised(nn.Linear(_WIDTH, _WIDTH), math.sqrt(2.0))
        self.output = initialised(nn.Linear(_WIDTH, 2), 0.1)
        self.first, self.second = activation(), activation()

    def forward(self, features: Features) -> Tensor:
        """Returns the logits, <float32>[..., cells**2], of prepared observations."""
        board = features if isinstance(features, Tensor) else features[self._position]
        planes = self._board.planes_of(board)
        leading = planes.shape[:-3]
        planes = planes.reshape(-1, *planes.shape[-3:])
        empty, own = planes[:, :1], planes[:, 1:]
        boards, kinds = own.shape[:2]
        common = self.common(torch.cat([empty, torch.ones_like(empty)], 1)).flatten(2)
        seen = self.own(own.reshape(boards * kinds, 1, *own.shape[2:])).reshape(boards, kinds, *common.shape[1:])
        # A matrix product over the last axis is three times as fast as a convolution of single cells.
        cells = (seen + common.unsqueeze(1)).transpose(-1, -2).contiguous()
        hidden = self.second(self.hidden(self.first(cells)))
        with torch.autocast(hidden.device.type, enabled=False):
            # bfloat16 has too few bits for ratios of probabilities.
            gain, loss = self.output(hidden.float()).unbind(-1)
            here = own.flatten(2).float()
            logits: Tensor = here.transpose(1, 2) @ gain + (here * loss).sum(1).unsqueeze(2)
        return logits.reshape(*leading, -1)
