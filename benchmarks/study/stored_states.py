"""Staleness of stored states: how far the state in a segment is from the one that the current policy would have.

A recurrent policy is trained, and all its versions are kept with what its actors saw. Segments that version v collected
are then evaluated under version v + lag, from several states before their first row:

- exact: the current version's state, unrolled from the beginning of the episode; all others are compared with it
- stored: the state that the actor had, which versions up to v computed
- burn-in b: the actor's state b rows earlier, unrolled over these rows under the current version
- zero: no state

"Stored-state" and "burn-in" are two of the strategies that Kapturowski et al. 2019 (R2D2, section 3) compare. Only
segments within one episode count, because at the first row of an episode all states are zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from helpers.single_process import train
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Inputs, Policy
from penstock.config import Config
from penstock.learning.batches import to_tensors
from penstock.types.replay import Batch
from penstock.types.run import Weights
from penstock.types.spaces import DiscreteSpace

BURN_INS = (4, 8, 16)
"""Rows of burn-in that are compared."""

METHODS = ("zero", "stored", *(f"burn-in {rows}" for rows in BURN_INS), "policy")
"""Compared states. "policy" is the acting version itself, with its own state: what the training changed by intent."""

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Seen:
    """A window of N segments of T steps, one per environment.

    Attributes:
        version: Version that acted.
        observation: [N, T, ...] raw observations, one tensor per leaf.
        begun: <bool>[N, T] first rows of episodes.
        valid: <bool>[N, T] False for reset rows.
        state: <float32>[N, parts, H] the actor's states before the first row.
    """

    version: int
    observation: tuple[Tensor, ...]
    begun: Tensor
    valid: Tensor
    state: Tensor


@dataclass(frozen=True, slots=True)
class Recording:
    """All versions of a policy, and all windows in order; window k was first trained at version k."""

    versions: list[Weights] = field(default_factory=list)
    windows: list[Seen] = field(default_factory=list)

    def see(self, batch: Batch) -> None:
        """Keeps the fresh segments of a batch, which are one window."""
        tensors, fresh = to_tensors(batch, _CPU), slice(0, batch.fresh_segments)
        assert tensors.begun is not None and tensors.memory is not None, "the policy has no memory"
        (version,) = set(batch.head.versions[fresh].tolist())
        self.windows.append(
            Seen(
                version,
                tuple(leaf[fresh, :-1].clone() for leaf in tensors.observation),
                tensors.begun[fresh, :-1].clone(),
                tensors.valid[fresh].clone(),
                tensors.memory[fresh].clone(),
            )
        )


def record(config: Config) -> Recording:
    """Trains with this configuration, whose batches have one fresh segment per environment and no burn-in."""
    assert config.sampling.fresh_segments == config.actor.environments and not config.ppo.burn_in_steps
    recording = Recording()
    train(config, watch=recording.see, watch_weights=recording.versions.append)
    return recording


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """Means over segments, by method, at some rows of a segment.

    Attributes:
        rows: Rows of the segments.
        segments: Number of segments.
        state: Norm of the difference of the recurrent layer's output, as a share of the exact output's norm.
        kl: KL divergence from the exact distribution of the action, in nats.
        value: Absolute difference of the value, in units of scaled rewards.
    """

    rows: tuple[int, ...]
    segments: int
    state: Mapping[str, tuple[float, ...]]
    kl: Mapping[str, tuple[float, ...]]
    value: Mapping[str, tuple[float, ...]]


def measure(recording: Recording, lag: int, rows: Sequence[int], *, every: int = 1) -> Discrepancy:
    """Compares the methods in every `every`-th window, under the version that is `lag` later than the acting one."""
    found = list(_compared(recording, lag, every))
    output, kl, value = (torch.cat(each, 1)[..., list(rows)] for each in zip(*found, strict=True))
    segments = output.shape[1]

    def by_method(differences: Tensor) -> dict[str, tuple[float, ...]]:
        return {name: tuple(mean.tolist()) for name, mean in zip(METHODS, differences.mean(1), strict=True)}

    return Discrepancy(tuple(rows), segments, by_method(output), by_method(kl), by_method(value))


def states_before(recording: Recording, index: int, rows: int) -> Tensor:
    """Returns the actor's states, <float32>[N, parts, H], this many rows before the first row of a window.

    They were not stored, but the acting version computes them again from the stored state of the window before.
    """
    if not rows:
        return recording.windows[index].state
    before = recording.windows[index - 1]
    kept = before.begun.shape[1] - rows
    assert kept >= 0, "a burn-in is at most one segment long"
    acted = policy_weights.load(recording.versions[before.version])
    return _unrolled(acted, tuple(leaf[:, :kept] for leaf in before.observation), before.state, before.begun[:, :kept])


@torch.no_grad()
def _compared(recording: Recording, lag: int, every: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Returns the differences of output, distribution and value, <float32>[methods, segments, T], of each window."""
    for index in range(1, len(recording.windows), every):
        window = recording.windows[index]
        if window.version + lag >= len(recording.versions):
            break
        within = window.valid.all(1) & ~window.begun.any(1)
        if not bool(within.any()):
            continue
        policy = policy_weights.load(recording.versions[window.version + lag])
        acted = policy_weights.load(recording.versions[window.version])
        exact, stored = _exact_state(recording, index, policy), window.state
        started = [torch.zeros_like(exact), stored]
        for rows in BURN_INS:
            before = recording.windows[index - 1]
            started.append(
                _unrolled(
                    policy,
                    tuple(leaf[:, -rows:] for leaf in before.observation),
                    states_before(recording, index, rows),
                    before.begun[:, -rows:],
                )
            )
        output, log_prob, value = _evaluated(policy, window, within, torch.stack([*started, exact]))
        own = _evaluated(acted, window, within, stored[None])
        output, log_prob, value = (
            torch.cat([mine[:-1], other, mine[-1:]]) for mine, other in zip((output, log_prob, value), own, strict=True)
        )
        difference = (output[:-1] - output[-1]).norm(dim=-1) / output[-1].norm(dim=-1)
        kl = (log_prob[-1].exp() * (log_prob[-1] - log_prob[:-1])).sum(-1)
        yield difference, kl, (value[:-1] - value[-1]).abs()


