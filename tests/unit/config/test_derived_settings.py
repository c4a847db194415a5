import itertools

import pytest

from penstock.config import build
from penstock.config.derived_settings import batch_segments, minibatches
from penstock.gate_law import shard_window_conflict, shards_conflict, window_conflict

POWERS = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("fraction", [0.125, 0.5, 1.0])
def test_every_combination_of_powers_of_2_has_a_batch_that_opens_the_gate(fraction: float) -> None:
    for actors, window, shards, degree in itertools.product(POWERS, POWERS, (1, 2, 4, 8), (0, 1, 2, 4, 8)):
        if shards > actors:
            continue
        segments = batch_segments(actors=actors, window=window, fresh_fraction=fraction, degree=degree, shards=shards)
        fresh = round(segments * fraction)
        assert fresh >= actors * window
        assert segments >= 32 or (fraction, degree) == (1.0, 0)
        conflicts = (
            shards_conflict(fresh, shards),
            window_conflict(fresh, degree, window),
            shard_window_conflict(fresh, degree, window, shards),
        )
        assert conflicts == (None, None, None), (actors, window, shards, degree)


@pytest.mark.parametrize(("actors", "window", "shards"), [(3, 5, 2), (7, 3, 4), (5, 9, 5), (6, 1, 4)])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7])
def test_other_numbers_open_the_gate_too(actors: int, window: int, shards: int, fraction: float) -> None:
    for degree in range(5):
        values: dict[str, object] = {
            "train": {"actors": actors, "replay_shards": shards},
            "actor": {"environments": window},
            "sampling": {"fresh_fraction": fraction, "off_policy_degree": degree},
        }
        assert build(values).sampling.fresh_segments >= actors * window


def test_the_defaults_follow_from_two_actors_with_eight_environments() -> None:
    config = build({})
    assert (config.sampling.batch_segments, config.sampling.fresh_segments, config.ppo.minibatches) == (64, 16, 8)


@pytest.mark.parametrize("spelling", [0, "auto"])
def test_given_settings_are_kept_and_derived_ones_are_recorded(spelling: object) -> None:
    config = build({"train": {"actors": 8}, "sampling": {"batch_segments": spelling}, "ppo": {"minibatches": 3}})
    assert (config.sampling.batch_segments, config.ppo.minibatches) == (256, 3)
    assert "batch_segments = 256" in config.to_toml()


def test_minibatches_have_256_steps_and_with_memory_4_segments_or_more() -> None:
    assert minibatches(batch_segments=32, unroll_length=128, recurrent=False) == 16
    assert minibatches(batch_segments=32, unroll_length=128, recurrent=True) == 8
    assert minibatches(batch_segments=1, unroll_length=2, recurrent=True) == 1


def test_without_fresh_segments_a_batch_is_replayed_alone() -> None:
    assert batch_segments(actors=2, window=8, fresh_fraction=0.0, degree=1, shards=1) == 32


def test_a_synchronous_run_without_replay_trains_on_one_window_of_every_actor() -> None:
    for actors, window in itertools.product(POWERS, POWERS):
        assert batch_segments(actors=actors, window=window, fresh_fraction=1.0, degree=0, shards=1) == actors * window
