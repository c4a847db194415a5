"""The policy: action and value networks with their normalisers, built from an environment's spaces alone."""

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from penstock.algo.action_heads import ActionHead
from penstock.algo.activations import implementations_of
from penstock.algo.critic_only import hide
from penstock.algo.distributions import Joint, unpack_mask
from penstock.algo.encoders import Activation, Features, Observer, encoder_layers, initialised, of_parts
from penstock.algo.memory import Memory, Unroll, by_rows
from penstock.algo.moves import Moves
from penstock.algo.network import LARGEST_MEAN, Network, Noise
from penstock.algo.normalisation import BegunUpdate, MomentsUpdate, RunningMoments
from penstock.algo.own_modules import OwnModule, own_layers
from penstock.algo.spaces import check_spaces, part_names, position_of
from penstock.types.spaces import EnvironmentSpec

_OUTPUT_GAIN = 0.01
"""Gain of the actor's last layer, so that a new policy is nearly uniform or centred."""


@dataclass(frozen=True, slots=True)
class MomentsUpdates:
    """Effect of one batch on each of a policy's normalisers."""

    observations: MomentsUpdate
    returns: MomentsUpdate


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a policy: rows or, with memory, segments.

    Attributes:
        observation: [..., *shape] raw observations, one tensor per leaf. With memory, [S, burn-in + R, *shape].
        mask: <uint8>[..., bytes] packed masks of the rows with actions; None: every action is legal.
        state: <float32>[S, parts, H] states before the first row; None without memory.
        begun: <bool>[S, burn-in + R] first rows of episodes; None without memory.
        following: [..., *shape] raw observations after the rows with actions, one tensor per leaf, for auxiliary
            losses; empty without any.
        goes_on: <bool>[...] rows with actions after which the episode goes on; None without auxiliary losses.
    """

    observation: tuple[Tensor, ...]
    mask: Tensor | None = None
    state: Tensor | None = None
    begun: Tensor | None = None
    following: tuple[Tensor, ...] = ()
    goes_on: Tensor | None = None

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All tensors, in order."""
        rest = (self.mask, self.state, self.begun, *self.following, self.goes_on)
        return (*self.observation, *(each for each in rest if each is not None))

    def each(self, function: Callable[[Tensor], Tensor]) -> "Inputs":
        """Returns inputs with a function's results in place of the tensors."""

        def of(value: Tensor | None) -> Tensor | None:
            return None if value is None else function(value)

        return Inputs(
            tuple(map(function, self.observation)),
            of(self.mask),
            of(self.state),
            of(self.begun),
            tuple(map(function, self.following)),
            of(self.goes_on),
        )

    def part(self, rows: slice) -> "Inputs":
        """Returns views of some rows or segments."""
        return self.each(operator.itemgetter(rows))


class Head(Protocol):
    """Maker of the distributions of actions from a network's outputs (`ActionHead`, `own_policies.OwnHead`)."""

    @property
    def noise(self) -> tuple[Noise, ...]:
        """Random numbers from which each leaf of one action is sampled."""

    @property
    def limits(self) -> tuple[Tensor | None, ...]:
        """Lowest and highest actions of each leaf, as `ActionHead.limits`."""

    @property
    def is_own(self) -> bool:
        """Whether distributions are of classes of the user's own."""

    def log_std(self) -> nn.Parameter | None:
        """Returns new log standard deviations, as `ActionHead.log_std`."""

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> Joint:
        """Builds the distribution, as `ActionHead.distribution`."""


