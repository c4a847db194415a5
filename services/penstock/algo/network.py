"""The architecture of a policy, its bounds and constants, and its noise, for torch and NumPy. Imports neither."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.types.spaces import ActivationName, Encoder, MemoryKind, Trunk

MAX_OBSERVATION = 1e15
"""Bound on the magnitude of observations that are not standardised. Within it no layer overflows for any weights."""

MAX_STANDARDISED = 10.0
"""Bound on the magnitude of standardised observations, in standard deviations."""

LEAST_RELATIVE_DEVIATION = 1e-7
"""Deviation, as a share of the mean, down to which a number is standardised: about one step of float32. Less than that
is rounding."""

LEAST_VARIANCE = 1e-60
"""Variance of a number that varies. The reciprocal of its root, and products with it, are finite in float32."""

AT_BOUND = 0.999
"""Share of half of the range of a squashed action from which on it is at its bound, which it never reaches."""

LARGEST_MEAN = 10.0
"""Mean of returns, in their standard deviations, above which values are relative to it. The error of a critic that
begins at 0 would dominate the gradients of layers that policy and value share. A smaller mean is not an offset: long
episodes of equal rewards have one, and a critic that begins there explores less where all rewards are negative."""

LOG_STD_RANGE = (-5.0, 2.0)
"""Bounds of the log standard deviations of continuous actions."""

SQUASHED_LOG_STD_RANGE = (-5.0, 0.7)
"""Narrower than `LOG_STD_RANGE`, because a larger deviation before a tanh only moves actions to their bounds, and
because `SquashedGaussian.entropy` is accurate only up to this deviation."""


class NoiseKind(enum.Enum):
    """Distribution of the random numbers from which actions are sampled."""

    UNIFORM = enum.auto()
    """Uniform in [0, 1)."""
    NORMAL = enum.auto()
    """Standard normal."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers from which one action is sampled: their distribution, and their number per action."""

    kind: NoiseKind
    size: int


@dataclass(frozen=True, slots=True)
class Network:
    """Architecture of a policy: everything besides the spaces that is needed to build it.

    The defaults must never change, because they hold for files that lack a field, as files of earlier releases do.

    Attributes:
        hidden_sizes: Widths of the hidden layers of policy and value.
        trunk: Whether policy and value have separate hidden layers or share them.
        activation: Activation function after each hidden layer.
        initial_log_std: Initial log standard deviation of continuous actions.
        state_dependent_std: Whether the standard deviation is an output of the network instead of a separate parameter.
        squash_actions: Whether a tanh, instead of clipping, keeps continuous actions within their bounds.
        normalise_observations: Whether numbers in observations are standardised. Images are always scaled to [0, 1].
        normalise_returns: Whether rewards are divided by the standard deviation of discounted returns.
        variance_epsilon: Number that is added to running variances; 0: a share of the squared mean
            (`limits.LEAST_RELATIVE_DEVIATION`).
        widest_range: Half of the widest range of continuous actions that is scaled (`spaces.scaled`).
        observation_offsets: Numbers that are subtracted from observations before they are float32, over all boxes of
            floats; empty: none (`acting.environments.offsets`).
        encoders: Encoders of leaves of the observation, by name, in place of the suitable ones.
        module: Name of a user's module in place of the encoders' layers; None: there is none.
        memory: Kind of the recurrent layer; None: no recurrent layer.
        memory_size: Width of the recurrent layer.
        moves: Name of the board between whose cells actions move pieces; None: actions are not such moves.
        critic_only: Names of the leaves that the critic reads and the actor does not.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    trunk: Trunk = "separate"
    activation: ActivationName = "tanh"
    initial_log_std: float = 0.0
    state_dependent_std: bool = False
    squash_actions: bool = False
    normalise_observations: bool = True
    normalise_returns: bool = True
    encoders: Mapping[str, Encoder] = field(default_factory=dict)
    memory: MemoryKind | None = None
    memory_size: int = 64
    moves: str | None = None
    module: str | None = None
    variance_epsilon: float = 1e-8
    widest_range: float = 1e38
    observation_offsets: tuple[float, ...] = ()
    critic_only: tuple[str, ...] = ()
