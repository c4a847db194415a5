import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.gate_law import store_conflict
from penstock.local.store_size import conversion, sized_segments, with_store

DEFAULT = Config().replay.store_size.amount


def test_a_store_holds_twice_what_batches_need_and_never_less_than_the_default() -> None:
    assert with_store(Config(), 1000).replay.store_size.amount == DEFAULT
    assert with_store(Config(), DEFAULT).replay.store_size.amount == 2 * DEFAULT


def test_the_least_number_of_segments_is_that_of_the_gate() -> None:
    sampling = Config().sampling
    law = (sampling.fresh_segments, sampling.first_degree, sampling.batch_segments)
    assert store_conflict(*law, Config().least_segments) is None
    assert store_conflict(*law, Config().least_segments - 1) is not None


def test_a_configured_store_is_never_changed_and_is_refused_with_the_size_it_needs() -> None:
    config = build({"replay": {"capacity_bytes": "1MB"}})
    assert with_store(config, 10_000) == config
    with pytest.raises(ConfigurationError, match="set it to 2000000 or more, or leave it unset"):
        with_store(config, 2_000_000)


@pytest.mark.parametrize("key", ["capacity_segments", "capacity_steps"])
def test_a_store_in_segments_or_steps_keeps_its_unit_and_its_bytes_are_reported(key: str) -> None:
    amount = 5_000 if key == "capacity_segments" else 5_000 * 32 - 1
    config = build({"replay": {key: amount}})
    assert sized_segments(config) == 5_000
    assert with_store(config, 1_234_567) == config
    assert conversion(config, 1_234_567) == f"replay.{key} {amount}: a store of 5,000 segments, 1,234,567 bytes"
    assert conversion(Config(), 1_234_567) == ""