def _exact_state(recording: Recording, index: int, policy: Policy) -> Tensor:
    """Returns a policy's states before the first row of a window, unrolled from the beginning of each episode."""
    first, begun = index, torch.zeros(len(recording.windows[index].begun), dtype=torch.bool)
    while first and not bool(begun.all()):
        first -= 1
        begun |= recording.windows[first].begun.any(1)
    earlier = recording.windows[first:index]
    observation = tuple(torch.cat(leaves, 1) for leaves in zip(*(each.observation for each in earlier), strict=True))
    # States of rows before the first border are wrong, and the border resets them.
    zero = torch.zeros_like(recording.windows[index].state)
    return _unrolled(policy, observation, zero, torch.cat([each.begun for each in earlier], 1))


@torch.no_grad()
def _unrolled(policy: Policy, observation: tuple[Tensor, ...], state: Tensor, begun: Tensor) -> Tensor:
    """Returns the states after these rows."""
    return state if not begun.shape[1] else _outputs(policy, observation, state, begun)[1]


def _outputs(policy: Policy, observation: tuple[Tensor, ...], state: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
    assert policy.memory is not None
    prepared = policy.observer.prepare(observation, policy.observation_moments)
    return policy.memory.unroll(policy.encoder(prepared[0] if len(prepared) == 1 else prepared), state, begun)


def _evaluated(policy: Policy, window: Seen, within: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluates the segments in `within` from several states, <float32>[M, N, parts, H].

    Returns outputs <float32>[M, segments, T, H], log probabilities of all actions <float32>[M, segments, T, actions],
    and values <float32>[M, segments, T].
    """
    methods = len(state)

    def repeated(column: Tensor) -> Tensor:
        return torch.cat([column[within]] * methods)

    observation, begun = tuple(map(repeated, window.observation)), repeated(window.begun)
    states = state[:, within].flatten(0, 1)
    outputs, _ = _outputs(policy, observation, states, begun)
    shape = (methods, int(within.sum()), *outputs.shape[1:])
    distribution, value = policy.evaluate(Inputs(observation, None, states, begun))
    (space,) = policy.spec.action.spaces
    assert isinstance(space, DiscreteSpace), "only distributions of one discrete action are compared"
    actions = [torch.full(value.shape, action) for action in range(space.n)]
    log_prob = torch.stack([distribution.log_prob((action,)) for action in actions], -1)
    return outputs.view(shape), log_prob.view(*shape[:3], -1), value.view(shape[:3])
