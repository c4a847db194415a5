"""Action masks as bits. A column holds them packed, and the learner unpacks them on its device."""

import torch
from torch import Tensor


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Returns the bits, <bool>[..., bits], of packed masks, <uint8>[..., ceil(bits / 8)].

    Bit i is bit i % 8 of byte i // 8, as in `numpy.packbits(masks, axis=-1, bitorder="little")`.
    """
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> places & 1).flatten(-2)[..., :bits].bool()
