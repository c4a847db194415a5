"""The replay service over gRPC: the calls of actors (`append`) and learner (`sample`), the status, and the metrics.

The servicers decode requests, call the buffer, which decides, and encode responses. All of them run on one event loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.machine.addresses import advertised
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.staging import StagingAreas
from penstock.rpc import methods
from penstock.rpc.server import Server
from penstock.rpc.service import Context, Method
from penstock.rpc.servicers.append import AppendServicer
from penstock.rpc.servicers.sample import SampleServicer
from penstock.telemetry import metrics
from penstock.types.location import UNKNOWN, Location, Place
from penstock.v1 import replay_pb2
from penstock.wire.batches import encode_status

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

_TICK_S = 0.5
_OBSERVATION_S = 2.0
"""Seconds between refreshes of the metrics, whose quantiles cost a millisecond. Monitoring reads them less often."""
_VERSION_PATIENCE_S = 30.0
"""Seconds that a window waits for a connected learner to report its version. A hung learner's stream ends in 15 s."""


class ReplayServicer:
    """Servicer of one buffer. All methods run on the server's event loop."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        max_actors: int,
        staging_bytes: int = 0,
        version_patience_s: float = _VERSION_PATIENCE_S,
        advertise: Sequence[str] = (),
        location: Location = UNKNOWN,
        more_methods: Mapping[Method, Callable[..., Awaitable[Any]]] | None = None,
        credentials: "Credentials | None" = None,
    ) -> None:
        """Creates the servicer and its server, which is not started and also serves `more_methods`.

        All staging areas together have at most `staging_bytes`. A store without a folder has none. `advertise` has the
        names by which others reach the server, if not by its own address. `location` is where the service runs.
        """
        self._buffer, self._advertise, self._location = buffer, advertise, location
        self._actors = AppendServicer(buffer, StagingAreas(buffer.store.folder, staging_bytes), version_patience_s)
        self._learner = SampleServicer(buffer, self._actors)
        self.server = Server(
            {
                methods.APPEND_SEGMENTS: self._actors.append_segments,
                methods.SAMPLE_BATCHES: self._learner.sample_batches,
                methods.COMMIT_BATCH: self._learner.commit_batch,
                methods.FINISH_RUN: self._learner.finish_run,
                methods.GET_REPLAY_STATUS: self._get_status,
                **(more_methods or {}),
            },
            # In addition to the actors' streams: the learner's, commits, health checks and status queries.
            max_streams=max_actors + 64,
            identity=lambda: int(buffer.store.session.identity),
            direct=True,
            credentials=credentials,
        )

    @property
    def run_finished(self) -> bool:
        """Whether the last learner has reported the end of its run."""
        return self._learner.run_finished

    @property
    def place(self) -> Place:
        """Where others find this service, once its server is started."""
        return Place(advertised(self.server.address, self._advertise), int(self._buffer.store.session.identity))

    @property
    def _connected_actors(self) -> int:
        return self._buffer.gate.actors + self._actors.waiting

    async def tick(self) -> None:
        """Takes back grants of silent and stuck actors and refreshes the metrics, until it is cancelled."""
        observed = 0.0
        while True:
            await asyncio.sleep(_TICK_S)
            self._actors.distribute()
            if time.monotonic() - observed >= _OBSERVATION_S:
                observed = time.monotonic()
                self._observe()

    def _observe(self) -> None:
        """Sets the metrics that describe the current state. The servicers count events themselves."""
        buffer = self._buffer
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
        metrics.set_quantiles(metrics.REPLAY_DRAWN_AGE, self._learner.drawn_ages)
        metrics.REPLAY_GRANTED.set(counts.granted)
        metrics.REPLAY_LATE.set(counts.late)
        metrics.REPLAY_ACTORS.set(self._connected_actors)
        metrics.REPLAY_VERSION.set(buffer.version)
        metrics.REPLAY_IGNORED_PRIORITIES.set(buffer.leases.ignored_priorities)
        metrics.REPLAY_REFUNDED.set(counts.refunded)
        metrics.REPLAY_REFUSED.set(counts.refused)
        metrics.REPLAY_STUCK_ACTORS.set(gate.stuck_actors)
        metrics.REPLAY_TIMED_OUT.set(gate.timed_out_grants)

    async def _get_status(
        self, request: replay_pb2.GetReplayStatusRequest, context: Context
    ) -> replay_pb2.GetReplayStatusResponse:
        return encode_status(
            self._buffer.counts(),
            version=self._buffer.version,
            actors=self._connected_actors,
            collection_waits_for=self._buffer.collection_waits_for(),
            training_waits_for=self._buffer.training_waits_for(),
            place=self.place,
            location=self._location,
            largest_incarnation=self._buffer.intakes.largest_incarnation,
        )
