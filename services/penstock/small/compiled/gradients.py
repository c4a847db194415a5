"""Gradients of PPO's loss for a small network, forwards and backwards in compiled code.

`Policy` defines the network, and `losses.ppo_loss` with `algo.distributions` the loss; tests compare the two. A row
whose numbers are not finite makes the gradient NaN, as there.

The rows pass through the network in blocks whose activations stay in the processor's cache. All is in one module,
because numba does not compile a function again when another module changes.

The functions share these arguments:

- `network`: `FlatLayout`, the parameters and where the layers are among them.
- `memory`: <float32>[M] room for one block (`room_of`).
- `features`: <float32>[N, F] inputs of the first layer.
- `rows`: <float32>[N, 6] the columns `ROWS`.
- `settings`: `MinibatchSettings`, the settings of the loss for the whole minibatch.
- `gradient`: <float32>[P] receives the gradient of the parameters.
- `log_probs`: <float32>[N] receives the log probabilities of the actions.

Python passes the two records as plain tuples: numba takes longer to find the types of the records.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ROWS = ("anchor_log_prob", "proximal_value", "advantage", "target", "importance", "policy_weight")
"""Columns of the rows that the loss reads, in this order; see `losses.ppo_loss`."""

BLOCK = 128
"""Rows of a block. 256 take 17% longer per row, and 64 take 7% longer."""

_ANCHOR = 0
_PROXIMAL_VALUE = 1
_ADVANTAGE = 2
_TARGET = 3
_IMPORTANCE = 4
_WEIGHT = 5
_LOG_TWO_PI = np.log(2.0 * np.pi)

# Numbers of activations, as in `algo.activations`.
_TANH = 0
_RELU = 1

# Constants of CBLAS.
_ROW_MAJOR = np.int32(101)
_AS_IT_IS = np.int32(111)
_TRANSPOSED = np.int32(112)


class FlatLayout(NamedTuple):
    """A small network on flat parameters.

    Attributes:
        parameters: <float32>[P] the parameters.
        layers: <int64>[layers, 5] the hidden layers: the numbers of inputs and outputs, the positions of the first
            trunk's weight and bias among the parameters, and the distance from there to the next trunk's.
        ends: <int64>[2, 4] the outputs of policy and value: their number, the positions of weight and bias, and the
            number of the trunk.
        trunks: Number of trunks.
        activation: Number of the activation (`algo.activations`).
        sgemm: Address of the product of matrices (`sgemm.sgemm_address`).
    """

    parameters: Floats
    layers: NDArray[np.int64]
    ends: NDArray[np.int64]
    trunks: int
    activation: int
    sgemm: int


class MinibatchSettings(NamedTuple):
    """Settings of the loss for one minibatch.

    Attributes:
        clip_range: As `losses.LossSettings`; so are the next three.
        value_clip_range: Infinity: the loss of the value is not clipped.
        value_coefficient: As `losses.LossSettings`.
        entropy_coefficient: As `losses.LossSettings`.
        largest_log: Bound on log ratios.
        advantage_mean: Number to subtract from the advantages.
        advantage_factor: Factor by which they are then multiplied.
        rows: Number of rows of the minibatch.
    """

    clip_range: float
    value_clip_range: float
    value_coefficient: float
    entropy_coefficient: float
    largest_log: float
    advantage_mean: float
    advantage_factor: float
    rows: float


_NETWORK = "Tuple((float32[::1], int64[:, ::1], int64[:, ::1], int64, int64, int64))"
_SETTINGS = f"UniTuple(float64, {len(MinibatchSettings._fields)})"

_COMPILED: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
# Sums in any order and fused products, which vector instructions need; NaN and infinity keep their meaning.
_VECTORISED: dict[str, Any] = {**_COMPILED, "fastmath": {"reassoc", "contract", "nsz"}}
_CACHED: dict[str, Any] = {**_COMPILED, "cache": True}


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


@numba.njit(**_COMPILED)
def _matrix(flat, begin, rows, columns):  # type: ignore[no-untyped-def]
    return flat[begin : begin + rows * columns].reshape(rows, columns)


@numba.njit(**_COMPILED)
def _layer(layers, layer):  # type: ignore[no-untyped-def]
    return layers[layer, 0], layers[layer, 1], layers[layer, 2], layers[layer, 3], layers[layer, 4]


@numba.njit(**_COMPILED)
def _end(ends, end):  # type: ignore[no-untyped-def]
    return ends[end, 0], ends[end, 1], ends[end, 2], ends[end, 3]


@numba.njit(**_COMPILED)
def _hidden(network, memory, layer, trunk, rows):  # type: ignore[no-untyped-def]
    """Returns the outputs of a hidden layer, <float32>[rows, width]."""
    width, begin = network.layers[layer, 1], 0
    for earlier in range(layer):
        begin += network.trunks * BLOCK * network.layers[earlier, 1]
    return _matrix(memory, begin + trunk * BLOCK * width, rows, width)


@numba.njit(**_COMPILED)
def _widths(network):  # type: ignore[no-untyped-def]
    """Returns the number of all hidden outputs of a row."""
    total = 0
    for layer in range(network.layers.shape[0]):
        total += network.trunks * network.layers[layer, 1]
    return total


@numba.njit(**_COMPILED)
def _results(network, memory, end, rows):  # type: ignore[no-untyped-def]
    """Returns the outputs of policy or value, <float32>[rows, outputs]."""
    ends = network.ends
    begin = BLOCK * (2 * _widths(network) + end * ends[0, 0])
    return _matrix(memory, begin, rows, ends[end, 0])


@numba.njit(**_COMPILED)
def _result_gradients(network, memory, end, rows):  # type: ignore[no-untyped-def]
    """Returns the gradients by the outputs of policy or value, <float32>[rows, outputs]."""
    ends = network.ends
    begin = BLOCK * (2 * _widths(network) + ends[0, 0] + ends[1, 0] + end * ends[0, 0])
    return _matrix(memory, begin, rows, ends[end, 0])


@numba.njit(f"int64({_NETWORK})", **_CACHED)
def room_of(network):  # type: ignore[no-untyped-def]
    """Returns the size of `memory`.

    It holds the outputs of the hidden layers, their gradients, the outputs of policy and value, their gradients, and
    one weight or its gradient.
    """
    network = FlatLayout(*network)
    layers, ends, largest = network.layers, network.ends, 0
    for layer in range(layers.shape[0]):
        largest = max(largest, layers[layer, 0] * layers[layer, 1])
    return BLOCK * 2 * (_widths(network) + ends[0, 0] + ends[1, 0]) + largest


@numba.njit(**_COMPILED)
def _scratch(network, memory, rows, columns):  # type: ignore[no-untyped-def]
    """Returns the room for one weight."""
    ends = network.ends
    return _matrix(memory, BLOCK * 2 * (_widths(network) + ends[0, 0] + ends[1, 0]), rows, columns)


@numba.njit(**_COMPILED)
def _add_transposed(matrix, total):  # type: ignore[no-untyped-def]
    for row in range(matrix.shape[0]):
        for column in range(matrix.shape[1]):
            total[column, row] += matrix[row, column]


@numba.njit(**_COMPILED)
def forward(network, memory, features):  # type: ignore[no-untyped-def]
    """Computes the outputs of a block."""
    flat, layers, ends, sgemm = network.parameters, network.layers, network.ends, network.sgemm
    rows = features.shape[0]
    for trunk in range(network.trunks):
        below = features
        for layer in range(layers.shape[0]):
            inputs, outputs, weight, bias, spacing = _layer(layers, layer)
            hidden = _hidden(network, memory, layer, trunk, rows)
            # BLAS takes a third longer for the product with a transposed matrix than for both in turn.
            transposed = _scratch(network, memory, inputs, outputs)
            transposed[:] = np.float32(0.0)
            _add_transposed(_matrix(flat, weight + trunk * spacing, outputs, inputs), transposed)
            _multiply(sgemm, below, transposed, hidden, _AS_IT_IS, 0.0)
            first = bias + trunk * spacing
            _activate(hidden, flat[first : first + outputs], network.activation)
            below = hidden
    for end in range(2):
        outputs, weight, bias, trunk = _end(ends, end)
        last = _hidden(network, memory, layers.shape[0] - 1, trunk, rows) if layers.shape[0] else features
        own_weight = _matrix(flat, weight, outputs, last.shape[1])
        _apply(last, own_weight, flat[bias : bias + outputs], _results(network, memory, end, rows))


@numba.njit(**_COMPILED)
def backward(network, memory, features, gradient):  # type: ignore[no-untyped-def]
    """Adds the gradient of the parameters, from the gradients by the outputs of the block of the last `forward`."""
    flat, layers, ends, sgemm = network.parameters, network.layers, network.ends, network.sgemm
    rows, deepest, gradients = features.shape[0], layers.shape[0] - 1, memory[BLOCK * _widths(network) :]
    for end in range(2):
        outputs, weight, bias, trunk = _end(ends, end)
        slopes = _result_gradients(network, memory, end, rows)
        last = _hidden(network, memory, deepest, trunk, rows) if layers.shape[0] else features
        own_gradient = _matrix(gradient, weight, outputs, last.shape[1])
        _add_outputs(slopes, last, own_gradient, gradient[bias : bias + outputs])
        if layers.shape[0]:
            own_weight = _matrix(flat, weight, outputs, last.shape[1])
            shared = end == 1 and network.trunks == 1
            _below_outputs(slopes, own_weight, _hidden(network, gradients, deepest, trunk, rows), shared)
    for trunk in range(network.trunks):
        for layer in range(deepest, -1, -1):
            inputs, outputs, weight, bias, spacing = _layer(layers, layer)
            above, first = _hidden(network, gradients, layer, trunk, rows), bias + trunk * spacing
            outputs_of_layer = _hidden(network, memory, layer, trunk, rows)
            _before_activation(above, outputs_of_layer, gradient[first : first + outputs], network.activation)
            below = _hidden(network, memory, layer - 1, trunk, rows) if layer else features
            own_gradient = _matrix(gradient, weight + trunk * spacing, outputs, inputs)
            if inputs < outputs:
                # The product with fewer rows than columns takes a seventh of the time with 4 inputs and 64 outputs.
                transposed = _scratch(network, memory, inputs, outputs)
                _multiply(sgemm, below, above, transposed, _TRANSPOSED, 0.0)
                _add_transposed(transposed, own_gradient)
            else:
                _multiply(sgemm, above, below, own_gradient, _TRANSPOSED, 1.0)
            if layer:
                own_weight = _matrix(flat, weight + trunk * spacing, outputs, inputs)
                _multiply(sgemm, above, own_weight, _hidden(network, gradients, layer - 1, trunk, rows), _AS_IT_IS, 0.0)


@numba.njit(**_COMPILED)
def _surrogate(log_prob, own, settings):  # type: ignore[no-untyped-def]
    """Returns w min(r A, clip(r) A) of a row, <float32>[6], and its derivative by the log probability."""
    clip_range, largest_log = settings.clip_range, settings.largest_log
    advantage = (own[_ADVANTAGE] - settings.advantage_mean) * settings.advantage_factor
    log_ratio, weight = log_prob - own[_ANCHOR], own[_WEIGHT]
    ratio = math.exp(min(max(log_ratio, -largest_log), largest_log)) if log_ratio == log_ratio else log_ratio
    plain = ratio * advantage
    clipped = min(max(ratio, 1.0 - clip_range), 1.0 + clip_range) * advantage
    # Every comparison with NaN is false, and then the result is NaN.
    if clipped < plain:
        return weight * clipped, 0.0
    if abs(log_ratio) > largest_log:
        return weight * plain, 0.0
    return weight * plain, weight * plain


@numba.njit(**_COMPILED)
def _value_loss(values, begin, rows, settings, gradients):  # type: ignore[no-untyped-def]
    """Returns the sum of the value losses of a block, and writes their gradients by its values."""
    clip_range, coefficient, count = settings.value_clip_range, settings.value_coefficient, settings.rows
    total = 0.0
    for row in range(values.shape[0]):
        own = rows[begin + row]
        value, target, proximal = values[row, 0], own[_TARGET], own[_PROXIMAL_VALUE]
        error, change = value - target, value - proximal
        squared, slope = error * error, error
        if abs(change) > clip_range:
            clipped = proximal + math.copysign(clip_range, change) - target
            if clipped * clipped > squared:
                squared, slope = clipped * clipped, 0.0
        total += own[_IMPORTANCE] * 0.5 * squared
        gradients[row, 0] = coefficient * own[_IMPORTANCE] * slope / count
    return total


@numba.njit(**_COMPILED)
def _value_and_backward(network, memory, features, begin, rows, settings, gradient):  # type: ignore[no-untyped-def]
    """Returns the sum of a block's value losses, and adds the gradient, from that by the policy's outputs."""
    values = _results(network, memory, 1, features.shape[0])
    slopes = _result_gradients(network, memory, 1, features.shape[0])
    loss = _value_loss(values, begin, rows, settings, slopes)
    backward(network, memory, features, gradient)
    return loss


@numba.njit(**_COMPILED, inline="always")
def _normaliser(logits, legal, row, first, begin, end, probabilities):  # type: ignore[no-untyped-def]
    """Returns the log of the sum of exponentials of the legal logits of one choice of a row.

    Writes the probabilities of the choice, whose first is at `begin`. The mask of row 0 is in row `first` of `legal`.
    """
    largest, total = np.float32(-np.inf), 0.0
    for column in range(begin, end):
        if legal.shape[0] == 0 or legal[first + row, column]:
            largest = max(largest, logits[row, column])
    for column in range(begin, end):
        possible = legal.shape[0] == 0 or legal[first + row, column]
        # In float32, because the exponential in float64 takes twice the time.
        probabilities[column] = math.exp(logits[row, column] - largest) if possible else np.float32(0.0)
        total += probabilities[column]
    for column in range(begin, end):
        probabilities[column] /= total
    return largest + math.log(total)


@numba.njit(**_COMPILED)
def _choice_loss(logits, first, chosen_in, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums of the policy losses and of the entropies of a block, which begins at row `first`.

    The `results` receive the gradients by its logits, and the log probabilities of all rows. `chosen_in` is as in
    `choice_gradient`.
    """
    legal, choices, actions = chosen_in
    gradients, log_probs = results
    entropy_coefficient, count = settings.entropy_coefficient, settings.rows
    loss, entropies = 0.0, 0.0
    normalisers = np.empty(choices.size)
    for row in range(logits.shape[0]):
        own, log_prob, begin = gradients[row], 0.0, 0
        for choice in range(choices.size):
            end = choices[choice]
            # The probabilities take the place of the gradients until the latter are known.
            normalisers[choice] = _normaliser(logits, legal, row, first, begin, end, own)
            chosen = begin + actions[first + row, choice]
            possible = legal.shape[0] == 0 or legal[first + row, chosen]
            log_prob += logits[row, chosen] - normalisers[choice] if possible else -math.inf
            begin = end
        term, slope = _surrogate(log_prob, rows[first + row], settings)
        loss -= term
        log_probs[first + row] = log_prob
        slope, begin = -slope / count, 0
        for choice in range(choices.size):
            end, entropy = choices[choice], 0.0
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[first + row, column]:
                    entropy -= own[column] * (logits[row, column] - normalisers[choice])
            entropies += entropy
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[first + row, column]:
                    spread = logits[row, column] - normalisers[choice] + entropy
                    own[column] *= entropy_coefficient / count * spread - slope
            own[begin + actions[first + row, choice]] += slope
            begin = end
    return loss, entropies


