"""A small network of hidden layers, computed on its flat parameters without autograd.

For networks of this size, the calls of autograd cost several times what the arithmetic costs. Here the hidden layers of
policy and value are one batched product per layer, because the block of parameters holds both trunks at equal
distances. Torch multiplies, and compiled loops compute biases and activations on the same memory. `Policy` remains the
definition of the network; tests compare the two.
"""

from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.algo.policies import Policy

_KEPT_SIZES = 64
"""Numbers of rows for which views of the buffers are kept."""

_ROWS_AT_ONCE = 512
"""Rows of a forward pass without gradients whose activations stay in the processor's cache."""

Floats = NDArray[np.float32]


# Sums in any order and fused products, which vector instructions need; NaN and infinity keep their meaning.
_VECTORISED = {"reassoc", "contract", "nsz"}


@numba.njit(nogil=True, error_model="numpy", fastmath=_VECTORISED, inline="always")
def _tanh(value):  # type: ignore[no-untyped-def]
    """Returns the tanh of a float32, to 3e-7, by the rational function of Eigen (`generic_fast_tanh_float`).

    NumPy's is more exact and takes twice the time with the bias. Beyond the bound the result is exactly 1, so that the
    gradient of an absurd input is 0. The comparisons let NaN through.
    """
    bound, one = np.float32(7.90531110763549805), np.float32(1.0)
    square = value * value
    above = np.float32(-2.76076847742355e-16)
    above = above * square + np.float32(2.00018790482477e-13)
    above = above * square + np.float32(-8.60467152213735e-11)
    above = above * square + np.float32(5.12229709037114e-08)
    above = above * square + np.float32(1.48572235717979e-05)
    above = above * square + np.float32(6.37261928875436e-04)
    above = above * square + np.float32(4.89352455891786e-03)
    below = np.float32(1.19825839466702e-06)
    below = below * square + np.float32(1.18534705686654e-04)
    below = below * square + np.float32(2.26843463243900e-03)
    below = below * square + np.float32(4.89352518554385e-03)
    inside = value * above / below
    return one if value > bound else -one if value < -bound else inside


@numba.njit(
    "void(float32[:, :, ::1], float32[::1], int64, int64, boolean)",
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath=_VECTORISED,
)
def _activate(sums, flat, first, spacing, relu):  # type: ignore[no-untyped-def]
    """Adds the bias of each trunk to its rows, and applies the activation: a ReLU or a tanh."""
    trunks, rows, width = sums.shape
    for trunk in range(trunks):
        bias = flat[first + trunk * spacing : first + trunk * spacing + width]
        for row in range(rows):
            own = sums[trunk, row]
            if relu:
                for column in range(width):
                    # The comparison lets NaN through.
                    value = own[column] + bias[column]
                    own[column] = np.float32(0.0) if value < np.float32(0.0) else value
            else:
                for column in range(width):
                    own[column] = _tanh(own[column] + bias[column])


@numba.njit(
    "void(float32[:, ::1], float32[:, ::1], float32[::1], float32[:, ::1])",
    nogil=True,
    cache=True,
    error_model="numpy",
    fastmath=_VECTORISED,
)
def _apply(below, weight, bias, results):  # type: ignore[no-untyped-def]
    """Writes the results of a linear layer, which are few."""
    for row in range(below.shape[0]):
        for output in range(weight.shape[0]):
            total = np.float32(0.0)
            for column in range(below.shape[1]):
                total += below[row, column] * weight[output, column]
            results[row, output] = total + bias[output]


