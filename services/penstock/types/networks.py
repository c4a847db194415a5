"""Choices of a policy's network that settings, policies and segments share."""

from typing import Literal

Encoder = Literal["flat", "one_hot", "embedding", "board", "image"]
"""Encoder of one leaf of an observation."""

ActivationName = Literal["tanh", "relu"]
"""Activation function after a hidden layer; `algo.activations` has its implementations."""

MemoryKind = Literal["gru", "lstm"]
"""Kind of a recurrent layer."""

MEMORY_PARTS: dict[MemoryKind, int] = {"gru": 1, "lstm": 2}
"""Vectors in one state of each kind of memory."""

Library = Literal["numpy", "torch"]
"""Library that computes a policy's actions."""

Inference = Literal["auto", "torch"]
"""Choice of the library. auto: NumPy for policies that it can compute, else torch."""
