"""The section [policy]."""

from typing import Annotated

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from penstock.config.code_names import CodeName
from penstock.config.setting_types import Numbers, PartName, PartNames, Sizes
from penstock.config.settings.section import Section
from penstock.types.spaces import ActivationName, Encoder, MemoryKind, Trunk


class PolicyConfig(Section):
    """[policy] The networks of policy and value."""

    hidden_sizes: Sizes = (64, 64)
    """Widths of the hidden layers; two layers of 64 are standard for flat observations."""
    trunk: Trunk = "separate"
    """Whether policy and value have separate hidden layers or share them. Sharing saves time with wide layers, but
    value_coefficient must then be chosen with care."""
    activation: ActivationName = "tanh"
    """Activation of the hidden layers; tanh keeps small on-policy networks stable."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions at the start, in units of half the action range."""
    state_dependent_std: bool = False
    """Whether the network computes the standard deviation from each observation; false: one parameter for all of
    them."""
    squash_actions: bool = False
    """Whether a tanh keeps continuous actions within their bounds; false: clipping."""
    normalise_observations: bool = True
    """Whether to standardise the numbers in observations by their running mean and standard deviation. Images, one-hot
    codes and bits are never standardised."""
    normalise_returns: bool = True
    """Whether to scale rewards by the running standard deviation of the discounted return, and to learn values that are
    relative to its mean."""
    variance_epsilon: NonNegativeFloat = 0.0
    """Number that is added to running variances before their roots divide observations and rewards. 0: the square
    of a ten-millionth of the mean, so that numbers of any unit are standardised and rounding is not enlarged. A fixed
    number, such as 1e-8, hides smaller variances."""
    widest_range: PositiveFloat = 1e4
    """Half of the widest range of a continuous action to which actions are scaled, in units of the action. Wider bounds
    that are symmetric, such as -1e6 and 1e6, mean that there are none. Others are scaled up to 10,000 times this."""
    observation_offsets: Numbers = ()
    """Numbers that are subtracted from observations in 64 bits, before float32 rounds them: one for each number of an
    observation's boxes of floats, in the order of its parts. A run's check finds them where numbers of type float64 are
    large and hardly change, such as map coordinates or a date in seconds. Unset: as found; without the check, none. A
    policy that is continued keeps its own."""
    encoders: dict[str, Encoder] = {}
    """Encoders of parts of the observation, by the name of the part, such as `camera` or `0`; a space that is not
    nested has the name `observation`. flat: numbers in one row. one_hot: a code per integer. embedding: learned vectors
    per integer. token_mean: mean of the learned vectors of a row of tokens, such as words, of which 0 is none.
    token_gru: a recurrent layer over these vectors. board: small convolutional layers, for arrays of any size. image:
    convolutional layers for pixels. Parts that are not named have the encoder that suits their space
    (docs/your-environment.md). As an option name=encoder,name=encoder."""
    module: Annotated[str, CodeName.of_class("MyNet", "network", "penstock.modules")] | None = None
    """Your own torch module in place of the encoders: my_package.my_module:MyNet or file.py:MyNet. It is made with one
    shape per part of the observation, and called with one tensor per part; hidden_sizes are the layers after it
    (docs/your-environment.md). A subclass of penstock.policies.PolicyModule is the whole policy, with heads, states and
    distributions of its own (docs/change-the-algorithm.md). Unset: encoders."""
    memory: MemoryKind | None = None
    """Recurrent layer between encoders and hidden layers, for tasks in which one observation is not enough. Unset: the
    policy acts on one observation (or on environment.frame_stack of them). A GRU is cheaper than an LSTM. module: a
    whole policy of your own (policy.module) has states."""
    memory_size: PositiveInt = 64
    """Width of the recurrent layer, or of a state of policy.module; every segment stores one state of this width, or
    two for an LSTM."""
    critic_only: PartNames = ()
    """Parts of the observation that the critic reads and the actor does not: what is known in training alone, such as
    the state of a game of several agents or the true friction of a simulation. Their encoders must be flat or one_hot.
    A trained policy acts without them (docs/your-environment.md)."""
    moves: PartName | None = None
    """Part of the observation that is a board of interchangeable pieces, such as colours, between whose cells actions
    move one piece: Discrete(cells**2), numbered source * cells + target. Convolutions with the same weights for every
    kind of piece then compute the logits, which depend on this part alone. Its lowest value is an empty cell. An
    observation that is not nested has the name observation. Unset: a linear layer computes the logits."""
