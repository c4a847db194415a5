"""Heads that build action distributions from a network's outputs: one per kind of leaf, and `ActionHead` for a tree.

Heads have buffers but no parameters: the network computes their outputs, and the policy owns `log_std`.
"""

import math
from typing import Any, assert_never

import numpy as np
import torch
from torch import Tensor, nn

from penstock.algo.distributions import (
    Categorical,
    DiagonalGaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
)
from penstock.algo.network import AT_BOUND, LOG_STD_RANGE, SQUASHED_LOG_STD_RANGE, Network, Noise
from penstock.algo.spaces import beginning, bounds, scaled
from penstock.types.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space, Tree

_UNREACHED = 1e30
"""Limit in place of an infinite one, because the values of a policy must be finite."""


class CategoricalHead(nn.Module):
    """Head of a choice among n actions. The network's outputs are one logit per action."""

    def __init__(self, space: DiscreteSpace) -> None:
        super().__init__()
        self.outputs, self.log_stds = space.n, 0

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> Categorical:
        """Builds the distribution from <float32>[..., n] and the mask, <bool>[..., n]."""
        return Categorical.of_logits(outputs, legal)


class MultiCategoricalHead(nn.Module):
    """Head of k choices. The network's outputs are one logit per alternative, choice after choice."""

    _source: Tensor
    """<int64>[k * n] output of each alternative, where n is the largest number of alternatives."""
    _exists: Tensor
    """<bool>[k, n] whether a choice has this alternative."""

    def __init__(self, space: MultiDiscreteSpace | MultiBinarySpace) -> None:
        super().__init__()
        counts = np.array(space.choices)
        self.outputs, self.log_stds = int(counts.sum()), 0
        self._equal, self._shape = len(set(space.choices)) == 1, (counts.size, int(counts.max()))
        alternative = np.arange(counts.max())
        # A missing alternative is illegal; it reads the last output of its choice.
        source = (counts.cumsum() - counts)[:, None] + np.minimum(alternative, counts[:, None] - 1)
        self.register_buffer("_source", torch.from_numpy(source.reshape(-1)), persistent=False)
        self.register_buffer("_exists", torch.from_numpy(alternative < counts[:, None]), persistent=False)

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> MultiCategorical:
        """Builds the distribution from <float32>[..., outputs] and the mask, <bool>[..., outputs]."""
        if self._equal:
            alternatives = None if legal is None else self._by_choice(legal)
            return MultiCategorical(Categorical.of_logits(self._by_choice(outputs), alternatives))
        alternatives = self._exists if legal is None else self._padded(legal) & self._exists
        return MultiCategorical(Categorical.of_logits(self._padded(outputs), alternatives))

    def _padded(self, values: Tensor) -> Tensor:
        return self._by_choice(values.index_select(-1, self._source))

    def _by_choice(self, values: Tensor) -> Tensor:
        return values.reshape(*values.shape[:-1], *self._shape)


class GaussianHead(nn.Module):
    """Head of continuous actions with A elements.

    The network's outputs are the A means, followed by the A log standard deviations if these depend on the state.

    Attributes:
        beginning: <float64>[A] means with which a policy begins.
        limits: <float32>[2, A] lowest and highest actions, in units of the policy; beyond them actions do not differ.
    """

    limits: Tensor
    _scaled: Tensor

    def __init__(self, space: BoxSpace, network: Network) -> None:
        super().__init__()
        size = space.size
        self.outputs, self.log_stds = (2 * size, 0) if network.state_dependent_std else (size, size)
        self.elements, self._squash = size, network.squash_actions
        self.beginning = torch.from_numpy(beginning(space, network.widest_range))
        is_scaled = scaled(space, network.widest_range)
        most = math.atanh(AT_BOUND) if self._squash else 1.0
        limits = [
            np.where(is_scaled, end, np.clip(side, -_UNREACHED, _UNREACHED))
            for end, side in zip((-most, most), bounds(space), strict=True)
        ]
        self.register_buffer("limits", torch.tensor(np.stack(limits), dtype=torch.float32), persistent=False)
        self.register_buffer("_scaled", torch.from_numpy(is_scaled), persistent=False)

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> DiagonalGaussian:
        """Builds the distribution from <float32>[..., outputs] and the policy's `log_std`, <float32>[A]."""
        mean, log_std = outputs.chunk(2, -1) if log_std is None else (outputs, log_std)
        if self._squash:
            return SquashedGaussian(mean, bound(log_std, *SQUASHED_LOG_STD_RANGE), self._scaled)
        return DiagonalGaussian(mean, bound(log_std, *LOG_STD_RANGE))


