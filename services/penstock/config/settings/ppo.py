"""The section [ppo]."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from penstock.config.code_names import CodeName
from penstock.config.setting_types import DerivedCount, Schedule, UnitInterval
from penstock.config.settings.section import Section


class PPOConfig(Section):
    """[ppo] The loss and its optimizer (formulas in docs/design-learner.md)."""

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """Learning rate of Adam at the start. At 1, a step moves each parameter by about 1, and no network learns; the
    bound keeps all parameters finite."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate. linear and cosine: decreases to zero at the end of the run, so that the last
    policies change little. Points of progress and share of the rate, each from 0 to 1, are joined by straight lines:
    [[0, 0.1], [0.05, 1], [1, 0]] begins with a tenth of the rate."""
    epochs: PositiveInt = 10
    """Passes over each batch."""
    target_kl: PositiveFloat | None = 0.02
    """Mean KL divergence from the proximal policy, in nats, above which no further pass over the batch is made; 0.01 to
    0.03 is usual. Long runs on continuous control need a bound, and short runs hardly reach it (docs/RESULTS.md). none:
    all passes."""
    minibatches: DerivedCount = 0
    """Gradient steps per pass. 0 or auto: so many that a minibatch has about 256 steps."""
    discount: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.99
    """Discount per step, gamma. Negative if two players of a zero-sum game take turns, because what follows a move is
    worth to the player who made it what the opponent loses (docs/suites.md#two-players)."""
    trace_decay: UnitInterval = 0.95
    """Lambda of GAE and V-trace."""
    clip_range: PositiveFloat = 0.2
    """Epsilon of the clip of the probability ratio at the start."""
    clip_range_schedule: Schedule = "constant"
    """Schedule of the clip range, as learning_rate_schedule."""
    value_clip_range: PositiveFloat | None = None
    """Clip of the value around the proximal value. Unset: no clip."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus at the start."""
    entropy_schedule: Schedule = "constant"
    """Schedule of the entropy bonus, as learning_rate_schedule. linear and cosine: exploration ends gradually."""
    max_gradient_norm: PositiveFloat = 0.5
    """Norm to which larger gradients are scaled down, separately for the value's own network and for the rest. With a
    shared trunk there is one norm."""
    max_refused_batches: PositiveInt = 10
    """Consecutive batches with refused gradient steps after which the run ends. A step is refused if its gradients have
    no finite norm. One bad segment spoils a batch or two; after ten in a row the run no longer learns."""
    normalise_advantages: bool = True
    """Whether to centre and scale advantages over each minibatch, weighted by the importance of its steps. A minibatch
    then needs 8 steps."""
    clip_anchor: UnitInterval = 0.5
    """Centre of the clip, in log space between the policy that learns (0: the decoupled objective) and the one that
    acted (1: plain PPO). Matters with stale data: values near 0 learn faster, values near 1 are steadier."""
    advantage: Annotated[str, CodeName.of_function("my_advantage", "advantage", "penstock.advantages")] | None = None
    """Your own advantages and value targets: file.py:my_advantage or my_package.my_module:my_advantage. It is a
    function of the rewards, values and ends of all steps of a batch that returns both, or a class whose instance is
    such a function (docs/change-the-algorithm.md). Unset: V-trace, which is GAE without v_trace."""
    intrinsic_reward: Annotated[str, CodeName.of_class("MyReward", "intrinsic reward", "penstock.intrinsic")] | None = (
        None
    )
    """Your own intrinsic rewards, which are added to the task's: file.py:MyReward or my_package.my_module:MyReward. It
    is a torch module that returns a reward for each step, such as the error of a prediction. Training lowers these
    rewards (docs/change-the-algorithm.md). The learner trains it, and a critic for its rewards. Unset: none."""
    intrinsic_coefficient: NonNegativeFloat = 1.0
    """Factor of the advantages of intrinsic_reward before they are added to the task's advantages."""
    intrinsic_discount: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.99
    """Discount of the rewards of intrinsic_reward, which go on over the ends of episodes."""
    v_trace: bool = True
    """Whether to correct advantages and value targets for the policy that acted; false: GAE without correction."""
    rho_clip: PositiveFloat = 1.0
    """V-trace's upper bound on the ratio that weights each temporal difference."""
    trace_clip: PositiveFloat = 1.0
    """V-trace's upper bound on the ratio that cuts traces."""
    burn_in_steps: Annotated[int, Field(ge=0, le=1024)] = 0
    """Steps before a segment from which policy.memory computes the state at its first step under the current
    parameters. Each segment stores their observations. 0: the state that the actor had is used unchanged; replay of
    old segments may need more (docs/memory.md)."""
    behaviour_weight_clip: PositiveFloat = 5.0
    """Upper bound on the ratio of the clip's anchor to the policy that acted, which weights each step in the loss."""
