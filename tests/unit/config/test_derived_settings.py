import itertools

import pytest

from penstock.config import build
from penstock.config.derived_settings import Collection, batch_segments, degree, least_degree, minibatches
from penstock.gate_law import shard_window_conflict, shards_conflict, window_conflict

POWERS = (1, 2, 4, 8, 16, 32, 64)


def collection(
    actors: int, window: int, degree: int | None, shards: int = 1, fraction: float = 0.25, steps: int = 32
) -> Collection:
    return Collection(actors, window, steps, fresh_fraction=fraction, degree=degree, oldest=62, shards=shards)


@pytest.mark.parametrize("fraction", [0.125, 0.5, 1.0])
def test_every_combination_of_powers_of_2_has_a_batch_that_opens_the_gate(fraction: float) -> None:
    for actors, window, shards, given in itertools.product(POWERS, POWERS, (1, 2, 4, 8), (0, 1, 2, 4, 8, None)):
        if shards > actors:
            continue
        of = collection(actors, window, given, shards, fraction)
        segments = batch_segments(of)
        fresh = round(segments * fraction)
        ahead = degree(of, fresh) if given is None else given
        # Every actor has room for a window, unless a batch is a rollout.
        assert fresh >= actors * window if ahead == 0 else (ahead + 1) * fresh >= actors * window
        assert segments >= 32 or (fraction, ahead) == (1.0, 0)
        conflicts = (
            shards_conflict(fresh, shards),
            window_conflict(fresh, ahead, window),
            shard_window_conflict(fresh, ahead, window, shards),
        )
        assert conflicts == (None, None, None), (actors, window, shards, given)


@pytest.mark.parametrize(("actors", "window", "shards"), [(3, 5, 2), (7, 3, 4), (5, 9, 5), (6, 1, 4)])
@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.7])
def test_other_numbers_open_the_gate_too(actors: int, window: int, shards: int, fraction: float) -> None:
    for given in (*range(5), "auto"):
        values: dict[str, object] = {
            "train": {"actors": actors, "replay_shards": shards},
            "actor": {"environments": window},
            "sampling": {"fresh_fraction": fraction, "off_policy_degree": given},
        }
        config = build(values)
        assert config.sampling.fresh_segments * (config.degree + 1) >= actors * window


def test_the_defaults_follow_from_two_actors_with_eight_environments() -> None:
    config = build({})
    assert (config.sampling.batch_segments, config.sampling.fresh_segments, config.ppo.minibatches) == (64, 16, 8)
    assert config.degree == 1


def test_more_actors_collect_further_ahead_and_batches_grow_only_at_32_batches_ahead() -> None:
    actors = (1, 2, 3, 4, 16, 17, 64, 128)
    fresh = [build({"train": {"actors": count}}).sampling.fresh_segments for count in actors]
    assert fresh == [8, 16, 16, 16, 16, 16, 16, 32]
    assert [degree_of(count) for count in actors] == [1, 1, 2, 2, 8, 9, 32, 32]
    assert {build({"train": {"actors": count}}).first_degree for count in actors} == {1}


def test_an_automatic_degree_leaves_something_to_replay() -> None:
    many: dict[str, object] = {"train": {"actors": 64}}
    for sampling in ({"max_staleness": 10}, {"half_life": 0.32}, {"max_staleness": 12, "publish_interval": 3}):
        config = build(many | {"sampling": sampling})
        assert (config.degree, config.sampling.fresh_segments) == (8, 64)
    assert build(many | {"sampling": {"max_staleness": 3}}).degree == 1


def degree_of(actors: int) -> int:
    return build({"train": {"actors": actors}}).degree


def test_a_batch_has_no_more_than_two_windows_or_512_steps() -> None:
    assert [batch_segments(collection(16, 8, None, steps=steps)) // 4 for steps in (8, 16, 32, 128)] == [64, 32, 16, 16]
    assert batch_segments(collection(16, 64, None)) == 4 * 2 * 64


def test_the_degree_fits_a_batch_that_is_given() -> None:
    given: dict[str, object] = {"train": {"actors": 4}, "sampling": {"batch_segments": 16}}
    for environments, ahead in ((2, 2), (16, 16), (64, 32)):
        config = build(given | {"actor": {"environments": environments}})
        assert (config.sampling.fresh_segments, config.degree) == (4, ahead)


def test_actors_that_an_engine_was_asked_for_count() -> None:
    config = build({"learner": {"expected_actors": 8}})
    assert (config.sampling.fresh_segments, config.degree) == (16, 4)
    assert build({"learner": {"expected_actors": 1}}).sampling.fresh_segments == 16
    assert build({"learner": {"expected_actors": "wanted"}}).sampling.fresh_segments == 16


@pytest.mark.parametrize("spelling", [-1, "auto"])
def test_a_degree_follows_from_the_actors_unless_it_is_given(spelling: object) -> None:
    begun = build({"train": {"actors": 8}, "sampling": {"off_policy_degree": spelling}})
    assert begun.degree == 4
    assert begun.changed({"train": {"actors": 16}}).degree == 8
    assert build({"train": {"actors": 8}, "sampling": {"off_policy_degree": 3}}).degree == 3


@pytest.mark.parametrize("spelling", [0, "auto"])
def test_given_settings_are_kept_and_derived_ones_are_recorded(spelling: object) -> None:
    config = build({"train": {"actors": 128}, "sampling": {"batch_segments": spelling}, "ppo": {"minibatches": 3}})
    assert (config.sampling.batch_segments, config.ppo.minibatches) == (128, 3)
    assert "batch_segments = 128" in config.to_toml()


def test_minibatches_have_256_steps_and_with_memory_4_segments_or_more() -> None:
    assert minibatches(batch_segments=32, unroll_length=128, recurrent=False) == 16
    assert minibatches(batch_segments=32, unroll_length=128, recurrent=True) == 8
    assert minibatches(batch_segments=1, unroll_length=2, recurrent=True) == 1


def test_without_fresh_segments_a_batch_is_replayed_alone() -> None:
    of = collection(2, 8, None, fraction=0.0)
    assert (batch_segments(of), degree(of, 0), least_degree(of, 0)) == (32, 1, 1)


def test_a_synchronous_run_without_replay_trains_on_one_window_of_every_actor() -> None:
    for actors, window in itertools.product(POWERS, POWERS):
        assert batch_segments(collection(actors, window, 0, fraction=1.0)) == actors * window