class Policy(nn.Module):
    """Action and value networks: encoders of the observation's leaves, a recurrent layer if chosen, and hidden layers.

    Discrete actions are numbered from 0. Continuous actions are measured from the centre of the action range in units
    of half the range where the space is bounded, and are unscaled where it is not. `acting.values.spaces` converts both
    to the environment's actions, through a tanh if actions are squashed.

    With separate trunks, policy and value have their own encoders, unless there is memory, which they share.

    Attributes:
        unroll: Function that computes the memory's outputs in `evaluate`, after the burn-in.
        return_offset: <float64>[] number to which values are relative, in units of the rewards.
    """

    return_offset: Tensor

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Builds the networks with orthogonal initialisation.

        Raises `ConfigurationError` if the spaces are not supported (`check_spaces`), or a user's module can't be used.
        """
        super().__init__()
        check_spaces(spec, network.encoders, network.moves, network.critic_only)
        self.spec, self.network = spec, network
        self.observer = Observer(spec, network.encoders, standardise=network.normalise_observations)
        self.unroll: Unroll = by_rows
        self.memory: Memory | None = None
        self._hidden: tuple[slice, ...] = ()
        self._head: Head = self._add_networks()
        self.log_std = self._head.log_std()
        self.observation_moments = RunningMoments(self.observer.moments_shape, network.variance_epsilon)
        self.return_moments = RunningMoments((), network.variance_epsilon)
        self.register_buffer("return_offset", torch.zeros((), dtype=torch.float64))

    def _add_networks(self) -> Head:
        """Adds all networks, and returns the head that makes distributions from their outputs."""
        network, shared = self.network, self.network.trunk == "shared"
        action = ActionHead(self.spec.action, network)
        activation = implementations_of(network.activation).module
        encode = functools.partial(encoder_layers, self.observer, activation)
        if network.module is not None:
            encode = functools.partial(own_layers, network.module, self.observer, activation)
        layers: list[nn.Module] = []
        features = 0
        if network.memory is not None:
            layers, features = encode()
            self.encoder = nn.Sequential(*layers)
            self.memory = Memory(network.memory, features, network.memory_size)
            encode = functools.partial(_nothing, network.memory_size)
        trunk, features = _body(encode, network, activation) if shared else ([], 0)
        self.trunk = nn.Sequential(*trunk)

        def head(outputs: int, gain: float) -> nn.Sequential:
            body, width = ([], features) if shared else _body(encode, network, activation)
            return nn.Sequential(*body, initialised(_Output(width, outputs), gain))

        self.actor: nn.Module
        if network.moves is None:
            self.actor = head(action.outputs, _OUTPUT_GAIN)
            action.initialise(list(self.actor.parameters())[-1])
        else:
            self.actor = Moves(self.observer.preparations, position_of(self.spec, network.moves), activation)
        self.critic = head(1, 1.0)
        if network.critic_only:
            hidden = [name in network.critic_only for name in part_names(self.spec)]
            gain = math.sqrt(2.0) if network.hidden_sizes else _OUTPUT_GAIN
            encoders, first, *_ = self.actor.children()
            self._hidden = hide(encoders, first, self.observer.preparations, hidden, gain)
        return action

    @property
    def noise(self) -> tuple[Noise, ...]:
        """Random numbers from which one action is sampled, for each leaf of the action."""
        return self._head.noise

    @property
    def action_limits(self) -> tuple[Tensor | None, ...]:
        """Lowest and highest actions of each leaf, as `ActionHead.limits`."""
        return self._head.limits

    @property
    def has_own_distributions(self) -> bool:
        """Whether distributions are of classes of the user's own, so that only samples and modes are known of them."""
        return self._head.is_own

    @property
    def memory_shape(self) -> tuple[int, int] | None:
        """Shape of one state, (parts, H); None without memory."""
        return None if self.memory is None else self.memory.shape

    @property
    def hidden_gradients(self) -> tuple[Tensor, ...]:
        """Views of the gradient that must be 0: of the actor's weights for `policy.critic_only`."""
        if not self._hidden:
            return ()
        gradient = self.get_parameter("actor.1.weight").grad
        assert gradient is not None
        return tuple(gradient[:, columns] for columns in self._hidden)

    @property
    def own_value_network(self) -> nn.Module | None:
        """Network of the value alone, whose parameters are the last ones; None: policy and value share a trunk."""
        return None if self.network.trunk == "shared" else self.critic

    @property
    def notices(self) -> tuple[str, ...]:
        """Lines about settings without an effect, for the start of a run."""
        return ()

    @property
    def auxiliary_networks(self) -> list[nn.Module]:
        """Networks of the user's with an auxiliary loss."""
        return [each.module for each in self._networks_of_users() if each.has_auxiliary_loss]

    def features_of_pairs(self, inputs: Inputs, burn_in: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features of each of `auxiliary_networks`, <float>[..., F], for the rows with actions of inputs that
        have `following` observations, and for these.
        """
        prepared, following = self._prepared(inputs.observation), self._prepared(inputs.following)
        if burn_in:
            prepared = _rows(prepared, slice(burn_in, None))
        for each in self._networks_of_users():
            if each.has_auxiliary_loss:
                yield each(prepared), each(following)

    def _networks_of_users(self) -> list[OwnModule]:
        return [each for each in self.modules() if isinstance(each, OwnModule)]

    def act(
        self, observation: tuple[Tensor, ...], legal: Tensor | None, state: Tensor | None, begun: Tensor | None
    ) -> tuple[Joint, Tensor | None]:
        """Returns the distribution of one action per row, and the states after the rows.

        Args:
            observation: [N, *shape] raw observations, one tensor per leaf.
            legal: <bool>[N, bits] action masks; None: every action is legal.
            state: <float32>[N, parts, H] states before the rows; None without memory.
            begun: <bool>[N] first rows of episodes; None without memory.
        """
        outputs, state = self._step(self._prepared(observation), state, begun)
        return self._head.distribution(outputs, self.log_std, legal), state

    def evaluate(self, inputs: Inputs, *, burn_in: int = 0, bootstraps: bool = False) -> tuple[Joint, Tensor]:
        """Returns the distribution at the rows with actions, and the values of all rows after the burn-in.

        Values, <float32>[...], are in units of scaled rewards.

        Args:
            inputs: Rows or segments.
            burn_in: First rows of a segment, from which only the state is computed, without gradients.
            bootstraps: Whether the last row of each segment has no action, so that only its value is computed.
        """
        outputs, value = self._evaluated(self._prepared(inputs.observation), inputs, burn_in, bootstraps=bootstraps)
        return self.distribution_of(outputs, inputs.mask), value

    def distribution_of(self, outputs: Tensor, mask: Tensor | None) -> Joint:
        """Returns the distribution at rows with these outputs of the actor, <float32>[..., outputs].

        `mask` is as in `Inputs`.
        """
        legal = None if mask is None else unpack_mask(mask, self.spec.mask_bits)
        return self._head.distribution(outputs, self.log_std, legal)

    def prepared(self, observation: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns raw observations, [..., *shape], as networks get them, one tensor per leaf."""
        prepared: tuple[Tensor, ...] = self.observer.prepare(observation, self.observation_moments)
        return prepared

    def scale_rewards(self, reward: Tensor, terminated: Tensor, discount: float) -> Tensor:
        """Converts rewards, <float32>[...], to the units of the values.

        Values are relative to the offset m of the returns, in deviations s of the returns. Their rewards include the
        difference of the constant potential m (Ng, Harada & Russell 1999, "Policy invariance under reward
        transformations"), which is the same as a critic that begins at m (Wiewiora 2003, "Potential-based shaping and
        Q-value initialization are equivalent"):

            (r_t + gamma (1 - terminated_t) m - m) / s
        """
        if not self.network.normalise_returns:
            return reward
        # In double precision, because the offset may be a million deviations.
        shaped = reward.double() - torch.where(terminated, self.return_offset, (1.0 - discount) * self.return_offset)
        return (shaped * self.return_moments.scale()).float()

    def unscale_values(self, value: Tensor) -> Tensor:
        """Converts values to discounted returns in the units of the rewards."""
        if not self.network.normalise_returns:
            return value
        return (value / self.return_moments.scale() + self.return_offset).float()

    @torch.no_grad()
    def begin_observations(self, observation: tuple[Tensor, ...]) -> BegunUpdate | None:
        """Updates a normaliser with fresh raw observations, [N, ...].

        Does not wait for the device. `end_moments` completes the update.
        """
        numbers = self.observer.numbers(observation)
        return None if numbers is None else self.observation_moments.begin(numbers)

    def begin_returns(self, discounted_return: Tensor) -> BegunUpdate | None:
        """Updates a normaliser with fresh discounted returns, <float32>[N], at once, and sets the offset by the first.

        The offset is their mean if that is above `LARGEST_MEAN`, and then stays. Does not wait for the device.
        `end_moments` tells the effect.
        """
        if not self.network.normalise_returns:
            return None
        moments = self.return_moments
        first = moments.count == 0
        begun = moments.begin(discounted_return, at_once=True)
        is_offset = first & (moments.mean.square() > LARGEST_MEAN**2 * moments.variance)
        self.return_offset.copy_(torch.where(is_offset, moments.mean, self.return_offset))
        return begun

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Replaces parameters and normalisers in place by the tensors of a checkpoint or of weights. Ignores other
        tensors.

        Raises `RuntimeError` if they belong to another architecture.
        """
        # Policies of release 0.2.0 and before have no offset.
        none = torch.zeros_like(self.return_offset)
        self.load_state_dict(
            {"return_offset": none, **{name: each for name, each in tensors.items() if "/" not in name}}
        )

    def _step(self, prepared: Features, state: Tensor | None, begun: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the outputs for the distributions at rows, and the states after them; for `act`."""
        features = prepared
        if self.memory is not None:
            assert state is not None and begun is not None
            state = self.memory.step(self.encoder(prepared), state, begun)
            features = state[:, 0]
        outputs: Tensor = self.actor(self._after_trunk(features))
        return outputs, state

    def _evaluated(
        self, prepared: Features, inputs: Inputs, burn_in: int, *, bootstraps: bool
    ) -> tuple[Tensor, Tensor]:
        """Returns the outputs for the distributions at the rows with actions, and the values; for `evaluate`."""
        features = self._features(prepared, inputs, burn_in)
        outputs: Tensor = self.actor(_rows(features, slice(None, -1)) if bootstraps else features)
        value: Tensor = self.critic(features).squeeze(-1)
        return outputs, value

    def _features(self, prepared: Features, inputs: Inputs, burn_in: int) -> Features:
        if self.memory is None:
            return self._after_trunk(prepared)
        assert inputs.state is not None and inputs.begun is not None
        state, begun = inputs.state, inputs.begun
        if burn_in:
            with torch.no_grad():
                before = self.encoder(_rows(prepared, slice(None, burn_in)))
                _, state = self.memory.unroll(before, state, begun[:, :burn_in])
        rows = self.encoder(_rows(prepared, slice(burn_in, None)))
        return self._after_trunk(self.unroll(self.memory, rows, state, begun[:, burn_in:]))

    def _prepared(self, observation: tuple[Tensor, ...]) -> Features:
        """Returns the inputs of the encoders: one tensor, or one per leaf if there are several."""
        return of_parts(self.prepared(observation))

    def _after_trunk(self, features: Features) -> Features:
        # Without layers, the call of the module would cost as much as a small operation.
        shared: Features = self.trunk(features) if self.network.trunk == "shared" else features
        return shared


def value_network(policy: Policy) -> nn.Module:
    """Returns a new network of values alone, with the observations and the hidden layers of a policy.

    It takes what the policy's encoders take, and returns <float32>[..., 1].
    """
    network = policy.network
    activation = implementations_of(network.activation).module
    body, width = _body(functools.partial(encoder_layers, policy.observer, activation), network, activation)
    return nn.Sequential(*body, initialised(_Output(width, 1), 1.0))


BegunUpdates = tuple[BegunUpdate | None, BegunUpdate | None]
"""Updates that have begun, of observations and of returns; None: there is nothing to normalise."""


def end_moments(begun: BegunUpdates, findings: Sequence[Tensor]) -> MomentsUpdates:
    """Completes updates with the findings, on the host, of those that have begun."""
    remaining = iter(findings)
    observations, returns = (MomentsUpdate() if each is None else each.end(next(remaining)) for each in begun)
    return MomentsUpdates(observations, returns)


def _rows(features: Features, rows: slice) -> Features:
    """Returns rows on the second axis."""
    return features[:, rows] if isinstance(features, Tensor) else tuple(each[:, rows] for each in features)


def _nothing(features: int) -> tuple[list[nn.Module], int]:
    return [], features


def _body(
    encode: Callable[[], tuple[list[nn.Module], int]], network: Network, activation: Activation
) -> tuple[list[nn.Module], int]:
    """Returns new encoders and hidden layers, and the number of their features."""
    layers, features = encode()
    for width in network.hidden_sizes:
        layers = [*layers, initialised(nn.Linear(features, width), math.sqrt(2.0)), activation()]
        features = width
    return layers, features


class _Output(nn.Linear):
    """Linear layer that computes in float32 even under autocast.

    The 8 significant bits of bfloat16 are too few for values and for ratios of probabilities.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(hidden.device.type):
            return super().forward(hidden)
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float())
