import pytest

from penstock.config import Config, build, merge
from penstock.errors import ConfigurationError
from penstock.gate_law import store_conflict
from penstock.local.store_size import conversion, sized_segments, with_store
from penstock.sharding.allotment import Allotment
from penstock.types.replay import SamplingPlan

DEFAULT = Config().replay.store_size.amount
FREE = 10 * DEFAULT
SEGMENT = 10_000
"""Bytes of a segment of 32 steps in these tests."""


def plan_of(config: Config) -> SamplingPlan:
    sampling = config.sampling
    return SamplingPlan(
        session=1,
        next_batch=0,
        batch_segments=sampling.batch_segments,
        fresh_segments=sampling.fresh_segments,
        off_policy_degree=sampling.off_policy_degree,
        publish_interval=sampling.publish_interval,
        alpha=sampling.alpha,
        epsilon=sampling.epsilon,
        half_life=sampling.half_life,
        max_staleness=sampling.max_staleness,
        min_replay_segments=sampling.min_replay_segments,
    )


def test_a_store_holds_twice_what_batches_need_and_never_less_than_the_default() -> None:
    assert with_store(Config(), 1000, FREE).replay.store_size.amount == DEFAULT
    assert with_store(Config(), DEFAULT, FREE).replay.store_size.amount == 2 * DEFAULT


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
    law = (max(parts), config.degree, config.sampling.batch_segments)
    assert store_conflict(*law, config.least_segments, replay_from) is None
    assert store_conflict(*law, config.least_segments - 1, replay_from) is not None


def test_a_configured_store_is_never_changed_and_is_refused_with_the_size_it_needs() -> None:
    config = build({"replay": {"capacity_bytes": "1MB"}})
    assert with_store(config, 10_000, FREE) == config
    with pytest.raises(ConfigurationError, match="set it to 2000000 or more, or leave it unset"):
        with_store(config, 2_000_000, FREE)
    # With several services, too, each of which has this size.
    shards = config.changed({"train": {"replay_shards": 2}})
    with pytest.raises(ConfigurationError, match=r"sampling\.min_replay_segments 64 need .* set it to 2000000 or more"):
        with_store(shards, 2_000_000, FREE)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("sampling", "min_replay_segments", 10**8),
        ("sampling", "off_policy_degree", 10**5),
        ("actor", "unroll_length", 10**8),
    ],
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_store_for_which_the_disk_is_too_small_is_refused_with_the_setting_and_a_value_that_works(
    section: str, key: str, value: int, shards: int
) -> None:
    base: dict[str, object] = {
        "train": {"replay_shards": shards},
        "sampling": {"max_staleness": 10**6, "half_life": 1e6, "batch_segments": 64},
    }

    def with_value(number: int) -> Config:
        return build(merge(base, {section: {key: number}}))

    def bytes_of(config: Config) -> int:
        return config.least_segments * SEGMENT * config.actor.unroll_length // 32

    with pytest.raises(ConfigurationError, match=rf"; set {section}\.{key} to \d+ or less, or choose") as caught:
        with_store(with_value(value), bytes_of(with_value(value)), FREE)
    accepted = with_value(int(str(caught.value).split(f"{key} to ")[1].split()[0]))
    assert with_store(accepted, bytes_of(accepted), FREE).replay.capacity_bytes is not None
    # The value is not much smaller than necessary.
    if key != "off_policy_degree":
        assert 2 * shards * bytes_of(accepted) > FREE // 2


@pytest.mark.parametrize("key", ["capacity_segments", "capacity_steps"])
def test_a_store_in_segments_or_steps_keeps_its_unit_and_its_bytes_are_reported(key: str) -> None:
    amount = 5_000 if key == "capacity_segments" else 5_000 * 32 - 1
    config = build({"replay": {key: amount}})
    assert sized_segments(config) == 5_000
    assert with_store(config, 1_234_567, FREE) == config
    assert conversion(config, 1_234_567) == f"replay.{key} {amount}: a store of 5,000 segments, 1,234,567 bytes"
    assert conversion(Config(), 1_234_567) == ""
