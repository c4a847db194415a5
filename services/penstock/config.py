"""Every setting of Penstock, once, with its unit and the reason for its default.

A `Config` is frozen and has a section for each service and each concern. All services of a run read the same one.
Values come from, strongest first: command-line options (`--ppo.epochs 4`), environment variables
(`PENSTOCK__PPO__EPOCHS=4`), a TOML file (`--config`), a preset (`--preset`), the defaults below. Unknown keys are
errors, and settings that would deadlock are refused here, before anything starts.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import tomli_w
from pydantic import ByteSize, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from penstock.errors import ConfigurationError
from penstock.setting_types import (
    NONE,
    ActorSlots,
    Address,
    Addresses,
    Device,
    Names,
    Port,
    Scalar,
    Sizes,
    Tables,
    Temperature,
    UnitInterval,
    holds_bool,
    takes_numbers_only,
)

Schedule = Literal["constant", "linear"]
Precision = Literal["float32", "bfloat16"]
Execution = Literal["eager", "compiled", "graphed"]


class Section(pydantic.BaseModel):
    """A frozen part of the configuration; unknown keys are errors, and numbers are finite."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values_as_numbers(cls, value: object, info: pydantic.ValidationInfo) -> object:
        """Pydantic reads true as 1."""
        assert info.field_name is not None
        if holds_bool(value) and takes_numbers_only(cls.model_fields[info.field_name].annotation):
            raise ValueError(f"takes numbers, not true or false; got {value!r}")
        return value


class RunConfig(Section):
    """[run] What to train, for how long, and where its files go."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Keys every random stream of the run."""
    total_steps: PositiveInt = 1_000_000
    """Environment steps to train for. Steps are counted when their segments are trained for the first time; where no
    segment is fresh (sampling.fresh_fraction 0), when they are stored."""
    stop_at_return: float | None = None
    """Stop earlier, once an evaluation's mean return reaches this. Unset: train to total_steps."""
    dir: str | None = None
    """The run's folder. Unset: runs/<environment>-<date>-<time>."""


class EnvironmentConfig(Section):
    """[environment] The Gymnasium environment."""

    id: str = "CartPole-v1"
    """A registered id, or package:Id-v0 to import the package that registers it first."""
    kwargs: dict[str, Scalar] = {}
    """Arguments for gymnasium.make: numbers, truth values, text or None; as an option name=value,name=value. In a file,
    None is written "None"."""
    variants: Tables = ()
    """Tables of arguments laid over kwargs, for one policy to be trained in all of them; [[environment.variants]] in a
    file, a list in JSON as an option. An empty table is the environment as kwargs have it. The actor in slot s collects
    in variant s modulo their number, and the episodes of an evaluation take turns. Empty: there is one environment."""
    imports: Names = ()
    """Modules to import before the environment is made, because they register it."""
    vectorization: Literal["sync", "native"] = "sync"
    """sync: Gymnasium's SyncVectorEnv over single environments. native: the environment's own vectorised form."""
    frame_stack: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of an environment's last frames the policy sees at once, stacked along the first axis; each is sent and
    stored once. 4 is usual for Atari."""
    training_kwargs: dict[str, Scalar] = {}
    """Arguments laid over kwargs for the actors alone: what helps to learn and is not the task itself, such as clipped
    rewards, or an episode's end with every lost life. Evaluations never see them."""
    check_timeout_s: PositiveFloat = 60.0
    """Seconds that each of import, constructor, reset and step may take in the check before a run. Long enough for a
    simulator that compiles or loads a large scene; what takes longer mostly hangs."""

    @property
    def variant_kwargs(self) -> tuple[dict[str, Scalar], ...]:
        """All arguments of each variant; those of the one environment where there are no variants."""
        return tuple({**self.kwargs, **variant} for variant in self.variants) or (self.kwargs,)

    @property
    def training_variants(self) -> tuple[dict[str, Scalar], ...]:
        """All arguments of each variant, as actors use them."""
        return tuple({**variant, **self.training_kwargs} for variant in self.variant_kwargs)

    @property
    def variant_names(self) -> tuple[str, ...]:
        """What sets each variant apart, for people; empty where there are none."""
        return tuple(
            ", ".join(f"{name}={value}" for name, value in variant.items()) or "plain" for variant in self.variants
        )


