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
RPC_STARTED = Counter("grpc_server_started", "RPCs begun on this server.", _RPC_LABELS)
RPC_HANDLED = Counter("grpc_server_handled", "RPCs ended on this server, by status.", (*_RPC_LABELS, "grpc_code"))
RPC_SECONDS = Histogram(
    "grpc_server_handling_seconds",
    "Seconds from the begin to the end of an RPC.",
    _RPC_LABELS,
    buckets=_LATENCY_BUCKETS_S,
)
# A stream lasts as long as its client, so its speed is measured per answer.
STREAM_SECONDS = Histogram(
    "penstock_stream_answer_seconds",
    "Seconds of a server for one answer on a stream: to store a window, to send a batch or weights. Waits for others"
    " are left out.",
    ("grpc_service", "grpc_method"),
    buckets=_LATENCY_BUCKETS_S,
)

# The replay service.
REPLAY_SEGMENTS = Gauge("penstock_replay_segments", "Segments in the store, by state.", ("state",))
REPLAY_CAPACITY = Gauge("penstock_replay_capacity_segments", "Segments the store can hold.")
REPLAY_INSERTED = Counter("penstock_replay_inserted_segments", "Segments stored.")
REPLAY_SAMPLED = Counter("penstock_replay_sampled_segments", "Segments handed out in batches, by kind.", ("kind",))
REPLAY_RECEIVED_BYTES = Counter("penstock_replay_received_bytes", "Bytes of segments taken in.")
REPLAY_SENT_BYTES = Counter("penstock_replay_sent_bytes", "Bytes of segments handed out.")
REPLAY_ACTORS = Gauge("penstock_replay_actors", "Actors with an open append stream.")
REPLAY_STUCK_ACTORS = Gauge(
    "penstock_replay_stuck_actors", "Connected actors that lost their grants and have not gone on since."
)
REPLAY_TIMED_OUT = Gauge(
    "penstock_replay_timed_out_grants",
    "Grants taken back from actors that were silent or took no step, since the service started.",
)
REPLAY_GRANTED = Gauge("penstock_replay_granted_segments", "Segments granted that have not arrived.")
REPLAY_LATE = Gauge(
    "penstock_replay_late_segments", "Segments that arrived too old to be fresh, since the store was made."
)
REPLAY_IGNORED_PRIORITIES = Gauge("penstock_replay_ignored_priorities", "Priorities whose segments were overwritten.")
REPLAY_REFUNDED = Gauge("penstock_replay_refunded_segments", "Leased segments that were given back untrained.")
REPLAY_REFUSED = Gauge(
    "penstock_replay_refused_segments", "Segments refused for their values, since the service started."
)
REPLAY_CAPACITY_BYTES = Gauge("penstock_replay_capacity_bytes", "Bytes of the store, allocated at start.")
REPLAY_STORED_BYTES = Gauge("penstock_replay_stored_bytes", "Bytes of the segments in the store.")
REPLAY_MASS = Gauge("penstock_replay_mass", "The sum of all masses, at the tree's reference version.")
REPLAY_PRIORITY = Gauge(
    "penstock_replay_priority", "Raw priorities of the segments that may be replayed, by quantile.", ("quantile",)
)
REPLAY_AGE = Gauge(
    "penstock_replay_age_versions", "Age of the segments that may be replayed, in versions, by quantile.", ("quantile",)
)
REPLAY_DRAWN_AGE = Gauge(
    "penstock_replay_drawn_age_versions", "Age of the last batch's segments, in versions, by quantile.", ("quantile",)
)
REPLAY_TORN = Gauge("penstock_replay_torn_segments", "Rows that were being written when the last process died.")
REPLAY_DAMAGED = Gauge(
    "penstock_replay_damaged_segments", "Rows dropped since the last start, for what was stored is not there."
)
STORAGE_FAILS = Gauge(
    "penstock_storage_fails", "1 while the disk under the folder of the store or of the run can't be written; else 0."
)
REPLAY_VERSION = Gauge("penstock_replay_policy_version", "The policy version that was committed last.")
REPLAY_RUN_FINISHED = Gauge(
    "penstock_replay_run_finished", "1 from the end of a run, which the service outlives, to the next; else 0."
)
REPLAY_WAIT_SECONDS = Counter(
    "penstock_replay_wait_seconds", "Seconds that streams waited, by who waited and for what.", ("who", "reason")
)
REPLAY_SNAPSHOTS = Counter("penstock_replay_snapshots", "Snapshots that were completed.")
REPLAY_SNAPSHOT_FAILURES = Counter("penstock_replay_snapshot_failures", "Snapshots that were not.")
REPLAY_SNAPSHOT_TIME = Gauge("penstock_replay_snapshot_time_seconds", "When the last one was complete, Unix time.")
REPLAY_SNAPSHOT_SECONDS = Gauge("penstock_replay_snapshot_seconds", "How long the last one took.")
REPLAY_SNAPSHOT_SEGMENTS = Gauge(
    "penstock_replay_snapshot_segments", "Segments that the last one kept, or why not.", ("outcome",)
)
REPLAY_SNAPSHOT_BYTES = Gauge(
    "penstock_replay_snapshot_bytes", "Bytes of the last one: written for it, or shared with the one before.", ("kind",)
)

