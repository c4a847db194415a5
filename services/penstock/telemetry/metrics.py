"""Metrics of all services, with base units as suffixes and bounded labels. A process exposes its service's metrics."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator

import numpy as np
import prometheus_client
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, RestrictedRegistry

from penstock.telemetry.machine import Machine

# Creation times of series are useless here and would double the scraped data.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Total(Collector):
    """A counter whose total other code keeps; a `Counter` can't be set. `set` may be called by any thread.

    It has no value before the first call: a 0 would be a reset of a count that a store has kept over a restart.
    """

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry = prometheus_client.REGISTRY) -> None:
        """Registers the counter. `name` does not include Prometheus' suffix `_total`."""
        self._name, self._documentation = name, documentation
        self._total: int | None = None
        registry.register(self)

    def set(self, total: int) -> None:
        """Sets the total. A lower one is a reset for Prometheus, as after a restart."""
        self._total = total

    def collect(self) -> Iterator[Metric]:
        """Yields the counter."""
        family = CounterMetricFamily(self._name, self._documentation)
        if self._total is not None:
            family.add_metric((), self._total)
        yield family


_LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# gRPC servers, with the names of grpc-ecosystem's exporters.
_RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")
RPC_STARTED = Counter("grpc_server_started", "RPCs started on this server.", _RPC_LABELS)
RPC_HANDLED = Counter(
    "grpc_server_handled", "RPCs completed on this server, by status code.", (*_RPC_LABELS, "grpc_code")
)
RPC_SECONDS = Histogram(
    "grpc_server_handling_seconds", "Duration of an RPC, in seconds.", _RPC_LABELS, buckets=_LATENCY_BUCKETS_S
)
STREAM_CONNECTIONS = Counter(
    "penstock_stream_connections",
    "Connections to direct sockets, by kind of socket and whether a stream moved to them.",
    ("socket", "result"),
)
# A stream lasts as long as its client, so its speed is measured per answer.
STREAM_SECONDS = Histogram(
    "penstock_stream_answer_seconds",
    "Processing time of one answer on a stream, in seconds: storing a window, or sending a batch or weights. Excludes"
    " waits for other services.",
    ("grpc_service", "grpc_method"),
    buckets=_LATENCY_BUCKETS_S,
)

REFUSED_CLIENTS = Counter(
    "penstock_refused_clients",
    "Clients refused because they belong to another run, have no valid place or can't prove the run's key, by kind.",
    ("client",),
)

THINNED_RECORDS = Counter(
    "penstock_thinned_records", "Records that the learner removed from metrics.jsonl because it had grown too large."
)

COPY_FAILURES = Counter("penstock_copy_failures", "Rounds of copies to checkpoint.copy_to that failed.")

UNLISTED_METRICS = Counter(
    "penstock_unlisted_metrics_addresses",
    "Metrics addresses of services that the learner does not list in targets.json, by kind of service: on another"
    " host than the service's own, or on the loopback of another node.",
    ("service",),
)

EXCHANGE_CPU_SECONDS = Counter(
    "penstock_exchange_cpu_seconds",
    "CPU time of an actor's or the learner's main thread for the exchange with other services, in seconds, by activity:"
    " awaiting grants, loading weights, sending windows, publishing weights, awaiting batches, or committing.",
    ("activity",),
)

