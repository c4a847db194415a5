"""The reasons that the law of the gate returns, and the least values that it permits."""

import pytest

from penstock.gate_law import (
    least_degree,
    least_part,
    shard_window_conflict,
    shards_conflict,
    store_conflict,
    window_conflict,
)


@pytest.mark.parametrize(
    ("fresh", "degree", "window", "other", "reason"),
    [
        (6, 0, 6, None, None),
        (6, 0, 2, None, None),
        (6, 0, 4, None, "multiple"),
        (6, 0, 12, None, "multiple"),
        (4, 0, 4, 2, "another actor's have 2"),
        (4, 1, 4, 2, None),
        (6, 1, 6, None, None),
        (6, 1, 7, None, "exceed off_policy_degree 1 times the 6 fresh segments"),
        (6, 2, 12, None, None),
        (0, 0, 5, 3, None),
        (0, 3, 100, None, None),
    ],
)
def test_a_window_fits_or_the_reason_has_its_numbers(
    fresh: int, degree: int, window: int, other: int | None, reason: str | None
) -> None:
    conflict = window_conflict(fresh, degree, window, other)
    if reason is None:
        assert conflict is None
    else:
        assert conflict is not None
        assert reason in conflict
        assert f"actor.environments {window}" in conflict


@pytest.mark.parametrize("fresh", range(7))
def test_the_least_degree_is_the_lowest_that_permits_all_windows(fresh: int) -> None:
    for one in range(1, 9):
        for other in range(1, 9):
            different = None if one == other else other
            permitted = [degree for degree in range(9) if window_conflict(fresh, degree, one, different) is None]
            permitted = [degree for degree in permitted if window_conflict(fresh, degree, other) is None]
            assert least_degree(fresh, {one, other}) == permitted[0]


@pytest.mark.parametrize(
    ("fresh", "shards", "reason"),
    [
        (0, 1, None),
        (4, 1, None),
        (4, 4, None),
        (0, 2, "single replay service"),
        (2, 3, "spread over 3 replay services"),
    ],
)
def test_shards_divide_the_fresh_segments_or_the_reason_has_their_number(
    fresh: int, shards: int, reason: str | None
) -> None:
    conflict = shards_conflict(fresh, shards)
    assert conflict is None if reason is None else conflict is not None and reason in conflict


@pytest.mark.parametrize("degree", range(4))
@pytest.mark.parametrize("shards", range(1, 4))
def test_a_window_fits_the_shards_if_each_part_can_grant_it(degree: int, shards: int) -> None:
    for fresh in range(shards, 13):
        for window in range(1, 7):
            parts = [fresh // shards] * shards
            # At degree 0 the parts are equal. At others the smallest one must permit the window.
            fits = all(window_conflict(part, degree, window) is None for part in parts) and (
                degree or fresh % shards == 0
            )
            assert (shard_window_conflict(fresh, degree, window, shards) is None) == (bool(fits) or shards == 1)


def test_the_least_part_grants_the_window() -> None:
    for degree in range(1, 6):
        for window in range(1, 20):
            part = least_part(degree, window)
            assert window_conflict(part, degree, window) is None
            assert part == 1 or window_conflict(part - 1, degree, window) is not None
    assert least_part(0, 8) == 1


def test_a_store_holds_the_outstanding_segments_and_a_batch() -> None:
    assert store_conflict(fresh=2, degree=1, batch=4, capacity=8) is None
    reason = store_conflict(fresh=2, degree=1, batch=4, capacity=7)
    assert reason == (
        "the store holds 7 segments, and off_policy_degree 1 with batches of 4 needs 8; raise replay.capacity_bytes,"
        " or set replay.capacity_segments to 8"
    )
    assert store_conflict(fresh=0, degree=1, batch=400, capacity=7) is None


def test_a_store_holds_the_segments_from_which_on_replay_begins() -> None:
    assert store_conflict(fresh=2, degree=1, batch=4, capacity=10, replay_from=8) is None
    assert store_conflict(fresh=2, degree=1, batch=4, capacity=9, replay_from=8) == (
        "the store holds 9 segments, and replay from sampling.min_replay_segments 8 on needs 10; set"
        " sampling.min_replay_segments to 7 or less, or raise replay.capacity_bytes"
    )
    assert store_conflict(fresh=0, degree=1, batch=400, capacity=7, replay_from=8) is not None
    # Without replay, nothing waits for these segments.
    assert store_conflict(fresh=4, degree=1, batch=4, capacity=12, replay_from=100) is None
