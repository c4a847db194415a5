"""The work whose pace bounds that of a pipeline."""

import pytest

from benchmarks.peers.equal_work import ENVIRONMENTS
from benchmarks.pipeline_bound import collecting, per_cpu_s, training


@pytest.mark.nightly
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_both_parts_do_the_work_of_a_task_again_and_again(env_id: str) -> None:
    collect, train = collecting(env_id), training(env_id, 256)
    assert [collect() for _ in range(250)] == [ENVIRONMENTS] * 250
    assert [train() for _ in range(3)] == [256] * 3


def test_a_pace_is_what_was_done_after_the_warm_up_over_its_cpu_time() -> None:
    done = []

    def step() -> int:
        done.append(sum(range(20_000)))
        return 2

    pace = per_cpu_s(step, 0.2)
    # The warm-up is a quarter of the measured time, and its steps do not count.
    assert 0.0 < pace * 0.2 < 2 * len(done)
