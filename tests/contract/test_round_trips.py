"""Actors and learners at a distance from the replay service: the measured round trip, and what they ask for ahead."""

import time
from pathlib import Path

import numpy as np
import pytest

from penstock.rpc.clients import segment_sink
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.types.replay import Batch
from penstock.v1 import replay_pb2
from penstock.wire import windows as wire
from tests.support.segments.segments import make_window
from tests.support.services.servers import Loopback, plan_with, sample, until
from tests.support.tiers import gate_of

DELAY_S = 0.15
DEGREE, FRESH = 8, 2
ROOM = (DEGREE + 1) * FRESH


def round_trip_s() -> float:
    return sample("penstock_round_trip_seconds", peer="replay")


@pytest.mark.parametrize("window_s", gate_of(1, [0.04, 0.1, 0.001]))
def test_a_distant_actor_gets_a_grant_more_for_each_window_of_the_measured_round_trip(
    loopback: Loopback, window_s: float
) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=FRESH, batch_segments=FRESH, off_policy_degree=DEGREE))
    loopback.sink(0, loopback.relay(server, delay_s=DELAY_S), segments=1, window_s=window_s)
    until(lambda: round_trip_s() >= 2 * DELAY_S, "the round trip")
    until(
        lambda: loopback.replay_status(server).counts.granted == min(2 + int(round_trip_s() / window_s), ROOM),
        "the grants of the round trip",
    )


def test_a_distant_learner_requests_as_many_batches_ahead_as_it_trains_in_a_round_trip(loopback: Loopback) -> None:
    source = loopback.source(loopback.replay())
    source._plan = plan_with(fresh_segments=FRESH, batch_segments=FRESH, off_policy_degree=40, max_staleness=400)
    source._round_trip.seconds = 1.01
    # Nine batches are eight intervals of a tenth of a second.
    source._taken_at.extend(0.1 * number for number in range(9))
    assert source._prefetched == 1 + 10


def test_windows_that_the_loop_sends_take_no_heartbeat_with_them(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, encode = list[wire.Heartbeat](), wire.encode_heartbeat

    def counted(beat: wire.Heartbeat) -> replay_pb2.AppendSegmentsRequest:
        beats.append(beat)
        return encode(beat)

    monkeypatch.setattr(wire, "encode_heartbeat", counted)
    # Otherwise the collecting thread sends small windows itself.
    monkeypatch.setattr(segment_sink, "_SMALL_BYTES", 0)
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=0, batch_segments=2))
    sink, began, sent = loopback.sink(0, server, segments=1), time.monotonic(), 0
    while sent < 60:
        if sink.next_grant(5.0) is not None:
            sink.send(make_window(sent + 1, segments=1))
            sent += 1
    assert len(beats) <= 2 + (time.monotonic() - began)


class Run:
    """An actor with windows of one segment and a learner, which both work on each call of `train`."""

    def __init__(self, sink: ReplaySegmentSink, source: ReplayBatchSource) -> None:
        self._sink, self._source, self._sequence = sink, source, 1

    def train(self, round_trips: float = 0.0) -> None:
        """Trains the next batch, for this many of the measured round trips."""
        batch = until(self._next, "a batch")
        time.sleep(round_trips * round_trip_s())
        self._source.commit(batch, np.ones(batch.keys.size))

    def fill(self) -> None:
        """Collects a window for each grant."""
        while (grant := self._sink.next_grant(0.0)) is not None:
            self._sink.send(make_window(self._sequence, segments=1, version=grant.minimum_version))
            self._sequence += 1

    def _next(self) -> Batch | None:
        self.fill()
        return self._source.next(0.001)


def test_an_actor_on_the_host_of_the_service_has_no_round_trip(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.replay(folder=tmp_path)
    source = loopback.source(server, plan_with(fresh_segments=FRESH, batch_segments=FRESH, off_policy_degree=DEGREE))
    run = Run(loopback.sink(0, server, segments=1, window_s=1e-9), source)
    for _ in range(20):
        run.train()
    assert round_trip_s() == 0.0
    until(lambda: loopback.replay_status(server).counts.granted == 2, "the usual grants")


@pytest.mark.parametrize(
    ("delay_s", "round_trips", "leased_batches"), [(DELAY_S, 0.0, DEGREE + 1), (0.0, 10.0, 3)], ids=["distant", "near"]
)
def test_a_distant_learner_requests_the_batches_that_it_trains_in_a_round_trip_and_the_gate_can_fill(
    loopback: Loopback, delay_s: float, round_trips: float, leased_batches: int
) -> None:
    server = loopback.replay()
    plan = plan_with(fresh_segments=FRESH, batch_segments=FRESH, off_policy_degree=DEGREE)
    source = loopback.source(loopback.relay(server, delay_s=delay_s), plan)
    run = Run(loopback.sink(0, server, segments=1), source)
    until(lambda: round_trip_s() > 0.0, "the round trip")
    for _ in range(60):
        run.train(round_trips)

    def leased_of_full_room() -> int | None:
        run.fill()
        counts = loopback.replay_status(server).counts
        return counts.leased if counts.granted == 0 and counts.unseen + counts.leased == ROOM else None

    # Segments of a full room may still be on their way into the batches that the learner has requested.
    until(lambda: leased_of_full_room() == leased_batches * FRESH, f"{leased_batches} batches ahead")
