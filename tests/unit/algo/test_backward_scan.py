import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.algo.backward_scan import following, scanned


def by_rows(weighted: Tensor, gain: Tensor) -> Tensor:
    result, later = torch.zeros_like(weighted), torch.zeros_like(weighted[:, 0])
    for row in reversed(range(weighted.shape[1])):
        later = result[:, row] = weighted[:, row] + gain[:, row] * later
    return result


@given(steps=st.integers(1, 70), segments=st.integers(0, 4), seed=st.integers(0, 2**31))
def test_a_scan_computes_the_recursion(steps: int, segments: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weighted = torch.randn(segments, steps, generator=generator, dtype=torch.float64)
    gain = torch.rand(segments, steps, generator=generator, dtype=torch.float64)
    gain = gain * (torch.rand(segments, steps, generator=generator) > 0.1)
    torch.testing.assert_close(scanned(weighted, gain), by_rows(weighted, gain), rtol=1e-12, atol=1e-12)


def test_hand_worked_numbers() -> None:
    weighted, gain = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]), torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.9]])
    # 5; 4 + 5/2; 3 + 0; 2 + 3/2; 1 + 3.5/2
    assert scanned(weighted, gain).tolist() == [[2.75, 3.5, 3.0, 6.5, 5.0]]
    assert following(weighted).tolist() == [[2.0, 3.0, 4.0, 5.0, 0.0]]


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are not views."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        self.count += not function.is_view
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("steps", "rounds"), [(1, 0), (2, 1), (32, 5), (33, 6), (64, 6), (128, 7)])
def test_the_number_of_operations_grows_with_the_logarithm_of_the_rows(steps: int, rounds: int) -> None:
    with Launches() as launches:  # type: ignore[no-untyped-call]
        scanned(torch.ones(4, steps), torch.full((4, steps), 0.9))
    # One more for the inputs of both.
    assert launches.count <= 5 * rounds + 2