class PolicyConfig(Section):
    """[policy] The networks of policy and value."""

    hidden_sizes: Sizes = (64, 64)
    """Widths of the hidden layers; two of 64 are the field's standard for flat observations."""
    trunk: Literal["separate", "shared"] = "separate"
    """Whether policy and value have hidden layers of their own, or the same ones; shared saves time where layers are
    wide, and needs value_coefficient chosen with care."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Tanh keeps small on-policy networks stable."""
    initial_log_std: float = 0.0
    """Log standard deviation of continuous actions at the start, in units of half the action range."""
    state_dependent_std: bool = False
    """Let the network say the deviation at each observation, not one parameter for all of them."""
    squash_actions: bool = False
    """Keep continuous actions within their bounds by a tanh, not by clipping."""
    normalise_observations: bool = True
    """Scale observations by their running mean and deviation."""
    normalise_returns: bool = True
    """Scale rewards by the running deviation of the discounted return."""


class PPOConfig(Section):
    """[ppo] The loss and its optimizer (docs/ARCHITECTURE.md has the formulas)."""

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 3e-4
    """Of Adam, at the start. At 1, a step moves each parameter by about 1, and no network learns; the bound keeps all
    parameters finite."""
    learning_rate_schedule: Schedule = "constant"
    """linear: to zero at total_steps."""
    epochs: PositiveInt = 10
    """Passes over each batch."""
    target_kl: PositiveFloat | None = None
    """Stop after the pass in which the policy has moved further than this from the proximal one, by mean KL divergence
    in nats; 0.01 to 0.03 is usual. Unset: all passes."""
    minibatches: PositiveInt = 4
    """Gradient steps in a pass."""
    discount: UnitInterval = 0.99
    """Gamma, per step."""
    trace_decay: UnitInterval = 0.95
    """Lambda of GAE and of V-trace."""
    clip_range: PositiveFloat = 0.2
    """Epsilon of the clip around the proximal policy, at the start."""
    clip_range_schedule: Schedule = "constant"
    """linear: to zero at total_steps."""
    value_clip_range: PositiveFloat | None = None
    """Clip of the value around the proximal value. Unset: no clip."""
    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, at the start."""
    entropy_schedule: Schedule = "constant"
    """linear: to zero at total_steps; explores first and settles later."""
    max_gradient_norm: PositiveFloat = 0.5
    """Gradients are scaled down to this global norm."""
    max_refused_batches: PositiveInt = 10
    """The run ends after so many batches in a row with gradient steps that had to be refused, since their gradients had
    no finite norm. One bad segment spoils a batch or two, and ten in a row are a run that learns nothing any more."""
    normalise_advantages: bool = True
    """Centre and scale advantages over each minibatch."""
    clip_anchor: UnitInterval = 0.5
    """Where the clip is centred, in log space between the policy that learns (0: the decoupled objective) and the one
    that acted (1: plain PPO). Matters where data is stale: nearer to 0 learns faster, nearer to 1 steadier."""
    v_trace: bool = True
    """Correct advantages and value targets for who acted. false: GAE, as if it had been the policy that learns."""
    rho_clip: PositiveFloat = 1.0
    """V-trace's bar on the ratio that weighs each temporal difference."""
    trace_clip: PositiveFloat = 1.0
    """V-trace's bar on the ratio that cuts traces."""
    behaviour_weight_clip: PositiveFloat = 5.0
    """Bar on the ratio of the clip's anchor to the policy that acted, which weighs each step in the loss."""


