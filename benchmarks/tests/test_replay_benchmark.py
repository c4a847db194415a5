"""Both sides of the replay benchmark store the same segments, and reach the server where the options say."""

import argparse

import numpy as np
import pytest

from benchmarks import frames
from benchmarks.insertion import Case, of_penstock
from benchmarks.peers.place import Place, add_arguments, place_of
from benchmarks.peers.reverb_segments import segment_kind
from benchmarks.penstock_replay import SETTINGS, windows_of
from benchmarks.replay import COMPARISONS
from penstock.types.codecs import ENCODINGS
from penstock.types.replay import Window, WindowHead
from penstock.wire.encoding import WindowEncoder
from tests.support.segments.random_segments import VECTOR, random_columns

pytestmark = pytest.mark.nightly


def test_frames_follow_from_their_seed_and_are_stacked_by_age() -> None:
    played = frames._play("breakout")
    np.testing.assert_array_equal(played, frames._play("breakout"))
    assert played.shape == (frames.SEGMENTS // 2, frames.FRAMES, 84, 84)
    stacked = frames.stacked(played)
    assert stacked.shape == (frames.SEGMENTS // 2, frames.STEPS + 1, 84, 84, frames.STACK)
    for age in range(frames.STACK):
        np.testing.assert_array_equal(stacked[3, 7, :, :, age], played[3, 7 + age])


@pytest.mark.parametrize("segment", list(SETTINGS))
def test_both_sides_have_segments_of_the_same_columns_and_number(segment: str) -> None:
    ours, theirs = SETTINGS[segment], segment_kind(segment)
    assert ours.pool == theirs.pool
    name, *others = ours.schema.columns
    if segment != "frames_once":
        shape = (theirs.steps + 1, *theirs.observation_shape)
        assert (name.segment_shape(ours.schema.unroll_length), name.dtype) == (shape, theirs.observation_dtype)
    else:
        assert name.segment_shape(ours.schema.unroll_length) == (frames.FRAMES, 84, 84)
    assert ours.schema.unroll_length == theirs.steps and len(others) == 7


@pytest.mark.parametrize(
    ("size", "expected"), [(2, [[0, 1], [2, 3], [4, 0]]), (5, [[0, 1, 2, 3, 4]]), (7, [[*range(5), 0, 1]])]
)
def test_windows_take_the_segments_of_the_pool_in_turn(size: int, expected: list[list[int]]) -> None:
    pool = random_columns(VECTOR, 5, seed=0)
    pool.arrays[1][...] = np.arange(5)[:, None]
    assert [window.arrays[1][:, 0].tolist() for window in windows_of(pool, size)] == expected


def test_random_bytes_are_sent_raw() -> None:
    setting = SETTINGS["pixel"]
    columns = random_columns(setting.schema, 2, seed=0)
    window = Window(WindowHead(0, 1, 1, 0, np.arange(2, dtype=np.uint32)), columns)
    assert WindowEncoder(setting.schema).encode(window, ENCODINGS) is None


@pytest.mark.parametrize("place", [Place(), Place("10.0.0.1", "server", "veth0")])
def test_a_place_survives_the_command_line(place: Place) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert place_of(parser.parse_args(place.arguments)) == place
    assert place.prefix == (["ip", "netns", "exec", "server"] if place.namespace else [])


def test_what_is_alike_on_both_sides_comes_first_and_the_rest_says_so() -> None:
    alike = [not comparison.case.endswith("same_host") for comparison in COMPARISONS]
    assert alike == sorted(alike, reverse=True)
    assert all(
        ("same host only" in comparison.name) != each for comparison, each in zip(COMPARISONS, alike, strict=True)
    )


@pytest.mark.parametrize("way", ["tcp", "tls", "grpc", "mapped"])
def test_writers_insert_in_each_way(way: str) -> None:
    measured = of_penstock(Case("vector", 2, 8, (way,)), way, 0.5)
    assert measured.per_s > 0.0
    assert 0.0 < measured.median_ms <= measured.slow_ms
