"""Equal service for the largest number of actors, regardless of their order and of silent actors."""

import threading

import numpy as np
import pytest
from grpc import StatusCode

from penstock.rpc import methods
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.segments import make_window
from tests.support.services.servers import Loopback, open_request, plan_with, until

pytestmark = pytest.mark.nightly

ACTORS = 256


@pytest.mark.parametrize("silent", [0, 16])
def test_256_actors_send_equal_numbers_of_windows(loopback: Loopback, silent: int) -> None:
    server = loopback.replay(rows=4000, max_actors=ACTORS)
    plan = plan_with(batch_segments=128, fresh_segments=128, off_policy_degree=4)
    sinks = [loopback.sink(slot, server) for slot in range(ACTORS)]
    until(lambda: loopback.replay_status(server).actors == ACTORS, "all connect")
    source = loopback.source(server, plan)
    done, version = threading.Event(), 0
    sent = [0] * ACTORS
    # Streams that the plan has just opened move to sockets, one after another. Until then they collect nothing.
    granted = [sinks[slot].next_grant(PATIENCE_S) is not None for slot in range(ACTORS - silent)]
    assert all(granted)

    def act() -> None:
        while not done.wait(0.001):
            for slot in range(ACTORS - silent):
                if granted[slot] or sinks[slot].next_grant(0.0) is not None:
                    granted[slot] = False
                    sinks[slot].send(make_window(1 + 2 * sent[slot], slot=slot, version=version))
                    sent[slot] += 1

    acting = threading.Thread(target=act, name="actors")
    acting.start()
    came = np.zeros(ACTORS, np.int64)
    try:
        for number in range(40):
            batch = until(lambda: source.next(0.5), f"batch {number} ({source.waiting_for})")
            version = number + 1
            source.commit(batch, np.ones(128))
            environments = batch.head.environments
            came += np.bincount(environments // 2, minlength=ACTORS)
    finally:
        done.set()
        loopback.join(acting)
    going = came[: ACTORS - silent]
    # 40 batches of 64 windows are 10 windows per actor, except for the order and for windows in transit.
    assert going.sum() == 40 * 128
    assert going.max() - going.min() <= 2 * 3, (going.min(), going.max())


def test_an_actor_beyond_the_limit_is_refused_until_another_leaves(loopback: Loopback) -> None:
    server = loopback.replay(max_actors=4)
    loopback.source(server, plan_with())
    sinks = [loopback.sink(slot, server) for slot in range(4)]
    until(lambda: loopback.replay_status(server).actors == 4, "all connect")
    late = loopback.plain(server, methods.APPEND_SEGMENTS)
    late.send(open_request(4))
    assert late.status()[0] == StatusCode.RESOURCE_EXHAUSTED
    sinks[1].close()
    until(lambda: loopback.replay_status(server).actors == 3, "one leaves")
    assert loopback.sink(4, server).drain(PATIENCE_S)
    until(lambda: loopback.replay_status(server).actors == 4, "another comes")