class SamplingConfig(Section):
    """[sampling] What a training batch is made of, and how old it may be."""

    batch_segments: PositiveInt = 32
    """Segments in a training batch once replay has begun."""
    fresh_fraction: UnitInterval = 0.5
    """Share of a batch that was never trained on before; the rest is replayed by priority. 1: no replay. 0: all of it
    is replayed, from the moment it is stored, and collection runs as fast as it can."""
    off_policy_degree: Annotated[int, Field(ge=-1)] = 1
    """Batches that collection may run ahead of training. 0: synchronous. -1: chosen while it runs, as far as the
    learner would wait otherwise and the data still counts."""
    publish_interval: PositiveInt = 1
    """Weights are published every so many batches."""
    alpha: NonNegativeFloat = 0.6
    """Exponent of priority and age in the draw; 0 replays uniformly all that is young enough."""
    beta: UnitInterval = 0.4
    """Exponent of the importance correction at the start, as in Schaul et al. 2016."""
    final_beta: UnitInterval = 1.0
    """The same at total_steps; it moves linearly."""
    eta: UnitInterval = 0.9
    """Share of the largest, against the mean, temporal difference in a segment's priority (R2D2)."""
    epsilon: PositiveFloat = 1e-3
    """Added to every priority, so that nothing is never drawn."""
    half_life: PositiveFloat = 2.0
    """Age in versions at which the mass of a segment, before alpha, has halved."""
    max_staleness: PositiveInt = 64
    """Segments older than this many versions are replayed no more."""
    min_replay_segments: NonNegativeInt = 64
    """Segments that must have been trained before any is replayed."""

    @property
    def fresh_segments(self) -> int:
        """Fresh segments in every batch (F)."""
        return round(self.batch_segments * self.fresh_fraction)

    @property
    def first_degree(self) -> int:
        """The off-policy degree that a run begins with."""
        return 1 if self.off_policy_degree < 0 else self.off_policy_degree

    @pydantic.model_validator(mode="after")
    def _check_fresh(self) -> "SamplingConfig":
        if self.fresh_fraction > 0.0 and self.fresh_segments < 1:
            raise ValueError(
                f"batch_segments {self.batch_segments} times fresh_fraction {self.fresh_fraction} leaves no fresh"
                " segment; raise one of them"
            )
        return self


class ReplayConfig(Section):
    """[replay] The replay service."""

    listen: Address = "127.0.0.1:7431"
    """host:port of its gRPC server."""
    metrics_port: Port = 9431
    """Port of its Prometheus metrics; 0: none."""
    folder: str | None = None
    """Where the mapped store lies, and outlives the process. Unset: anonymous memory."""
    stop_with_run: bool = False
    """Whether a service of its own (not of `penstock train`) ends with exit code 0 when the learner has finished the
    run, so that a batch system's job ends. It goes on when a learner is only stopped or lost."""
    capacity_bytes: ByteSize = Field(default=ByteSize(64 * 2**20), ge=2**16)
    """Bytes of the store, allocated at start."""
    staging_bytes: ByteSize = ByteSize(2**30)
    """At most so many bytes beside the store, through which actors on its own host hand over their windows (four each);
    what finds no room comes by gRPC. 0: everything does."""
    max_actors: ActorSlots = 256
    """Append streams it serves at once, at most 4096; more are refused."""
    grant_timeout_s: Annotated[float, Field(ge=2.0)] = 10.0
    """A grant of an actor that has been silent this long returns. Actors give a sign of life every second."""
    snapshot_folder: str | None = None
    """Where snapshots lie; one for each service. Unset: the folder `snapshots` in replay.folder."""
    snapshots_kept: PositiveInt = 3
    """Snapshots taken by checkpoint.snapshot_interval_s that are kept; the oldest goes when a new one is complete. They
    share what has not changed. Those that a user asked for stay until their folder is removed."""
    snapshot_bytes_per_s: ByteSize = Field(default=ByteSize(256 * 2**20), ge=2**16)
    """How fast snapshots are written at most; what a disk can take without holding back the store's own pages."""

    @property
    def snapshots(self) -> str | None:
        """The folder of the snapshots; None where there can be none, since nothing has a folder."""
        return self.snapshot_folder or (f"{self.folder}/snapshots" if self.folder else None)


