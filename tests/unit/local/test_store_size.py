import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.gate_law import store_conflict
from penstock.local.store_size import least_segments, with_store
from penstock.sharding.allotment import Allotment
from penstock.types.replay import SamplingPlan

DEFAULT = Config().replay.store_bytes


def plan_of(config: Config) -> SamplingPlan:
    sampling = config.sampling
    return SamplingPlan(
        session=1,
        next_batch=0,
        batch_segments=sampling.batch_segments,
        fresh_segments=sampling.fresh_segments,
        off_policy_degree=sampling.first_degree,
        publish_interval=sampling.publish_interval,
        alpha=sampling.first_alpha,
        epsilon=sampling.epsilon,
        half_life=sampling.half_life,
        max_staleness=sampling.max_staleness,
        min_replay_segments=sampling.min_replay_segments,
    )


def test_a_store_holds_twice_what_batches_need_and_never_less_than_the_default() -> None:
    assert with_store(Config(), 1000).replay.store_bytes == DEFAULT
    assert with_store(Config(), DEFAULT).replay.store_bytes == 2 * DEFAULT


@pytest.mark.parametrize("replay_from", [0, 64, 1_000])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_the_least_number_of_segments_is_that_of_the_gate_of_each_service(shards: int, replay_from: int) -> None:
    config = build(
        {
            "train": {"actors": 4, "replay_shards": shards},
            "sampling": {"min_replay_segments": shards * replay_from, "batch_segments": 100},
        }
    )
    parts = Allotment(plan_of(config), shards, config.actor.environments).fresh_segments
    law = (max(parts), config.sampling.first_degree, config.sampling.batch_segments)
    assert store_conflict(*law, least_segments(config), replay_from) is None
    assert store_conflict(*law, least_segments(config) - 1, replay_from) is not None


def test_a_configured_store_is_never_changed_and_is_refused_with_the_size_it_needs() -> None:
    config = build({"replay": {"capacity_bytes": "1MB"}})
    assert with_store(config, 10_000) == config
    with pytest.raises(ConfigurationError, match="set it to 2000000 or more, or leave it unset"):
        with_store(config, 2_000_000)
    # With several services, too, each of which has this size.
    shards = config.changed({"train": {"replay_shards": 2}})
    with pytest.raises(ConfigurationError, match=r"sampling\.min_replay_segments 64 need .* set it to 2000000 or more"):
        with_store(shards, 2_000_000)
