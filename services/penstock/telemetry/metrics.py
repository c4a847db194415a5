"""Metrics of all services.

Metrics use base units with unit suffixes, and bounded labels. Each process exposes all of them; those of other services
stay at zero.
"""

import numpy as np
import prometheus_client
from numpy.typing import NDArray
from prometheus_client import Counter, Gauge, Histogram

from penstock.telemetry.machine import Machine

# Creation times of series are useless here and would double the scraped data.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# gRPC servers, with the names of grpc-ecosystem's exporters.
_RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")
RPC_STARTED = Counter("grpc_server_started", "RPCs started on this server.", _RPC_LABELS)
RPC_HANDLED = Counter(
    "grpc_server_handled", "RPCs completed on this server, by status code.", (*_RPC_LABELS, "grpc_code")
)
RPC_SECONDS = Histogram(
    "grpc_server_handling_seconds",
    "Duration of an RPC, in seconds.",
    _RPC_LABELS,
    buckets=_LATENCY_BUCKETS_S,
)
# A stream lasts as long as its client, so its speed is measured per answer.
STREAM_SECONDS = Histogram(
    "penstock_stream_answer_seconds",
    "Processing time of one answer on a stream, in seconds: storing a window, or sending a batch or weights. Excludes"
    " waits for other services.",
    ("grpc_service", "grpc_method"),
    buckets=_LATENCY_BUCKETS_S,
)

# The replay service.
REPLAY_SEGMENTS = Gauge("penstock_replay_segments", "Number of segments in the store, by state.", ("state",))
REPLAY_CAPACITY = Gauge("penstock_replay_capacity_segments", "Capacity of the store, in segments.")
REPLAY_INSERTED = Counter("penstock_replay_inserted_segments", "Number of segments stored.")
REPLAY_SAMPLED = Counter("penstock_replay_sampled_segments", "Number of segments sent in batches, by kind.", ("kind",))
REPLAY_RECEIVED_BYTES = Counter("penstock_replay_received_bytes", "Bytes of segments received.")
REPLAY_SENT_BYTES = Counter("penstock_replay_sent_bytes", "Bytes of segments sent.")
REPLAY_ACTORS = Gauge("penstock_replay_actors", "Number of actors with an open append stream.")
REPLAY_STUCK_ACTORS = Gauge(
    "penstock_replay_stuck_actors",
    "Number of connected actors whose grants were withdrawn and that have made no progress since.",
)
REPLAY_TIMED_OUT = Gauge(
    "penstock_replay_timed_out_grants",
    "Number of grants withdrawn from actors that were silent or took no step, since the service started.",
)
REPLAY_GRANTED = Gauge("penstock_replay_granted_segments", "Number of granted segments that have not arrived.")
REPLAY_LATE = Gauge(
    "penstock_replay_late_segments", "Number of segments that arrived too old to be fresh, since the store was created."
)
REPLAY_IGNORED_PRIORITIES = Gauge(
    "penstock_replay_ignored_priorities", "Number of priorities whose segments had been overwritten."
)
REPLAY_REFUNDED = Gauge("penstock_replay_refunded_segments", "Number of leased segments that were returned untrained.")
REPLAY_REFUSED = Gauge(
    "penstock_replay_refused_segments", "Number of segments refused because of their values, since the service started."
)
REPLAY_CAPACITY_BYTES = Gauge("penstock_replay_capacity_bytes", "Size of the store in bytes, allocated at start.")
REPLAY_STORED_BYTES = Gauge("penstock_replay_stored_bytes", "Bytes of the segments in the store.")
REPLAY_MASS = Gauge("penstock_replay_mass", "Sum of all masses, at the reference version of the sum tree.")
REPLAY_PRIORITY = Gauge(
    "penstock_replay_priority", "Raw priority of the segments available for replay, by quantile.", ("quantile",)
)
REPLAY_AGE = Gauge(
    "penstock_replay_age_versions", "Age of the segments available for replay, in versions, by quantile.", ("quantile",)
)
REPLAY_DRAWN_AGE = Gauge(
    "penstock_replay_drawn_age_versions",
    "Age of the segments of the last batch, in versions, by quantile.",
    ("quantile",),
)
REPLAY_TORN = Gauge(
    "penstock_replay_torn_segments", "Number of rows that were incomplete when the previous process ended."
)
REPLAY_DAMAGED = Gauge(
    "penstock_replay_damaged_segments",
    "Number of rows dropped since the service started because their checksum did not match.",
)
STORAGE_FAILS = Gauge(
    "penstock_storage_fails",
    "State of the disk under the folder of the store or of the run: 1 while writes fail, else 0.",
)
REPLAY_VERSION = Gauge("penstock_replay_policy_version", "Policy version of the last commit.")
REPLAY_RUN_FINISHED = Gauge(
    "penstock_replay_run_finished", "State of the run: 1 between the end of a run and the start of the next, else 0."
)
REPLAY_WAIT_SECONDS = Counter(
    "penstock_replay_wait_seconds",
    "Waiting time of streams, in seconds, by the waiting service and the reason.",
    ("who", "reason"),
)
REPLAY_SNAPSHOTS = Counter("penstock_replay_snapshots", "Number of completed snapshots.")
REPLAY_SNAPSHOT_FAILURES = Counter("penstock_replay_snapshot_failures", "Number of failed snapshots.")
REPLAY_SNAPSHOT_TIME = Gauge(
    "penstock_replay_snapshot_time_seconds", "Unix time at which the last snapshot was completed, in seconds."
)
REPLAY_SNAPSHOT_SECONDS = Gauge("penstock_replay_snapshot_seconds", "Duration of the last snapshot, in seconds.")
REPLAY_SNAPSHOT_SEGMENTS = Gauge(
    "penstock_replay_snapshot_segments",
    "Number of segments in the last snapshot by outcome: kept, or the reason for exclusion.",
    ("outcome",),
)
REPLAY_SNAPSHOT_BYTES = Gauge(
    "penstock_replay_snapshot_bytes",
    "Bytes of the last snapshot, by kind: written for it, or shared with the previous snapshot.",
    ("kind",),
)

