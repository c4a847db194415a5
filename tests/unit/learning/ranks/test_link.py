"""The link between rank 0, which is this process, and another rank, which is a real `penstock learner`."""

import signal
import subprocess
import threading

import pytest
import torch

from penstock.acting.values.spaces import segment_schema
from penstock.config import Config
from penstock.errors import RankLost
from penstock.learning.run.assembly import learner_of
from penstock.learning.step.batches import to_tensors
from penstock.types.replay import Batch
from tests.support.environments.tiny import spec_of
from tests.support.machine.timing import wait_for
from tests.support.services.other_ranks import led
from tests.support.services.processes import Command, end_of
from tests.support.training.training import CPU, collect_batch, numbers_of

ENVIRONMENT = "CartPole-v1"
ROUNDING = 1e-6
"""Largest difference of a parameter; the last bit is 1.2e-7 at 1."""

CONFIG = Config(
    environment={"id": ENVIRONMENT},
    learner={"device": "cpu"},
    actor={"unroll_length": 16, "environments": 6},
    sampling={"batch_segments": 6, "fresh_fraction": 1.0},
    ppo={"epochs": 2, "minibatches": 3, "learning_rate": 2e-3, "learning_rate_schedule": "linear"},
)


def connected(other: Command) -> None:
    other.until(lambda: '"ranks connected"' in other.stderr, "the other rank's connection")


def batches() -> list[Batch]:
    """Returns batches of fresh and replayed segments that differ in age, priority, and rows that reset."""
    return [
        collect_batch(ENVIRONMENT, segments=6, fresh=4, unroll_length=16, windows=windows, number=number, version=3)
        for windows, number in ((1, 5), (3, 6), (2, 9))
    ]


def test_another_rank_trains_what_rank_0_trains() -> None:
    spec, schema = spec_of(ENVIRONMENT), segment_schema(spec_of(ENVIRONMENT), 16)
    first, untrained, last = batches()
    one = learner_of(CONFIG, spec, CPU)
    for batch in (first, last):
        one.train(to_tensors(batch, CPU), 0.0)
    # The settings of the other rank's own options do not count.
    with led(CONFIG, 2, "--ppo.epochs=7") as ranks:
        learner = learner_of(CONFIG, spec, CPU, ranks.lead.ranks)
        # As if the run had been resumed: the other rank has to get this state.
        learner.policy.load_state_dict(one.policy.state_dict())
        learner.optimizer.load(one.optimizer.state)
        learner.generator.set_state(one.generator.get_state())
        ranks.lead.open(CONFIG, schema, learner)
        for batch in (first, untrained, last):
            ranks.link.send(batch)
        for batch, progress in ((first, 0.25), (last, 0.5)):
            ranks.link.train(batch, progress)
            outcome, expected = (each.train(to_tensors(batch, CPU), progress) for each in (learner, one))
            assert numbers_of(outcome) == pytest.approx(numbers_of(expected), rel=1e-4, abs=1e-6)
        torch.testing.assert_close(learner.parameters, one.parameters, rtol=0.0, atol=ROUNDING)
        ranks.link.close()
        end = end_of(ranks.others[0])
    assert (end.code, end.stdout) == (0, "")
    assert '"policy built"' in end.stderr


@pytest.mark.nightly
def test_the_other_rank_ends_if_the_run_never_begins() -> None:
    with led(CONFIG) as ranks:
        ranks.link.close()
        assert end_of(ranks.others[0]).code == 0


@pytest.mark.nightly
def test_rank_0_notices_the_end_of_another_rank_while_it_waits() -> None:
    with pytest.raises(RankLost) as at_the_end, led(CONFIG) as ranks:
        connected(ranks.others[0])
        ranks.others[0].kill()
        found: list[RankLost] = []

        def is_lost() -> bool:
            try:
                ranks.lead.check()
            except RankLost as error:
                found.append(error)
            return bool(found)

        wait_for(is_lost, "the loss of the other rank")
        with pytest.raises(RankLost):
            ranks.lead.ranks.add(torch.zeros(1))
    assert str(at_the_end.value).startswith(
        "rank 0 of the learner can't continue without another rank, which has ended"
    )


@pytest.mark.nightly
def test_a_signal_ends_another_rank_only_when_rank_0_ends() -> None:
    with led(CONFIG) as ranks:
        (other,) = ranks.others
        connected(other)
        other.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            # Longer than rank 0 takes to notice an end.
            other.process.wait(5.0)
        ranks.lead.check()
        ranks.link.close()
        assert end_of(other).code == 128 + signal.SIGTERM


@pytest.mark.nightly
def test_a_link_whose_work_does_not_end_lets_its_process_end() -> None:
    with led(CONFIG) as ranks:
        connected(ranks.others[0])
        links = [thread for thread in threading.enumerate() if thread.name == "ranks"]
        # Python waits for all other threads at the end of a process.
        assert links and all(thread.daemon for thread in links)
        ranks.link.close()
