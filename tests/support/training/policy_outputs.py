"""Outputs of policies of one kind of observation and of action, without memory, and their normalisers."""

from torch import Tensor

from penstock.algo.distributions import Part
from penstock.algo.policies import Inputs, MomentsUpdates, Policy, end_moments


def distribution_of(policy: Policy, observation: Tensor) -> Part:
    """Returns the distribution of the action at each of these observations, [..., *shape]."""
    (part,) = policy.evaluate(Inputs((observation,)))[0].parts
    return part


def value_of(policy: Policy, observation: Tensor) -> Tensor:
    """Returns the value of each of these observations, <float32>[...]."""
    return policy.evaluate(Inputs((observation,)))[1]


def learn_moments(policy: Policy, observation: tuple[Tensor, ...], discounted_return: Tensor) -> MomentsUpdates:
    """Updates the normalisers with fresh raw observations, [N, ...], and discounted returns, <float32>[N]."""
    begun = policy.begin_observations(observation), policy.begin_returns(discounted_return)
    return end_moments(begun, [each.findings.cpu() for each in begun if each is not None])
