"""Forward and backward passes of a small network in compiled code.

`Policy` defines the network; tests compare the two. The rows pass through the network in blocks whose activations stay
in the processor's cache.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# numba's functions of types have no annotations.
types: Any = numba.types

BLOCKS = (128, 256)
"""Rows of a block, with layers of up to `_WIDE` weights and with wider ones. With 64x64, blocks of 256 rows take 17%
longer per row, and of 64 rows 7% longer. With 512x512, blocks of 256 take 12% less."""

_WIDE = 256 * 256

_TILE = 16
"""Rows and columns of a matrix that are transposed together, whose lines stay in the processor's cache."""

LAYER = np.dtype(
    [(name, np.int64) for name in ("inputs", "outputs", "weight", "bias", "transposed", "results", "slopes")]
)
"""A linear layer: its numbers of inputs and outputs, and the positions of its arrays.

`weight` and `bias` are among the parameters. `transposed`, for hidden layers only, is among the transposed weights.
`results`, after the activation of a hidden layer, and `slopes`, their gradients, are in the memory for one block.
"""

# Numbers of activations, as in `algo.activations`.
_TANH = 0
_RELU = 1

# Constants of CBLAS.
_ROW_MAJOR = np.int32(101)
_AS_IT_IS = np.int32(111)
_TRANSPOSED = np.int32(112)


class FlatLayout(NamedTuple):
    """A small network on flat parameters, with the places of its numbers in the memory for one block.

    Attributes:
        parameters: <float32>[P] the parameters.
        transposed: <float32>[W] the transposed weights of the hidden layers, as `transpose` has written them.
        hidden: <LAYER>[trunks, depths] the hidden layers.
        ends: <LAYER>[2] the outputs of the policy, after the first trunk, and of the value, after the last.
        block: Rows of a block (`block_of`).
        scratch: Position in the memory of the transposed gradient of one weight.
        activation: Number of the activation (`algo.activations`).
        sgemm: Address of the product of matrices (`flat_network.sgemm_address`).
    """

    parameters: Floats
    transposed: Floats
    hidden: NDArray[np.void]
    ends: NDArray[np.void]
    block: int
    scratch: int
    activation: int
    sgemm: int


_LAYER = numba.from_dtype(LAYER)
NETWORK = types.Tuple(
    (
        types.float32[::1],
        types.float32[::1],
        types.Array(_LAYER, 2, "C"),
        types.Array(_LAYER, 1, "C"),
        types.int64,
        types.int64,
        types.int64,
        types.int64,
    )
)
"""Type of a network, which Python passes as a plain tuple: numba takes longer to find the type of the record."""


def block_of(most_weights: int) -> int:
    """Returns the rows of a block for a network whose largest hidden layer has this number of weights."""
    return BLOCKS[most_weights > _WIDE]


_COMPILED: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Sums in any order and fused products, which vector instructions need; NaN and infinity keep their meaning.
_VECTORISED: dict[str, Any] = {**_COMPILED, "fastmath": {"reassoc", "contract", "nsz"}}


@numba.njit(**_COMPILED)
def forward(network, memory, features):  # type: ignore[no-untyped-def]
    """Computes the results of a block of rows, whose `features`, <float32>[rows, F], are the inputs of the first layer.

    `memory`, <float32>[M], is the room for one block (`flat_network.FlatNetwork.room`). `transpose` comes first.
    """
    flat, hidden, rows = network.parameters, network.hidden, features.shape[0]
    trunks, depths = hidden.shape
    for trunk in range(trunks):
        for depth in range(depths):
            layer = hidden[trunk, depth]
            results = results_of(memory, layer, rows)
            below = _below(network, memory, features, trunk, depth)
            _multiply(network.sgemm, below, _transposed(network, layer), results, _AS_IT_IS, 0.0)
            _activate(results, _bias(flat, layer), network.activation)
    for end in range(2):
        layer, below = network.ends[end], _below(network, memory, features, end * (trunks - 1), depths)
        _apply(below, _weight(flat, layer), _bias(flat, layer), results_of(memory, layer, rows))