@numba.njit(
    "void(float32[:, :, ::1], float32[:, :, ::1], float32[::1], int64, int64, boolean)",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _before_activation(gradients, outputs, flat, first, spacing, relu):  # type: ignore[no-untyped-def]
    """Turns gradients of a layer's outputs into those of its sums, and writes those of its bias into `flat`."""
    trunks, rows, width = gradients.shape
    for trunk in range(trunks):
        bias = flat[first + trunk * spacing : first + trunk * spacing + width]
        bias[:] = np.float32(0.0)
        for row in range(rows):
            own, output = gradients[trunk, row], outputs[trunk, row]
            if relu:
                for column in range(width):
                    own[column] = own[column] if output[column] > np.float32(0.0) else np.float32(0.0)
                    bias[column] += own[column]
            else:
                for column in range(width):
                    own[column] *= np.float32(1.0) - output[column] * output[column]
                    bias[column] += own[column]


@numba.njit("void(float32[:, ::1], float32[::1])", nogil=True, cache=True, error_model="numpy")
def _sum_rows(gradients, bias):  # type: ignore[no-untyped-def]
    """Writes the sums over the rows."""
    bias[:] = np.float32(0.0)
    for row in range(gradients.shape[0]):
        for column in range(gradients.shape[1]):
            bias[column] += gradients[row, column]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A hidden layer of all trunks, as views of the parameters and of their gradients.

    Attributes:
        weight, weight_gradient: <float32>[trunks, outputs, inputs].
        transposed: <float32>[trunks, inputs, outputs] view of the weight.
        product: <float32>[trunks, inputs, outputs] memory for the transposed gradient of the weight; None if the layer
            has no fewer inputs than outputs. The product with fewer rows than columns takes a seventh of the time of
            its transpose with 4 inputs and 64 outputs.
        bias, spacing: Position of the first trunk's bias in the flat tensors, and the distance to the next trunk's.
    """

    weight: Tensor
    transposed: Tensor
    weight_gradient: Tensor
    product: Tensor | None
    bias: int
    spacing: int


@dataclass(frozen=True, slots=True)
class _Output:
    """An output layer on one trunk, as views of the parameters and of their gradients.

    Attributes:
        weight, weight_gradient: <float32>[outputs, inputs].
        array: The weight as an array.
        bias, bias_gradient: <float32>[outputs], as arrays.
        trunk: Number of its trunk.
    """

    weight: Tensor
    weight_gradient: Tensor
    array: Floats
    bias: Floats
    bias_gradient: Floats
    trunk: int


class _Rows:
    """Buffers for one number of rows N, and views of them, because making a view costs as much as a small product.

    Attributes:
        hidden: <float32>[trunks, N, width] outputs of each hidden layer, or their gradients.
        transposed: <float32>[trunks, width, N] views of them.
        arrays: The same as arrays.
        last, last_arrays: <float32>[N, width] outputs of the last hidden layer of each trunk; empty without any.
        ends: Outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1], or their gradients; each
            as a tensor, transposed, and as an array.
    """

    def __init__(self, flat: Tensor, trunks: int, rows: int, widths: list[int], outputs: int) -> None:
        self.hidden: list[Tensor] = []
        sizes = [trunks * rows * width for width in widths]
        for values, width in zip(torch.split(flat[: sum(sizes)], sizes), widths, strict=True):
            self.hidden.append(values.view(trunks, rows, width))
        rest = flat[sum(sizes) :]
        self.transposed = [values.transpose(1, 2) for values in self.hidden]
        self.arrays: list[Floats] = [values.numpy() for values in self.hidden]
        self.last = [*self.hidden[-1]] if self.hidden else []
        self.last_arrays: list[Floats] = [values.numpy() for values in self.last]
        ends = (rest[: rows * outputs].view(rows, outputs), rest[rows * outputs : rows * (outputs + 1)].view(rows, 1))
        self.ends: tuple[tuple[Tensor, Tensor, Floats], ...] = tuple(
            (values, values.t(), values.numpy()) for values in ends
        )


class FlatNetwork:
    """Hidden layers and outputs of a policy and its value, on a CPU in float32. Used by one thread.

    The results of `forward` and the gradients that `backward` reads are overwritten by the next call.
    """

    def __init__(self, policy: Policy, parameters: nn.Parameter) -> None:
        """Makes views of the flat parameters and their gradients. `applies_to` must be true of the policy."""
        gradient = parameters.grad
        assert gradient is not None
        self._policy, self._flat = policy, parameters.detach()
        self._array: Floats = self._flat.numpy()
        self._gradient, self._gradient_array = gradient, gradient.numpy()
        trunks = _hidden_layers(policy)
        assert trunks is not None
        self._relu = policy.network.activation == "relu"
        self._trunks = len(trunks)
        self._layers = [self._layer([trunk[depth] for trunk in trunks]) for depth in range(len(trunks[0]))]
        policy_output, value_output = list(policy.actor.children())[-1], list(policy.critic.children())[-1]
        self._ends = (self._output(policy_output, 0), self._output(value_output, self._trunks - 1))
        self._widths = [layer.weight.shape[1] for layer in self._layers]
        self._outputs = self._ends[0].weight.shape[0]
        self._forward: dict[int, _Rows] = {}
        self._backward: dict[int, _Rows] = {}
        self._inputs = torch.empty(0)

    @staticmethod
    def applies_to(policy: Policy) -> bool:
        """Returns whether a policy consists of hidden layers alone, after encoders without parameters."""
        return _hidden_layers(policy) is not None

    def features(self, observation: tuple[Tensor, ...]) -> Tensor:
        """Returns the inputs of the hidden layers, <float32>[..., F], for raw observations."""
        prepared = self._policy.observer.prepare(observation, self._policy.observation_moments)
        return torch.cat(prepared, -1) if len(prepared) > 1 else prepared[0]

    def forward(self, features: Tensor) -> tuple[Floats, Floats]:
        """Returns the outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1]."""
        rows = features.shape[0]
        buffers = self._rows(self._forward, rows)
        self._inputs = below = features.expand(self._trunks, rows, -1)
        for layer, hidden, array in zip(self._layers, buffers.hidden, buffers.arrays, strict=True):
            torch.bmm(below, layer.transposed, out=hidden)
            _activate(array, self._array, layer.bias, layer.spacing, self._relu)
            below = hidden
        for output, (_, _, array) in zip(self._ends, buffers.ends, strict=True):
            last = buffers.last_arrays[output.trunk] if self._layers else features.contiguous().numpy()
            _apply(last, output.array, output.bias, array)
        return buffers.ends[0][2], buffers.ends[1][2]

    def outputs_of(self, features: Tensor) -> tuple[Floats, Floats]:
        """Returns the outputs as `forward` does, in new arrays and for any number of rows."""
        rows = features.shape[0]
        outputs, values = np.empty((rows, self._outputs), np.float32), np.empty((rows, 1), np.float32)
        for begin in range(0, rows, _ROWS_AT_ONCE):
            part = slice(begin, begin + _ROWS_AT_ONCE)
            outputs[part], values[part] = self.forward(features[part])
        return outputs, values

    def gradients_of_outputs(self, rows: int) -> tuple[Floats, Floats]:
        """Returns the buffers for the gradients of the outputs of this number of rows, for `backward`."""
        buffers = self._rows(self._backward, rows)
        return buffers.ends[0][2], buffers.ends[1][2]

    def backward(self, rows: int) -> None:
        """Writes the gradients of all weights and biases, from those of the outputs of the last `forward`."""
        forward, backward = self._rows(self._forward, rows), self._rows(self._backward, rows)
        last = forward.last or [*self._inputs]
        for output, (gradient, transposed, array) in zip(self._ends, backward.ends, strict=True):
            torch.mm(transposed, last[output.trunk], out=output.weight_gradient)
            _sum_rows(array, output.bias_gradient)
            if not self._layers:
                continue
            above = backward.last[output.trunk]
            if output is self._ends[1] and self._trunks == 1:
                above.addmm_(gradient, output.weight)
            else:
                torch.mm(gradient, output.weight, out=above)
        for depth in reversed(range(len(self._layers))):
            layer = self._layers[depth]
            _before_activation(
                backward.arrays[depth],
                forward.arrays[depth],
                self._gradient_array,
                layer.bias,
                layer.spacing,
                self._relu,
            )
            below = forward.hidden[depth - 1] if depth else self._inputs
            if layer.product is None:
                torch.bmm(backward.transposed[depth], below, out=layer.weight_gradient)
            else:
                torch.bmm(below.transpose(1, 2), backward.hidden[depth], out=layer.product)
                layer.weight_gradient.copy_(layer.product.transpose(1, 2))
            if depth:
                torch.bmm(backward.hidden[depth], layer.weight, out=backward.hidden[depth - 1])

    def _rows(self, kept: dict[int, _Rows], rows: int) -> _Rows:
        found = kept.get(rows)
        if found is None:
            if len(kept) >= _KEPT_SIZES:
                kept.clear()
            flat = torch.empty(rows * (self._trunks * sum(self._widths) + self._outputs + 1))
            found = kept[rows] = _Rows(flat, self._trunks, rows, self._widths, self._outputs)
        return found

    def _layer(self, linears: list[nn.Linear]) -> _Layer:
        outputs, inputs = linears[0].weight.shape
        weight, bias = int(linears[0].weight.storage_offset()), int(linears[0].bias.storage_offset())
        spacing = int(linears[-1].weight.storage_offset()) - weight
        assert linears[-1].bias.storage_offset() - bias == spacing
        shape, strides = (len(linears), outputs, inputs), (spacing or outputs * inputs, inputs, 1)
        stacked = self._flat.as_strided(shape, strides, weight)
        return _Layer(
            stacked,
            stacked.transpose(1, 2),
            self._gradient.as_strided(shape, strides, weight),
            torch.empty(len(linears), inputs, outputs) if inputs < outputs else None,
            bias,
            spacing,
        )

    def _output(self, linear: nn.Module, trunk: int) -> _Output:
        assert isinstance(linear, nn.Linear)
        assert linear.weight.grad is not None and linear.bias.grad is not None
        weight, bias = linear.weight.detach(), linear.bias.detach().numpy()
        return _Output(weight, linear.weight.grad, weight.numpy(), bias, linear.bias.grad.numpy(), trunk)


def _hidden_layers(policy: Policy) -> list[list[nn.Linear]] | None:
    """Returns the hidden layers of each trunk; None if the network has further parts with parameters."""
    network = policy.network
    if network.memory is not None or network.module is not None or network.moves is not None:
        return None
    bodies = [policy.trunk] if network.trunk == "shared" else [_body(policy.actor), _body(policy.critic)]
    trunks: list[list[nn.Linear]] = []
    for body in bodies:
        trunks.append([])
        for part in body:
            if isinstance(part, nn.Linear):
                trunks[-1].append(part)
            elif any(True for _ in part.parameters()):
                return None
    return trunks


def _body(head: nn.Module) -> list[nn.Module]:
    """Returns all parts but the last, which is the output."""
    return list(head.children())[:-1]