# The replay service.
REPLAY_SEGMENTS = Gauge("penstock_replay_segments", "Segments in the store, by state.", ("state",))
REPLAY_CAPACITY = Gauge("penstock_replay_capacity_segments", "Capacity of the store, in segments.")
REPLAY_INSERTED = Counter("penstock_replay_inserted_segments", "Segments stored.")
REPLAY_SAMPLED = Counter("penstock_replay_sampled_segments", "Segments sent in batches, by kind.", ("kind",))
REPLAY_RECEIVED_BYTES = Counter("penstock_replay_received_bytes", "Bytes of segments received in messages, as encoded.")
REPLAY_RECEIVED_RAW_BYTES = Counter(
    "penstock_replay_received_raw_bytes", "Bytes of segments received in messages, decoded."
)
REPLAY_SENT_BYTES = Counter("penstock_replay_sent_bytes", "Bytes of segments sent, as encoded.")
REPLAY_SENT_RAW_BYTES = Counter("penstock_replay_sent_raw_bytes", "Bytes of segments sent, decoded.")
REPLAY_ACTORS = Gauge("penstock_replay_actors", "Actors with an open append stream.")
REPLAY_STUCK_ACTORS = Gauge(
    "penstock_replay_stuck_actors", "Connected actors without progress since their grants were withdrawn."
)
REPLAY_TIMED_OUT = Total(
    "penstock_replay_timed_out_grants", "Grants withdrawn from silent or stuck actors since the service started."
)
REPLAY_GRANTED = Gauge("penstock_replay_granted_segments", "Granted segments that have not arrived.")
REPLAY_LATE = Total(
    "penstock_replay_late_segments",
    "Segments that arrived too late to be fresh, since the store was created: a restart does not reset it.",
)
REPLAY_IGNORED_PRIORITIES = Total(
    "penstock_replay_ignored_priorities", "Priorities whose segments had been overwritten."
)
REPLAY_REFUNDED = Total("penstock_replay_refunded_segments", "Leased segments that were returned untrained.")
REPLAY_REFUSED = Total("penstock_replay_refused_segments", "Segments refused for their values since the start.")
REPLAY_CAPACITY_BYTES = Gauge("penstock_replay_capacity_bytes", "Size of the allocated store in bytes.")
REPLAY_STORED_BYTES = Gauge("penstock_replay_stored_bytes", "Bytes of the segments in the store.")
REPLAY_MASS = Gauge("penstock_replay_mass", "Sum of all masses, at the reference version of the sum tree.")
REPLAY_PRIORITY = Gauge(
    "penstock_replay_priority", "Raw priority of replayable segments, by the share of segments at or below.", ("share",)
)
REPLAY_AGE = Gauge(
    "penstock_replay_age_versions",
    "Age of replayable segments, in versions, by the share of segments at or below.",
    ("share",),
)
REPLAY_DRAWN_AGE = Gauge(
    "penstock_replay_drawn_age_versions",
    "Age of the last batch's segments, in versions, by the share of segments at or below.",
    ("share",),
)
REPLAY_TORN = Counter(
    "penstock_replay_torn_segments", "Rows left incomplete by the previous process, which this one found at its start."
)
REPLAY_DAMAGED = Counter(
    "penstock_replay_damaged_segments", "Rows dropped since the service started because their checksums did not match."
)
CERTIFICATE_EXPIRY = Gauge(
    "penstock_certificate_expiry_timestamp_seconds",
    "Unix time at which the certificate of the service, or that of its authority, expires, in seconds.",
    ("certificate",),
)
FAILED_HANDSHAKES = Counter(
    "penstock_tls_handshakes_failed", "Connections refused during their TLS handshake, by reason.", ("reason",)
)
STORAGE_SIZE = Gauge("penstock_storage_size_bytes", "Size of the file system of a folder, in bytes.", ("folder",))
STORAGE_FREE = Gauge(
    "penstock_storage_free_bytes", "Bytes of the file system of a folder that the service may still use.", ("folder",)
)
STORAGE_FAILS = Gauge("penstock_storage_fails", "1 while the disk of the store or of the run can't be written, else 0.")
LOST_LOG_LINES = Counter(
    "penstock_lost_log_lines", "Lines of the service's output that could not be written, such as to a full disk."
)
REPLAY_VERSION = Gauge("penstock_replay_policy_version", "Policy version of the last commit.")
REPLAY_RUN_FINISHED = Gauge(
    "penstock_replay_run_finished", "1 from the end of a run until the next one starts, else 0."
)
REPLAY_WAIT_SECONDS = Counter(
    "penstock_replay_wait_seconds", "Waiting time of streams, in seconds, by service and reason.", ("who", "reason")
)
REPLAY_SNAPSHOTS = Counter("penstock_replay_snapshots", "Completed snapshots.")
REPLAY_SNAPSHOT_FAILURES = Counter("penstock_replay_snapshot_failures", "Failed snapshots.")
REPLAY_SNAPSHOT_TIME = Gauge(
    "penstock_replay_snapshot_time_seconds", "Unix time of the last snapshot's completion, in seconds."
)
REPLAY_SNAPSHOT_SECONDS = Gauge("penstock_replay_snapshot_seconds", "Duration of the last snapshot, in seconds.")
REPLAY_SNAPSHOT_SEGMENTS = Gauge(
    "penstock_replay_snapshot_segments",
    "Segments of the last snapshot: kept, or the reason for exclusion.",
    ("outcome",),
)
REPLAY_SNAPSHOT_BYTES = Gauge(
    "penstock_replay_snapshot_bytes", "Bytes of the last snapshot: written, or shared with the previous one.", ("kind",)
)

