import pytest

from penstock.types.extents import StoreSize


@pytest.mark.parametrize(
    ("size", "segments", "text"),
    [
        (StoreSize(4096), None, "replay.capacity_bytes 4096"),
        (StoreSize(70, "segments"), 70, "replay.capacity_segments 70"),
        (StoreSize(96, "steps"), 3, "replay.capacity_steps 96"),
        (StoreSize(97, "steps"), 4, "replay.capacity_steps 97"),
    ],
)
def test_a_size_has_segments_and_the_name_of_its_setting(size: StoreSize, segments: int | None, text: str) -> None:
    assert size.segments(unroll_length=32) == segments
    assert str(size) == text
