import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidSegment
from penstock.replay.store.layout import HEADER
from penstock.replay.store.row_checks import (
    check_values,
    checksums_of,
    copy_and_sum,
    in_order,
    inspect_raw,
    kind_of,
    largest_bits,
    mix_pieces,
)
from penstock.types.block import DATA_TYPES, VALID, Column


def test_memory_is_kept_in_order_by_a_fence_for_reads_and_writes() -> None:
    # The cached function has no intermediate code, and on x86 the fence is no instruction.
    compiled = numba.njit("void()")(in_order.py_func)
    (code,) = compiled.inspect_llvm().values()
    assert "fence acq_rel" in code


def checksum(row: bytes, seed: int = 0) -> int:
    checksums = np.array([seed], np.uint64)
    mix_pieces(np.frombuffer(row, np.uint8).copy(), np.zeros(1, np.int64), np.array([len(row)]), checksums)
    return int(checksums[0])


@given(row=st.binary(min_size=1, max_size=700), data=st.data())
def test_a_checksum_changes_with_every_bit_and_with_its_seed(row: bytes, data: st.DataObject) -> None:
    position, bit = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(0, 7))
    damaged = bytearray(row)
    damaged[position] ^= 1 << bit
    assert checksum(row) == checksum(row)
    assert checksum(bytes(damaged)) != checksum(row)
    assert checksum(row, seed=1) != checksum(row)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, 0x42D5D6E18A6B5B5B),
        (8, 0xA8DB4E00521D1DA),
        (255, 0x897A297F11C88F88),
        (256, 0x80A31AAAC6285BD9),
        (264, 0x9307BB50BF07C808),
        (3000, 0x785862484A7CDAD3),
    ],
)
def test_a_checksum_is_the_one_in_stores_of_earlier_releases(size: int, expected: int) -> None:
    assert checksum((np.arange(size) * 37 % 251).astype(np.uint8).tobytes(), seed=1) == expected


@pytest.mark.parametrize("size", [1, 8, 255, 256, 257, 1000])
def test_rows_have_independent_checksums(size: int) -> None:
    rows = np.random.default_rng(size).integers(0, 256, (5, size), np.uint8)
    checksums = np.arange(5, dtype=np.uint64)
    mix_pieces(rows.reshape(-1), np.arange(5) * size, np.full(5, size), checksums)
    assert checksums.tolist() == [checksum(row.tobytes(), seed) for seed, row in enumerate(rows)]


