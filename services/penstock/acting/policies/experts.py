"""Experts that act in place of a policy while demonstrations are recorded: functions of an observation."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.policies.stepwise_window import StepwiseWindow
from penstock.acting.protocols import WindowPolicy
from penstock.acting.values.leaves import flatten, unflatten
from penstock.acting.values.returned_values import UNREADABLE, array_of
from penstock.acting.values.spaces import ActionMap, BoxMap, ChoiceMap
from penstock.algo.network import Network, Noise, NoiseKind
from penstock.errors import ConfigurationError
from penstock.machine.foreign_errors import explain, let_ctrl_c_pass, shortened
from penstock.types.run import Weights
from penstock.types.spaces import EnvironmentSpec, Leaf, Leaves, Library

Expert = Callable[..., Any]
"""Function of an observation, and of its action mask if the environment has masks, that returns an action. Both have
the form that `penstock.make` gives them. Its method `reset`, if it has one, is called before each episode."""


class ExpertRunner:
    """An expert that acts in one environment (`acting.protocols.Runner`). Used by one thread.

    With the probability `noise`, a choice is replaced by one of its legal alternatives at random. Elements of boxes get
    Gaussian noise with the deviation `noise`, in units of half of their range, or in their own if they have none. The
    log probabilities of the actions follow from it. Without noise, the log probability of a choice is 0, and a box has
    none, for which 0 is returned.

    Attributes:
        library: The library of policies that do not need torch, as an expert does not.
        version: 0.
        network: Architecture of policies that decides how the elements of boxes are scaled.
        noise: Random numbers of one action: a normal one for each element of a box, and two uniform ones per choice.
        state: None, because the expert keeps its states, if any, to itself.
        has_log_probs: Whether the log probabilities exist.
        clipped: Number of actions of which an element was outside of its bounds.
    """

    library: Library = "numpy"
    version: int = 0
    state: None = None

    def __init__(
        self,
        expert: Expert,
        spec: EnvironmentSpec,
        network: Network,
        noise: float,
        resets: Callable[[], bool] = lambda: False,
    ) -> None:
        """Acts in an environment with these spaces, as policies of this architecture would.

        Where `resets` returns True, the row only resets the environment, and the expert is not asked.
        """
        self._resets = resets
        self._expert, self._action, self._observation = expert, spec.action, spec.observation
        self._noise, self.network, self.clipped = noise, network, 0
        self._maps = ActionMap(spec.action, network).maps
        self.noise = tuple(
            Noise(NoiseKind.UNIFORM, 2 * len(space.choices))
            if space.choices
            else Noise(NoiseKind.NORMAL, space.action_array[1][0])
            for space in spec.action.spaces
        )
        self.has_log_probs = noise > 0.0 or not any(isinstance(each, BoxMap) for each in self._maps)

    def refresh(self, weights: Weights) -> None:
        """Does nothing, because an expert has no weights."""

    def act(
        self,
        observation: Leaves,
        noise: NDArray[np.float32],
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> tuple[Leaves, NDArray[np.float32]]:
        """Returns the expert's action for the only row, with noise, as `acting.protocols.Runner`.

        Raises `ConfigurationError` if the expert raises, or returns something that is not a legal action.
        """
        return self._act(observation, noise, mask, begun, self._noise)

    def begin(self, noise: NDArray[np.float32]) -> WindowPolicy:
        """Begins a window of one environment, as `acting.protocols.Runner`."""
        return StepwiseWindow(self, noise)

    def act_greedily(
        self,
        observation: Leaves,
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> Leaves:
        """Returns the expert's action for the only row, as `acting.protocols.Runner`. Raises as `act`."""
        unused = np.zeros((1, sum(part.size for part in self.noise)), np.float32)
        return self._act(observation, unused, mask, begun, 0.0)[0]

    def _act(
        self,
        observation: Leaves,
        noise: NDArray[np.float32],
        mask: NDArray[np.bool_] | None,
        begun: NDArray[np.bool_] | None,
        deviation: float,
    ) -> tuple[Leaves, NDArray[np.float32]]:
        if self._resets():
            rows = (
                np.zeros((1, *shape), dtype) for dtype, shape in (each.action_array for each in self._action.spaces)
            )
            return tuple(rows), np.zeros(1, np.float32)
        values = flatten(self._action, self._ask(observation, mask, begun))
        sizes, bits = [part.size for part in self.noise], [sum(space.choices) for space in self._action.spaces]
        drawn = np.split(noise[0], np.cumsum(sizes)[:-1])
        legal = np.split(np.ones(sum(bits), np.bool_) if mask is None else mask[0], np.cumsum(bits)[:-1])
        leaves: list[NDArray[np.generic]] = []
        log_prob, clipped = 0.0, False
        for leaf, of_leaf, value, numbers, allowed in zip(
            self._action.leaves, self._maps, values, drawn, legal, strict=True
        ):
            array = _array(leaf, of_leaf, value)
            if isinstance(of_leaf, BoxMap):
                clipped |= bool(((array.ravel() < of_leaf.low) | (array.ravel() > of_leaf.high)).any())
                row: NDArray[np.generic] = (of_leaf.inverse(array) + deviation * numbers).astype(np.float32)
                log_prob += _log_density(numbers, deviation)
            else:
                row, found = _chosen(leaf, of_leaf.inverse(array), numbers, allowed, deviation)
                log_prob += found
            leaves.append(row.reshape(1, *leaf.space.action_array[1]))
        self.clipped += clipped
        return tuple(leaves), np.array([log_prob], np.float32)

    def _ask(self, observation: Leaves, mask: NDArray[np.bool_] | None, begun: NDArray[np.bool_] | None) -> Any:
        # Copies, because the arrays change with the next step.
        seen = unflatten(self._observation, [np.copy(leaf[0])[()] for leaf in observation])
        reset = getattr(self._expert, "reset", None)
        try:
            if begun is not None and begun[0] and reset is not None:
                reset()
            return self._expert(seen) if mask is None else self._expert(seen, mask[0].copy())
        except Exception as error:
            let_ctrl_c_pass(error)
            raise ConfigurationError(f"the expert failed: {explain(error)}") from error


