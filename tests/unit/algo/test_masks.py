import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algo.distributions import unpack_mask


@given(
    leading=st.lists(st.integers(0, 3), max_size=3),
    bits=st.integers(1, 40) | st.just(6561),
    seed=st.integers(0, 10_000),
)
def test_unpacking_inverts_packing(leading: list[int], bits: int, seed: int) -> None:
    mask = np.random.default_rng(seed).random((*leading, bits)) < 0.5
    unpacked = unpack_mask(torch.from_numpy(np.packbits(mask, axis=-1, bitorder="little")), bits)
    assert unpacked.dtype == torch.bool
    assert np.array_equal(unpacked.numpy(), mask)


@pytest.mark.parametrize("bit", [0, 1, 7, 8, 15, 16])
def test_bit_i_is_bit_i_mod_8_of_byte_i_div_8(bit: int) -> None:
    packed = torch.zeros(3, dtype=torch.uint8)
    packed[bit // 8] = 1 << bit % 8
    assert unpack_mask(packed, 17).nonzero().tolist() == [[bit]]