@numba.njit(**_COMPILED)
def backward(network, memory, features, gradient):  # type: ignore[no-untyped-def]
    """Adds the gradient of the parameters, from the gradients by the results of the block of the last `forward`."""
    flat, hidden, sgemm, rows = network.parameters, network.hidden, network.sgemm, features.shape[0]
    trunks, depths = hidden.shape
    for end in range(2):
        layer, trunk = network.ends[end], end * (trunks - 1)
        slopes, below = slopes_of(memory, layer, rows), _below(network, memory, features, trunk, depths)
        _add_outputs(slopes, below, _weight(gradient, layer), _bias(gradient, layer))
        if depths:
            shared = end == 1 and trunks == 1
            _below_outputs(slopes, _weight(flat, layer), slopes_of(memory, hidden[trunk, depths - 1], rows), shared)
    for trunk in range(trunks):
        for depth in range(depths - 1, -1, -1):
            layer = hidden[trunk, depth]
            slopes, below = slopes_of(memory, layer, rows), _below(network, memory, features, trunk, depth)
            _before_activation(slopes, results_of(memory, layer, rows), _bias(gradient, layer), network.activation)
            if layer.inputs < layer.outputs:
                # The product with fewer rows than columns takes a seventh of the time with 4 inputs and 64 outputs.
                transposed = _matrix(memory, network.scratch, layer.inputs, layer.outputs)
                _multiply(sgemm, below, slopes, transposed, _TRANSPOSED, 0.0)
                _add_transposed(transposed, _weight(gradient, layer))
            else:
                _multiply(sgemm, slopes, below, _weight(gradient, layer), _TRANSPOSED, 1.0)
            if depth:
                slopes_below = slopes_of(memory, hidden[trunk, depth - 1], rows)
                _multiply(sgemm, slopes, _weight(flat, layer), slopes_below, _AS_IT_IS, 0.0)


@numba.njit(**_COMPILED)
def results_of(memory, layer, rows):  # type: ignore[no-untyped-def]
    """Returns the results of a layer in the memory, <float32>[rows, outputs]."""
    return _matrix(memory, layer.results, rows, layer.outputs)


@numba.njit(**_COMPILED)
def slopes_of(memory, layer, rows):  # type: ignore[no-untyped-def]
    """Returns the gradients by the results of a layer in the memory, <float32>[rows, outputs]."""
    return _matrix(memory, layer.slopes, rows, layer.outputs)


@numba.njit(**_COMPILED)
def _below(network, memory, features, trunk, depth):  # type: ignore[no-untyped-def]
    """Returns the inputs of the layer at this depth of a trunk, <float32>[rows, inputs]."""
    return results_of(memory, network.hidden[trunk, depth - 1], features.shape[0]) if depth else features


@numba.njit(**_COMPILED)
def _weight(flat, layer):  # type: ignore[no-untyped-def]
    return _matrix(flat, layer.weight, layer.outputs, layer.inputs)


@numba.njit(**_COMPILED)
def _transposed(network, layer):  # type: ignore[no-untyped-def]
    return _matrix(network.transposed, layer.transposed, layer.inputs, layer.outputs)


@numba.njit(**_COMPILED)
def _bias(flat, layer):  # type: ignore[no-untyped-def]
    return flat[layer.bias : layer.bias + layer.outputs]


@numba.njit(**_COMPILED)
def _matrix(flat, begin, rows, columns):  # type: ignore[no-untyped-def]
    return flat[begin : begin + rows * columns].reshape(rows, columns)


@numba.njit(**_COMPILED)
def _write_transposed(matrix, result):  # type: ignore[no-untyped-def]
    rows, columns = matrix.shape
    for first_row in range(0, rows, _TILE):
        for first_column in range(0, columns, _TILE):
            for column in range(first_column, min(first_column + _TILE, columns)):
                for row in range(first_row, min(first_row + _TILE, rows)):
                    result[column, row] = matrix[row, column]


@numba.njit(**_COMPILED)
def _add_transposed(matrix, total):  # type: ignore[no-untyped-def]
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            total[column, row] += matrix[row, column]


@numba.njit(**_VECTORISED, inline="always")
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


@numba.njit(**_VECTORISED)
def _activate(sums, bias, activation):  # type: ignore[no-untyped-def]
    """Adds the bias to the rows, and applies the activation. Results of one that is not known here are NaN."""
    for row in range(sums.shape[0]):
        own = sums[row]
        if activation == _TANH:
            for column in range(sums.shape[1]):
                own[column] = _tanh(own[column] + bias[column])
        elif activation == _RELU:
            for column in range(sums.shape[1]):
                # The comparison lets NaN through.
                value = own[column] + bias[column]
                own[column] = np.float32(0.0) if value < np.float32(0.0) else value
        else:
            own[:] = np.float32(np.nan)


@numba.njit(**_VECTORISED)
def _apply(below, weight, bias, results):  # type: ignore[no-untyped-def]
    """Writes the results of an output layer, which are few."""
    for row in range(below.shape[0]):
        for output in range(weight.shape[0]):
            total = np.float32(0.0)
            for column in range(below.shape[1]):
                total += below[row, column] * weight[output, column]
            results[row, output] = total + bias[output]