def _chosen(
    leaf: Leaf, choices: NDArray[np.int64], numbers: NDArray[np.float32], legal: NDArray[np.bool_], replaced: float
) -> tuple[NDArray[np.int64], float]:
    """Returns the choices of a leaf, <int64>[k], and their log probability, if each is `replaced` with a probability.

    `numbers` are two uniform ones for each choice, and `legal`, <bool>[bits], the alternatives that may be taken.
    """
    taken, log_prob, first = choices.copy(), 0.0, 0
    for position, n in enumerate(leaf.space.choices):
        choice, allowed = int(choices[position]), np.flatnonzero(legal[first : first + n])
        if choice not in allowed:
            what = "a choice that its action mask forbids" if 0 <= choice < n else "an action outside of its space"
            which = f"{leaf.space.shown()}, choice {position}, alternative {choice}"
            raise ConfigurationError(f"the expert returned {what}{leaf.place}: {which}, counted from 0")
        whether, which_one = numbers[2 * position : 2 * position + 2]
        if whether < replaced:
            taken[position] = allowed[int(which_one * len(allowed))]
        log_prob += math.log((1.0 - replaced) * (taken[position] == choice) + replaced / len(allowed))
        first += n
    return taken, log_prob


def _log_density(normal: NDArray[np.float32], deviation: float) -> float:
    """Returns the log density of `deviation` times these standard normal numbers; 0 without deviation."""
    if not deviation:
        return 0.0
    squares = float(np.square(normal, dtype=np.float64).sum())
    return -squares / 2.0 - normal.size * (math.log(deviation) + math.log(2.0 * math.pi) / 2.0)


def _array(leaf: Leaf, of_leaf: ChoiceMap | BoxMap, value: Any) -> NDArray[Any]:
    """Returns an expert's action at a leaf as an array of numbers in the shape of its space."""
    try:
        array = array_of(value)
    except UNREADABLE:
        array = np.zeros(0, object)
    whole = isinstance(of_leaf, ChoiceMap)
    if array.dtype.kind in "fiub" and array.size == math.prod(of_leaf.shape) and np.isfinite(array).all():
        array = array.reshape(of_leaf.shape)
        if not whole or np.array_equal(array, np.rint(array)):
            return array
    expected = f"{'integers' if whole else 'finite numbers'} of shape {of_leaf.shape}"
    raise ConfigurationError(
        f"the expert returned {shortened(repr(value))}{leaf.place}, where an action has {expected}:"
        f" {leaf.space.shown()}"
    )
