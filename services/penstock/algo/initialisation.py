"""Initialisation of the layers of a policy."""

from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def initialised(layer: Layer, gain: float) -> Layer:
    """Initialises a layer orthogonally (Saxe et al. 2014), the standard for PPO, with biases of 0; returns it."""
    assert layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
