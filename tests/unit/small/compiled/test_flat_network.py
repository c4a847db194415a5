"""Small networks in compiled code, with the BLAS of NumPy."""

import numpy as np
import pytest

from penstock.algo.parameters import flatten
from penstock.small.compiled import flat_network
from penstock.small.compiled.flat_network import FlatNetwork, sgemm_address
from penstock.small.compiled.passes import _AS_IT_IS, _TRANSPOSED, _multiply
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy


@pytest.mark.parametrize("rows, inner, columns", [(128, 64, 64), (1, 4, 64), (7, 3, 2)])
def test_compiled_code_multiplies_by_it(rows: int, inner: int, columns: int) -> None:
    address, random = sgemm_address(), np.random.default_rng(0)
    assert address is not None
    left, right = (
        random.standard_normal((rows, inner), np.float32),
        random.standard_normal((inner, columns), np.float32),
    )
    before = random.standard_normal((rows, columns), np.float32)
    for of_left, given in ((_AS_IT_IS, left), (_TRANSPOSED, np.ascontiguousarray(left.T))):
        for kept in (0.0, 1.0):
            result = before.copy()
            _multiply(address, given, right, result, of_left, kept)
            np.testing.assert_allclose(result, left @ right + kept * before, rtol=1e-5, atol=1e-5)


def test_without_a_known_library_networks_are_left_to_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = fresh_policy(spec_of("CartPole-v1"))
    parameters = flatten(policy)
    assert FlatNetwork.of(policy, parameters) is not None
    monkeypatch.setattr(flat_network, "_SGEMM", ("no_such_product",))
    assert sgemm_address() is None
    assert FlatNetwork.of(policy, parameters) is None
