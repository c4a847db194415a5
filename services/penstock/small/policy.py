"""Policy inference in NumPy for small networks: the policies of `algo.policies` without learned encoders and memory.

An actor of such a policy needs no torch, which takes more than a second and 200 MB to import, and some microseconds for
each operation on a batch. Only the network of the actions is computed, not the network of the values. Log probabilities
differ from torch's by rounding alone.
"""

import contextvars
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from penstock.algo import published
from penstock.algo.network import Network, Noise
from penstock.algo.published import Description
from penstock.small import network
from penstock.small.actions import Actions
from penstock.small.inputs import Inputs
from penstock.small.layers import Layers
from penstock.small.network import SmallNetwork
from penstock.types.run import Weights
from penstock.types.spaces import Leaves, Library

P = ParamSpec("P")
T = TypeVar("T")

_MOST_WEIGHTS = 300_000
"""Most weights of a network that is small. With two layers of 512, NumPy and torch take the same time for 64 rows; with
larger ones, products in blocks take longer than torch's of all rows."""

_ENDED = "the window has ended with a later call of its runner; read its log probabilities before that call"


def obstacle(description: Description) -> str:
    """Returns the reason why NumPy can't compute a policy, or not fast; empty if there is none."""
    found = SmallNetwork.of(description)
    if found is None:
        return network.obstacle(description)
    weights = sum((layer.inputs + 1) * layer.outputs for layer in found.of_actions)
    return f"the network has {weights:,} weights, more than {_MOST_WEIGHTS:,}" if weights > _MOST_WEIGHTS else ""


class NumpyRunner:
    """A policy without memory that acts on batches of observations (`acting.protocols.Runner`). Used by one thread.

    Attributes:
        noise: Random numbers from which one action is sampled, for each leaf of the action.
        version: Version of the loaded weights.
        network: Architecture of the policy.
        state: None, because the policy has no memory.
    """

    library: Library = "numpy"
    state: None = None

    def __init__(self, weights: Weights, description: Description, *, temperature: float = 1.0) -> None:
        """Loads a policy of this description, for which `obstacle` finds none.

        Raises `ConfigurationError` if the bytes are cut short.
        """
        found = SmallNetwork.of(description)
        assert found is not None
        self.network: Network = description.network
        self._inputs = Inputs(description.spec, self.network)
        self._actions = Actions(description.spec.action, self.network, temperature=temperature)
        self._layers = Layers(found.of_actions, found.activation)
        self.noise: tuple[Noise, ...] = self._actions.noise
        self._count, self._rows = 0, 0
        self._window: Window | None = None
        self._quiet = _quiet()
        self._load(weights)

    def refresh(self, weights: Weights) -> None:
        """Loads weights of the same architecture, unless their version is already loaded.

        Raises `ConfigurationError` if the bytes are cut short or belong to another architecture.
        """
        if weights.version != self.version:
            self._end_window()
            self._load(weights)

    def act(
        self,
        observation: Leaves,
        noise: NDArray[np.float32],
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> tuple[Leaves, NDArray[np.float32]]:
        """Samples one action per row, with its log probability, as `acting.protocols.Runner`."""
        window = self.begin(noise[:, None])
        action = window.act(observation, mask=mask, begun=begun)
        return tuple(leaf.copy() for leaf in action), window.log_probs()[:, 0]

    def begin(self, noise: NDArray[np.float32]) -> "Window":
        """Begins a window, as `acting.protocols.Runner`."""
        self._end_window()
        count, steps, _ = noise.shape
        self._resize(count, min(steps, self._actions.most_rows(count)))
        self._quiet.run(self._actions.begin, noise)
        self._window = Window(self._quiet, self._inputs, self._layers, self._actions, count, steps)
        return self._window

    def act_greedily(
        self,
        observation: Leaves,
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> Leaves:
        """Returns the most likely action per row, as `acting.protocols.Runner`."""
        del begun
        self._end_window()
        self._resize(len(observation[0]), 1)
        return self._quiet.run(self._most_likely, observation, mask)

    def _end_window(self) -> None:
        """Ends the window whose rows the caller is about to overwrite."""
        if self._window is not None:
            self._window.end()

    def _most_likely(self, observation: Leaves, mask: NDArray[np.bool_] | None) -> Leaves:
        self._inputs.fill(observation)
        self._layers.run(0)
        return self._actions.mode(mask)

    def _resize(self, count: int, rows: int) -> None:
        if (count, rows) != (self._count, self._rows):
            self._count, self._rows = count, rows
            self._layers.resize(count, rows)
            self._inputs.resize(self._layers.inputs, count)
            self._actions.resize(self._layers.outputs, count)

    def _load(self, weights: Weights) -> None:
        try:
            tensors = safetensors.numpy.load(weights.data)
        except SafetensorError as error:
            raise published.damaged(str(error)) from None
        for part in (self._inputs, self._layers, self._actions):
            part.load(tensors)
        self.version = weights.version


class _ErrorState:
    """Runs functions without NumPy's warnings."""

    def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Runs a function like `contextvars.Context.run`."""
        with np.errstate(all="ignore"):
            return function(*arguments, **named)


def _quiet() -> contextvars.Context | _ErrorState:
    """Returns a context that runs functions without NumPy's warnings.

    Diverged weights lead to numbers that the collector refuses with a reason. `np.errstate` in every step takes as long
    as an operation on all environments, so a context has the state; before NumPy 2, contexts have none.
    """
    context, before = contextvars.copy_context(), np.geterr()
    context.run(np.seterr, all="ignore")
    if np.geterr() == before:
        return context
    np.seterr(**before)
    return _ErrorState()


class Window:
    """A policy that acts on the rows of one window (`acting.protocols.WindowPolicy`). Used by one thread."""

    def __init__(
        self,
        quiet: "contextvars.Context | _ErrorState",
        inputs: Inputs,
        layers: Layers,
        actions: Actions,
        count: int,
        steps: int,
    ) -> None:
        """Acts `steps` times for `count` environments with these parts of a policy, which are ready."""
        self._quiet, self._inputs, self._layers, self._actions = quiet, inputs, layers, actions
        self._log_probs = np.zeros((steps, count), np.float32)
        self._step = self._row = 0
        self._ended = False

    def end(self) -> None:
        """Ends the window, because its runner uses the parts for another call."""
        self._ended = True

    def act(
        self, observation: Leaves, *, mask: NDArray[np.bool_] | None = None, begun: NDArray[np.bool_] | None = None
    ) -> Leaves:
        """Samples one action per row, as `acting.protocols.WindowPolicy`."""
        return self._quiet.run(self._act, observation, mask)

    def log_probs(self) -> NDArray[np.float32]:
        """Returns the log probabilities of the sampled actions, as `acting.protocols.WindowPolicy`."""
        self._quiet.run(self._complete)
        return self._log_probs.T

    def _act(self, observation: Leaves, mask: NDArray[np.bool_] | None) -> Leaves:
        assert not self._ended, _ENDED
        if self._row == len(self._layers.outputs):
            self._complete()
        self._inputs.fill(observation)
        self._layers.run(self._row)
        action = self._actions.sample(self._row, self._step, mask)
        self._step, self._row = self._step + 1, self._row + 1
        return action

    def _complete(self) -> None:
        """Computes the log probabilities of the rows that are kept, and frees the rows."""
        assert not self._ended, _ENDED
        self._log_probs[self._step - self._row : self._step] = self._actions.log_probs(self._row)
        self._row = 0
