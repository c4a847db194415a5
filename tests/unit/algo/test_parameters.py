import pytest
import torch
from torch import Tensor, nn

from penstock.algo.parameters import beginning_of, clip_gradient, flatten


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))


def gradients_of(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def test_flattening_does_not_change_a_modules_outputs() -> None:
    plain, flat = network(), network()
    flatten(flat)
    rows = torch.randn(5, 3)
    assert torch.equal(plain(rows), flat(rows))


def test_a_step_on_the_flat_parameters_equals_a_step_on_each_parameter() -> None:
    plain, flat = network(), network()
    parameters = flatten(flat)
    optimizers = [torch.optim.Adam(each, lr=0.1, fused=True) for each in (list(plain.parameters()), [parameters])]
    rows = torch.randn(5, 3)
    for _ in range(4):
        for module, optimizer in zip((plain, flat), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=False)
            module(rows).square().mean().backward()
            optimizer.step()
        for one, other in zip(plain.parameters(), flat.parameters(), strict=True):
            torch.testing.assert_close(one, other)


def test_each_parameter_is_aligned_like_a_separate_allocation() -> None:
    module = network()
    flatten(module)
    assert all(parameter.data_ptr() % 64 == 0 for parameter in module.parameters())


def test_parameters_loaded_later_are_in_the_flat_tensor() -> None:
    module = network()
    parameters = flatten(module)
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    assert parameters.sum() == sum(value.numel() for value in module.parameters())


@pytest.mark.parametrize("max_norm", [0.01, 1e3])
def test_the_gradient_is_clipped_as_by_torch(max_norm: float) -> None:
    plain, flat = network(), network()
    parameters = flatten(flat)
    rows = torch.randn(5, 3)
    for module in (plain, flat):
        module(rows).square().mean().backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    torch.testing.assert_close(clip_gradient(parameters, max_norm), expected)
    torch.testing.assert_close(gradients_of(flat), gradients_of(plain))


def test_parts_are_clipped_apart() -> None:
    plain, flat = network(), network()
    parameters = flatten(flat)
    rows = torch.randn(5, 3)
    for module in (plain, flat):
        module(rows).square().mean().backward()
    norms = [nn.utils.clip_grad_norm_(part.parameters(), 0.01) for part in (plain[0], plain[2])]
    torch.testing.assert_close(clip_gradient(parameters, 0.01, beginning_of(flat[2])), torch.stack(norms).norm())
    torch.testing.assert_close(gradients_of(flat), gradients_of(plain))