def test_swapped_words_change_the_checksum() -> None:
    words = np.random.default_rng(1).integers(0, 2**63, 96).astype(np.uint64)
    original = checksum(words.tobytes())
    for one, other in [(0, 1), (0, 32), (31, 32), (5, 69), (64, 95)]:
        swapped = words.copy()
        swapped[[one, other]] = swapped[[other, one]]
        assert checksum(swapped.tobytes()) != original


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(dtype: str, value: float) -> None:
    column, rewards = Column("reward", dtype), np.zeros((2, 3), dtype)
    rewards[0] = [-0.0, np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal]
    check_values(column, rewards.view(np.uint8))
    rewards[1, 2] = value
    with pytest.raises(InvalidSegment, match="reward has values that are not finite"):
        check_values(column, rewards.view(np.uint8))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_above_the_largest_magnitude_are_refused(dtype: str, sign: float) -> None:
    column, rewards = Column("reward", dtype), np.zeros((2, 3), dtype)
    largest, beyond = np.array([sign * 1000.0, sign * np.inf], dtype)
    rewards[1, 2] = largest
    check_values(column, rewards.view(np.uint8), 1000.0)
    rewards[1, 2] = np.nextafter(largest, beyond)
    check_values(column, rewards.view(np.uint8))
    with pytest.raises(InvalidSegment, match=r"column reward has a value of magnitude 1000.*; the largest.* 1000 "):
        check_values(column, rewards.view(np.uint8), 1000.0)
    # A limit beyond the type's range only excludes what is not finite.
    rewards[1, 2] = np.finfo(dtype).max
    check_values(column, rewards.view(np.uint8), 1e300 if dtype != "float64" else 0.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_raw_rows_above_the_largest_magnitude_are_refused(dtype: str) -> None:
    columns, valid = [Column("some", dtype), Column(VALID, "bool")], np.ones((3, 1), np.bool_)
    some = np.full((3, 8), -100.0, dtype)
    assert inspected(columns, [some, valid], 100.0)[0] == 1
    assert inspected(columns, [some, valid], 99.0)[0] == -1
    # The row before them is not inspected.
    some[1:] = 0.0
    assert inspected(columns, [some, valid], 99.0)[0] == 1


def test_booleans_above_one_are_refused() -> None:
    column, raw = Column("terminated", "bool"), np.zeros((2, 3), np.uint8)
    raw[1, 1] = 1
    check_values(column, raw)
    raw[1, 1] = 2
    with pytest.raises(InvalidSegment, match="terminated has bytes above 1"):
        check_values(column, raw)


@given(data=st.binary(max_size=200), before=st.integers(0, 9), sums=st.sampled_from([1, 3, 509]))
def test_bytes_are_copied_and_their_words_are_summed(data: bytes, before: int, sums: int) -> None:
    source, target = (np.full(before + len(data) + 1, fill, np.uint8) for fill in (0, 7))
    source[before:-1] = np.frombuffer(data, np.uint8)
    added = np.ones(sums, np.uint64)
    copy_and_sum(source[before:-1], target[before:-1], added)
    assert target.tobytes() == bytes([7]) * before + data + bytes([7])
    expected = [1] * sums
    for word in range(-(-len(data) // 8)):
        expected[word % sums] += int.from_bytes(data[8 * word : 8 * word + 8], "little")
    assert added.tolist() == [value % 2**64 for value in expected]


def inspected(columns: list[Column], contents: list[np.ndarray], largest: float = 0.0) -> tuple[int, np.ndarray]:
    """Inspects rows 1 and 2 of a store of three with these columns, and returns the result and their headers."""
    widths = [content.shape[1] * content.itemsize for content in contents]
    ends = np.cumsum([3 * width for width in widths])
    memory = np.concatenate([content.view(np.uint8).reshape(-1) for content in contents])
    places = [
        (end - 3 * width, width, kind_of(column), largest_bits(column, largest))
        for end, width, column in zip(ends, widths, columns, strict=True)
    ]
    headers = np.zeros(2, HEADER)
    headers["key"], headers["sequence"], headers["version"] = [8, 9], [3, 4], 5
    headers["slot"], headers["incarnation"], headers["environment"] = 1, 2, [6, 7]
    result = inspect_raw(memory, np.array(places, np.int64), 1, 3, np.zeros((2, 4), np.uint8), headers)
    return int(result), headers


@pytest.mark.parametrize("dtype", DATA_TYPES)
def test_raw_rows_have_the_checksums_of_all_rows_and_the_values_that_checks_refuse(dtype: str) -> None:
    columns = [Column("some", dtype), Column(VALID, "bool")]
    some = np.random.default_rng(0).integers(0, 2, (3, 8)).astype(dtype)
    valid = np.zeros((3, 3), bool)
    assert inspected(columns, [some, valid])[0] == 0
    # Only the rows to inspect count.
    valid[0] = True
    assert inspected(columns, [some, valid])[0] == 0
    valid[2, 1] = True
    result, headers = inspected(columns, [some, valid])
    assert result == 1
    contents = [some[1:].view(np.uint8), valid[1:].view(np.uint8)]
    expected = checksums_of(headers, np.zeros((2, 1), np.uint32), contents)
    assert headers["checksum"].tolist() == expected.tolist()
    faults: dict[str, list[float]] = {
        "bool": [2],
        "float16": [np.nan, np.inf],
        "float32": [np.nan, -np.inf],
        "float64": [np.nan, np.inf],
    }
    for fault in faults.get(dtype, []):
        spoilt = some.copy()
        spoilt.view(np.uint8 if dtype == "bool" else dtype)[1, 7] = fault
        assert inspected(columns, [spoilt, valid])[0] == -1
    spoilt = valid.copy()
    spoilt.view(np.uint8)[1, 0] = 4
    assert inspected(columns, [some, spoilt])[0] == -1
