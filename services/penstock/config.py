"""Every setting of Penstock, defined once, with its unit and the reason for its default.

A `Config` is frozen and has one section per service and per concern. All services of a run read the same one. Values
are taken from these sources, in order of precedence: command-line options (`--ppo.epochs 4`), environment variables
(`PENSTOCK__PPO__EPOCHS=4`), a TOML file (`--config`), a preset (`--preset`), the defaults below. Unknown keys are
errors. Settings that would deadlock are refused here, before anything starts.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import ByteSize, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from penstock import alternatives, derived_settings, replay_law
from penstock.environment_names import short
from penstock.errors import ConfigurationError
from penstock.gate_law import (
    collection_conflict,
    least_store,
    shard_window_conflict,
    shards_conflict,
    share_conflict,
    window_conflict,
)
from penstock.setting_types import (
    NONE,
    ActorSlots,
    Address,
    Addresses,
    Count,
    DerivedCount,
    Device,
    EnvironmentName,
    Minutes,
    Modules,
    PartName,
    Port,
    Scalar,
    Sizes,
    Tables,
    Temperature,
    UnitInterval,
    holds_bool,
    is_optional,
    takes_numbers_only,
)
from penstock.types.extents import Amounts
from penstock.types.networks import MEMORY_PARTS, Encoder, MemoryKind
from penstock.types.replay import MAX_BATCH_SEGMENTS
from penstock.types.store_size import StoreSize

_STORE_BYTES = 64 * 2**20
"""Size of a store by default: thousands of segments of small observations."""

Schedule = Literal["constant", "linear"]
Precision = Literal["float32", "bfloat16"]
Execution = Literal["auto", "eager", "compiled", "graphed"]


class Section(pydantic.BaseModel):
    """A frozen section of the configuration. Unknown keys are errors, and numbers are finite unless stated."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _read_none(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Converts the text none to None, so that an option can unset what a preset sets."""
        assert info.field_name is not None
        annotation = cls.model_fields[info.field_name].annotation
        return None if is_optional(annotation) and value in ("none", "None") else value

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_as_numbers(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Refuses booleans for settings that take numbers; Pydantic would read true as 1."""
        assert info.field_name is not None
        if holds_bool(value) and takes_numbers_only(cls.model_fields[info.field_name].annotation):
            raise ValueError(f"must be a number, not true or false; got {value!r}")
        return value


class RunConfig(Section):
    """[run] What to train, for how long, and where its files go."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random streams of the run."""
    total_steps: Count | None = 1_000_000
    """Environment steps to train for. Steps count when their segments are trained for the first time, or, with
    sampling.fresh_fraction 0, when they are stored. none: no limit in steps, as when only another limit is set. The
    first limit that is reached ends the run, and schedules follow the one of which the largest share is done."""
    total_updates: Count | None = None
    """Gradient steps to train for: per batch, ppo.epochs times ppo.minibatches. Unset: no limit in updates."""
    total_episodes: Count | None = None
    """Training episodes to train for. An episode counts when the segment with its last step is trained for the first
    time. Unset: no limit in episodes."""
    total_minutes: Minutes | None = None
    """Minutes to train for, summed over the sessions of the run. In each, they count from its first environment step
    and include waits for evaluations. Unset: no limit in minutes."""
    stop_at_return: float | None = None
    """Mean return of an evaluation at which training stops early. Unset: train to a limit."""
    dir: str | None = None
    """Folder of the run. Unset: runs/<environment>-<date>-<time>."""

    @property
    def limits(self) -> Amounts:
        """The limits of the run; at least one."""
        return Amounts(self.total_steps, self.total_updates, self.total_episodes, self.total_minutes)

    @pydantic.model_validator(mode="after")
    def _check_limits(self) -> "RunConfig":
        alternatives.complete(self, "run", alternatives.LIMITS)
        return self


class EnvironmentConfig(Section):
    """[environment] The Gymnasium environment."""

    id: EnvironmentName = "CartPole-v1"
    """Registered Gymnasium id; package:Id-v0 to first import the package that registers it; or module:Name or
    file.py:Name for a class or function, called with kwargs. A relative path is made absolute."""
    kwargs: dict[str, Scalar] = {}
    """Arguments for gymnasium.make: numbers, booleans, text or None; as an option name=value,name=value. In a file,
    None is written "None"."""
    variants: Tables = ()
    """Tables of arguments that override kwargs; one policy trains in all of them. Written as [[environment.variants]]
    in a file and as a JSON list in an option. An empty table is the environment with kwargs alone. The actor in slot s
    collects in variant s modulo the number of variants, and the episodes of an evaluation alternate between them.
    Empty: one environment without variants."""
    imports: Modules = ()
    """Modules, or paths of .py files, to import before the environment is made, because they register it."""
    vectorization: Literal["sync", "native"] = "sync"
    """Form of the vector environment. sync: single environments, stepped one after another. native: the environment's
    own vectorised form."""
    frame_stack: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of most recent frames that the policy sees at once, stacked along the first axis; each is sent and stored
    only once. 4 is usual for Atari."""
    training_kwargs: dict[str, Scalar] = {}
    """Arguments that override kwargs for the actors only. Use them for changes to the task that ease learning, such as
    clipped rewards or an episode's end at every lost life. Evaluations do not use them."""
    action_masks: bool = True
    """Whether to use the action masks that the environment offers: an `action_mask` in its Dict observation or in info,
    or a method action_masks(). false: every action is legal for the policy."""
    check_timeout_s: PositiveFloat = 60.0
    """Seconds that each of import, constructor, reset and step may take in the check before a run. Long enough for a
    simulator that compiles or loads a large scene; a longer wait usually means that it hangs."""

    @property
    def short_name(self) -> str:
        """The id without the folder of its file, for display."""
        return short(self.id)

    @property
    def variant_kwargs(self) -> tuple[dict[str, Scalar], ...]:
        """All arguments of each variant; without variants, those of the one environment."""
        return tuple({**self.kwargs, **variant} for variant in self.variants) or (self.kwargs,)

    @property
    def training_variants(self) -> tuple[dict[str, Scalar], ...]:
        """All arguments of each variant, as actors use them."""
        return tuple({**variant, **self.training_kwargs} for variant in self.variant_kwargs)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """The arguments that distinguish each variant, as text for display; empty if there are no variants."""
        return tuple(
            ", ".join(f"{name}={value}" for name, value in variant.items()) or "plain" for variant in self.variants
        )


class PolicyConfig(Section):
    """[policy] The networks of policy and value."""

    hidden_sizes: Sizes = (64, 64)
    """Widths of the hidden layers; two layers of 64 are standard for flat observations."""
    trunk: Literal["separate", "shared"] = "separate"
    """Whether policy and value have separate hidden layers or share them. Sharing saves time with wide layers, but
    value_coefficient must then be chosen with care."""
    activation: Literal["tanh", "relu"] = "tanh"
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
    """Whether to scale rewards by the running standard deviation of the discounted return."""
    encoders: dict[str, Encoder] = {}
    """Encoders of parts of the observation, by the name of the part, such as `camera` or `0`; a space that is not
    nested has the name `observation`. flat: numbers in one row. one_hot: a code per integer. embedding: learned vectors
    per integer. board: small convolutional layers, for arrays of any size. image: convolutional layers for pixels.
    Parts that are not named have the encoder that suits their space (docs/your-environment.md). As an option
    name=encoder,name=encoder."""
    memory: MemoryKind | None = None
    """Recurrent layer between encoders and hidden layers, for tasks in which one observation is not enough. Unset: the
    policy acts on one observation (or on environment.frame_stack of them). A GRU is the cheaper of the two."""
    memory_size: PositiveInt = 64
    """Width of the recurrent layer; every segment stores one state of this width, or two for an LSTM."""
    moves: PartName | None = None
    """Part of the observation that is a board of interchangeable pieces, such as colours, between whose cells actions
    move one piece: Discrete(cells**2), numbered source * cells + target. Convolutions with the same weights for every
    kind of piece then compute the logits, which depend on this part alone. Its lowest value is an empty cell. An
    observation that is not nested has the name observation. Unset: a linear layer computes the logits."""


class PPOConfig(Section):
    """[ppo] The loss and its optimizer (formulas in docs/ARCHITECTURE.md)."""

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-3
    """Learning rate of Adam at the start. At 1, a step moves each parameter by about 1, and no network learns; the
    bound keeps all parameters finite."""
    learning_rate_schedule: Schedule = "linear"
    """Schedule of the learning rate. linear: decreases to zero at the end of the run, so that the last policies change
    little."""
    epochs: PositiveInt = 10
    """Passes over each batch."""
    target_kl: PositiveFloat | None = None
    """Mean KL divergence from the proximal policy, in nats, above which no further pass over the batch is made; 0.01 to
    0.03 is usual. Unset: all passes."""
    minibatches: DerivedCount = 0
    """Gradient steps per pass. 0 or auto: so many that a minibatch has about 256 steps."""
    discount: UnitInterval = 0.99
    """Discount per step, gamma."""
    trace_decay: UnitInterval = 0.95
    """Lambda of GAE and V-trace."""
    clip_range: PositiveFloat = 0.2
    """Epsilon of the clip of the probability ratio at the start."""
    clip_range_schedule: Schedule = "constant"
    """Schedule of the clip range. linear: decreases to zero at the end of the run."""
    value_clip_range: PositiveFloat | None = None
    """Clip of the value around the proximal value. Unset: no clip."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus at the start."""
    entropy_schedule: Schedule = "constant"
    """Schedule of the entropy bonus. linear: decreases to zero at the end of the run, so that exploration ends
    gradually."""
    max_gradient_norm: PositiveFloat = 0.5
    """Norm to which larger gradients are scaled down: that of the value's own network, and that of the others. With a
    shared trunk there is one norm."""
    max_refused_batches: PositiveInt = 10
    """Consecutive batches with refused gradient steps after which the run ends. A step is refused if its gradients have
    no finite norm. One bad segment spoils a batch or two; after ten in a row the run no longer learns."""
    normalise_advantages: bool = True
    """Whether to centre and scale advantages over each minibatch."""
    clip_anchor: UnitInterval = 0.5
    """Centre of the clip, in log space between the policy that learns (0: the decoupled objective) and the one that
    acted (1: plain PPO). Matters with stale data: values near 0 learn faster, values near 1 are steadier."""
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


_ALPHA = 0.6
"""Exponent of Schaul et al. 2016."""


class SamplingConfig(Section):
    """[sampling] The composition of training batches and the age of their segments."""

    batch_segments: DerivedCount = 0
    """Segments in a training batch once replay has begun. 0 or auto: so many that its fresh segments are a window of
    every actor, and at least 32."""
    fresh_fraction: UnitInterval = 0.25
    """Share of fresh segments in a batch, which were not trained yet; the rest is replayed by priority. By default each
    segment is used four times, which needs fewer environment steps than twice (docs/RESULTS.md). 1: no replay. 0: all
    segments are replayed as soon as they are stored, and collection is not limited."""
    off_policy_degree: Annotated[int, Field(ge=-1)] = 1
    """Batches that collection may run ahead of training. 0: synchronous. -1: adjusted during training; raised while
    the learner waits, as long as the effective sample size of fresh data stays large enough."""
    publish_interval: PositiveInt = 1
    """Batches from one publication of the weights to the next."""
    alpha: Annotated[float, Field(ge=0.0, le=replay_law.LARGEST_ALPHA)] | Literal["auto"] = _ALPHA
    """Exponent of the priority in the draw, at most 10; 0: priority does not matter. auto: 0.6 while the learner
    estimates that priorities lower the second moment of the gradient by at least a fifth, else 0."""
    beta: UnitInterval = 0.4
    """Exponent of the importance correction at the start, as in Schaul et al. 2016."""
    final_beta: UnitInterval = 1.0
    """Exponent of the importance correction at the end of the run; it changes linearly."""
    epsilon: Annotated[float, Field(ge=replay_law.EPSILONS[0], le=replay_law.EPSILONS[1])] = 1e-3
    """Constant added to every priority, so that every segment can be drawn."""
    half_life: Annotated[float, Field(gt=0.0, allow_inf_nan=True)] = 3.0
    """Age in versions that halves a segment's probability; inf: age does not matter up to max_staleness."""
    max_staleness: PositiveInt = 64
    """Age in versions above which segments are no longer replayed."""
    min_replay_segments: NonNegativeInt = 64
    """Segments that must have been trained before any is replayed."""
    collection: Literal["equal", "return", "error", "learnability"] = "equal"
    """Rule by which environment.variants share collection. equal: every actor collects as much as any other. error: by
    the mean absolute advantage in a variant's newest segments. return: by how far a variant's mean return is below
    evaluation.threshold or, without one, below the best variant's. learnability: by p (1 - p), with p the share of a
    variant's newest episodes that reach the threshold or, without one, exceed the median of all. Has no effect while
    the learner waits for segments."""
    least_share: float = 0.2
    """Smallest share of collection of an actor, relative to an equal share; above 0 and at most 1. Enough for the
    statistics of a variant that is easy now to show that it was forgotten."""

    @property
    def fresh_segments(self) -> int:
        """Number of fresh segments in every batch (F)."""
        return round(self.batch_segments * self.fresh_fraction)

    @property
    def usual_alpha(self) -> float:
        """Exponent of the draws by priority, and of the estimate of what they gain."""
        return self.alpha if isinstance(self.alpha, float) and self.alpha > 0.0 else _ALPHA

    @property
    def first_alpha(self) -> float:
        """Exponent of the priority in the draws at the start of a run."""
        return 0.0 if self.alpha == "auto" else self.alpha

    @property
    def first_degree(self) -> int:
        """The off-policy degree at the start of a run."""
        return 1 if self.off_policy_degree < 0 else self.off_policy_degree

    @pydantic.model_validator(mode="after")
    def _check_share(self) -> "SamplingConfig":
        if reason := share_conflict(self.least_share):
            raise ValueError(reason)
        return self

    @pydantic.model_validator(mode="after")
    def _check_fresh(self) -> "SamplingConfig":
        if self.batch_segments and self.fresh_fraction > 0.0 and self.fresh_segments < 1:
            raise ValueError(
                f"sampling.batch_segments {self.batch_segments} times sampling.fresh_fraction {self.fresh_fraction}"
                " leaves no fresh segment; set sampling.batch_segments to auto, or sampling.fresh_fraction to"
                f" {1.0 / self.batch_segments:.3g} or more"
            )
        return self


class ReplayConfig(Section):
    """[replay] The replay service."""

    listen: Address = "127.0.0.1:7431"
    """host:port of its gRPC server."""
    metrics_port: Port = 9431
    """Port of its Prometheus metrics; 0: none."""
    folder: str | None = None
    """Folder of the mapped store, which survives the process. Unset: anonymous memory."""
    stop_with_run: bool = False
    """Whether an individually started service, not one of `penstock train`, exits with code 0 when the learner has
    finished the run, so that a batch system's job ends. It continues if a learner is only stopped or lost."""
    capacity_bytes: Annotated[ByteSize, Field(ge=2**16)] | None = None
    """Size of the store in bytes, allocated at start. Unset: 64 MiB or, with `penstock train`, more if two batches and
    the segments in collection for them would not fit, as with large images."""
    capacity_segments: Count | None = None
    """Size of the store in segments, instead of in bytes. It is allocated when the first actor has sent the schema of
    its segments."""
    capacity_steps: Count | None = None
    """Size of the store in steps, instead of in bytes: in segments of actor.unroll_length steps, rounded up. It is
    allocated as with capacity_segments."""
    staging_bytes: ByteSize = ByteSize(2**30)
    """Upper bound in bytes on shared memory for the windows of actors on the same host (four windows each). Actors for
    which there is no room use gRPC. 0: all use gRPC."""
    max_actors: ActorSlots = 256
    """Append streams served at once, at most 4096; more are refused."""
    grant_timeout_s: Annotated[float, Field(ge=2.0)] = 10.0
    """Seconds without a message from an actor after which its grants are withdrawn. Actors send a message every
    second."""
    snapshot_folder: str | None = None
    """Folder of the snapshots; each service needs its own. Unset: the folder `snapshots` in replay.folder."""
    snapshots_kept: PositiveInt = 3
    """Snapshots taken by checkpoint.snapshot_interval_s that are kept; a new one, once complete, replaces the oldest.
    They share unchanged data. Snapshots that a user requested are kept until their folder is removed."""
    snapshot_bytes_per_s: ByteSize = Field(default=ByteSize(256 * 2**20), ge=2**16)
    """Largest rate at which snapshots are written, in bytes per second; a disk sustains the default without delaying
    the store's own pages."""

    @property
    def store_size(self) -> StoreSize:
        """Size of the store."""
        if self.capacity_segments is not None:
            return StoreSize(self.capacity_segments, "segments")
        if self.capacity_steps is not None:
            return StoreSize(self.capacity_steps, "steps")
        return StoreSize(_STORE_BYTES if self.capacity_bytes is None else int(self.capacity_bytes))

    @pydantic.model_validator(mode="after")
    def _check_capacity(self) -> "ReplayConfig":
        alternatives.check_single(self, "replay", alternatives.CAPACITIES)
        return self

    @property
    def snapshots(self) -> str | None:
        """The folder of the snapshots; None if no folder is set, so that no snapshots can be taken."""
        return self.snapshot_folder or (f"{self.folder}/snapshots" if self.folder else None)


class LearnerConfig(Section):
    """[learner] The learner service."""

    listen: Address = "127.0.0.1:7432"
    """host:port of its gRPC server."""
    metrics_port: Port = 9432
    """Port of its Prometheus metrics; 0: none."""
    replay_addresses: Addresses = ("127.0.0.1:7431",)
    """host:port of each replay service, as learner and actors reach it; a list, or separated by commas. Several
    services are shards of one buffer."""
    shard_timeout_s: PositiveFloat = 5.0
    """Seconds that a batch waits for a shard once another shard's segments have arrived, doubled for a shard that does
    not answer at all. Longer than a brief pause of a service, and short beside the minutes that a run may lose by
    waiting."""
    device: Device = "auto"
    """Torch device: cpu, cuda, or cuda:N for GPU number N. auto: cuda if available, else cpu."""
    threads: PositiveInt = 1
    """Torch threads on a CPU; more than one slows small networks down."""
    precision: Precision = "float32"
    """Precision of the hidden layers in both passes. bfloat16: by autocast, faster with large layers on a device that
    supports it; parameters, outputs, losses, advantages and ratios remain float32."""
    execution: Execution = "auto"
    """Execution of gradient steps. eager: operation by operation. auto: eager, but an LSTM on a CPU in float32 by
    torch's kernel, which is faster and rounds differently. compiled: by torch.compile, which needs a C++ compiler and
    takes up to a minute at first. graphed: captured into a CUDA graph and replayed; CUDA only."""
    prefetch_batches: PositiveInt = 1
    """Batches requested ahead of the one in training."""
    max_actors: ActorSlots = 256
    """Actors that may join, at most 4096, the number of slots in a store; more are refused."""
    rejoin_timeout_s: NonNegativeFloat = 10.0
    """Seconds that a lost actor keeps its slot."""


class ActorConfig(Section):
    """[actor] An actor service."""

    listen: Address = "127.0.0.1:7433"
    """host:port of its gRPC server (health only)."""
    metrics_port: Port = 9433
    """Port of its Prometheus metrics; 0: none."""
    learner_address: Address = "127.0.0.1:7432"
    """host:port of the learner to join."""
    environments: PositiveInt = 8
    """Environments stepped together by one actor, with one policy call per step for all of them."""
    unroll_length: Annotated[int, Field(ge=2)] = 32
    """Steps in a segment (T); at least 2, so that no segment consists only of a row that resets."""
    step_timeout_s: PositiveFloat = 120.0
    """Seconds that one call of an environment (make, reset or step) may take. An actor that waits longer exits and is
    restarted. The default is several times the reset of a slow simulator."""
    lowest_temperature: Temperature = 1.0
    """Exploration temperature of the first of train.actors. It divides the logits of discrete policies and multiplies
    the standard deviation of others. 1: as learnt. Evaluations always use 1."""
    highest_temperature: Temperature = 1.0
    """Exploration temperature of the last of train.actors. Temperatures in between are spaced geometrically, and actors
    beyond train.actors begin again at the first. The learner corrects for each actor's temperature; actions that the
    policy would rarely take have little weight."""

    @pydantic.model_validator(mode="after")
    def _check_temperatures(self) -> "ActorConfig":
        if self.lowest_temperature > self.highest_temperature:
            raise ValueError(
                f"actor.lowest_temperature {self.lowest_temperature:g} exceeds actor.highest_temperature"
                f" {self.highest_temperature:g}; swap them"
            )
        return self


class EvaluationConfig(Section):
    """[evaluation] The evaluator service and the schedule of evaluations."""

    listen: Address = "127.0.0.1:7434"
    """host:port of its gRPC server (health only)."""
    metrics_port: Port = 9434
    """Port of its Prometheus metrics; 0: none."""
    learner_address: Address = "127.0.0.1:7432"
    """host:port of the learner that assigns evaluations."""
    interval_steps: Count | None = 10_000
    """Environment steps between evaluations. none: no interval in steps, as when only another interval is set. With
    intervals in several units, the first that has passed starts an evaluation."""
    interval_updates: Count | None = None
    """Gradient steps between evaluations. Unset: no interval in updates."""
    interval_episodes: Count | None = None
    """Training episodes between evaluations, counted as for run.total_episodes. Unset: no interval in episodes."""
    interval_minutes: Minutes | None = None
    """Minutes between evaluations, counted as for run.total_minutes. Unset: no interval in minutes."""
    episodes: PositiveInt = 20
    """Episodes of each evaluation, all played at once in as many environments and spread evenly over
    environment.variants."""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """Whether training waits. synchronous: training waits for each evaluation, so that policies are evaluated exactly
    at the intervals and stop_at_return stops at once. asynchronous: training continues, and an evaluation that becomes
    due during another starts a little later."""
    deterministic: bool = True
    """Whether to take the most likely action instead of a sampled one."""
    threshold: float | None = None
    """Mean return that counts as solved; the summary records when it was first reached."""
    timeout_s: PositiveFloat = 600.0
    """Seconds after which an evaluation is abandoned, because its episodes do not end, its environment hangs or its
    evaluator is lost. Ten minutes are enough for twenty episodes of most environments that Gymnasium registers, and
    cut long games of Atari without a preset, whose raw frames cost a CPU about 60 ms per step."""
    max_episode_steps: PositiveInt = 30_000
    """Steps after which an unfinished episode of an evaluation is cut; its return until then counts. Above 27,000, at
    which the longest registered environments, those of Atari, end by themselves."""

    @property
    def intervals(self) -> Amounts:
        """The intervals between evaluations; at least one."""
        return Amounts(self.interval_steps, self.interval_updates, self.interval_episodes, self.interval_minutes)

    @pydantic.model_validator(mode="after")
    def _check_intervals(self) -> "EvaluationConfig":
        alternatives.complete(self, "evaluation", alternatives.EVALUATION_INTERVALS)
        return self


class CheckpointConfig(Section):
    """[checkpoint] The schedule of checkpoints and snapshots, and how many to keep."""

    save_interval: Count | None = 50_000
    """Environment steps between checkpoints. none: no interval in steps, as when only another interval is set. With
    intervals in several units, the first that has passed starts a checkpoint."""
    save_interval_updates: Count | None = None
    """Gradient steps between checkpoints. Unset: no interval in updates."""
    save_interval_episodes: Count | None = None
    """Training episodes between checkpoints, counted as for run.total_episodes. Unset: no interval in episodes."""
    save_interval_minutes: Minutes | None = None
    """Minutes between checkpoints, counted as for run.total_minutes. Unset: no interval in minutes."""
    max_checkpoints: PositiveInt = 3
    """Number of newest checkpoints that are kept, besides the one with the best evaluation."""
    snapshot_interval_s: NonNegativeFloat = 0.0
    """Seconds between snapshots of the run, which hold its policy and its whole store. 0: only `penstock replay
    snapshot` takes them, because each needs as much disk space as the segments stored since the last one."""

    @property
    def intervals(self) -> Amounts:
        """The intervals between checkpoints; at least one."""
        return Amounts(
            self.save_interval, self.save_interval_updates, self.save_interval_episodes, self.save_interval_minutes
        )

    @pydantic.model_validator(mode="after")
    def _check_intervals(self) -> "CheckpointConfig":
        alternatives.complete(self, "checkpoint", alternatives.SAVE_INTERVALS)
        return self


class TelemetryConfig(Section):
    """[telemetry] Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity of the events that are logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """Format of log lines. auto: text in a terminal, JSON elsewhere."""


class TrainConfig(Section):
    """[train] The processes that `penstock train` starts."""

    actors: PositiveInt | Literal["auto"] = 2
    """Actor processes. auto: one per two cores at first, then more while the learner waits for fresh segments, and
    fewer while actors wait for the learner. With individually started services: planned number of actors, over
    which environment.variants and temperatures are spread."""
    replay_shards: PositiveInt = 1
    """Replay services, over which the actors are spread; each has a store of the configured size. One is enough until
    it limits the throughput."""
    max_restarts: NonNegativeInt = 20
    """Consecutive restarts of a child process without progress after which the run ends. Progress is an evaluation for
    the evaluator, and a step of the run for the others. With growing pauses, 20 restarts take a minute and a half."""

    @property
    def least_actors(self) -> int:
        """The smallest number of actors in the run."""
        return self.replay_shards if self.actors == "auto" else self.actors

    @pydantic.model_validator(mode="after")
    def _check_shards(self) -> "TrainConfig":
        if self.replay_shards > self.least_actors:
            raise ValueError(
                f"{self.actors} actors can't be spread over {self.replay_shards} replay services; set train.actors to"
                f" {self.replay_shards} or more, or train.replay_shards to {self.least_actors} or less"
            )
        return self


class Config(pydantic.BaseModel):
    """All settings of a run: the given values, and defaults for all others.

    No preset is applied; `penstock.configure` chooses one, as `penstock train` does.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    train: TrainConfig = TrainConfig()
    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    sampling: SamplingConfig = SamplingConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    actor: ActorConfig = ActorConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    @pydantic.model_validator(mode="after")
    def _derive(self) -> "Config":
        """Replaces settings that follow from others. It comes before the checks, which need them."""
        sampling, ppo = self.sampling, self.ppo
        if not sampling.batch_segments:
            sampling = sampling.model_copy(update={"batch_segments": self.fitting_batch})
        if not ppo.minibatches:
            ppo = ppo.model_copy(update={"minibatches": self.fitting_minibatches(sampling.batch_segments)})
        # Pydantic's way to replace fields of a frozen model in a validator.
        object.__setattr__(self, "sampling", sampling)
        object.__setattr__(self, "ppo", ppo)
        return self

    @property
    def _shards(self) -> int:
        return max(self.train.replay_shards, len(self.learner.replay_addresses))

    @property
    def fitting_batch(self) -> int:
        """Segments in a batch that fits the actors; sampling.batch_segments if that is auto."""
        return derived_settings.batch_segments(
            actors=self.train.least_actors,
            window=self.actor.environments,
            fresh_fraction=self.sampling.fresh_fraction,
            degree=self.sampling.first_degree,
            shards=self._shards,
        )

    def fitting_minibatches(self, batch_segments: int) -> int:
        """Returns the gradient steps per pass that fit a batch; ppo.minibatches if that is auto."""
        return derived_settings.minibatches(
            batch_segments=batch_segments,
            unroll_length=self.actor.unroll_length,
            recurrent=self.policy.memory is not None,
        )

    @pydantic.model_validator(mode="after")
    def _check_batch_size(self) -> "Config":
        if self.sampling.batch_segments > MAX_BATCH_SEGMENTS:
            remedy = derived_settings.remedy_of_size(
                self.fitting_batch,
                MAX_BATCH_SEGMENTS,
                actors=self.train.least_actors,
                window=self.actor.environments,
                shards=self._shards,
                fresh_fraction=self.sampling.fresh_fraction,
            )
            raise ValueError(
                f"sampling.batch_segments {self.sampling.batch_segments:g} exceeds {MAX_BATCH_SEGMENTS}, the segments"
                f" of the largest batch; {remedy}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_normalisation(self) -> "Config":
        if self.sampling.fresh_segments == 0 and (self.policy.normalise_observations or self.policy.normalise_returns):
            raise ValueError(
                "running normalisation learns from fresh segments, and with sampling.fresh_fraction 0 there are none;"
                " set policy.normalise_observations and policy.normalise_returns to false, or raise the fraction"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_memory(self) -> "Config":
        if self.ppo.burn_in_steps and self.policy.memory is None:
            raise ValueError(
                f"ppo.burn_in_steps {self.ppo.burn_in_steps} needs policy.memory, which is not set; set it to gru, or"
                " remove ppo.burn_in_steps"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_moves(self) -> "Config":
        if self.policy.moves is not None and (self.policy.trunk == "shared" or self.policy.memory is not None):
            raise ValueError(
                "policy.moves computes the logits from the board alone; set policy.trunk to separate, and remove"
                " policy.memory"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_gate(self) -> "Config":
        fresh, degree, window = self.sampling.fresh_segments, self.sampling.first_degree, self.actor.environments
        shards = self._shards
        reason = (
            shards_conflict(fresh, shards)
            or window_conflict(fresh, degree, window)
            or shard_window_conflict(fresh, degree, window, shards)
        )
        if reason:
            raise ValueError(f"{reason} (sampling.batch_segments {self.fitting_batch} fits)" if fresh else reason)
        return self

    @pydantic.model_validator(mode="after")
    def _check_replay(self) -> "Config":
        sampling, fresh = self.sampling, self.sampling.fresh_segments
        if fresh == sampling.batch_segments:
            return self
        age = replay_law.first_replay_age(
            fresh=fresh,
            degree=sampling.first_degree,
            publish_interval=sampling.publish_interval,
            prefetched=self.learner.prefetch_batches,
        )
        if reason := (
            replay_law.staleness_conflict(sampling.max_staleness, age)
            or replay_law.decay_conflict(sampling.half_life, age)
        ):
            raise ValueError(reason)
        return self

    @property
    def least_segments(self) -> int:
        """The least number of segments that each store of this run must hold."""
        sampling = self.sampling
        return least_store(
            fresh=sampling.fresh_segments,
            degree=sampling.first_degree,
            batch=sampling.batch_segments,
            replay_from=sampling.min_replay_segments,
            window=self.actor.environments,
            shards=self._shards,
        )

    @pydantic.model_validator(mode="after")
    def _check_store(self) -> "Config":
        sampling, size, least = self.sampling, self.replay.store_size, self.least_segments
        length = self.actor.unroll_length
        segments = size.segments(length)
        if segments is not None and segments < least:
            works = least * length if size.unit == "steps" else least
            raise ValueError(
                f"{size} is too small: batches of {sampling.batch_segments} segments with sampling.min_replay_segments"
                f" {sampling.min_replay_segments} need {least} segments of {length} steps in the store; set it to"
                f" {works} or more"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_episodes(self) -> "Config":
        if self.sampling.fresh_segments:
            return self
        for amounts, name in (
            (self.run.limits, "run.total_episodes"),
            (self.evaluation.intervals, "evaluation.interval_episodes"),
            (self.checkpoint.intervals, "checkpoint.save_interval_episodes"),
        ):
            if amounts.episodes is not None:
                raise ValueError(
                    f"{name} {amounts.episodes} needs fresh segments, in which episodes are counted, and with"
                    " sampling.fresh_fraction 0 there are none; use the setting for steps, or raise the fraction"
                )
        return self

    @pydantic.model_validator(mode="after")
    def _check_minibatches(self) -> "Config":
        reason = replay_law.minibatch_conflict(
            minibatches=self.ppo.minibatches,
            segments=self.sampling.batch_segments,
            unroll_length=self.actor.unroll_length,
            recurrent=self.policy.memory is not None,
        )
        if reason:
            raise ValueError(reason)
        return self

    @pydantic.model_validator(mode="after")
    def _check_collection(self) -> "Config":
        sampling = self.sampling
        if reason := collection_conflict(
            sampling.collection,
            variants=len(self.environment.variants),
            fresh=sampling.fresh_segments,
            degree=sampling.first_degree,
        ):
            raise ValueError(reason)
        return self

    @pydantic.model_validator(mode="after")
    def _check_places(self) -> "Config":
        actors, most = self.train.least_actors, min(self.learner.max_actors, self._shards * self.replay.max_actors)
        if actors > most:
            raise ValueError(
                f"{actors} actors exceed the {most} that learner.max_actors {self.learner.max_actors} and"
                f" replay.max_actors {self.replay.max_actors} permit; set both to {actors}, or train.actors to {most}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_spread(self) -> "Config":
        variants, actors, episodes = len(self.environment.variants), self.train.least_actors, self.evaluation.episodes
        if variants > actors:
            raise ValueError(
                f"{actors} actors are too few for {variants} environment.variants, each of which needs one; raise"
                " train.actors or remove variants"
            )
        if variants > episodes:
            raise ValueError(
                f"{episodes} episodes can't be spread over {variants} environment.variants; raise evaluation.episodes"
            )
        if actors == 1 and self.actor.lowest_temperature < self.actor.highest_temperature:
            raise ValueError(
                f"a single actor can't have temperatures from {self.actor.lowest_temperature:g} to"
                f" {self.actor.highest_temperature:g}; raise train.actors, or set actor.lowest_temperature and"
                " actor.highest_temperature to the same value"
            )
        return self

    @property
    def recorded(self) -> dict[str, Any]:
        """What a segment records besides the environment's columns: the arguments of `segment_schema`."""
        policy, memory = self.policy, None
        if policy.memory is not None:
            memory = (MEMORY_PARTS[policy.memory], policy.memory_size)
        return {"unroll_length": self.actor.unroll_length, "memory": memory, "burn_in": self.ppo.burn_in_steps}

    def repeatable(self) -> "Config":
        """Returns this configuration without the run's folder, which a repetition does not share."""
        return self.changed({"run": {"dir": None}})

    def changed(self, values: dict[str, object]) -> "Config":
        """Returns this configuration with these nested values replaced. Raises `ConfigurationError` like `build`."""
        return build(merge(self._given(mode="python"), values))

    def to_toml(self) -> str:
        """Returns this configuration as TOML, which `load_toml` reads back to an equal one."""
        return tomli_w.dumps(self._given(mode="json"))

    def _given(self, mode: Literal["python", "json"]) -> dict[str, object]:
        """Returns all values except unset settings; None in a table becomes `NONE`."""
        sections = self.model_dump(mode=mode)
        return {
            section: {key: _without_none(value) for key, value in settings.items() if value is not None}
            for section, settings in sections.items()
        }


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: NONE if each is None else each for key, each in value.items()}
    return [_without_none(each) for each in value] if isinstance(value, (list, tuple)) else value


def build(values: dict[str, object]) -> Config:
    """Builds the configuration from nested values. Raises a `ConfigurationError` that lists all errors in one line."""
    try:
        return Config(**values)
    except pydantic.ValidationError as error:
        raise ConfigurationError(_explain(error)) from None


def setting_names() -> list[str]:
    """Returns the names of all settings as section.key."""
    return [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        for key in field.annotation.model_fields
    ]


_AUTO = "literal['auto']"
_NUMBERS = (["constrained-float"], ["constrained-int"])
"""Pydantic's names of the alternatives of a setting that is a number or auto."""


def _explain(error: pydantic.ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False):
        place = [str(part) for part in item["loc"]]
        if place[-1:] == [_AUTO]:
            # The error of the number, the alternative to auto, is explained already.
            continue
        or_auto = ", or 'auto'" if place[-1:] in _NUMBERS else ""
        where = ".".join(place[:-1] if or_auto else place)
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown setting {where}; {_remedy(where)}")
        elif item["type"] == "value_error":
            # An error about several settings names them itself.
            of_one_setting = len(item["loc"]) > 1
            lines.append(f"{where} {item['ctx']['error']}" if of_one_setting else str(item["ctx"]["error"]))
        else:
            lines.append(f"{where}: {item['msg']}{or_auto}, got {item['input']!r}")
    return "; ".join(lines)


def _remedy(unknown: str) -> str:
    written = unknown.lower().replace("-", "_")
    names = setting_names() if "." in written else list(Config.model_fields)
    of_that_key = [name for name in setting_names() if name.partition(".")[2] == written.rpartition(".")[2]]
    meant = ([written] if written in names else of_that_key) or difflib.get_close_matches(written, names, n=1)
    return f"did you mean {' or '.join(meant)}?" if meant else "`penstock train --help` lists all settings"


def load_toml(path: Path) -> dict[str, object]:
    """Returns the nested values of a TOML file. Raises `ConfigurationError` if it can't be read or parsed."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"can't read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def merge(*layers: dict[str, object]) -> dict[str, object]:
    """Merges nested values, later layers over earlier ones. Tables are merged, other values are replaced.

    A layer that gives a quantity in one unit also replaces it in others (`alternatives`).
    """
    merged: dict[str, object] = {}
    for layer in layers:
        for section, settings in layer.items():
            below = merged.get(section)
            if isinstance(below, dict) and isinstance(settings, dict):
                merged[section] = _merged_tables(alternatives.kept(section, below, settings), settings)
            else:
                merged[section] = settings
    return merged


def _merged_tables(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    merged = dict(below)
    for key, value in above.items():
        under = below.get(key)
        merged[key] = _merged_tables(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
