import pytest

from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.gate_law import store_conflict
from penstock.local.store_size import least_segments, with_store

DEFAULT = Config().replay.store_bytes


def test_a_store_holds_twice_what_batches_need_and_never_less_than_the_default() -> None:
    assert with_store(Config(), 1000).replay.store_bytes == DEFAULT
    assert with_store(Config(), DEFAULT).replay.store_bytes == 2 * DEFAULT


def test_the_least_number_of_segments_is_that_of_the_gate() -> None:
    sampling = Config().sampling
    law = (sampling.fresh_segments, sampling.first_degree, sampling.batch_segments)
    assert store_conflict(*law, least_segments(Config())) is None
    assert store_conflict(*law, least_segments(Config()) - 1) is not None


def test_a_configured_store_is_never_changed_and_is_refused_with_the_size_it_needs() -> None:
    config = build({"replay": {"capacity_bytes": "1MB"}})
    assert with_store(config, 10_000) == config
    with pytest.raises(ConfigurationError, match="set it to 2000000 or more, or leave it unset"):
        with_store(config, 2_000_000)
