import numpy as np
import pytest

from penstock.errors import Unavailable
from penstock.rpc.clients.batch_source import FAREWELL_S, ReplayBatchSource
from penstock.rpc.loop import LoopThread
from penstock.types.replay import Batch, BatchHead, StoreCounts
from tests.support.machine.timing import AT_ONCE, Bound, seconds_of
from tests.support.segments.segments import PLAN, SCHEMA, make_columns
from tests.support.services.ports import free_ports


def test_a_stopping_learner_does_not_wait_for_an_absent_replay_service(
    first_answer_s: float,
) -> None:
    batch = Batch(
        BatchHead(
            number=0,
            fresh_segments=1,
            keys=np.ones(1, np.uint64),
            versions=np.zeros(1, np.int64),
            priorities=np.zeros(1),
            probabilities=np.ones(1),
            counts=StoreCounts(),
        ),
        make_columns([(0, 1, 1)]),
    )
    thread = LoopThread()
    (unused_port,) = free_ports(1)
    source = ReplayBatchSource(thread, f"127.0.0.1:{unused_port}", SCHEMA, prefetch_batches=1, stopping=lambda: True)
    try:
        source.open(PLAN)

        def commit_and_close() -> None:
            with pytest.raises(Unavailable, match="does not answer"):
                for _ in range(100):
                    source.commit(batch, np.ones(1))
            source.close()

        bound = Bound(AT_ONCE, first_answer_s, FAREWELL_S)
        assert seconds_of(commit_and_close) < bound.seconds, bound
    finally:
        thread.close()
