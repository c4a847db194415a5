"""A network of one's own: `penstock train Pendulum-v1 --policy.module examples/residual_network.py:Residual`."""

import torch
from torch import Tensor, nn

WIDTH, BLOCKS = 64, 2


class Residual(nn.Module):
    """Residual layers over all parts of an observation side by side."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        """Makes the layers for the shape of each part."""
        super().__init__()
        self.first = nn.Linear(sum(torch.Size(shape).numel() for shape in shapes), WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(BLOCKS))

    def forward(self, *parts: Tensor) -> Tensor:
        """Returns features, <float32>[N, WIDTH], of N rows of each part, <float32>[N, *shape]."""
        features: Tensor = self.first(torch.cat([part.flatten(1) for part in parts], 1))
        for block in self.blocks:
            features = features + torch.tanh(block(features))
        return features