# The learner.
RUN_INFO = Gauge(
    "penstock_run_info",
    "1, with the name of the run's folder, the environment's id, the preset and the commit of the code.",
    ("run", "environment", "preset", "commit"),
)
LEARNER_VERSION = Gauge("penstock_learner_policy_version", "Policy version, which is the number of trained batches.")
LEARNER_ENV_STEPS = Gauge("penstock_learner_environment_steps", "Environment steps trained.")
LEARNER_PROGRESS = Gauge("penstock_learner_progress_share", "Largest share of a limit of the run that is done, 0 to 1.")
LEARNER_REMAINING_SECONDS = Gauge(
    "penstock_learner_remaining_seconds",
    "Expected seconds until the first limit of the run is reached; NaN while no batch is trained.",
)
LEARNER_SNAPSHOT_FAILURES = Counter("penstock_learner_snapshot_failures", "Failed automatic snapshots.")
LEARNER_RUN_FINISHED = Gauge("penstock_learner_run_finished", "1 once the run has reached its end, else 0.")
LEARNER_RUN_END = Gauge(
    "penstock_learner_run_end",
    "1 for the reason for which the run has ended: that of the event `trained`, or `error`.",
    ("reason",),
)
LEARNER_CHECKPOINT_AGE = Gauge(
    "penstock_learner_checkpoint_age_seconds",
    "Seconds since the state of the newest checkpoint of this session, or since the session began: what would be lost.",
)
LEARNER_CHECKPOINT_STEPS = Gauge(
    "penstock_learner_checkpoint_environment_steps", "Environment steps trained at the newest checkpoint."
)
LEARNER_UPDATES = Counter("penstock_learner_gradient_steps", "Gradient steps.")
LEARNER_STEP_SECONDS = Histogram(
    "penstock_learner_step_seconds", "Duration of training on one batch, in seconds.", buckets=_LATENCY_BUCKETS_S
)
LEARNER_WAIT_SECONDS = Counter(
    "penstock_learner_wait_seconds", "Waiting time of the learner, in seconds, by reason.", ("reason",)
)
LEARNER_EXECUTION = Gauge(
    "penstock_learner_execution", "1, with how gradient steps are executed; see learner.execution.", ("execution",)
)
LEARNER_DEVICE = Gauge(
    "penstock_learner_device_info", "1, with the kind of device that the learner trains on: cpu or cuda.", ("device",)
)
LEARNER_MAPPED = Gauge(
    "penstock_learner_reads_mapped_store", "1 if batches are read from the mapped store, 0 if in messages."
)
LEARNER_SHARD_MASS = Gauge(
    "penstock_learner_shard_mass_share", "Share of the mass in the last draw, by shard.", ("shard",)
)
LEARNER_SHARD_FRESH = Gauge(
    "penstock_learner_shard_fresh_segments", "Fresh segments requested for a batch, by shard.", ("shard",)
)
LEARNER_COLLECTION_SHARE = Gauge(
    "penstock_learner_collection_share",
    "Share of collection by the plan, by variant; 0 if there are none.",
    ("variant",),
)
LEARNER_FRESH_SEGMENTS = Counter(
    "penstock_learner_fresh_segments", "Fresh segments trained, by variant; 0 if there are none.", ("variant",)
)
LEARNER_SHARD_TIMEOUTS = Counter(
    "penstock_learner_shard_timeouts", "Batches that stopped waiting for a shard.", ("shard",)
)
LEARNER_SHARD_ABSENCES = Counter("penstock_learner_shard_absences", "Batches without the part of a shard.", ("shard",))
LEARNER_REDRAWS = Counter(
    "penstock_learner_redrawn_batches", "Batches with a segment that was overwritten during the read."
)
LEARNER_DAMAGED = Counter(
    "penstock_learner_damaged_columns",
    "Columns of segments that could not be decoded and were trained as masked zeros.",
)
LEARNER_STALENESS = Histogram(
    "penstock_learner_staleness_versions",
    "Age of trained segments, in versions.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128),
)
LEARNER_OLDEST = Gauge("penstock_learner_oldest_versions", "Age of the oldest segment of the last batch, in versions.")
LEARNER_STALENESS_BOUND = Gauge(
    "penstock_learner_staleness_bound_versions", "Largest age of a trained segment, in versions."
)
LEARNER_FRESH_LAG = Gauge(
    "penstock_learner_fresh_lag_versions", "Mean age of the last batch's fresh segments, in versions."
)
LEARNER_USES = Gauge(
    "penstock_learner_segment_uses", "Uses of segments in batches per collected segment, over the run."
)
LEARNER_REPLAYED_AGE = Gauge(
    "penstock_learner_replayed_age_versions",
    "Mean age of the replayed segments of the last 100 batches, in versions; 0 without any.",
)
LEARNER_REPLAYED_AGE_90 = Gauge(
    "penstock_learner_replayed_age_90_versions",
    "90th percentile of the age of the replayed segments of the last 100 batches, in versions; 0 without any.",
)
LEARNER_DRAWN_PRIORITY = Gauge(
    "penstock_learner_drawn_priority_ratio",
    "Mean priority of the replayed segments of the last 100 batches, divided by that of draws by age alone; 0 without"
    " any.",
)
LEARNER_OFF_POLICY_DEGREE = Gauge(
    "penstock_learner_off_policy_degree", "Batches that collection may run ahead of training."
)
LEARNER_ALPHA = Gauge("penstock_learner_alpha", "Exponent of the priority in the draws; 0: priority does not matter.")
LEARNER_REFUSED_STEPS = Counter(
    "penstock_learner_refused_gradient_steps", "Gradient steps refused for a norm that is not finite."
)
LEARNER_UNSOUND_ROWS = Counter(
    "penstock_learner_unsound_rows", "Environment steps not trained because of absurd values."
)
LEARNER_LEFT_OUT_VALUES = Counter(
    "penstock_learner_left_out_values", "Absurd values excluded from the running normalisation, by kind.", ("kind",)
)
LEARNER_CALLBACK_SECONDS = Counter(
    "penstock_learner_callback_seconds", "Time that training has spent in learner.callbacks, in seconds."
)
LEARNER_STATISTIC = Gauge("penstock_learner_statistic", "Statistic of the last batch, by name.", ("name",))
LEARNER_ACTORS = Gauge("penstock_learner_actors", "Actors in the run.")
LEARNER_DEFERRED_JOINS = Counter(
    "penstock_learner_deferred_joins", "Actors that were asked to join again later because too many joined at once."
)
LEARNER_WANTED_ACTORS = Gauge("penstock_learner_wanted_actors", "Actors that the run can use; 0 until that is known.")
LEARNER_STUCK_ACTORS = Gauge("penstock_learner_stuck_actors", "Actors that do not answer or whose environment hangs.")
LEARNER_DROPPED_WINDOWS = Counter(
    "penstock_learner_dropped_windows", "Windows that actors dropped because an environment failed."
)
LEARNER_PUBLICATION_AGE = Gauge(
    "penstock_learner_publication_age_seconds",
    "Seconds since the latest publication of weights; +Inf before the first.",
)
LEARNER_WEIGHTS_BYTES = Counter("penstock_learner_weights_sent_bytes", "Bytes of weights sent to actors.")
LEARNER_WRITE_FAILURES = Counter(
    "penstock_learner_write_failures", "Failed writes to the run's folder, by file.", ("file",)
)
LEARNER_ENV_STEPS_TAKEN = Gauge(
    "penstock_learner_environment_steps_taken", "Environment steps that actors reported, trained or not."
)
EPISODE_RETURN = Gauge("penstock_episode_return", "Mean return of the last 100 training episodes.")
EPISODES = Counter("penstock_episodes", "Training episodes that ended.")
EVALUATION_RETURN = Gauge("penstock_evaluation_return", "Mean return of the last evaluation.")
EPISODE_INFO = Gauge(
    "penstock_episode_info", "Mean over the last 100 training episodes of a number of the infos, by key.", ("key",)
)
EPISODE_INFO_MISSING = Counter(
    "penstock_episode_info_missing", "Training episodes whose infos had no number of a key.", ("key",)
)
EVALUATION_INFO = Gauge(
    "penstock_evaluation_info", "Mean over the last evaluation of a number of the infos, by key.", ("key",)
)
EVALUATIONS = Counter("penstock_evaluations", "Completed evaluations.")
EVALUATIONS_CUT = Counter(
    "penstock_evaluations_cut",
    "Evaluations that were not completed, by reason: steps, seconds, error (of the environment) or unanswered.",
    ("reason",),
)
IGNORED_RESULTS = Counter(
    "penstock_ignored_evaluation_results",
    "Results that evaluators sent for a task that was answered before, or that they were not sent.",
)
VARIANT_EPISODE_RETURN = Gauge(
    "penstock_variant_episode_return", "Mean return of a variant's last 100 training episodes.", ("variant",)
)
VARIANT_EPISODES = Counter("penstock_variant_episodes", "Training episodes that ended, by variant.", ("variant",))
VARIANT_EVALUATION_RETURN = Gauge(
    "penstock_variant_evaluation_return", "Mean return of the last evaluation, by variant.", ("variant",)
)