# The learner.
LEARNER_VERSION = Gauge("penstock_learner_policy_version", "Batches trained, which is the policy version.")
LEARNER_ENV_STEPS = Gauge("penstock_learner_environment_steps", "Environment steps trained.")
LEARNER_SNAPSHOT_FAILURES = Counter(
    "penstock_learner_snapshot_failures", "Snapshots on the interval that were not completed."
)
LEARNER_UPDATES = Counter("penstock_learner_gradient_steps", "Gradient steps.")
LEARNER_STEP_SECONDS = Histogram(
    "penstock_learner_step_seconds", "Seconds to train on one batch.", buckets=_LATENCY_BUCKETS_S
)
LEARNER_WAIT_SECONDS = Counter("penstock_learner_wait_seconds", "Seconds without a batch, by reason.", ("reason",))
LEARNER_MAPPED = Gauge(
    "penstock_learner_reads_mapped_store", "1 where batches are read from the store's file, 0 where they come by gRPC."
)
LEARNER_SHARD_MASS = Gauge(
    "penstock_learner_shard_mass_share", "Share of the mass by which the last batch was drawn, by shard.", ("shard",)
)
LEARNER_SHARD_FRESH = Gauge(
    "penstock_learner_shard_fresh_segments", "Fresh segments of a batch that a shard is to bring.", ("shard",)
)
LEARNER_SHARD_TIMEOUTS = Counter(
    "penstock_learner_shard_timeouts", "Batches that no longer waited for a shard they had waited for.", ("shard",)
)
LEARNER_SHARD_ABSENCES = Counter(
    "penstock_learner_shard_absences", "Batches that have no part of a shard, since it did not answer.", ("shard",)
)
LEARNER_REDRAWS = Counter(
    "penstock_learner_redrawn_batches", "Batches in which a segment was overwritten while it was read from the store."
)
LEARNER_STALENESS = Histogram(
    "penstock_learner_staleness_versions",
    "Age of trained segments, in policy versions.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
)
LEARNER_OLDEST = Gauge("penstock_learner_oldest_versions", "Age of the last batch's oldest segment, in versions.")
LEARNER_STALENESS_BOUND = Gauge(
    "penstock_learner_staleness_bound_versions", "What no trained segment may be older than, in versions."
)
LEARNER_FRESH_LAG = Gauge(
    "penstock_learner_fresh_lag_versions", "Mean age of the last batch's fresh segments, in versions."
)
LEARNER_OFF_POLICY_DEGREE = Gauge(
    "penstock_learner_off_policy_degree", "Batches that collection may run ahead of training."
)
LEARNER_REFUSED_STEPS = Counter(
    "penstock_learner_refused_gradient_steps", "Gradient steps refused, since their gradients had no finite norm."
)
LEARNER_UNSOUND_ROWS = Counter(
    "penstock_learner_unsound_rows",
    "Environment steps left out of training, since a number in them or estimated from them was absurd.",
)
LEARNER_LEFT_OUT_VALUES = Counter(
    "penstock_learner_left_out_values",
    "Absurd numbers kept from the running normalisation of observations or returns.",
    ("kind",),
)
LEARNER_LOSS = Gauge("penstock_learner_loss", "Losses of the last batch.", ("kind",))
LEARNER_STATISTIC = Gauge("penstock_learner_statistic", "Statistics of the last batch.", ("name",))
LEARNER_ACTORS = Gauge("penstock_learner_actors", "Actors that take part.")
LEARNER_STUCK_ACTORS = Gauge(
    "penstock_learner_stuck_actors", "Actors that wait for an environment's step, or do not answer, for too long."
)
LEARNER_DROPPED_WINDOWS = Counter(
    "penstock_learner_dropped_windows", "Windows that actors dropped since an environment failed."
)
LEARNER_PUBLISHED_TIME = Gauge(
    "penstock_learner_published_time_seconds", "When the latest weights were published, Unix time."
)
LEARNER_WEIGHTS_BYTES = Counter("penstock_learner_weights_sent_bytes", "Bytes of weights sent to actors.")
LEARNER_WRITE_FAILURES = Counter(
    "penstock_learner_write_failures", "Writes to the run's folder that failed; each is tried again.", ("file",)
)
LEARNER_ENV_STEPS_TAKEN = Gauge(
    "penstock_learner_environment_steps_taken",
    "Environment steps that actors reported, those included that came too late, were refused or were given back.",
)
EPISODE_RETURN = Gauge("penstock_episode_return", "Mean return of the last 100 training episodes.")
EPISODES = Counter("penstock_episodes", "Training episodes that ended.")
EVALUATION_RETURN = Gauge("penstock_evaluation_return", "Mean return of the last evaluation.")
EVALUATIONS = Counter("penstock_evaluations", "Evaluations done.")
EVALUATIONS_CUT = Counter(
    "penstock_evaluations_cut",
    "Evaluations that were not played to the end, by reason: steps, seconds, error (of the environment) or unanswered.",
    ("reason",),
)
VARIANT_EPISODE_RETURN = Gauge(
    "penstock_variant_episode_return",
    "Mean return of the last 100 training episodes in an environment variant, by its number.",
    ("variant",),
)
VARIANT_EPISODES = Counter(
    "penstock_variant_episodes", "Training episodes that ended in an environment variant, by its number.", ("variant",)
)
VARIANT_EVALUATION_RETURN = Gauge(
    "penstock_variant_evaluation_return",
    "Mean return of the last evaluation's episodes in an environment variant, by its number.",
    ("variant",),
)