class LearnerConfig(Section):
    """[learner] The learner service."""

    listen: Address = "127.0.0.1:7432"
    """host:port of its gRPC server."""
    metrics_port: Port = 9432
    """Port of its Prometheus metrics; 0: none."""
    replay_addresses: Addresses = ("127.0.0.1:7431",)
    """host:port of each replay service, as learner and actors reach it; a list, or separated by commas. Several are
    shards of one buffer."""
    shard_timeout_s: PositiveFloat = 5.0
    """How long a batch waits for a shard once another's part is there; twice as long for one that does not answer at
    all. Above a moment's pause of a service, and little beside the minutes that a run may lose by it."""
    device: Device = "auto"
    """Torch device: cpu, cuda, or cuda:N for the GPU of number N. auto: cuda where there is one, else cpu."""
    threads: PositiveInt = 1
    """Torch threads on a CPU; small networks lose by more."""
    precision: Precision = "float32"
    """Of the hidden layers, in both directions. bfloat16: by autocast, faster where layers are large and the device has
    units for it; parameters, outputs, losses, advantages and ratios stay float32."""
    execution: Execution = "eager"
    """How gradient steps are executed. eager: operation by operation. compiled: by torch.compile, which needs a C++
    compiler and takes up to a minute at first. graphed: captured into a CUDA graph and replayed; CUDA only."""
    prefetch_batches: PositiveInt = 1
    """Batches asked for ahead of the one in training."""
    max_actors: ActorSlots = 256
    """Actors that may join, at most 4096, which is the number of actors that a store keeps apart; more are refused."""
    rejoin_timeout_s: NonNegativeFloat = 10.0
    """A lost actor keeps its slot this long."""


class ActorConfig(Section):
    """[actor] An actor service."""

    listen: Address = "127.0.0.1:7433"
    """host:port of its gRPC server (health only)."""
    metrics_port: Port = 9433
    """Port of its Prometheus metrics; 0: none."""
    learner_address: Address = "127.0.0.1:7432"
    """host:port of the learner to join."""
    environments: PositiveInt = 8
    """Environments it steps together, one policy call a step for all."""
    unroll_length: Annotated[int, Field(ge=2)] = 32
    """Steps in a segment (T); at least 2, so that none holds a row that only resets and nothing else."""
    step_timeout_s: PositiveFloat = 120.0
    """Seconds that one call of an environment (make, reset or step) may take. An actor that waits longer ends, so that
    it is started again. Several times what slow simulators need to reset."""
    lowest_temperature: Temperature = 1.0
    """Exploration of the first of train.actors: divides the logits of discrete policies, multiplies the standard
    deviation of others. 1: as learnt. Evaluations are never tempered."""
    highest_temperature: Temperature = 1.0
    """The same of the last; those between are spaced geometrically, and actors beyond train.actors begin again at the
    first. The learner corrects for how each acted, and what the policy would hardly have done counts for little."""

    @pydantic.model_validator(mode="after")
    def _check_temperatures(self) -> "ActorConfig":
        if self.lowest_temperature > self.highest_temperature:
            raise ValueError(
                f"actor.lowest_temperature {self.lowest_temperature:g} exceeds actor.highest_temperature"
                f" {self.highest_temperature:g}; swap them"
            )
        return self


