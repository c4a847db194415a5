"""The sections [run], [train], [tracking] and [telemetry]: what to train, by which processes, and their logs."""

from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from penstock.config import alternatives
from penstock.config.code_names import TrackerName
from penstock.config.setting_types import (
    Count,
    Host,
    Minutes,
    NodeName,
    Notified,
    ProjectName,
    RunOrCheckpoint,
)
from penstock.config.settings.section import Section
from penstock.types.extents import Amounts


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
    record_episodes: bool = False
    """Whether to write a line per training episode, with its return, its length and the numbers of
    environment.info_metrics, to episodes.jsonl in the run's folder, which keeps the newest half a million or so."""
    start_from: RunOrCheckpoint | None = None
    """Folder of a run, or checkpoint file, from whose policy training starts. Its spaces and [policy] settings must be
    the same. The run has a new optimizer and counts its own steps. Unset: a newly initialised policy."""
    dir: str | None = None
    """Folder of the run. Unset: runs/<environment>-<date>-<time>."""
    on_end: Notified | None = None
    """Webhook (http://... or https://...) that receives the result as JSON when the run is done or has failed, or a
    command that receives it in variables. It is not recorded in the run's folder, because it may contain a secret, and
    a recorded command would run when the run is resumed; give it again then. Unset: nothing is sent."""

    @property
    def limits(self) -> Amounts:
        """The limits of the run; at least one."""
        return Amounts(self.total_steps, self.total_updates, self.total_episodes, self.total_minutes)

    @pydantic.model_validator(mode="after")
    def _check_limits(self) -> "RunConfig":
        alternatives.complete(self, "run", alternatives.LIMITS)
        return self


class TrainConfig(Section):
    """[train] The processes that `penstock train` starts."""

    actors: PositiveInt | Literal["auto"] = 2
    """Actor processes. auto: one per two cores at first, then more while the learner waits for fresh segments, and
    fewer while actors wait for the learner. With individually started services: planned number of actors, over
    which environment.variants and temperatures are spread."""
    await_actors: PositiveInt | Literal["all"] = 1
    """Actors that must be connected before the learner requests a session's first batch; all: those that an engine was
    asked for (learner.expected_actors), otherwise train.actors. Then every one of them collects its share of the first
    batches, which the first actors to connect would otherwise collect alone. A lost actor is not awaited later."""
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
    def _check_awaited(self) -> "TrainConfig":
        if self.await_actors != "all" and self.await_actors > self.least_actors:
            raise ValueError(
                f"train.await_actors {self.await_actors} exceeds the {self.least_actors} actors of train.actors"
                f" {self.actors}, so the run would wait for ever; set it to all"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_shards(self) -> "TrainConfig":
        if self.replay_shards > self.least_actors:
            raise ValueError(
                f"{self.actors} actors can't be spread over {self.replay_shards} replay services; set train.actors to"
                f" {self.replay_shards} or more, or train.replay_shards to {self.least_actors} or less"
            )
        return self


class TrackingConfig(Section):
    """[tracking] The tracker of experiments to which `penstock train` sends the run's records (docs/tracking.md)."""

    tracker: TrackerName | None = None
    """Tracker that receives the records: wandb, mlflow or trackio, each of which needs the extra of its name, or your
    own as file.py:MyTracker (docs/tracking.md). Unset: none, because every run has files for TensorBoard."""
    project: ProjectName = "penstock"
    """Project of the tracker that has the run; MLflow calls it an experiment."""


class TelemetryConfig(Section):
    """[telemetry] Logs, metrics, and the file for health checks."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity of the events that are logged."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """Format of log lines. auto: text in a terminal, JSON elsewhere."""
    node: NodeName | None = None
    """Name of the node on which the service runs, which its log entries and metrics carry. Unset: the host's name,
    which in a container is the container's name."""
    job: NodeName | None = None
    """Job or task of the batch system or orchestrator that started the service, such as a Slurm job's number, which its
    log entries carry. Unset: none."""
    metrics_host: Host | None = None
    """Host on which a service serves its Prometheus metrics, such as 0.0.0.0 for all networks of the machine, so that a
    Prometheus on another machine reaches a service whose gRPC server listens on loopback. Unset: the host of the
    service's `listen`."""
    ready_file: str | None = None
    """File that a service touches every 5 s while its gRPC server is ready, for health checks that start no Python;
    each service on a machine needs its own. Unset: none."""
