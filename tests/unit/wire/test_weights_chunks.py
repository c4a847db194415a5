import hashlib

import pytest

from penstock.errors import InvalidSegment, Overloaded
from penstock.types.run import Weights
from penstock.v1 import run_pb2
from penstock.wire.block import MAX_PART_BYTES
from penstock.wire.run import MAX_WEIGHTS_BYTES, WeightsAssembler, encode_weights

DATA = bytes(range(256)) * (2 * MAX_PART_BYTES // 256 + 1)
"""Three chunks, the last one of 256 bytes."""


def chunks() -> list[run_pb2.WeightsChunk]:
    return list(encode_weights(Weights(7, DATA, hashlib.sha256(DATA).digest())))


def test_successive_weights_survive_encoding_and_decoding() -> None:
    assembler = WeightsAssembler()
    assert len(chunks()) == 3
    for _ in range(2):
        *none, assembled = [assembler.add(chunk) for chunk in chunks()]
        assert none == [None, None]
        assert assembled == Weights(7, DATA, hashlib.sha256(DATA).digest())


@pytest.mark.parametrize(("order", "due"), [((1,), 0), ((0, 2), MAX_PART_BYTES), ((0, 1, 1), 2 * MAX_PART_BYTES)])
def test_chunks_out_of_order_are_refused(order: tuple[int, ...], due: int) -> None:
    assembler, (*before, last) = WeightsAssembler(), [chunks()[number] for number in order]
    for chunk in before:
        assert assembler.add(chunk) is None
    with pytest.raises(InvalidSegment, match=f"expected one at byte {due}"):
        assembler.add(last)


def test_chunks_beyond_the_announced_size_are_refused() -> None:
    (first, *_) = chunks()
    first.total_bytes = MAX_PART_BYTES - 1
    with pytest.raises(InvalidSegment, match="expected one at byte 0"):
        WeightsAssembler().add(first)


def test_weights_with_a_flipped_bit_are_refused() -> None:
    assembler, (*before, last) = WeightsAssembler(), chunks()
    for chunk in before:
        assembler.add(chunk)
    last.data = last.data[:-1] + bytes([last.data[-1] ^ 1])
    with pytest.raises(InvalidSegment, match=r"SHA-256 .* differs from the announced one"):
        assembler.add(last)


def test_weights_above_the_limit_are_refused() -> None:
    with pytest.raises(Overloaded, match="the maximum is"):
        WeightsAssembler().add(run_pb2.WeightsChunk(total_bytes=MAX_WEIGHTS_BYTES + 1))
