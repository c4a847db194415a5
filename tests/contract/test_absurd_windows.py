"""A window with a number beyond the run's largest magnitude is refused, and nothing of it is stored."""

import grpc
import pytest

from penstock.rpc import methods
from penstock.types.replay import Window
from penstock.v1 import replay_pb2
from penstock.wire.windows import encode_window
from tests.support.segments.segments import SCHEMA, make_window
from tests.support.services.servers import Loopback, open_request, pass_windows, plan_with

COLUMNS = [column.name for column in SCHEMA.columns if column.dtype.startswith("float")]


def forged(column: str, value: float) -> replay_pb2.AppendSegmentsRequest:
    window: Window = make_window(slot=1)
    window.columns.column(column)[1].flat[-1] = value
    (data,) = encode_window(window)
    return replay_pb2.AppendSegmentsRequest.FromString(data)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [3e38, -3e38, 1.01e15])
def test_a_forged_number_is_refused(loopback: Loopback, column: str, value: float) -> None:
    server = loopback.replay()
    source = loopback.source(server, plan_with(fresh_segments=2, batch_segments=2, largest_magnitude=1e15))
    stranger = loopback.plain(server, methods.APPEND_SEGMENTS)
    stranger.send(open_request(1), forged(column, value))
    code, details = stranger.status()
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert f"column {column} has a value of magnitude {abs(value):g}; the largest of this run is 1e+15" in details
    counts = loopback.replay_status(server).counts
    assert (counts.stored, counts.refused) == (0, 2)
    pass_windows(loopback.sink(0, server), source, 1)


def test_numbers_up_to_the_largest_magnitude_are_stored(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=2, batch_segments=2, largest_magnitude=1e15))
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request(1), forged(COLUMNS[0], 1e15))
    while not stream.receive().stored_sequence:
        pass


def test_a_learner_without_the_setting_refuses_only_what_is_not_finite(loopback: Loopback) -> None:
    server = loopback.replay()
    loopback.source(server, plan_with(fresh_segments=2, batch_segments=2))
    stream = loopback.plain(server, methods.APPEND_SEGMENTS)
    stream.send(open_request(1), forged(COLUMNS[0], 3e38))
    while not stream.receive().stored_sequence:
        pass