class EvaluationConfig(Section):
    """[evaluation] The evaluator service, and when to evaluate."""

    listen: Address = "127.0.0.1:7434"
    """host:port of its gRPC server (health only)."""
    metrics_port: Port = 9434
    """Port of its Prometheus metrics; 0: none."""
    learner_address: Address = "127.0.0.1:7432"
    """host:port of the learner to ask for work."""
    interval_steps: PositiveInt = 10_000
    """Environment steps between evaluations; they run beside the training."""
    episodes: PositiveInt = 20
    """Episodes of each evaluation, all at once in as many environments; spread evenly over environment.variants."""
    mode: Literal["asynchronous", "synchronous"] = "asynchronous"
    """synchronous: training waits for each evaluation, so that they are of the policies at the intervals exactly, and
    stop_at_return stops at once. asynchronous: it goes on, and what is due while one is played comes a little later."""
    deterministic: bool = True
    """Take the most likely action rather than a sampled one."""
    threshold: float | None = None
    """Mean return that counts as solved; when it was first reached goes into the summary."""
    timeout_s: PositiveFloat = 600.0
    """Seconds from asking for an evaluation to giving it up, whether its episodes do not end, its environment hangs or
    its evaluator is gone. Ten minutes are enough for twenty episodes of any environment that Gymnasium registers."""
    max_episode_steps: PositiveInt = 30_000
    """Steps after which an evaluation's episode that has not ended is cut; its return until then counts. Above the
    27,000 at which the longest registered environments, those of Atari, end by themselves."""


class CheckpointConfig(Section):
    """[checkpoint] When to save, and how much to keep."""

    save_interval: PositiveInt = 50_000
    """Environment steps between checkpoints."""
    max_checkpoints: PositiveInt = 3
    """The newest so many are kept, and the best by evaluation."""
    snapshot_interval_s: NonNegativeFloat = 0.0
    """Seconds between snapshots of the run, which hold its policy and all of its store; 0: they are taken only when
    `penstock replay snapshot` asks for one, since each costs as much disk as the segments that came since the last."""