# The learner.
LEARNER_VERSION = Gauge("penstock_learner_policy_version", "Policy version, which is the number of trained batches.")
LEARNER_ENV_STEPS = Gauge("penstock_learner_environment_steps", "Number of environment steps trained.")
LEARNER_SNAPSHOT_FAILURES = Counter("penstock_learner_snapshot_failures", "Number of failed automatic snapshots.")
LEARNER_UPDATES = Counter("penstock_learner_gradient_steps", "Number of gradient steps.")
LEARNER_STEP_SECONDS = Histogram(
    "penstock_learner_step_seconds", "Duration of training on one batch, in seconds.", buckets=_LATENCY_BUCKETS_S
)
LEARNER_WAIT_SECONDS = Counter(
    "penstock_learner_wait_seconds",
    "Time that the learner waited for a batch or an evaluation, in seconds, by reason.",
    ("reason",),
)
LEARNER_MAPPED = Gauge(
    "penstock_learner_reads_mapped_store", "Transport of batches: 1 for the mapped file of the store, 0 for gRPC."
)
LEARNER_SHARD_MASS = Gauge(
    "penstock_learner_shard_mass_share", "Share of the mass in the draw of the last batch, by shard.", ("shard",)
)
LEARNER_SHARD_FRESH = Gauge(
    "penstock_learner_shard_fresh_segments", "Number of fresh segments of a batch requested from a shard.", ("shard",)
)
LEARNER_SHARD_TIMEOUTS = Counter(
    "penstock_learner_shard_timeouts", "Number of batches for which the wait for a shard timed out.", ("shard",)
)
LEARNER_SHARD_ABSENCES = Counter(
    "penstock_learner_shard_absences", "Number of batches without the part of a shard that did not answer.", ("shard",)
)
LEARNER_REDRAWS = Counter(
    "penstock_learner_redrawn_batches",
    "Number of batches in which a segment was overwritten while it was read from the store.",
)
LEARNER_STALENESS = Histogram(
    "penstock_learner_staleness_versions",
    "Age of trained segments, in versions.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
)
LEARNER_OLDEST = Gauge("penstock_learner_oldest_versions", "Age of the oldest segment of the last batch, in versions.")
LEARNER_STALENESS_BOUND = Gauge(
    "penstock_learner_staleness_bound_versions", "Largest age that a trained segment may have, in versions."
)
LEARNER_FRESH_LAG = Gauge(
    "penstock_learner_fresh_lag_versions", "Mean age of the fresh segments of the last batch, in versions."
)
LEARNER_OFF_POLICY_DEGREE = Gauge(
    "penstock_learner_off_policy_degree", "Number of batches that collection may run ahead of training."
)
LEARNER_REFUSED_STEPS = Counter(
    "penstock_learner_refused_gradient_steps",
    "Number of gradient steps refused because their gradient had no finite norm.",
)
LEARNER_UNSOUND_ROWS = Counter(
    "penstock_learner_unsound_rows",
    "Number of environment steps left out of training because a value in them or estimated from them was absurd.",
)
LEARNER_LEFT_OUT_VALUES = Counter(
    "penstock_learner_left_out_values",
    "Number of absurd values excluded from the running normalisation of observations or returns.",
    ("kind",),
)
LEARNER_LOSS = Gauge("penstock_learner_loss", "Loss of the last batch, by kind.", ("kind",))
LEARNER_STATISTIC = Gauge("penstock_learner_statistic", "Statistic of the last batch, by name.", ("name",))
LEARNER_ACTORS = Gauge("penstock_learner_actors", "Number of actors in the run.")
LEARNER_STUCK_ACTORS = Gauge(
    "penstock_learner_stuck_actors", "Number of actors whose environment step takes too long or that do not answer."
)
LEARNER_DROPPED_WINDOWS = Counter(
    "penstock_learner_dropped_windows", "Number of windows that actors dropped because an environment failed."
)
LEARNER_PUBLISHED_TIME = Gauge(
    "penstock_learner_published_time_seconds", "Unix time at which the latest weights were published, in seconds."
)
LEARNER_WEIGHTS_BYTES = Counter("penstock_learner_weights_sent_bytes", "Bytes of weights sent to actors.")
LEARNER_WRITE_FAILURES = Counter(
    "penstock_learner_write_failures",
    "Number of failed writes to the folder of the run, by file; each is retried.",
    ("file",),
)
LEARNER_ENV_STEPS_TAKEN = Gauge(
    "penstock_learner_environment_steps_taken",
    "Number of environment steps that actors reported, including those that arrived too late, were refused or were"
    " returned untrained.",
)
EPISODE_RETURN = Gauge("penstock_episode_return", "Mean return of the last 100 training episodes.")
EPISODES = Counter("penstock_episodes", "Number of training episodes that ended.")
EVALUATION_RETURN = Gauge("penstock_evaluation_return", "Mean return of the last evaluation.")
EVALUATIONS = Counter("penstock_evaluations", "Number of completed evaluations.")
EVALUATIONS_CUT = Counter(
    "penstock_evaluations_cut",
    "Number of evaluations that were not completed, by reason: steps, seconds, error (of the environment) or"
    " unanswered.",
    ("reason",),
)
VARIANT_EPISODE_RETURN = Gauge(
    "penstock_variant_episode_return",
    "Mean return of the last 100 training episodes in an environment variant, by its number.",
    ("variant",),
)
VARIANT_EPISODES = Counter(
    "penstock_variant_episodes",
    "Number of training episodes that ended in an environment variant, by its number.",
    ("variant",),
)
VARIANT_EVALUATION_RETURN = Gauge(
    "penstock_variant_evaluation_return",
    "Mean return of the episodes of the last evaluation in an environment variant, by its number.",
    ("variant",),
)