@numba.njit(**_VECTORISED)
def _before_activation(gradients, outputs, bias, activation):  # type: ignore[no-untyped-def]
    """Turns gradients of a layer's outputs into gradients of its sums, and adds the bias's gradients to `bias`.

    Gradients of an activation that is not known here are NaN.
    """
    for row in range(gradients.shape[0]):
        own, output = gradients[row], outputs[row]
        if activation == _TANH:
            for column in range(gradients.shape[1]):
                own[column] *= np.float32(1.0) - output[column] * output[column]
                bias[column] += own[column]
        elif activation == _RELU:
            for column in range(gradients.shape[1]):
                own[column] = own[column] if output[column] > np.float32(0.0) else np.float32(0.0)
                bias[column] += own[column]
        else:
            own[:] = np.float32(np.nan)
            bias[:] = np.float32(np.nan)


@numba.njit(**_VECTORISED)
def _add_outputs(gradients, below, weight_gradient, bias_gradient):  # type: ignore[no-untyped-def]
    """Adds the gradients of an output layer's weight and bias, from the gradients of its results."""
    for row in range(gradients.shape[0]):
        for output in range(gradients.shape[1]):
            slope = gradients[row, output]
            bias_gradient[output] += slope
            for column in range(below.shape[1]):
                weight_gradient[output, column] += slope * below[row, column]


@numba.njit(**_VECTORISED)
def _below_outputs(gradients, weight, below, add):  # type: ignore[no-untyped-def]
    """Writes, or adds, the gradients by the inputs of an output layer, from the gradients of its results."""
    for row in range(gradients.shape[0]):
        own = below[row]
        if not add:
            own[:] = np.float32(0.0)
        for output in range(gradients.shape[1]):
            slope = gradients[row, output]
            for column in range(below.shape[1]):
                own[column] += slope * weight[output, column]


@intrinsic
def _call_sgemm(context, address, layout, sizes, factors, matrices, strides):  # type: ignore[no-untyped-def]
    """Calls `cblas_sgemm`. Its integers have 32 or 64 bits, and each is passed in a register or a place of 64 bits."""
    del context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        del context, signature
        address, *tuples = arguments
        layout, sizes, factors, matrices, strides = (
            [builder.extract_value(values, position) for position in range(values.type.count)] for values in tuples
        )
        of_left, of_right, of_result = zip(matrices, strides, strict=True)
        given = [*layout, *sizes, factors[0], *of_left, *of_right, factors[1], *of_result]
        function = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(address, function.as_pointer()), given)

    return types.void(address, layout, sizes, factors, matrices, strides), generate


@numba.njit(**_COMPILED)
def _multiply(sgemm, left, right, result, of_left, kept):  # type: ignore[no-untyped-def]
    """Writes the product of the left matrix, or of its transpose, and the right one, plus `kept` times the result."""
    inner = left.shape[0] if of_left == _TRANSPOSED else left.shape[1]
    sizes = (result.shape[0], result.shape[1], inner)
    layout, factors = (_ROW_MAJOR, of_left, _AS_IT_IS), (np.float32(1.0), np.float32(kept))
    matrices = (left.ctypes.data, right.ctypes.data, result.ctypes.data)
    strides = (left.shape[1], right.shape[1], result.shape[1])
    _call_sgemm(sgemm, layout, sizes, factors, matrices, strides)  # type: ignore[call-arg]


@numba.njit(types.void(NETWORK), **_COMPILED, cache=True)
def transpose(network):  # type: ignore[no-untyped-def]
    """Writes the transposed weights of the hidden layers, which `forward` reads. Called after each change of a weight.

    BLAS takes a third longer for the product of a block with a transposed matrix of 64x64.
    """
    network = FlatLayout(*network)
    trunks, depths = network.hidden.shape
    for trunk in range(trunks):
        for depth in range(depths):
            layer = network.hidden[trunk, depth]
            _write_transposed(_weight(network.parameters, layer), _transposed(network, layer))


@numba.njit(
    types.void(NETWORK, types.float32[::1], *(types.float32[:, ::1],) * 3),
    **_COMPILED,
    cache=True,
)
def outputs_of(network, memory, features, outputs, values):  # type: ignore[no-untyped-def]
    """Writes the outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1].

    `memory` is as for `forward`, and `features`, <float32>[N, F], are those of any number of rows.
    """
    network = FlatLayout(*network)
    for begin in range(0, features.shape[0], network.block):
        block = features[begin : begin + network.block]
        forward(network, memory, block)
        own_outputs = results_of(memory, network.ends[0], block.shape[0])
        own_values = results_of(memory, network.ends[1], block.shape[0])
        for row in range(own_values.shape[0]):
            values[begin + row, 0] = own_values[row, 0]
            for output in range(own_outputs.shape[1]):
                outputs[begin + row, output] = own_outputs[row, output]
