"""Whole policies of users (`policy.module`, a `policies.PolicyModule`), and the choice of a policy's class."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from penstock.algo.action_heads import ActionHead
from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical
from penstock.algo.encoders import Features, by_part
from penstock.algo.network import Network, Noise
from penstock.algo.own_modules import check_same, class_of, made_up_rows, refusal, rows_of, shown
from penstock.algo.policies import Head, Inputs, Policy
from penstock.algo.policy_modules import PolicyModule, PolicySpaces
from penstock.errors import ConfigurationError
from penstock.machine import foreign_errors
from penstock.types.spaces import EnvironmentSpec

_ROWS = 3


def policy_of(spec: EnvironmentSpec, network: Network) -> Policy:
    """Builds a new policy of this architecture for these spaces. Raises `ConfigurationError` as `Policy`."""
    if network.module is not None and issubclass(class_of(network.module), PolicyModule):
        if network.moves is not None:
            raise refusal(network.module, "is a whole policy, and policy.moves is set", "remove policy.moves")
        if network.memory not in (None, "module"):
            raise refusal(
                network.module,
                f"is a whole policy, and policy.memory is {network.memory}",
                "remove it, or set it to module for states of the policy's own",
            )
        return OwnPolicy(spec, network)
    if network.memory == "module":
        fault = "is not set" if network.module is None else f"{network.module!r} is not a whole policy"
        raise ConfigurationError(
            f"policy.memory is module, and policy.module {fault}; name a subclass of penstock.policies.PolicyModule, or"
            " set policy.memory to gru"
        )
    return Policy(spec, network)


class OwnPolicy(Policy):
    """A policy whose networks are the user's. Observations and returns are standardised as in other policies."""

    def _add_networks(self) -> Head:
        name, network = self.network.module, self.network
        assert name is not None
        self._dimensions = len(self.observer.preparations[0].shape)
        self._state_size = network.memory_size if network.memory == "module" else 0
        action = ActionHead(self.spec.action, network)
        shapes = tuple(part.shape for part in self.observer.preparations)
        spaces = PolicySpaces(shapes, self.spec.action.spaces, action.outputs, self._state_size)
        kind: Any = class_of(name)
        try:
            self.module: PolicyModule = kind(spaces)
            return self._tried(name, action)
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            if isinstance(error, ConfigurationError):
                raise
            raise refusal(name, f"failed for {spaces}: {foreign_errors.explain(error)}", "correct it") from error

    @property
    def memory_shape(self) -> tuple[int, int] | None:
        """Shape of one state, (1, H); None without states."""
        return (1, self._state_size) if self._state_size else None

    @property
    def own_value_network(self) -> None:
        """None: only the user's code knows its parts."""

    @property
    def notices(self) -> tuple[str, ...]:
        """A line that says which settings have no effect."""
        return (
            f"policy.module {self.network.module} is the whole policy; policy.hidden_sizes, policy.trunk and"
            " policy.activation have no effect",
        )

    @property
    def auxiliary_networks(self) -> list[nn.Module]:
        """The user's policy, if it has an auxiliary loss."""
        return [self.module] if hasattr(self.module, "auxiliary_loss") else []

    def features_of_pairs(self, inputs: Inputs, burn_in: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields pairs of features, as `Policy.features_of_pairs`, of a policy without states."""
        leading, before = self._rows_encoded(self._prepared(inputs.observation))
        _, after = self._rows_encoded(self._prepared(inputs.following))
        yield before.reshape(*leading, *before.shape[1:]), after.reshape(*leading, *after.shape[1:])

    def _step(self, prepared: Features, state: Tensor | None, begun: Tensor | None) -> tuple[Tensor, Tensor | None]:
        features, state = self._encoded(by_part(prepared), state, begun)
        return _in_float32(self.module.outputs, features), state

    def _evaluated(
        self, prepared: Features, inputs: Inputs, burn_in: int, *, bootstraps: bool
    ) -> tuple[Tensor, Tensor]:
        if self._state_size:
            assert inputs.state is not None and inputs.begun is not None
            leading, features = self._unrolled(by_part(prepared), inputs.state, inputs.begun, burn_in)
        else:
            leading, features = self._rows_encoded(prepared)
        value = _in_float32(self.module.value, features).reshape(leading)
        features = features.reshape(*leading, *features.shape[1:])
        acting = features[:, :-1] if bootstraps else features
        acting_rows = acting.reshape(-1, *features.shape[len(leading) :])
        outputs = _in_float32(self.module.outputs, acting_rows)
        return outputs.reshape(*acting.shape[: len(leading)], *outputs.shape[1:]), value

    def _rows_encoded(self, prepared: Features) -> tuple[torch.Size, Tensor]:
        """Returns the leading dimensions of prepared observations, and features of their rows, [N, ...]."""
        leading, rows = rows_of(prepared, self._dimensions)
        return leading, self._encoded(tuple(rows), None, None)[0]

    def _unrolled(
        self, parts: tuple[Tensor, ...], state: Tensor, begun: Tensor, burn_in: int
    ) -> tuple[torch.Size, Tensor]:
        """Returns the leading dimensions of the rows after the burn-in of segments, and features of these rows."""
        found = []
        for row in range(begun.shape[1]):
            with torch.set_grad_enabled(row >= burn_in and torch.is_grad_enabled()):
                features, after = self._encoded(tuple(part[:, row] for part in parts), state, begun[:, row])
            assert after is not None
            state = after
            if row >= burn_in:
                found.append(features)
        stacked = torch.stack(found, 1)
        return stacked.shape[:2], stacked.flatten(0, 1)

    def _encoded(
        self, parts: tuple[Tensor, ...], state: Tensor | None, begun: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the features of rows, [N, ...], and the states after them, <float32>[N, 1, H]."""
        if state is None or begun is None:
            return self.module.encode(parts, None)[0], None
        features, after = self.module.encode(parts, torch.where(begun[:, None], 0.0, state[:, 0]))
        assert after is not None
        return features, after.float().unsqueeze(1)

    @torch.no_grad()
    def _tried(self, name: str, action: ActionHead) -> Head:
        """Calls all methods of the user's policy for made-up rows, and returns the head for its outputs."""
        rows = made_up_rows(self.observer, _ROWS)
        found = self._called(name, rows)
        alone = self._called(name, [row[:1] for row in rows])
        check_same(name, "numbers", found, again=self._called(name, rows), alone=alone)
        outputs = found[0]
        if type(self.module).distribution is PolicyModule.distribution:
            _check(name, "outputs", outputs, (_ROWS, action.outputs))
            return action
        return OwnHead(self.module.distribution, _tried_distribution(name, self.spec, self.module, outputs.float()))

    def _called(self, name: str, rows: Sequence[Tensor]) -> list[Tensor]:
        """Returns the outputs, values and, if there are any, states of the user's policy after checking their form."""
        count = len(rows[0])
        state = torch.zeros(count, self._state_size) if self._state_size else None
        pair = self.module.encode(tuple(rows), state)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise refusal(name, f"returned {shown(pair)} from encode", "return a pair, the features and the state")
        features, after = pair
        _check(name, "encode", features, (count,), more=True)
        if state is None and after is not None:
            raise refusal(name, "returned a state from encode", "set policy.memory to module, or return None")
        found = [self.module.outputs(features), self.module.value(features)]
        _check(name, "outputs", found[0], (count,), more=True)
        _check(name, "value", found[1], (count,))
        if state is not None and self.auxiliary_networks:
            raise refusal(name, "has states and an auxiliary loss", "remove the method auxiliary_loss")
        if state is not None:
            _check(name, "encode as the state", after, (count, self._state_size))
            assert after is not None
            found.append(after)
        return found


class OwnHead(nn.Module):
    """Head of a user's policy that makes its distributions itself.

    Attributes:
        is_own: Whether a part is of a class of the user's own.
        noise: Random numbers from which each leaf of one action is sampled.
        limits: None for each leaf, because the range of actions is the user's.
    """

    def __init__(self, distribution: Callable[[Tensor, Tensor | None], Joint], tried: Joint) -> None:
        """Takes the user's function, and a distribution that it returned."""
        super().__init__()
        self._distribution = distribution
        self.noise: tuple[Noise, ...] = tried.noise
        self.limits: tuple[None, ...] = (None,) * len(tried.parts)
        ours = (Categorical, MultiCategorical, DiagonalGaussian)
        self.is_own = not all(isinstance(part, ours) for part in tried.parts)

    def log_std(self) -> None:
        """Returns None: the user's policy has all parameters."""

    def distribution(self, outputs: Tensor, log_std: Tensor | None, legal: Tensor | None) -> Joint:
        """Builds the distribution, as `ActionHead.distribution`."""
        return self._distribution(outputs, legal)


def _in_float32(function: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Returns the results of a head, <float32>[N, ...], for features of any precision.

    bfloat16 has too few bits for values and for ratios of probabilities.
    """
    if not torch.is_autocast_enabled(features.device.type):
        return function(features)
    with torch.autocast(features.device.type, enabled=False):
        return function(features.float())


def _tried_distribution(name: str, spec: EnvironmentSpec, module: PolicyModule, outputs: Tensor) -> Joint:
    """Returns a distribution of the user's for made-up outputs after calling all methods of its parts."""
    joint = module.distribution(
        outputs, torch.ones(_ROWS, spec.mask_bits, dtype=torch.bool) if spec.mask_bits else None
    )
    leaves = spec.action.spaces
    if not isinstance(joint, Joint) or len(joint.parts) != len(leaves):
        raise refusal(
            name,
            f"returned {joint!r} from distribution",
            f"return penstock.policies.Joint of a tuple with {len(leaves)} parts, one for each leaf of the action",
        )
    noise = torch.full((_ROWS, sum(each.size for each in joint.noise)), 0.5)
    _check(name, "entropy", joint.entropy(), (_ROWS,))
    for temperature in 1.0, 0.5:
        tempered = joint.tempered(temperature)
        for what, actions in ("sample", tempered.sample(noise)), ("mode", tempered.mode()):
            for action, space in zip(actions, leaves, strict=True):
                dtype, shape = space.action_array
                if (tuple(action.shape), shown(action)) != ((_ROWS, *shape), wanted := f"{dtype}{[_ROWS, *shape]}"):
                    raise refusal(name, f"returned {shown(action)} from {what}", f"return {wanted}")
            _check(name, "log_prob", tempered.log_prob(actions), (_ROWS,))
    return joint


def _check(name: str, method: str, found: object, shape: tuple[int, ...], *, more: bool = False) -> None:
    """Raises `ConfigurationError` unless a method returned finite floats of this shape, or with `more` dimensions."""
    wanted = f"[{', '.join(map(str, shape))}{', ...' if more else ''}]"
    fits = isinstance(found, Tensor) and found.is_floating_point() and tuple(found.shape[: len(shape)]) == shape
    if not isinstance(found, Tensor) or not fits or (found.ndim > len(shape)) != more:
        raise refusal(name, f"returned {shown(found)} from {method}", f"return floats of shape {wanted}")
    if not bool(found.isfinite().all()):
        raise refusal(name, f"returned numbers that are not finite from {method}", "correct it")