class TelemetryConfig(Section):
    """[telemetry] Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe events that are written."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """auto: text in a terminal, JSON elsewhere."""


class TrainConfig(Section):
    """[train] What `penstock train` starts besides replay, learner and evaluator."""

    actors: PositiveInt | Literal["auto"] = 2
    """Actor processes. auto: as many as pay, at first one for every second core, and then more while the learner waits
    for fresh segments and fewer while actors wait for the learner. Where services are started by themselves: how many
    actors the run is meant to have, over which environment.variants and temperatures are spread."""
    replay_shards: PositiveInt = 1
    """Replay services, over which the actors are spread; each has replay.capacity_bytes. One is enough until it is
    what others wait for."""
    max_restarts: NonNegativeInt = 20
    """Restarts of a child that died without progress in between, before the run is given up: for the evaluator progress
    is an evaluation, for the others a step of the run. With growing pauses, 20 take a minute and a half."""

    @property
    def least_actors(self) -> int:
        """How many actors there will be at least."""
        return self.replay_shards if self.actors == "auto" else self.actors

    @pydantic.model_validator(mode="after")
    def _check_shards(self) -> "TrainConfig":
        if self.replay_shards > self.least_actors:
            raise ValueError(
                f"{self.actors} actors can't be spread over {self.replay_shards} replay services; raise train.actors or"
                " lower train.replay_shards"
            )
        return self


class Config(BaseSettings):
    """All settings of a run: those that are given, and the defaults of all others.

    No preset is underneath; `penstock.configure` chooses one, as `penstock train` does.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        # Else PPO and ppo would both be the section, and one of the two would be lost.
        case_sensitive=True,
        env_prefix="PENSTOCK__",
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
    )

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

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keyword arguments only: `cli.options` stacks the other sources, so that importing code is not at the mercy of
        the environment.
        """
        return (init_settings,)

    @pydantic.model_validator(mode="after")
    def _check_gate(self) -> "Config":
        fresh, degree, window = self.sampling.fresh_segments, self.sampling.first_degree, self.actor.environments
        if degree == 0 and fresh % window:
            raise ValueError(
                f"with sampling.off_policy_degree 0, the {fresh} fresh segments of a batch must be a multiple of"
                f" actor.environments {window}, or no batch could fill; change sampling.batch_segments,"
                " sampling.fresh_fraction or actor.environments"
            )
        if degree > 0 and fresh and window > degree * fresh:
            raise ValueError(
                f"actor.environments {window} exceeds sampling.off_policy_degree {degree} times the {fresh} fresh"
                " segments of a batch, so that the gate could never open; raise sampling.batch_segments or lower"
                " actor.environments"
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
    def _check_shards(self) -> "Config":
        fresh, degree, window = self.sampling.fresh_segments, self.sampling.first_degree, self.actor.environments
        shards = max(self.train.replay_shards, len(self.learner.replay_addresses))
        if shards > 1 and fresh == 0:
            raise ValueError(
                f"sampling.fresh_fraction 0 works with one replay service, and there are {shards}: a batch is put"
                " together by its fresh segments; raise the fraction or use one service"
            )
        if shards > 1 and degree == 0 and fresh % (shards * window):
            raise ValueError(
                f"with sampling.off_policy_degree 0, the {fresh} fresh segments of a batch must be a multiple of"
                f" {shards} replay services times actor.environments {window}; change sampling.batch_segments or"
                " actor.environments"
            )
        if shards > 1 and degree > 0 and shards * -(-window // degree) > fresh:
            raise ValueError(
                f"the {fresh} fresh segments of a batch are too few for {shards} replay services with actors of"
                f" {window} environments at sampling.off_policy_degree {degree}; raise sampling.batch_segments or lower"
                " actor.environments"
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
                f"one actor has one temperature, not a spread from {self.actor.lowest_temperature:g} to"
                f" {self.actor.highest_temperature:g}; raise train.actors, or set actor.lowest_temperature and"
                " actor.highest_temperature alike"
            )
        return self

    def repeatable(self) -> "Config":
        """This configuration without the run's folder, which a repetition does not share."""
        return self.changed({"run": {"dir": None}})

    def changed(self, values: dict[str, object]) -> "Config":
        """With these nested values in place of its own. Raises `ConfigurationError` as `build`."""
        return build(merge(self._given(mode="python"), values))

    def to_toml(self) -> str:
        """This configuration as TOML that `load_toml` reads back to an equal one."""
        return tomli_w.dumps(self._given(mode="json"))

    def _given(self, mode: Literal["python", "json"]) -> dict[str, object]:
        """All values but settings that are unset; what is None in a table is `NONE` there."""
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
    """The configuration of nested values. Raises `ConfigurationError` with one line for each thing wrong."""
    try:
        return Config(**values)  # type: ignore[arg-type]
    except pydantic.ValidationError as error:
        raise ConfigurationError(_explain(error)) from None


def setting_names() -> list[str]:
    """Every setting as section.key."""
    return [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        for key in field.annotation.model_fields
    ]


def _explain(error: pydantic.ValidationError) -> str:
    lines = []
    for item in error.errors(include_url=False):
        where = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"unknown setting {where}; {_remedy(where)}")
        elif item["type"] == "value_error":
            # What concerns several settings names them itself.
            of_one_setting = len(item["loc"]) > 1
            lines.append(f"{where} {item['ctx']['error']}" if of_one_setting else str(item["ctx"]["error"]))
        else:
            lines.append(f"{where}: {item['msg']}, got {item['input']!r}")
    return "; ".join(lines)


def _remedy(unknown: str) -> str:
    written = unknown.lower().replace("-", "_")
    names = setting_names() if "." in written else list(Config.model_fields)
    of_that_key = [name for name in setting_names() if name.partition(".")[2] == written.rpartition(".")[2]]
    meant = ([written] if written in names else of_that_key) or difflib.get_close_matches(written, names, n=1)
    return f"did you mean {' or '.join(meant)}?" if meant else "`penstock train --help` lists them all"


def load_toml(path: Path) -> dict[str, object]:
    """The nested values of a TOML file. Raises `ConfigurationError` if it can't be read or parsed."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"can't read the configuration {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None


def merge(*layers: dict[str, object]) -> dict[str, object]:
    """Nested values, later layers over earlier ones; tables are merged, everything else is replaced."""
    merged: dict[str, object] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
