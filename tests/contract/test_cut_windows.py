"""Windows of several parts whose streams are cut, replaced or restarted: stored once, and their room released."""

from collections.abc import Callable

import grpc
import pytest

from penstock.rpc import methods
from penstock.types.replay import Window
from penstock.v1 import replay_pb2
from penstock.wire.windows import encode_window
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import assert_same_columns, make_window
from tests.support.services.servers import (
    IMAGES,
    LiveReplay,
    Loopback,
    PlainStream,
    open_request,
    plan_with,
    until,
)

HEARTBEAT = replay_pb2.AppendSegmentsRequest(heartbeat=replay_pb2.Heartbeat())
PLAN = plan_with(fresh_segments=4, batch_segments=4)
"""With this plan, two windows of four segments are granted at once."""


def images(first_sequence: int = 1) -> Window:
    return make_window(first_sequence, segments=4, schema=IMAGES)


def parts(window: Window) -> list[bytes]:
    messages = list(encode_window(window))
    assert len(messages) > 1
    return messages


def opened(loopback: Loopback, server: LiveReplay) -> PlainStream:
    """Returns an append stream of slot 0 that has been granted a window."""
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request(segments=4, schema=IMAGES))
    while not stream.receive().grants:
        pass
    return stream


def assert_that_two_windows_fit(loopback: Loopback, server: LiveReplay) -> None:
    """Checks that the gate has room for exactly two windows, although an earlier one was dropped."""
    sink = loopback.sink(0, server, schema=IMAGES, segments=4)
    for batch in (0, 1):
        assert until(lambda: sink.next_grant(0.5), "a grant").batch == batch
        sink.send(images(1 + 4 * batch))
    assert sink.drain(PATIENCE_S)
    assert sink.next_grant(0.0) is None
    counts = loopback.replay_status(server).counts
    assert (counts.granted, counts.unseen + counts.leased, counts.inserted) == (0, 8, 8)


def test_a_window_that_restarts_in_the_middle_is_stored_once(loopback: Loopback) -> None:
    server = loopback.replay(schema=IMAGES, rows=24)
    source, stream = loopback.source(server, PLAN, schema=IMAGES), opened(loopback, server)
    head, *rest = parts(images())
    stream.send(head, head, *rest)
    while stream.receive().stored_sequence < 4:
        pass
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, images().columns)
    assert loopback.replay_status(server).counts.inserted == 4


def test_a_stream_refused_in_the_middle_of_a_window_releases_its_rows_once(loopback: Loopback) -> None:
    server = loopback.replay(schema=IMAGES, rows=24)
    loopback.source(server, PLAN, schema=IMAGES)
    stream = opened(loopback, server)
    stream.send(parts(images())[0], parts(images(first_sequence=11))[0])
    code, details = stream.status()
    assert (code, "1 was expected" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert_that_two_windows_fit(loopback, server)


@pytest.mark.parametrize("ending", [PlainStream.leave, PlainStream.close])
def test_the_room_of_a_cut_window_is_granted_again(loopback: Loopback, ending: Callable[[PlainStream], None]) -> None:
    server = loopback.replay(schema=IMAGES, rows=24)
    loopback.source(server, PLAN, schema=IMAGES)
    stream = opened(loopback, server)
    stream.send(parts(images())[0], HEARTBEAT)
    # Once its grant is spent, half of it has arrived.
    until(lambda: loopback.replay_status(server).counts.granted <= 4, "the window is on its way")
    ending(stream)
    until(lambda: loopback.replay_status(server).actors == 0, "the server notices the end")
    assert_that_two_windows_fit(loopback, server)


def test_a_second_stream_of_a_slot_completes_the_window_of_the_first(loopback: Loopback) -> None:
    server = loopback.replay(schema=IMAGES, rows=24)
    source, former = loopback.source(server, PLAN, schema=IMAGES), opened(loopback, server)
    head, *rest = parts(images())
    former.send(head)
    until(lambda: loopback.replay_status(server).counts.granted <= 4, "the window is on its way")
    stream = opened(loopback, server)
    stream.send(head, *rest)
    former.send(*rest)
    code, details = former.status()
    assert (code, "opened another stream" in details) == (grpc.StatusCode.UNAVAILABLE, True)
    while stream.receive().stored_sequence < 4:
        pass
    assert_same_columns(until(lambda: source.next(0.5), "a batch").columns, images().columns)
    assert loopback.replay_status(server).counts.inserted == 4


def test_a_window_begun_by_the_former_incarnation_is_not_stored_under_the_new_one(loopback: Loopback) -> None:
    server = loopback.replay(schema=IMAGES, rows=24)
    plan = plan_with(fresh_segments=4, batch_segments=4, off_policy_degree=3)
    loopback.source(server, plan, schema=IMAGES)
    former = opened(loopback, server)
    head, *rest = parts(images())
    former.send(head)
    until(lambda: loopback.replay_status(server).counts.granted <= 4, "the window is on its way")
    sink = loopback.sink(0, server, schema=IMAGES, segments=4, incarnation=2)
    until(lambda: sink.next_grant(0.5), "a grant")
    sink.send(make_window(1, segments=4, incarnation=2, schema=IMAGES))
    assert sink.drain(PATIENCE_S)
    former.send(*rest)
    code, details = former.status()
    assert (code, "join again" in details) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert loopback.replay_status(server).counts.inserted == 4
