"""Learners are killed at random moments and replaced; segments collected meanwhile are trained as fresh."""

import random

import numpy as np
import pytest

from tests.support.services.servers import Actor, Loopback, Recorder, Trainer, plan_with


@pytest.mark.parametrize(("degree", "publish_interval"), [(0, 1), (1, 1), (2, 3)])
def test_repeated_replacement_of_the_learner_makes_no_segment_late_and_all_are_replayed(
    loopback: Loopback, degree: int, publish_interval: int
) -> None:
    server, recorder, chance = loopback.replay(rows=400), Recorder(), random.Random(4)
    learners: list[Trainer] = []
    # One actor's windows arrive in the order of their grants, so only a replacement could make them late.
    actor = Actor(loopback.sink(0, server), recorder, lambda: learners[-1].published if learners else -1, slot=0)
    version, trained = 0, []
    for number in range(10):
        plan = plan_with(
            next_batch=version + (chance.choice((0, 1, 27, 101, 1_000_000)) if number else 0),
            batch_segments=8,
            fresh_segments=4,
            off_policy_degree=degree,
            publish_interval=publish_interval,
            max_staleness=64,
        )
        source = loopback.source(server, plan)
        learner = Trainer(source, recorder, plan)
        # Like the learner, publish the first version regardless of its number.
        learner.published = plan.next_batch
        learners.append(learner)
        for batch in learner.train(chance.randint(2, 6)):
            trained.append(batch)
            assert (batch.ages >= 0).all()
            assert batch.ages[: batch.fresh_segments].max() <= plan.largest_lag
            # The last batch of a killed learner may have been committed.
            assert batch.ages.max() <= len(trained) + number
            # As soon as anything was trained, replay has mass.
            assert len(trained) < 3 or batch.keys.size == 8
        # Killed while it has a batch, or while a commit is in transit.
        batch = learner.next()
        if chance.random() < 0.5:
            learner.begin_commit(batch)
        source.close(0.0)
        version = learner.version + (chance.random() < 0.5)
    actor.end()
    assert loopback.replay_status(server).counts.late == 0
    assert max(np.diff([batch.number for batch in trained])) > 1
