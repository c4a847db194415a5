"""The class from which a whole policy of a user derives (`policy.module`)."""

import abc
from dataclasses import dataclass

from torch import Tensor, nn

from penstock.algo.distributions import Joint
from penstock.types.spaces import Space


@dataclass(frozen=True, slots=True)
class PolicySpaces:
    """What a policy is made for.

    Attributes:
        observation: Shape of each part of an observation, without the rows, as `encode` gets it.
        action: Space of each leaf of an action, such as one with `n` alternatives or with `size` numbers.
        outputs: Numbers per row that `outputs` returns, unless the policy has distributions of its own.
        state_size: Numbers of a state, `policy.memory_size`; 0 unless `policy.memory` is module.
    """

    observation: tuple[tuple[int, ...], ...]
    action: tuple[Space, ...]
    outputs: int
    state_size: int


class PolicyModule(nn.Module, abc.ABC):
    """Trunk, heads, memory and distributions of a policy. A subclass is made with one argument, `PolicySpaces`.

    Rows are independent of each other, and the same row always has the same results. Methods are called with any number
    of rows, N.
    """

    @abc.abstractmethod
    def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the features of rows, <float>[N, ...], and the states after them, <float>[N, state_size].

        Args:
            observation: Prepared observation, one tensor per part, ``[N, *shape]``: standardised numbers, images in
                [0, 1], one-hot codes, or integers for learned vectors (`policy.encoders`).
            state: <float32>[N, state_size] states before the rows, 0 at the first rows of episodes; None, and returned
                as None, without `policy.memory`.
        """

    @abc.abstractmethod
    def outputs(self, features: Tensor) -> Tensor:
        """Returns the numbers from which distributions are made, <float>[N, outputs].

        Without distributions of one's own, these are one logit per alternative for choices, and one mean per number for
        boxes, followed by its log standard deviation with `policy.state_dependent_std`, leaf after leaf.
        """

    @abc.abstractmethod
    def value(self, features: Tensor) -> Tensor:
        """Returns values, <float>[N], in deviations of the discounted returns (`policy.normalise_returns`)."""

    def distribution(self, outputs: Tensor, legal: Tensor | None) -> Joint:
        """Returns the distribution of an action, with one `Part` for each leaf. Override it for one of your own.

        Args:
            outputs: <float32>[..., any number] results of `outputs`.
            legal: <bool>[..., bits] alternatives that are legal, choice after choice; None: all are.
        """
        raise NotImplementedError
