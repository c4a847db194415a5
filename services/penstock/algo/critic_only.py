"""Parts of an observation that the critic reads and the actor does not (`policy.critic_only`).

The actor has weights for them, which begin at 0 and have no gradient. So all that computes a policy computes this one
too, and no number of these parts changes an action.
"""

from collections.abc import Sequence

import torch
from torch import nn

from penstock.algo.encoders import Concatenated, Preparation


@torch.no_grad()
def hide(
    encoders: nn.Module, first: nn.Module, preparations: Sequence[Preparation], hidden: Sequence[bool], gain: float
) -> tuple[slice, ...]:
    """Hides leaves from an actor's first layer, which is initialised as a layer without them; returns their columns.

    Args:
        encoders: Encoders of all leaves, whose features are the columns of the layer's weights.
        first: The first layer.
        preparations: Preparation of each leaf.
        hidden: Whether each leaf is hidden.
        gain: Gain of the initialisation.
    """
    assert isinstance(encoders, Concatenated) and isinstance(first, nn.Linear)
    columns, seen = [], torch.ones(first.in_features, dtype=torch.bool)
    begin = 0
    for layer, part, is_hidden in zip(encoders.leaves, preparations, hidden, strict=True):
        end = begin + int(getattr(layer, "features", part.shape[0]))
        if is_hidden:
            columns.append(slice(begin, end))
            seen[begin:end] = False
        begin = end
    weights = torch.empty(first.out_features, int(seen.sum()))
    nn.init.orthogonal_(weights, gain)
    first.weight.zero_()
    first.weight[:, seen] = weights
    return tuple(columns)
