"""The sections [evaluation] and [checkpoint]."""

from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from penstock.config import alternatives
from penstock.config.code_names import CodeName
from penstock.config.setting_types import Addresses, Count, ListenAddress, MetricsPort, Minutes
from penstock.config.settings.section import Section
from penstock.types.extents import Amounts


class EvaluationConfig(Section):
    """[evaluation] The evaluator service and the schedule of evaluations."""

    listen: ListenAddress = "127.0.0.1:0"
    """Address of its gRPC server (health only), as actor.listen."""
    metrics_port: MetricsPort = "auto"
    """Port of its Prometheus metrics, as actor.metrics_port."""
    learner_address: Addresses = ("127.0.0.1:7432",)
    """Address of the learner that assigns evaluations. Several are tried in order, as for an actor."""
    run: str | None = None
    """Folder of the run to evaluate, in place of learner_address, as actor.run. Unset: the evaluator connects to
    learner_address."""
    give_up_after_s: PositiveFloat = 600.0
    """Seconds without the learner after which the evaluator ends with exit code 3, as actor.give_up_after_s."""
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
    film_every: PositiveInt | None = None
    """Evaluations per film, which shows one episode of the evaluated policy with its likeliest actions, in the run's
    videos/: of the first evaluation, and of every so many after it. The newest 20 are kept. A process of low priority
    makes it, needs the extra `video`, and takes seconds of a CPU; a film that is not ready delays the next one, and
    never an evaluation. An evaluator of another host needs the run's folder (evaluation.run). Unset: no films, because
    each costs more than a short evaluation."""
    score: Annotated[str, CodeName.of_function("my_score", "score", "penstock.scores")] | None = None
    """Your own measure of an evaluation, which chooses the best checkpoint: a function of an EvaluationSummary that
    returns a number, of which the highest is best. Unset: the mean return."""
    threshold: float | None = None
    """Mean return that counts as solved; the summary records when it was first reached."""
    timeout_s: PositiveFloat = 600.0
    """Seconds after which an evaluation is abandoned, because its episodes do not end, its environment hangs or its
    evaluator is lost. Ten minutes are enough for twenty episodes of most environments that Gymnasium registers, and
    cut long games of Atari without a preset, whose raw frames cost a CPU about 60 ms per step."""
    most_time_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Largest share of the run's time in which evaluations are played, so that slow or endless episodes do not take
    over a run. An evaluation is cut after as long a time as leaves training its share, but not before 60 s, and decides
    nothing then. If it is asynchronous, the next one starts after as much training. 1: no bound but timeout_s."""
    max_episode_steps: PositiveInt | Literal["auto"] = "auto"
    """Steps after which an unfinished episode of an evaluation is cut; its return until then counts. auto: 30,000,
    which is above 27,000, at which the longest registered environments, Atari's, end by themselves. If the environment
    has no time limit, auto is ten times the longest training episode before the first evaluation, from 1,000 to 30,000,
    because a policy that never ends an episode would make evaluations the main cost of a run. A run keeps this bound,
    so that its evaluations can be compared."""

    @property
    def most_episode_steps(self) -> int:
        """Steps after which any episode is cut."""
        return 30_000 if self.max_episode_steps == "auto" else self.max_episode_steps

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
    intervals in several units, as by default, the first that has passed starts a checkpoint."""
    save_interval_updates: Count | None = None
    """Gradient steps between checkpoints. Unset: no interval in updates."""
    save_interval_episodes: Count | None = None
    """Training episodes between checkpoints, counted as for run.total_episodes. Unset: no interval in episodes."""
    save_interval_minutes: Minutes | None = 1.0
    """Minutes between checkpoints, counted as for run.total_minutes. none: no interval in minutes, as when only another
    interval is set. A learner whose host dies loses the training since the newest checkpoint: with the default a
    minute, however slow the environment is."""
    max_checkpoints: PositiveInt = 3
    """Number of newest checkpoints that are kept, besides the one with the best evaluation."""
    copy_to: Annotated[str, Field(min_length=1)] | None = None
    """Folder or URL (s3://bucket/folder) to which the learner copies the settings, the best and the newest checkpoint
    and the summary, in a subfolder with the run's name. URLs need penstock[remote] and the package of their storage. It
    is not recorded in the run's folder, so that no run of others sends data; give it again to resume. Unset: no
    copies."""
    copy_interval_s: PositiveFloat = 300.0
    """Seconds between two rounds of copies, each of which copies what has changed; also the most that is lost with the
    learner's host, besides what checkpoints lack."""
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