# Actors and evaluators.
ACTOR_STEPS = Counter("penstock_actor_environment_steps", "Environment steps taken.")
ACTOR_LATE_STEPS = Counter(
    "penstock_actor_late_steps", "Environment steps that took too long to be trained on, with environment.ready_share."
)
ACTOR_DROPPED_WINDOWS = Counter("penstock_actor_dropped_windows", "Windows dropped because an environment failed.")
ACTOR_SECONDS = Counter("penstock_actor_seconds", "Time of an actor, in seconds, by activity.", ("activity",))
ACTOR_VERSION = Gauge("penstock_actor_policy_version", "Policy version with which the actor acts.")
ACTOR_WEIGHTS_AGE = Gauge(
    "penstock_actor_weights_age_seconds", "Seconds since the newest weights arrived; +Inf before the first."
)
ACTOR_STAGES = Gauge("penstock_actor_stages_windows", "1 if windows are sent in shared memory, 0 if in messages.")
ACTOR_NUMPY = Gauge("penstock_actor_acts_in_numpy", "1 if actions are computed in NumPy, 0 if in torch.")
ACTOR_UNACKNOWLEDGED = Gauge("penstock_actor_unacknowledged_windows", "Windows sent and not acknowledged.")
RECONNECTIONS = Counter("penstock_reconnections", "Streams that were reopened, by peer.", ("peer",))
ROUND_TRIP = Gauge(
    "penstock_round_trip_seconds", "Shortest recent round trip to a peer in seconds; 0 on its host.", ("peer",)
)
EVALUATOR_SECONDS = Counter("penstock_evaluator_seconds", "Time spent on evaluations, in seconds.")

