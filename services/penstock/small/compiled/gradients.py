"""Gradients of PPO's loss for a small network: the compiled functions that Python calls.

They pass blocks of rows forwards through the network, compute the loss, and pass its gradients backwards. Python passes
the records `FlatLayout` and `MinibatchSettings` as plain tuples: numba takes longer to find the types of the records.
"""

from typing import Any

import numba
import numpy as np

from penstock.machine.compiled_code import using
from penstock.small.compiled import passes, row_losses
from penstock.small.compiled.passes import NETWORK, FlatLayout, backward, forward, results_of, slopes_of
from penstock.small.compiled.row_losses import ROWS, SETTINGS, MinibatchSettings, choice_loss, gaussian_loss, value_loss

# numba's functions of types have no annotations.
types: Any = numba.types

_COMPILED: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_CACHED: dict[str, Any] = {**_COMPILED, "cache": True}

_VECTOR, _MATRIX = types.float32[::1], types.float32[:, ::1]
_CHOSEN = types.Tuple((types.boolean[:, ::1], types.int64[::1], types.int64[:, ::1]))
_DRAWN = types.Tuple((_MATRIX, types.UniTuple(types.float64, 2), types.UniTuple(types.int64, 2)))


def _signature(actions: Any) -> Any:
    """Returns the type of a gradient function for these actions."""
    results = types.UniTuple(_VECTOR, 2)
    return types.UniTuple(types.float64, 3)(NETWORK, _VECTOR, _MATRIX, actions, ROWS, SETTINGS, results)


@numba.njit(**_COMPILED)
def _value_and_backward(network, memory, block, first, rows, settings, gradient):  # type: ignore[no-untyped-def]
    """Returns the sum of a block's value losses, and adds the gradient, from the slopes of the policy's outputs."""
    layer, count = network.ends[1], block.shape[0]
    loss = value_loss(results_of(memory, layer, count), first, rows, settings, slopes_of(memory, layer, count))
    backward(network, memory, block, gradient)
    return loss


@numba.njit(_signature(_CHOSEN), **_CACHED)
@using(passes, row_losses)
def choice_gradient(network, memory, features, chosen_in, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums over the rows of the policy losses, the value losses, and the entropies of choices.

    Args:
        network: `FlatLayout`, the network.
        memory: <float32>[M] room for one block (`flat_network.FlatNetwork.room`).
        features: <float32>[N, F] inputs of the first layer.
        chosen_in: The actions, as in `choice_loss`.
        rows: <ROW>[N] the other numbers of the rows.
        settings: `MinibatchSettings`, the settings of the loss for the whole minibatch.
        results: <float32>[P] receives the gradient of the parameters, and <float32>[N] the log probabilities of the
            actions.
    """
    network, settings = FlatLayout(*network), MinibatchSettings(*settings)
    layer, (gradient, log_probs) = network.ends[0], results
    gradient[:] = np.float32(0.0)
    policy, value, entropy = 0.0, 0.0, 0.0
    for first in range(0, features.shape[0], network.block):
        block = features[first : first + network.block]
        forward(network, memory, block)
        logits, slopes = results_of(memory, layer, block.shape[0]), slopes_of(memory, layer, block.shape[0])
        losses = choice_loss(logits, first, chosen_in, rows, settings, slopes, log_probs)
        policy, entropy = policy + losses[0], entropy + losses[1]
        value += _value_and_backward(network, memory, block, first, rows, settings, gradient)
    return policy, value, entropy


@numba.njit(_signature(_DRAWN), **_CACHED)
@using(passes, row_losses)
def gaussian_gradient(network, memory, features, drawn_from, rows, settings, results):  # type: ignore[no-untyped-def]
    """Returns the sums over the rows of the policy losses, the value losses, and the entropies of a Gaussian.

    Takes the arguments of `choice_gradient`, but for `drawn_from`: the actions, <float32>[N, elements], the bounds of
    log standard deviations, and the slice of the parameters that these are; empty if they are outputs, after the means.
    The gradient of these parameters ignores the bounds until `row_losses.stop_outwards`, as it is a sum.
    """
    network, settings = FlatLayout(*network), MinibatchSettings(*settings)
    layer, (gradient, log_probs), (actions, bounds, (begin, end)) = network.ends[0], results, drawn_from
    gradient[:] = np.float32(0.0)
    drawn = (actions, bounds, network.parameters[begin:end], gradient[begin:end])
    policy, value, entropy = 0.0, 0.0, 0.0
    for first in range(0, features.shape[0], network.block):
        block = features[first : first + network.block]
        forward(network, memory, block)
        outputs, slopes = results_of(memory, layer, block.shape[0]), slopes_of(memory, layer, block.shape[0])
        losses = gaussian_loss(outputs, first, drawn, rows, settings, slopes, log_probs)
        policy, entropy = policy + losses[0], entropy + losses[1]
        value += _value_and_backward(network, memory, block, first, rows, settings, gradient)
    return policy, value, entropy


@numba.njit("void(float32[:, ::1], float32[::1])", **_CACHED, fastmath={"reassoc", "contract", "nsz"})
def add_parts(parts, gradient):  # type: ignore[no-untyped-def]
    """Writes the sum of the gradients of parts, <float32>[parts, P], in their order."""
    gradient[:] = np.float32(0.0)
    for part in range(parts.shape[0]):
        own = parts[part]
        for position in range(gradient.size):
            gradient[position] += own[position]
