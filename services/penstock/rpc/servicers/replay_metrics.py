"""Metrics of the replay service that describe its current state. The servicers count events themselves."""

import numpy as np
from numpy.typing import NDArray

from penstock.replay.buffer import ReplayBuffer
from penstock.telemetry import metrics


def observe(buffer: ReplayBuffer, drawn_ages: NDArray[np.int64]) -> None:
    """Sets the metrics from a buffer and the ages <int64>[B] of the segments in its newest batch."""
    counts, gate, schema = buffer.counts(), buffer.gate, buffer.store.schema
    metrics.REPLAY_CAPACITY.set(counts.capacity)
    metrics.REPLAY_SEGMENTS.labels("unseen").set(counts.unseen)
    metrics.REPLAY_SEGMENTS.labels("leased").set(counts.leased)
    metrics.REPLAY_SEGMENTS.labels("seen").set(counts.stored - counts.unseen - counts.leased)
    metrics.REPLAY_STORED_BYTES.set(counts.stored * schema.segment_bytes if schema is not None else 0)
    metrics.REPLAY_MASS.set(buffer.mass.total)
    priorities, ages = buffer.sample_replayable()
    metrics.set_quantiles(metrics.REPLAY_PRIORITY, priorities)
    metrics.set_quantiles(metrics.REPLAY_AGE, ages)
    metrics.set_quantiles(metrics.REPLAY_DRAWN_AGE, drawn_ages)
    metrics.REPLAY_GRANTED.set(counts.granted)
    metrics.REPLAY_LATE.set(counts.late)
    metrics.REPLAY_ACTORS.set(gate.actors)
    metrics.REPLAY_VERSION.set(buffer.version)
    metrics.REPLAY_IGNORED_PRIORITIES.set(buffer.leases.ignored_priorities)
    metrics.REPLAY_REFUNDED.set(counts.refunded)
    metrics.REPLAY_REFUSED.set(counts.refused)
    metrics.REPLAY_STUCK_ACTORS.set(gate.stuck_actors)
    metrics.REPLAY_TIMED_OUT.set(gate.timed_out_grants)
