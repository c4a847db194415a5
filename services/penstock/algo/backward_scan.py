"""Linear recursions backwards in time in few steps, for devices on which each operation is a launch.

A recursion over T rows takes T dependent steps. The scan of Hillis & Steele (1986) takes log2 T, each over all rows:
it combines the recursion over the next d rows with that from d rows later on, for d = 1, 2, 4 and so on.
"""

import torch
from torch import Tensor


def scanned(weighted: Tensor, gain: Tensor) -> Tensor:
    """Returns D with D_t = weighted_t + gain_t D_{t+1} and D_T = 0, <float>[B, T], as are the arguments.

    It rounds differently from the recursion row by row, whose sums it forms in another order. The products of gains
    must be finite.
    """
    steps, distance = weighted.shape[1], 1
    while distance < steps:
        later = slice(distance, None)
        # Rows whose next `distance` rows reach the end have no more to add.
        reaching, beyond = slice(None, -distance), slice(-distance, None)
        weighted = torch.cat(
            [torch.addcmul(weighted[:, reaching], gain[:, reaching], weighted[:, later]), weighted[:, beyond]], dim=1
        )
        gain = torch.cat([gain[:, reaching] * gain[:, later], torch.zeros_like(gain[:, beyond])], dim=1)
        distance *= 2
    return weighted


def following(values: Tensor) -> Tensor:
    """Returns the values one row later, <float>[B, T], and 0 after the last row."""
    return torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
