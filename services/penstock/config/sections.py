"""All sections of the configuration, and the settings that follow from others."""

import dataclasses
import functools

import pydantic
from pydantic.fields import FieldInfo

from penstock.config import derived_settings, replay_law
from penstock.config.settings.environment import EnvironmentConfig
from penstock.config.settings.evaluation import CheckpointConfig, EvaluationConfig
from penstock.config.settings.policy import PolicyConfig
from penstock.config.settings.ppo import PPOConfig
from penstock.config.settings.run import RunConfig, TelemetryConfig, TrackingConfig, TrainConfig
from penstock.config.settings.sampling import SamplingConfig
from penstock.config.settings.section import Constant, Section, texts_of
from penstock.config.settings.security import SecurityConfig
from penstock.config.settings.services import ActorConfig, LearnerConfig, ReplayConfig
from penstock.gate_law import least_store


class Sections(Constant):
    """The sections, with derived settings filled in; `Config` also checks that they fit together."""

    # The arguments of an environment may be infinite.
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

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
    tracking: TrackingConfig = TrackingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    security: SecurityConfig = SecurityConfig()

    @pydantic.model_validator(mode="after")
    def _derive(self) -> "Sections":
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
    def shards(self) -> int:
        """Number of replay services."""
        return max(self.train.replay_shards, len(self.learner.replay_addresses))

    @property
    def awaited_actors(self) -> int:
        """Number of actors that must be connected before the first batch."""
        if self.train.await_actors != "all":
            return self.train.await_actors
        expected = self.learner.expected_actors
        return expected if isinstance(expected, int) else self.train.least_actors

    @property
    def step_patience_s(self) -> float:
        """Seconds without progress after which an actor hangs. It replaces a worker process that hangs before that."""
        return self.actor.step_timeout_s * (2.0 if self.environment.vectorization == "process" else 1.0)

    @property
    def most_environments(self) -> int:
        """The most environments of an actor or an evaluator."""
        return max(self.actor.environments, self.evaluation.episodes)

    @property
    def has_lone_environments(self) -> bool:
        """Whether each environment of an actor or an evaluator has a worker process of its own."""
        environment = self.environment
        return environment.vectorization == "process" and (environment.workers or 1) >= self.most_environments

    @property
    def collection(self) -> derived_settings.Collection:
        """What determines the fresh segments of a batch. Counts the actors that an engine starts, if they are more."""
        given, expected = self.sampling.off_policy_degree, self.learner.expected_actors
        return derived_settings.Collection(
            actors=max(self.train.least_actors, expected if isinstance(expected, int) else 0),
            window=self.actor.environments,
            unroll_length=self.actor.unroll_length,
            fresh_fraction=self.sampling.fresh_fraction,
            degree=given if given >= 0 else None,
            oldest=replay_law.most_degree(
                max_staleness=self.sampling.max_staleness,
                half_life=self.sampling.half_life,
                publish_interval=self.sampling.publish_interval,
                prefetched=self.learner.prefetch_batches,
            ),
            shards=self.shards,
        )

    @property
    def fitting_batch(self) -> int:
        """Segments in a batch that fits the actors; sampling.batch_segments if that is auto."""
        return derived_settings.batch_segments(self.collection)

    @property
    def degree(self) -> int:
        """The most batches that collection runs ahead of training: sampling.off_policy_degree, unless that is auto."""
        return derived_settings.degree(self.collection, self.sampling.fresh_segments)

    def degree_with(self, actors: int) -> int:
        """Returns the degree for this number of actors, if it is larger than the configured one."""
        more = dataclasses.replace(self.collection, actors=max(actors, self.collection.actors))
        return derived_settings.degree(more, self.sampling.fresh_segments)

    @property
    def first_degree(self) -> int:
        """The batches that collection runs ahead of training at first."""
        return derived_settings.least_degree(self.collection, self.sampling.fresh_segments)

    def fitting_minibatches(self, batch_segments: int) -> int:
        """Returns the gradient steps per pass that fit a batch; ppo.minibatches if that is auto."""
        return derived_settings.minibatches(
            batch_segments=batch_segments,
            unroll_length=self.actor.unroll_length,
            recurrent=self.policy.memory is not None,
        )

    @property
    def varies_episodes(self) -> bool:
        """Whether each episode is of another variant, and not each actor."""
        environment = self.environment
        if environment.vary == "auto":
            return len(environment.variants) > self.train.least_actors
        return environment.vary == "episodes"

    @property
    def least_wanted_actors(self) -> int:
        """The least number of actors that the learner asks for: also one for each service and each actor's variant."""
        variants = 0 if self.varies_episodes else len(self.environment.variants)
        return max(self.learner.least_wanted_actors, self.shards, variants)

    @property
    def most_wanted_actors(self) -> int:
        """The largest number of actors that the learner asks for."""
        return self.learner.most_wanted_actors or self.learner.max_actors

    @property
    def least_segments(self) -> int:
        """The least number of segments that each store of this run must hold."""
        sampling = self.sampling
        return least_store(
            fresh=sampling.fresh_segments,
            degree=self.degree,
            batch=sampling.batch_segments,
            replay_from=sampling.min_replay_segments,
            window=self.actor.environments,
            shards=self.shards,
        )


@functools.cache
def fields() -> dict[str, FieldInfo]:
    """Returns the fields of all sections by their names, and of all settings as section.key."""
    found = dict(Sections.model_fields)
    for section, field in Sections.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        found |= {f"{section}.{key}": each for key, each in field.annotation.model_fields.items()}
    return found


def described(name: str) -> str:
    """Returns what a setting, section.key, is: the text below it in the source, in one line; empty if there is none."""
    section, _, key = name.partition(".")
    model = Sections.model_fields[section].annotation
    assert isinstance(model, type) and issubclass(model, Section)
    return " ".join(texts_of(model).get(key, "").split())


def setting_names() -> list[str]:
    """Returns the names of all settings as section.key."""
    return [name for name in fields() if "." in name]