# Actors and evaluators.
ACTOR_STEPS = Counter("penstock_actor_environment_steps", "Environment steps taken.")
ACTOR_DROPPED_WINDOWS = Counter("penstock_actor_dropped_windows", "Windows dropped since an environment failed.")
ACTOR_SECONDS = Counter("penstock_actor_seconds", "Seconds of an actor, by what it did.", ("activity",))
ACTOR_VERSION = Gauge("penstock_actor_policy_version", "The policy version that acts.")
ACTOR_WEIGHTS_TIME = Gauge("penstock_actor_weights_time_seconds", "When the newest weights arrived, Unix time.")
ACTOR_STAGES = Gauge(
    "penstock_actor_stages_windows", "1 where windows are handed over in the service's memory, 0 where they go by gRPC."
)
ACTOR_UNACKNOWLEDGED = Gauge("penstock_actor_unacknowledged_windows", "Windows sent and not acknowledged.")
RECONNECTIONS = Counter("penstock_reconnections", "Streams that were opened again, by peer.", ("peer",))
EVALUATOR_SECONDS = Counter("penstock_evaluator_seconds", "Seconds spent evaluating.")

# The machine, as every service sees it, and the GPU that a learner trains on.
prometheus_client.REGISTRY.register(Machine())
GPU_UTILISATION = Gauge("penstock_gpu_utilisation_ratio", "Share of the time in which a GPU did anything.", ("device",))
GPU_MEMORY = Gauge("penstock_gpu_memory_bytes", "Memory of a GPU.", ("device",))
GPU_MEMORY_USED = Gauge(
    "penstock_gpu_memory_used_bytes",
    "Memory of a GPU in use: by everybody, reserved by the learner, and in the learner's tensors.",
    ("device", "kind"),
)


_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def set_quantiles(gauge: Gauge, values: NDArray[np.float64] | NDArray[np.int64]) -> None:
    """Sets a gauge to quantiles of <number>[...] values. Leaves it unchanged without values."""
    if values.size:
        for quantile, value in zip(_QUANTILES, np.quantile(values, _QUANTILES).tolist(), strict=True):
            gauge.labels(str(quantile)).set(value)