# Actors and evaluators.
ACTOR_STEPS = Counter("penstock_actor_environment_steps", "Number of environment steps taken.")
ACTOR_DROPPED_WINDOWS = Counter(
    "penstock_actor_dropped_windows", "Number of windows dropped because an environment failed."
)
ACTOR_SECONDS = Counter("penstock_actor_seconds", "Time of an actor, in seconds, by activity.", ("activity",))
ACTOR_VERSION = Gauge("penstock_actor_policy_version", "Policy version with which the actor acts.")
ACTOR_WEIGHTS_TIME = Gauge(
    "penstock_actor_weights_time_seconds", "Unix time at which the newest weights arrived, in seconds."
)
ACTOR_STAGES = Gauge(
    "penstock_actor_stages_windows", "Transport of windows: 1 for shared memory of the replay service, 0 for gRPC."
)
ACTOR_UNACKNOWLEDGED = Gauge("penstock_actor_unacknowledged_windows", "Number of windows sent and not acknowledged.")
RECONNECTIONS = Counter("penstock_reconnections", "Number of streams that were reopened, by peer.", ("peer",))
EVALUATOR_SECONDS = Counter("penstock_evaluator_seconds", "Time spent on evaluations, in seconds.")

# The machine, as every service sees it, and the GPU that a learner trains on.
prometheus_client.REGISTRY.register(Machine())
GPU_UTILISATION = Gauge("penstock_gpu_utilisation_ratio", "GPU utilisation, 0 to 1.", ("device",))
GPU_MEMORY = Gauge("penstock_gpu_memory_bytes", "Memory of a GPU, in bytes.", ("device",))
GPU_MEMORY_USED = Gauge(
    "penstock_gpu_memory_used_bytes",
    "Memory of a GPU in use, in bytes, by kind: of all processes, reserved by the learner, or in its tensors.",
    ("device", "kind"),
)


_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def set_quantiles(gauge: Gauge, values: NDArray[np.float64] | NDArray[np.int64]) -> None:
    """Sets a gauge to quantiles of <number>[...] values. Leaves it unchanged without values."""
    if values.size:
        for quantile, value in zip(_QUANTILES, np.quantile(values, _QUANTILES).tolist(), strict=True):
            gauge.labels(str(quantile)).set(value)
