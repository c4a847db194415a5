"""Combinations of powers of 2 of environments, actors, shards and degree train batches in the smallest stores."""

from dataclasses import replace

import pytest

from penstock.config import Config, build
from penstock.replay.buffer import ReplayBuffer
from penstock.sharding.allotment import Allotment
from penstock.types.replay import SamplingPlan
from tests.support.segments.direct_buffer import Actor, append, commit, make_buffer, take
from tests.support.segments.segments import PLAN
from tests.support.tiers import gate_of

BATCHES = 3


def plan_of(config: Config) -> SamplingPlan:
    sampling = config.sampling
    return replace(
        PLAN,
        batch_segments=sampling.batch_segments,
        fresh_segments=sampling.fresh_segments,
        off_policy_degree=sampling.off_policy_degree,
        # Shards leave the decision about the first replay to the learner.
        min_replay_segments=0 if config.train.replay_shards > 1 else sampling.min_replay_segments,
    )


def fill(buffer: ReplayBuffer, actors: list[Actor], number: int) -> None:
    """Collects until the batch is complete."""
    while buffer.leases.draw(number) is None:
        buffer.intakes.issue_grants(0.0)
        stored = [append(buffer, actor.next_window(number)) for actor in actors]
        assert any(sequence is not None for sequence in stored), "no actor has a grant, and the batch is incomplete"
        for actor, sequence in zip(actors, stored, strict=True):
            actor.sent = actor.sent if sequence is None else sequence


@pytest.mark.parametrize("environments", gate_of(2, [1, 2, 8, 64]))
@pytest.mark.parametrize(("actors", "shards"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4)])
@pytest.mark.parametrize("degree", gate_of(2, [0, 1, 2, 4, 8]))
def test_every_combination_trains_batches(environments: int, actors: int, shards: int, degree: int) -> None:
    config = build(
        {
            "train": {"actors": actors, "replay_shards": shards},
            "actor": {"environments": environments},
            "sampling": {"off_policy_degree": degree, "min_replay_segments": 1},
        }
    )
    plan = plan_of(config)
    parts = Allotment(plan, shards, environments).fresh_segments
    assert sum(parts) == config.sampling.fresh_segments
    for shard, part in enumerate(parts):
        buffer = make_buffer(replace(plan, fresh_segments=part), rows=config.least_segments)
        collecting = [Actor(buffer, slot, segments=environments) for slot in range(shard, actors, shards)]
        for number in range(BATCHES):
            fill(buffer, collecting, number)
            batch = take(buffer, number)
            assert batch.fresh_segments == part
            commit(buffer, batch)
        assert batch.keys.size > part, "nothing was replayed"