# The machine, as every service sees it, and the GPU that a learner trains on.
NODE_INFO = Gauge("penstock_node_info", "1, with the name of the service's node.", ("node",))
prometheus_client.REGISTRY.register(Machine())
GPU_UTILISATION = Gauge("penstock_gpu_utilisation_ratio", "GPU utilisation, 0 to 1.", ("device",))
GPU_MEMORY = Gauge("penstock_gpu_memory_bytes", "Memory of a GPU, in bytes.", ("device",))
GPU_MEMORY_USED = Gauge(
    "penstock_gpu_memory_used_bytes",
    "GPU memory in use, in bytes, by kind: of all processes, reserved by the learner, or in its tensors.",
    ("device", "kind"),
)


# Unknown before the first episode: a 0 would be a return that fell.
EPISODE_RETURN.set(math.nan)
for _age in (LEARNER_PUBLICATION_AGE, ACTOR_WEIGHTS_AGE):
    _age.set(math.inf)


def restart_age(gauge: Gauge, began: float | None = None) -> None:
    """Lets a gauge show the seconds since `began` (`time.monotonic`), by default since this call.

    Unlike a Unix time, an age does not depend on the clocks of this host and of the one that compares it.
    """
    since = time.monotonic() if began is None else began
    gauge.set_function(lambda: time.monotonic() - since)


