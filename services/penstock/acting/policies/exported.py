"""Policies as ONNX files, which other runtimes run without Penstock and without torch.

A file contains all that happens between an observation of `penstock.make` and a greedy action for `env.step`: offsets,
normalisation, masks, memory and the range of the actions. `export` refuses to return a file whose results differ from
the results of the policy in torch. This module needs the packages of the extra `onnx`.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.acting.environments.offsets import stacked_offsets, subtracted
from penstock.acting.policies.inference import PolicyRunner, one_thread
from penstock.acting.policies.tensor_actions import TensorActionMap
from penstock.acting.values.leaves import ActionForm, flatten
from penstock.acting.values.spaces import ActionMap, BoxMap
from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical
from penstock.algo.encoders import Preparation
from penstock.algo.policies import Policy
from penstock.algo.published import METADATA_KEY
from penstock.algo.spaces import alternatives, bounds, part_names
from penstock.errors import ConfigurationError
from penstock.machine import foreign_errors
from penstock.types.run import Weights
from penstock.types.spaces import BoxSpace, Leaf, Space

ROWS = 256
"""Random observations on which a file is checked."""

_TOLERANCE, _OF_CONVOLUTIONS = 1e-6, 1e-5
"""Results of `tolerance`. A convolution sums thousands of products, in an order that depends on the processor: on one
with AVX-512, torch differs from exact results by 1.1e-6, and by 5.2e-6 without oneDNN."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A policy as an ONNX file.

    Attributes:
        data: Bytes of the file.
        inputs: The name, type and shape of each input.
        outputs: The name, type and shape of each output.
        difference: Largest difference from the results in torch (`differences`).
    """

    data: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float


@one_thread()
def export(weights: Weights, *, module: str | None = None) -> Exported:
    """Converts a policy to an ONNX file, and checks it on random observations.

    `module` is the only module that may be imported. Raises `ForeignCode` if the weights name another one, and
    `ConfigurationError` if the policy can't be converted, or if the file differs from the policy.
    """
    runner = PolicyRunner(weights, module=module)
    model, draw = _Greedy(runner.policy).eval(), np.random.default_rng(0)
    example, batch = random_inputs(runner.policy, 3, draw), torch.export.Dim("batch")
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                model,
                tuple(torch.from_numpy(values) for values in example.values()),
                dynamo=True,
                input_names=list(example),
                output_names=model.names,
                dynamic_shapes={"inputs": ({0: batch},) * len(example)},
                verbose=False,
            )
            assert program is not None
            program.model.metadata_props[METADATA_KEY] = policy_weights.describe(runner.policy, runner.version)
            data = program.model_proto.SerializeToString()
            session = session_of(data)
    except foreign_errors.MISBEHAVIOUR as error:
        foreign_errors.let_ctrl_c_pass(error)
        own = f", or change policy.module {module!r}, which may be the reason" if module is not None else ""
        raise ConfigurationError(
            f"this policy can't be converted to ONNX ({foreign_errors.describe(error.__cause__ or error)}); use it in"
            f" Python with penstock.load_policy{own}"
        ) from error
    inputs = random_inputs(runner.policy, ROWS, draw)
    apart = differences(runner.policy, session.run(None, inputs), results(runner, inputs))
    worst = max(apart, key=lambda name: apart[name])
    if not apart[worst] <= (most := tolerance(runner.policy)):
        raise ConfigurationError(
            f"the ONNX file would differ from the policy by {apart[worst]:.1e} in {worst}, more than {most:g}, so it is"
            " not kept; use the policy in Python with penstock.load_policy"
        )
    return Exported(data, _described(session.get_inputs()), _described(session.get_outputs()), apart[worst])


def tolerance(policy: Policy) -> float:
    """Returns the largest difference from torch, as a share of the largest magnitude of a result, or of 1."""
    convolves = any(isinstance(each, nn.Conv2d) for each in policy.modules())
    return _OF_CONVOLUTIONS if convolves else _TOLERANCE


def session_of(data: bytes) -> onnxruntime.InferenceSession:
    """Opens the bytes of an ONNX file with onnxruntime, on one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def random_inputs(policy: Policy, count: int, draw: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Returns random inputs of a policy's file: `count` observations as in training, legal masks, and states.

    Parts that only the critic reads are not among them.
    """
    spec, first = policy.spec, 0
    names = spec.observation.columns("observation")
    offsets = stacked_offsets(spec, policy.network.observation_offsets)
    inputs: dict[str, NDArray[Any]] = {}
    for name, leaf, part, offset, is_read in zip(
        names, spec.observation.leaves, policy.observer.preparations, offsets, _read_by_actor(policy), strict=True
    ):
        size = math.prod(part.shape) if part.standardised else 0
        if is_read:
            values = _observations(leaf, part, policy, slice(first, first + size), count, draw)
            inputs[name] = values if offset is None else values.astype(np.float64) + offset
        first += size
    if spec.mask_bits:
        mask, start = draw.random((count, spec.mask_bits)) < 0.5, 0
        for n in spec.action.choices:
            mask[np.arange(count), start + draw.integers(n, size=count)] = True
            start += n
        inputs["action_mask"] = mask
    if policy.memory_shape is not None:
        inputs["state"] = draw.uniform(-1.0, 1.0, (count, *policy.memory_shape)).astype(np.float32)
    return inputs


def results(runner: PolicyRunner, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Returns the outputs that a policy's file must have for these inputs, computed by the code of actors."""
    spec, network = runner.policy.spec, runner.network
    count = len(next(iter(inputs.values())))
    raw = tuple(
        inputs[name] if name in inputs else np.zeros((count, *space.observation_array[1]), space.observation_array[0])
        for name, space in zip(spec.observation.columns("observation"), spec.observation.spaces, strict=True)
    )
    leaves, mask = subtracted(raw, stacked_offsets(spec, network.observation_offsets)), inputs.get("action_mask")
    runner.state = inputs.get("state")
    scores = [score.numpy()[: len(raw[0])] for score in _scores(runner.distribution(leaves, mask=mask))]
    actions = ActionMap(spec.action, network)(runner.act_greedily(leaves, mask=mask))
    nested = ActionForm(spec.action, spec.action_types).batch(actions)
    return [*flatten(spec.action, nested), *scores, *([] if runner.state is None else [runner.state])]


def differences(policy: Policy, found: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> dict[str, float]:
    """Returns how far each output is from the wanted one, as a share of the largest magnitude in it, or of 1.

    An output of another shape or type, or with other choices, is infinitely far. Where the two most likely choices are
    within the `tolerance` in log probability, rounding decides, and either may be chosen. The magnitude of a continuous
    action is that before it is clipped to its bounds, to which rounding is relative. Distributions of the user's own
    tell neither.
    """
    spaces, apart, scored = policy.spec.action.spaces, {}, not policy.has_own_distributions
    maps = ActionMap(policy.spec.action, policy.network).maps
    for position, (name, values, exact) in enumerate(zip(_output_names(policy), found, wanted, strict=True)):
        if values.shape != exact.shape or values.dtype != exact.dtype:
            apart[name] = math.inf
        elif position < len(spaces) and spaces[position].choices:
            clear = np.ones((len(exact), 1), np.bool_)
            if scored:
                clear = _is_clear(wanted[len(spaces) + position], tolerance(policy)).reshape(len(exact), -1)
            apart[name] = math.inf if (clear & (values != exact).reshape(clear.shape)).any() else 0.0
        else:
            reach = 1.0
            mapped = maps[position] if scored and position < len(spaces) else None
            if isinstance(mapped, BoxMap) and not mapped.squashes:
                reach = max(1.0, float(np.abs(mapped.scale * wanted[len(spaces) + position]).max(initial=0.0)))
            apart[name] = _difference(values.astype(np.float64), exact.astype(np.float64), reach)
    return apart


def _difference(values: NDArray[np.float64], exact: NDArray[np.float64], reach: float) -> float:
    """Returns the largest difference as a share of the largest magnitude, which is `reach` at least."""
    same = (values == exact) | (np.isnan(values) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(values - exact))
    largest = np.abs(exact[np.isfinite(exact)]).max(initial=reach)
    return float(np.where(np.isnan(apart), math.inf, apart).max(initial=0.0) / largest)


class _Greedy(nn.Module):
    """A policy that acts greedily, with the environment's side of its observations and actions, as one function.

    Attributes:
        names: Names of the results of `forward`.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        spec, network = policy.spec, policy.network
        self.policy, self.names = policy, _output_names(policy)
        self._read = _read_by_actor(policy)
        for position, offset in enumerate(stacked_offsets(spec, network.observation_offsets)):
            self.register_buffer(f"offset_{position}", None if offset is None else torch.from_numpy(offset))
        self.actions = TensorActionMap(spec, network)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Returns the actions, [N, *shape] each, the `_scores` and, with memory, the states after the rows.

        Args:
            inputs: [N, *shape] raw observations, one tensor per leaf that the actor reads; with masks, <bool>[N, bits];
                with memory, <float32>[N, parts, H] states before the rows, which are zero before the first row of an
                episode.
        """
        leaves, given = [], iter(inputs)
        for position, is_read in enumerate(self._read):
            offset: Tensor | None = getattr(self, f"offset_{position}")
            if is_read:
                values = next(given)
                leaves.append(values if offset is None else values.double() - offset)
            else:
                shape = self.policy.spec.observation.spaces[position].observation_array[1]
                leaves.append(inputs[0].new_zeros((inputs[0].shape[0], *shape)))
        mask = next(given) if self.policy.spec.mask_bits else None
        state = next(given) if self.policy.memory_shape is not None else None
        begun = None if state is None else torch.zeros_like(state[:, 0, 0], dtype=torch.bool)
        joint, after = self.policy.act(tuple(leaves), mask, state, begun)
        return (*self.actions(joint.mode()), *_scores(joint), *(() if after is None else (after,)))


def _read_by_actor(policy: Policy) -> list[bool]:
    """Returns which leaves of an observation the actor reads (`policy.critic_only`)."""
    return [name not in policy.network.critic_only for name in part_names(policy.spec)]


def _output_names(policy: Policy) -> list[str]:
    tree = policy.spec.action
    spaces = () if policy.has_own_distributions else tree.spaces
    kinds = {kind: tree.columns(kind) for kind in ("action", "log_probs", "mean")}
    scores = [
        kinds["mean" if isinstance(space, BoxSpace) else "log_probs"][position] for position, space in enumerate(spaces)
    ]
    return [*kinds["action"], *scores, *([] if policy.memory_shape is None else ["next_state"])]


def _scores(joint: Joint) -> list[Tensor]:
    """Returns the log probabilities of each leaf of choices, <float32>[N, n] or [N, k, n], and the means of each box,
    <float32>[N, A], in units of the policy; none of distributions of the user's own.
    """
    scores = []
    for part in joint.parts:
        categorical = part.choices if isinstance(part, MultiCategorical) else part
        if isinstance(categorical, Categorical):
            scores.append(categorical.log_probs)
        elif isinstance(categorical, DiagonalGaussian):
            scores.append(categorical.mean)
    return scores


def _observations(
    leaf: Leaf, part: Preparation, policy: Policy, numbers: slice, count: int, draw: np.random.Generator
) -> NDArray[Any]:
    """Returns random values of a leaf, [count, *shape]: normal ones with the moments of training, or integers.

    `numbers` are the places of its elements in the moments.
    """
    dtype, shape = leaf.space.observation_array
    low, high = _limits(leaf.space)
    if part.standardised:
        moments, size = policy.observation_moments, math.prod(shape)
        # Moments are in the order in which the encoder reads the elements.
        order = part.prepare(torch.arange(size).reshape(1, *shape)).reshape(-1).long().numpy()
        values = np.empty((count, size))
        values[:, order] = draw.normal(moments.mean[numbers], moments.variance[numbers].sqrt(), (count, size))
        values = np.clip(values if dtype.startswith("float") else np.rint(values), low, high)
        return values.reshape(count, *shape).astype(dtype)
    kind: Any = np.dtype(dtype)
    return draw.integers(low.astype(kind), high.astype(kind), (count, low.size), kind, endpoint=True).reshape(
        count, *shape
    )


def _limits(space: Space) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(space, BoxSpace):
        return bounds(space)
    integers = alternatives(space)
    assert integers is not None
    return integers[0], integers[0] + integers[1] - 1


def _is_clear(log_probs: NDArray[Any], least: float) -> NDArray[np.bool_]:
    """Returns whether the most likely choice is more likely than all others by more than rounding, `least`."""
    if log_probs.shape[-1] == 1:
        return np.ones(log_probs.shape[:-1], np.bool_)
    second, first = np.moveaxis(np.partition(log_probs, -2)[..., -2:], -1, 0)
    clear: NDArray[np.bool_] = first - second > least * np.maximum(1.0, np.abs(first))
    return clear


def _described(ends: Any) -> tuple[str, ...]:
    return tuple(f"{each.name} {each.type.removeprefix('tensor')}{each.shape}".replace("'", "") for each in ends)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings about packages that the conversion does not need, such as torchvision."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
