import pytest
import torch

from penstock.learning.step.adam import Adam

SIZE = 1000


def random_gradients(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [10.0 ** (index - 3) * torch.randn(SIZE, generator=generator) for index in range(count)]


def parameters() -> torch.nn.Parameter:
    made = torch.nn.Parameter(torch.linspace(-1.0, 1.0, SIZE))
    made.grad = torch.zeros(SIZE)
    return made


def take_step(adam: Adam, parameters: torch.nn.Parameter, gradient: torch.Tensor, *, refused: bool = False) -> None:
    assert parameters.grad is not None
    parameters.grad.copy_(gradient)
    adam.step(torch.tensor(float(refused)))


def test_steps_equal_those_of_torchs_optimizer_bit_for_bit() -> None:
    ours, theirs = parameters(), parameters()
    adam, other = Adam(ours, 1e-2), torch.optim.Adam([theirs], lr=1e-2, eps=1e-5, fused=True)
    for index, gradient in enumerate(random_gradients(8)):
        take_step(adam, ours, gradient)
        theirs.grad = gradient.clone()
        other.step()
        if index == 3:
            adam.set_learning_rate(3e-3)
            other.param_groups[0]["lr"] = 3e-3
    assert torch.equal(ours, theirs)
    assert adam.state.keys() == other.state[theirs].keys()
    assert all(torch.equal(adam.state[name], value) for name, value in other.state[theirs].items())


def test_a_restored_state_continues_as_without_interruption() -> None:
    whole, halves = parameters(), parameters()
    first, second = random_gradients(4)[:2], random_gradients(4)[2:]
    one, other = Adam(whole, 1e-2), Adam(halves, 1e-2)
    for gradient in first:
        take_step(one, whole, gradient)
        take_step(other, halves, gradient)
    resumed = Adam(halves, 1e-2)
    resumed.load(other.state)
    for gradient in second:
        take_step(one, whole, gradient)
        take_step(resumed, halves, gradient)
    assert torch.equal(whole, halves)


def test_an_empty_state_resets_the_optimizer() -> None:
    used, new = parameters(), parameters()
    adam, fresh = Adam(used, 1e-2), Adam(new, 1e-2)
    take_step(adam, used, random_gradients(1)[0])
    adam.load({})
    assert all(torch.equal(adam.state[name], value) for name, value in fresh.state.items())


def test_a_state_of_other_parameters_is_refused() -> None:
    adam = Adam(parameters(), 1e-2)
    with pytest.raises(RuntimeError, match="exp_avg has the shape"):
        adam.load({**adam.state, "exp_avg": torch.zeros(1)})
    with pytest.raises(KeyError):
        adam.load({"step": torch.zeros(())})
