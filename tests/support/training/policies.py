"""Untrained policies and their weights."""

import torch

from penstock.algo import weights as policy_weights
from penstock.algo.network import Network
from penstock.algo.own_policies import policy_of
from penstock.algo.policies import Policy
from penstock.types.run import Weights
from penstock.types.spaces import EnvironmentSpec, MemoryKind


def fresh_policy(spec: EnvironmentSpec, seed: int = 0, network: Network | None = None) -> Policy:
    """Returns an untrained policy, without using torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return policy_of(spec, network or Network(hidden_sizes=(16, 16)))


def weights_of(policy: Policy, version: int) -> Weights:
    """Returns the published form of a policy on any device, including its normalisers."""
    encoder = policy_weights.Encoder(policy)
    return encoder.encode(version, {name: each.cpu().contiguous() for name, each in encoder.state().items()})


def fresh_weights(spec: EnvironmentSpec, seed: int = 0, version: int = 0) -> Weights:
    """Returns the weights of an untrained policy."""
    return weights_of(fresh_policy(spec, seed), version)


def remembering_policy(spec: EnvironmentSpec, kind: MemoryKind) -> Policy:
    """Returns an untrained policy whose actions depend strongly on its state."""
    policy = fresh_policy(spec, network=Network(hidden_sizes=(16,), memory=kind, memory_size=8))
    with torch.no_grad():
        assert policy.memory is not None
        for layer in (policy.memory.inputs, policy.memory.recurrence):
            layer.bias.zero_()
        list(policy.actor.parameters())[-2].mul_(3000.0)
    return policy


def decided_weights(spec: EnvironmentSpec, seed: int = 0, version: int = 0) -> Weights:
    """Returns untrained weights whose actions depend on the observation, which a new policy's hardly do."""
    policy = fresh_policy(spec, seed)
    with torch.no_grad():
        policy.get_parameter("actor.4.weight").mul_(100.0)
    return weights_of(policy, version)