@numba.njit(**_COMPILED, inline="always")
def _log_std(outputs, log_std, bounds, row, element, elements):  # type: ignore[no-untyped-def]
    """Returns a log standard deviation before and after its bounds (`action_heads.bound`)."""
    lowest, highest = bounds
    raw = log_std[element] if log_std.size else outputs[row, elements + element]
    return raw, min(max(raw, lowest), highest) if raw == raw else raw


@numba.njit(**_COMPILED, inline="always")
def _outwards(raw, gradient, bounds):  # type: ignore[no-untyped-def]
    """Returns whether a step against this gradient would move a value beyond its bounds farther out."""
    lowest, highest = bounds
    return (raw > highest and gradient < 0.0) or (raw < lowest and gradient > 0.0)


@numba.njit(**_COMPILED)
def _gaussian_loss(outputs, first, drawn_from, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums of the policy losses and of the entropies of a block, which begins at row `first`.

    The `results` receive the gradients by the block's outputs, those by `log_std`, to which they are added, and the log
    probabilities of all rows. `drawn_from` are actions, bounds, and `log_std`, which is empty if the log standard
    deviations are outputs, after the means.
    """
    actions, bounds, log_std = drawn_from
    entropy_coefficient, count = settings.entropy_coefficient, settings.rows
    gradients, log_std_gradient, log_probs = results
    elements, loss, entropies = actions.shape[1], 0.0, 0.0
    for row in range(outputs.shape[0]):
        own_actions, log_prob = actions[first + row], 0.0
        for element in range(elements):
            _, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            scaled = (own_actions[element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
            entropies += bounded + 0.5 * (1.0 + _LOG_TWO_PI)
        term, slope = _surrogate(log_prob, rows[first + row], settings)
        loss -= term
        log_probs[first + row] = log_prob
        slope = -slope / count
        for element in range(elements):
            raw, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            inverse = math.exp(-bounded)
            scaled = (own_actions[element] - outputs[row, element]) * inverse
            gradients[row, element] = slope * scaled * inverse
            of_log_std = slope * (scaled * scaled - 1.0) - entropy_coefficient / count
            if log_std.size:
                log_std_gradient[element] += of_log_std
            else:
                kept = not _outwards(raw, of_log_std, bounds)
                gradients[row, elements + element] = of_log_std if kept else 0.0
    return loss, entropies


@numba.njit(
    f"UniTuple(float64, 3)({_NETWORK}, float32[::1], float32[:, ::1],"
    f" Tuple((boolean[:, ::1], int64[::1], int64[:, ::1])), float32[:, ::1], {_SETTINGS}, UniTuple(float32[::1], 2))",
    **_CACHED,
)
def choice_gradient(network, memory, features, chosen_in, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums over the rows of the policy losses, the value losses, and the entropies of choices.

    The `results` receive the gradient and the log probabilities. `chosen_in` are the legal alternatives,
    <bool>[N, logits], or [0, 0] if all are, the ends of the choices, and the actions, <int64>[N, choices]: choice c is
    among the logits from end c - 1 to end c.
    """
    network, settings = FlatLayout(*network), MinibatchSettings(*settings)
    gradient, log_probs = results
    gradient[:] = np.float32(0.0)
    policy, value, entropy = 0.0, 0.0, 0.0
    for begin in range(0, features.shape[0], BLOCK):
        own_features = features[begin : begin + BLOCK]
        forward(network, memory, own_features)
        count = own_features.shape[0]
        logits, slopes = _results(network, memory, 0, count), _result_gradients(network, memory, 0, count)
        losses = _choice_loss(logits, begin, chosen_in, rows, settings, (slopes, log_probs))
        policy, entropy = policy + losses[0], entropy + losses[1]
        value += _value_and_backward(network, memory, own_features, begin, rows, settings, gradient)
    return policy, value, entropy


@numba.njit(
    f"UniTuple(float64, 3)({_NETWORK}, float32[::1], float32[:, ::1],"
    " Tuple((float32[:, ::1], UniTuple(float64, 2), UniTuple(int64, 2))), float32[:, ::1],"
    f" {_SETTINGS}, UniTuple(float32[::1], 2))",
    **_CACHED,
)
def gaussian_gradient(network, memory, features, drawn_from, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums over the rows of the policy losses, the value losses, and the entropies of a Gaussian.

    The `results` receive the gradient and the log probabilities. `drawn_from` are the actions, <float32>[N, elements],
    the bounds of log standard deviations, and the slice of the parameters that these are; empty if they are outputs,
    after the means. The gradient of these parameters ignores the bounds until `stop_outwards`, as it is a sum.
    """
    actions, bounds, log_std = drawn_from
    gradient, log_probs = results
    gradient[:] = np.float32(0.0)
    network, settings = FlatLayout(*network), MinibatchSettings(*settings)
    own_std = network.parameters[log_std[0] : log_std[1]]
    policy, value, entropy = 0.0, 0.0, 0.0
    for begin in range(0, features.shape[0], BLOCK):
        own_features = features[begin : begin + BLOCK]
        forward(network, memory, own_features)
        count = own_features.shape[0]
        outputs, slopes = _results(network, memory, 0, count), _result_gradients(network, memory, 0, count)
        written = (slopes, gradient[log_std[0] : log_std[1]], log_probs)
        losses = _gaussian_loss(outputs, begin, (actions, bounds, own_std), rows, settings, written)
        policy, entropy = policy + losses[0], entropy + losses[1]
        value += _value_and_backward(network, memory, own_features, begin, rows, settings, gradient)
    return policy, value, entropy


@numba.njit("void(float32[::1], float32[::1], UniTuple(int64, 2), UniTuple(float64, 2))", **_CACHED)
def stop_outwards(flat, gradient, log_std, bounds):  # type: ignore[no-untyped-def]
    """Drops the gradients that would move log standard deviations beyond their bounds farther out."""
    for position in range(log_std[0], log_std[1]):
        if _outwards(flat[position], gradient[position], bounds):
            gradient[position] = np.float32(0.0)


@numba.njit(f"void({_NETWORK}, float32[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1])", **_CACHED)
def outputs_of(network, memory, features, outputs, values):  # type: ignore[no-untyped-def]
    """Writes the outputs of the policy, <float32>[N, outputs], and of the value, <float32>[N, 1]."""
    network = FlatLayout(*network)
    for begin in range(0, features.shape[0], BLOCK):
        own_features = features[begin : begin + BLOCK]
        forward(network, memory, own_features)
        own_outputs = _results(network, memory, 0, own_features.shape[0])
        own_values = _results(network, memory, 1, own_features.shape[0])
        for row in range(own_values.shape[0]):
            values[begin + row, 0] = own_values[row, 0]
            for output in range(own_outputs.shape[1]):
                outputs[begin + row, output] = own_outputs[row, output]


@numba.njit("void(float32[:, ::1], boolean[:, ::1], int64[::1], int64[:, ::1], float32[::1])", **_CACHED)
def choice_log_probs(logits, legal, choices, actions, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities of choices. Takes the arguments of `choice_gradient`."""
    probabilities = np.empty(logits.shape[1], np.float32)
    for row in range(actions.shape[0]):
        log_prob, begin = 0.0, 0
        for choice in range(choices.size):
            chosen = begin + actions[row, choice]
            possible = legal.shape[0] == 0 or legal[row, chosen]
            normaliser = _normaliser(logits, legal, row, 0, begin, choices[choice], probabilities)
            log_prob += logits[row, chosen] - normaliser if possible else -math.inf
            begin = choices[choice]
        log_probs[row] = log_prob


@numba.njit("void(float32[:, ::1], float32[::1], float32[:, ::1], UniTuple(float64, 2), float32[::1])", **_CACHED)
def gaussian_log_probs(outputs, log_std, actions, bounds, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities under a Gaussian. Takes the arguments of `_gaussian_loss`."""
    elements = actions.shape[1]
    for row in range(actions.shape[0]):
        log_prob = 0.0
        for element in range(elements):
            _, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            scaled = (actions[row, element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
        log_probs[row] = log_prob


@numba.njit("UniTuple(float64, 2)(float32[:, ::1])", **_CACHED)
def scale_of(rows):  # type: ignore[no-untyped-def]
    """Returns the mean to subtract from the advantages, and the factor to multiply them by (`losses.standardised`)."""
    weight, mean, square = 0.0, 0.0, 0.0
    for row in range(rows.shape[0]):
        weight += rows[row, _IMPORTANCE]
        mean += rows[row, _IMPORTANCE] * rows[row, _ADVANTAGE]
    # Weights may round to 0, all of a small minibatch too.
    weight = max(weight, 1e-30)
    mean /= weight
    for row in range(rows.shape[0]):
        square += rows[row, _IMPORTANCE] * (rows[row, _ADVANTAGE] - mean) ** 2
    return np.float32(mean), np.float32(1.0 / (math.sqrt(square / weight) + 1e-8))


@numba.njit("void(float32[:, ::1], float32[::1])", **_VECTORISED, cache=True)
def add_parts(parts, gradient):  # type: ignore[no-untyped-def]
    """Writes the sum of the gradients of parts, <float32>[parts, P], in their order."""
    gradient[:] = np.float32(0.0)
    for part in range(parts.shape[0]):
        own = parts[part]
        for position in range(gradient.size):
            gradient[position] += own[position]
