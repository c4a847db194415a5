"""Policy inference in torch for all environments in one call, without gradients."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.acting.policies.stepwise_window import StepwiseWindow
from penstock.acting.policies.tensor_actions import TensorActionMap
from penstock.acting.protocols import WindowPolicy
from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Joint
from penstock.algo.network import Network, Noise
from penstock.algo.policies import Inputs, Policy
from penstock.types.run import Weights
from penstock.types.spaces import Leaves, Library

_CPU = torch.device("cpu")
_ROW_MULTIPLE = 16
"""Multiple to which rows are padded, so that an action does not depend on the number of environments.

The last bits of a CPU matrix product's row depend on the number of rows if there are few: below 4 with AVX2, below 16
with AVX-512."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Gives torch one thread and its own defaults in the block, and restores the environment's; takes microseconds.

    On a busy machine, threads wait for each other in every small layer: 20 episodes of CartPole took 13 s instead of 1.
    An environment may set the type and the device of new tensors and the precision of operations, and may rely on them
    in its steps.
    """
    before, data_type = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(1)
    if data_type != torch.float32:
        torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            if torch.empty(0).device != _CPU:  # torch.get_default_device fails in 2.6 after set_default_device(None)
                stack.enter_context(_CPU)
            if torch.is_autocast_enabled("cpu"):
                stack.enter_context(torch.autocast("cpu", enabled=False))
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_default_dtype(data_type)


class PolicyRunner:
    """A policy that acts on batches of observations (`acting.protocols.Runner`). Used by one thread.

    With memory it keeps the state of each row from call to call. Calls use one thread of torch, and leave the setting
    of `torch.set_num_threads` as it was.

    Attributes:
        policy: Torch module.
        version: Version of the loaded weights.
        state: <float32>[N, parts, H] states after the last call, or [1, parts, H] zeros before the first; None without
            memory.
    """

    library: Library = "torch"

    @one_thread()
    def __init__(
        self, weights: Weights, *, temperature: float = 1.0, module: str | None = None, device: Any = _CPU
    ) -> None:
        """Loads the policy on a device. `refresh` does not change the sampling temperature of `act`.

        `module` is the only module that may be imported. Raises `ForeignCode` if the weights name another one.
        """
        self.policy, self._temperature = policy_weights.load(weights, module).to(device), temperature
        self.version, self._device = weights.version, device
        self._on_device: DeviceWindow | None = None
        shape = self.policy.memory_shape
        self.state: NDArray[np.float32] | None = None if shape is None else np.zeros((1, *shape), np.float32)

    @property
    def noise(self) -> tuple[Noise, ...]:
        """Random numbers from which one action is sampled, for each leaf of the action."""
        return self.policy.noise

    @property
    def network(self) -> Network:
        """Architecture of the policy."""
        return self.policy.network

    @one_thread()
    def refresh(self, weights: Weights) -> None:
        """Loads weights of the same architecture, unless their version is already loaded."""
        if weights.version != self.version:
            policy_weights.load_into(self.policy, weights)
            self.version = weights.version

    @one_thread()
    @torch.inference_mode()
    def act(
        self,
        observation: Leaves,
        noise: NDArray[np.float32],
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> tuple[Leaves, NDArray[np.float32]]:
        """Samples one action per row, with its log probability, as `acting.protocols.Runner`."""
        distribution = self._distribution(observation, mask, begun).tempered(self._temperature)
        action = distribution.sample(self._padded(noise))
        log_prob = distribution.log_prob(action)
        return _unpad(action, len(noise)), log_prob.cpu().numpy()[: len(noise)]

    def begin(self, noise: NDArray[np.float32]) -> WindowPolicy:
        """Begins a window, as `acting.protocols.Runner`."""
        return StepwiseWindow(self, noise)

    def begin_on_device(self, noise: NDArray[np.float32]) -> "DeviceWindow":
        """Begins a window of tensors on the policy's device, which continues the one before.

        `noise` is as for `begin`.
        """
        self._on_device = DeviceWindow(self.policy, self._temperature, noise, self._on_device)
        return self._on_device

    @one_thread()
    @torch.inference_mode()
    def act_greedily(
        self,
        observation: Leaves,
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> Leaves:
        """Returns the most likely action per row, as `acting.protocols.Runner`."""
        return _unpad(self._distribution(observation, mask, begun).mode(), len(observation[0]))

    @one_thread()
    @torch.inference_mode()
    def distribution(
        self,
        observation: Leaves,
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> Joint:
        """Returns the distribution of the action of each row, at temperature 1, and keeps the states as they are.

        Takes the arguments of `act`. The distribution may have more rows than `observation`.
        """
        before = self.state
        distribution = self._distribution(observation, mask, begun)
        self.state = before
        return distribution

    @one_thread()
    @torch.inference_mode()
    def values(self, observation: Leaves, *, begun: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Returns the values of the rows as discounted returns, <float32>[N], and keeps the states as they are.

        Takes the arguments of `act`.
        """
        count = len(observation[0])
        leaves = tuple(self._padded(leaf) for leaf in observation)
        inputs = Inputs(leaves)
        if self.state is not None:
            # Segments of one row.
            state, first = self._before(count, begun)
            inputs = Inputs(tuple(leaf[:, None] for leaf in leaves), state=state, begun=first[:, None])
        _, values = self.policy.evaluate(inputs)
        return self.policy.unscale_values(values).cpu().numpy().reshape(-1)[:count]

    def forget(self) -> None:
        """Makes the next row of every environment the first of an episode."""
        if self.state is not None:
            self.state = np.zeros((1, *self.state.shape[1:]), np.float32)

    def _distribution(
        self, observation: Leaves, mask: NDArray[np.bool_] | None, begun: NDArray[np.bool_] | None
    ) -> Joint:
        """Returns the distribution of padded rows, and keeps the states after these rows."""
        count = len(observation[0])
        leaves = tuple(self._padded(leaf) for leaf in observation)
        # Every row needs a legal action, also the padding.
        legal = None if mask is None else self._padded(mask, fill=1)
        if self.state is None:
            return self.policy.act(leaves, legal, None, None)[0]
        distribution, after = self.policy.act(leaves, legal, *self._before(count, begun))
        assert after is not None
        self.state = after.cpu().numpy()[:count]
        return distribution

    def _before(self, count: int, begun: NDArray[np.bool_] | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the states before padded rows, and which rows begin an episode."""
        assert self.state is not None
        state = self.state
        if len(state) != count:
            # torch warns about arrays that can't be written.
            state = np.broadcast_to(state, (count, *state.shape[1:])).copy()
        first = np.zeros(count, np.bool_) if begun is None else begun
        return self._padded(state), self._padded(first)

    def _padded(self, rows: NDArray[np.generic], fill: int = 0) -> torch.Tensor:
        return torch.from_numpy(_pad(rows, fill)).to(self._device)


class DeviceWindow:
    """A policy that acts on the rows of one window with tensors on its device, without a copy to the host.

    The last bits of its results depend on the number of rows, as `PolicyRunner`'s do not. Used by one thread.

    Attributes:
        state: <float32>[N, parts, H] states before the next row; None without memory.
    """

    def __init__(
        self, policy: Policy, temperature: float, noise: NDArray[np.float32], before: "DeviceWindow | None"
    ) -> None:
        device = policy.return_offset.device
        self._policy, self._temperature = policy, temperature
        self._noise = iter(torch.from_numpy(noise).to(device).unbind(1))
        shape = policy.memory_shape
        self._actions: TensorActionMap
        self.state: torch.Tensor | None
        if before is None:
            self._actions = TensorActionMap(policy.spec, policy.network).to(device)
            self.state = None if shape is None else torch.zeros(len(noise), *shape, device=device)
        else:
            self._actions, self.state = before._actions, before.state

    @one_thread()
    @torch.no_grad()
    def act(
        self, observation: tuple[torch.Tensor, ...], begun: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], torch.Tensor]:
        """Samples one action per row with the noise of the next step.

        Takes raw observations, [N, ...] for each leaf, and <bool>[N] first rows of episodes. Returns the actions of the
        policy, those of the environment, one tensor per leaf each, and the log probabilities, <float32>[N].
        """
        joint, self.state = self._policy.act(observation, None, self.state, begun)
        joint = joint.tempered(self._temperature)
        action = joint.sample(next(self._noise))
        return action, self._actions(action), joint.log_prob(action)


def _unpad(action: tuple[torch.Tensor, ...], count: int) -> Leaves:
    return tuple(leaf.cpu().numpy()[:count] for leaf in action)


def _pad(rows: NDArray[np.generic], fill: int) -> NDArray[np.generic]:
    missing = -len(rows) % _ROW_MULTIPLE
    if not missing:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.full((missing, *rows.shape[1:]), fill, rows.dtype)])
