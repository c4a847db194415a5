"""Outputs of policies of one kind of observation and of action, without memory."""

from torch import Tensor

from penstock.algo.distributions import Part
from penstock.algo.policies import Inputs, Policy


def distribution_of(policy: Policy, observation: Tensor) -> Part:
    """Returns the distribution of the action at each of these observations, [..., *shape]."""
    (part,) = policy.evaluate(Inputs((observation,)))[0].parts
    return part


def value_of(policy: Policy, observation: Tensor) -> Tensor:
    """Returns the value of each of these observations, <float32>[...]."""
    return policy.evaluate(Inputs((observation,)))[1]
