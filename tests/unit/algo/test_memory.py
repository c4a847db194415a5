"""Recurrent layers compute what torch's do, and no state crosses the beginning of an episode."""

import math

import pytest
import torch
from torch import Tensor, nn

from penstock.algo.memory import Memory, Unroll, by_rows, lstm_by_sequences
from penstock.types.spaces import MemoryKind

FEATURES, SIZE, ROWS, LENGTH = 5, 7, 3, 9
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])


def memory_of(kind: MemoryKind) -> Memory:
    """Returns a layer in which no bias is zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        memory = Memory(kind, FEATURES, SIZE)
        for name, parameter in memory.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
    return memory


def example(kind: MemoryKind) -> tuple[Memory, Tensor, Tensor]:
    """Returns a layer, features [ROWS, LENGTH, FEATURES] and states [ROWS, parts, SIZE]."""
    memory, generator = memory_of(kind), torch.Generator().manual_seed(1)
    return (
        memory,
        torch.randn(ROWS, LENGTH, FEATURES, generator=generator),
        torch.randn(ROWS, *memory.shape, generator=generator),
    )


def reference(kind: MemoryKind, memory: Memory) -> nn.GRU | nn.LSTM:
    """Returns torch's layer with the same weights."""
    layer = (nn.GRU if kind == "gru" else nn.LSTM)(FEATURES, SIZE, batch_first=True)
    with torch.no_grad():
        for name, linear in (("ih", memory.inputs), ("hh", memory.recurrence)):
            layer.get_parameter(f"weight_{name}_l0").copy_(linear.weight)
            layer.get_parameter(f"bias_{name}_l0").copy_(linear.bias)
    return layer


@KINDS
def test_a_layer_computes_what_torchs_layer_computes(kind: MemoryKind) -> None:
    memory, features, state = example(kind)
    outputs, last = memory.unroll(features, state, torch.zeros(ROWS, LENGTH, dtype=torch.bool))
    layer, parts = reference(kind, memory), tuple(part.contiguous() for part in state.transpose(0, 1)[:, None])
    expected, after = layer(features, parts[0] if kind == "gru" else parts)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    final = (after,) if kind == "gru" else after
    torch.testing.assert_close(last, torch.cat([*final]).transpose(0, 1), rtol=1e-5, atol=1e-6)


@KINDS
def test_an_unrolled_segment_equals_its_steps(kind: MemoryKind) -> None:
    memory, features, state = example(kind)
    begun = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.3
    assert begun.any() and not begun.all()
    outputs, last = memory.unroll(features, state, begun)
    for row in range(LENGTH):
        state = memory.step(features[:, row], state, begun[:, row])
        torch.testing.assert_close(outputs[:, row], state[:, 0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, state, rtol=1e-5, atol=1e-6)


@KINDS
def test_rows_of_two_episodes_equal_two_separate_episodes(kind: MemoryKind) -> None:
    memory, features, state = example(kind)
    begun = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    begun[:, 4] = True
    outputs, last = memory.unroll(features, state, begun)
    first, _ = memory.unroll(features[:, :4], state, begun[:, :4])
    second, end = memory.unroll(features[:, 4:], torch.zeros_like(state), torch.zeros_like(begun[:, 4:]))
    torch.testing.assert_close(outputs, torch.cat([first, second], 1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, end, rtol=1e-5, atol=1e-6)


@KINDS
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_state_before_a_new_episode_enters_its_outputs_or_gradients(kind: MemoryKind, value: float) -> None:
    memory, features, state = example(kind)
    begun = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    begun[:, 0] = True
    expected, _ = memory.unroll(features, torch.zeros_like(state), begun)
    outputs, _ = memory.unroll(features, torch.full_like(state, value), begun)
    assert torch.equal(outputs, expected)
    torch.autograd.backward(outputs.sum())
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in memory.parameters())


@KINDS
def test_a_gradient_passes_through_all_rows_of_an_episode(kind: MemoryKind) -> None:
    memory, features, state = example(kind)
    features.requires_grad_()
    begun = torch.zeros(ROWS, LENGTH, dtype=torch.bool)
    begun[:, 3] = True
    outputs, _ = memory.unroll(features, state, begun)
    (gradient,) = torch.autograd.grad(outputs[:, -1].sum(), features)
    assert not gradient[:, :3].any()
    assert gradient[:, 3:].abs().sum((0, 2)).min() > 0.0


@KINDS
def test_a_state_is_float32_under_autocast(kind: MemoryKind) -> None:
    memory, features, state = example(kind)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, last = memory.unroll(features, state, torch.zeros(ROWS, LENGTH, dtype=torch.bool))
    assert (outputs.dtype, last.dtype) == (torch.float32, torch.float32)
    exact, _ = memory.unroll(features, state, torch.zeros(ROWS, LENGTH, dtype=torch.bool))
    torch.testing.assert_close(outputs, exact, rtol=0.0, atol=0.05)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_lstm_by_sequences_equals_an_lstm_by_rows(share: float) -> None:
    memory, features, state = example("lstm")
    begun = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(3)) < share
    state[begun[:, 0]] = math.nan

    def results(unroll: Unroll) -> list[Tensor]:
        inputs, before = features.clone().requires_grad_(), state.clone().requires_grad_()
        outputs = unroll(memory, inputs, before, begun)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(4))
        return [outputs, *torch.autograd.grad((outputs * weights).sum(), [inputs, before, *memory.parameters()])]

    for result, expected in zip(results(lstm_by_sequences), results(by_rows), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@KINDS
def test_half_of_the_units_of_a_new_layer_keep_their_state_over_hundreds_of_steps(kind: MemoryKind) -> None:
    rows, size = 200, 8
    memory = Memory(kind, FEATURES, size)
    with torch.no_grad():
        for layer in (memory.inputs, memory.recurrence):
            layer.weight.zero_()
        _, after = memory.unroll(
            torch.zeros(1, rows, FEATURES), torch.ones(1, *memory.shape), torch.zeros(1, rows, dtype=torch.bool)
        )
    # Of the state T / (T + 1) is left in each step, with T from 0 to 1000.
    kept = after[0, -1]
    assert (kept[: size // 2] < 1e-6).all()
    torch.testing.assert_close(kept[-1], torch.tensor((1000.0 / 1001.0) ** rows), rtol=1e-4, atol=0.0)
    assert (kept[size // 2 :].diff() > 0.0).all()