LeafHead = CategoricalHead | MultiCategoricalHead | GaussianHead


class ActionHead(nn.Module):
    """Head of an action: the heads of its leaves. Outputs, log standard deviations and mask bits are side by side.

    Attributes:
        outputs: Number of the network's outputs.
        noise: Random numbers from which each leaf of one action is sampled.
        is_own: Whether the user makes the distributions; False.
    """

    is_own = False

    def __init__(self, tree: Tree, network: Network) -> None:
        """Creates the head of this architecture for this space of actions."""
        super().__init__()
        heads = [_leaf_head(space, network) for space in tree.spaces]
        # Registers their buffers. A tuple is faster to read.
        self.heads = nn.ModuleList(heads)
        self._heads, self._initial_log_std = tuple(heads), network.initial_log_std
        self._outputs = [head.outputs for head in heads]
        self._log_stds = [head.log_stds for head in heads]
        self._bits = [sum(space.choices) for space in tree.spaces]
        self.outputs = sum(self._outputs)
        with torch.no_grad():
            self.noise: tuple[Noise, ...] = self.distribution(torch.zeros(self.outputs), self.log_std(), None).noise

    @property
    def limits(self) -> tuple[Tensor | None, ...]:
        """Lowest and highest actions of each leaf, <float32>[2, A] (`GaussianHead.limits`); None for choices."""
        return tuple(_limits(head) for head in self._heads)

    def log_std(self) -> nn.Parameter | None:
        """Returns new log standard deviations, <float32>[elements of all boxes], or None if the network has them all.

        The policy owns them, because its checkpoints name them `log_std`.
        """
        elements = sum(self._log_stds)
        return nn.Parameter(torch.full((elements,), self._initial_log_std)) if elements else None

    @torch.no_grad()
    def initialise(self, bias: Tensor) -> None:
        """Initialises the biases of the network's outputs, <float32>[outputs], which are 0."""
        for head, biases in zip(self._heads, _split(bias, self._outputs), strict=True):
            match head:
                case CategoricalHead() | MultiCategoricalHead():
                    pass
                case GaussianHead():
                    biases[: head.elements] = head.beginning
                    biases[head.elements :] = self._initial_log_std
                case _:
                    assert_never(head)

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> Joint:
        """Builds the distribution.

        Args:
            outputs: <float32>[..., outputs] the network's outputs.
            log_std: Parameter that `log_std` returned.
            legal: <bool>[..., bits] alternatives that are legal, choice after choice. None: all are.
        """
        if len(self._heads) == 1:
            return Joint((self._heads[0].distribution(outputs, log_std, legal),))
        parts = zip(
            self._heads,
            _split(outputs, self._outputs),
            _split_if_given(log_std, self._log_stds),
            _split_if_given(legal, self._bits),
            strict=True,
        )
        return Joint(tuple(head.distribution(own, log_std, legal) for head, own, log_std, legal in parts))


def bound(values: Tensor, low: float, high: float) -> Tensor:
    """Clamps values of any shape with a gradient that lets values outside the bounds return.

    A plain clamp passes no gradient outside its bounds, so a parameter that momentum carries past a bound stays there.
    Here only gradients that would move a value farther out are dropped.
    """
    if not torch.is_grad_enabled():
        return values.clamp(low, high)
    bounded: Tensor = _Bound.apply(values, low, high)  # type: ignore[no-untyped-call]
    return bounded


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.low, ctx.high = low, high
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        # Descent moves against the gradient.
        outwards = ((values > ctx.high) & (gradient < 0.0)) | ((values < ctx.low) & (gradient > 0.0))
        return torch.where(outwards, 0.0, gradient), None, None


def _leaf_head(space: Space, network: Network) -> LeafHead:
    match space:
        case DiscreteSpace():
            return CategoricalHead(space)
        case MultiDiscreteSpace() | MultiBinarySpace():
            return MultiCategoricalHead(space)
        case BoxSpace():
            return GaussianHead(space, network)
        case _:
            assert_never(space)


def _limits(head: LeafHead) -> Tensor | None:
    match head:
        case CategoricalHead() | MultiCategoricalHead():
            return None
        case GaussianHead():
            return head.limits
        case _:
            assert_never(head)


def _split(values: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Splits the last axis over the leaves."""
    # A single leaf gets the tensor itself, without another operation to differentiate.
    return (values,) if len(sizes) == 1 else torch.split(values, sizes, -1)


def _split_if_given(values: Tensor | None, sizes: list[int]) -> tuple[Tensor | None, ...]:
    return (None,) * len(sizes) if values is None else _split(values, sizes)