@contextlib.contextmanager
def exchange_cpu_time(activity: str) -> Iterator[None]:
    """Counts the CPU seconds that this thread takes in the block for the exchange with other services.

    Threads of gRPC have CPU times of their own, which the system counts. The main thread's share, such as hashing
    weights and copying windows, is counted here. Costs a few microseconds.
    """
    started = time.thread_time()
    try:
        yield
    finally:
        EXCHANGE_CPU_SECONDS.labels(activity).inc(time.thread_time() - started)


_SERVICES = (
    ("penstock_replay_", "replay"),
    ("penstock_actor_", "actor"),
    ("penstock_evaluator_", "evaluator"),
    ("penstock_exchange_", "learner actor"),
    ("penstock_round_trip_", "learner actor"),
    ("penstock_reconnections", "learner actor evaluator"),
    ("penstock_storage_", "replay learner"),
    ("penstock_stream_", "replay learner"),
    ("penstock_refused_", "replay learner"),
    ("penstock_tls_", "replay learner"),
    *((f"penstock_{each}", "learner") for each in ("learner_", "run_", "thinned_", "unlisted_", "gpu_")),
    *((f"penstock_{each}", "learner") for each in ("episode", "evaluation", "ignored_evaluation_", "variant_")),
)
"""Beginnings of metrics' names, with the services that have these metrics. All services have all others."""


def belongs(name: str, service: str) -> bool:
    """Returns whether a service has the metric of this name."""
    return all(service in services.split() for beginning, services in _SERVICES if name.startswith(beginning))


class OfService(CollectorRegistry):
    """The metrics of one service. Other services' metrics would be zeros, in which a query without a job gets lost."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of the service."""
        return (family for family in prometheus_client.REGISTRY.collect() if belongs(family.name, self._service))

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        """Returns the metrics of these names, for a request with `name[]`."""
        return prometheus_client.REGISTRY.restricted_registry(names)


_QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def set_quantiles(gauge: Gauge, values: NDArray[np.float64] | NDArray[np.int64]) -> None:
    """Sets a gauge to quantiles of <number>[...] values. Leaves it unchanged without values."""
    if values.size:
        for quantile, value in zip(_QUANTILES, np.quantile(values, _QUANTILES).tolist(), strict=True):
            gauge.labels(str(quantile)).set(value)
