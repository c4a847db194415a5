"""ONNX files of policies: they act as `load_policy` does, without Penstock and without torch."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.acting.environments.offsets import stacked_offsets
from penstock.acting.policies.trained import load_policy
from penstock.acting.values.leaves import flatten, unflatten
from penstock.acting.values.spaces import ActionMap, BoxMap
from penstock.algo.network import Network
from penstock.algo.own_policies import OwnPolicy
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.runs import checkpoint_file
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    MultiDiscreteSpace,
    Space,
    Tree,
)
from tests.support.machine.hidden_packages import hiding
from tests.support.machine.timing import PATIENCE_S
from tests.support.segments.spaces import ACTIONS, NAMES, OBSERVATION, OBSERVATION_NAMES, OBSERVATIONS, masked, nested
from tests.support.training.policies import fresh_policy, weights_of

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")

from penstock.acting.policies.exported import differences, export, random_inputs, tolerance

COUNT, STEPS = 10_000, 4
Kind = tuple[EnvironmentSpec, Network]

PLAIN = Network(hidden_sizes=(16, 16))
BOX = BoxSpace("float32", (2,), (-2.0,) * 2, (3.0,) * 2)
INEXACT = BoxSpace("float32", (2,), (0.1, -np.inf), (0.7, np.inf))
FRAMES = BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,))
PICTURE = BoxSpace("uint8", (3, 36, 40), (0.0,), (255.0,))
BOARD = BoxSpace("int8", (5, 5), (0.0,), (4.0,))
HEIGHTS = BoxSpace("float32", (37, 36, 2), (-np.inf,), (np.inf,))
LAST_THREE = BoxSpace("float32", (9,), (-np.inf,) * 9, (np.inf,) * 9)


def spec_of(observation: Space | Tree, action: Space | Tree, **more: Any) -> EnvironmentSpec:
    observed, acted = (each if isinstance(each, Tree) else Tree.of(each) for each in (observation, action))
    return EnvironmentSpec("Example-v0", observed, acted, **more)


class Branching(nn.Module):
    """A module that torch can't trace: its branch depends on values."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)

    def forward(self, values: Tensor) -> Tensor:
        features: Tensor = self.layer(values)
        return features if values.abs().max() < 1e6 else -features


class Doubling(Branching):
    def forward(self, values: Tensor) -> Tensor:
        features: Tensor = self.layer(values)
        return torch.cat([features, features.sin()], -1)


WORDS = MultiDiscreteSpace((6,), (2048,) * 6, (0,) * 6)

KINDS: dict[str, Kind] = {
    "memory, masks and nested spaces": (
        masked(spec_of(OBSERVATIONS[-1][1], ACTIONS[-1][1])),
        Network(hidden_sizes=(16,), memory="lstm", memory_size=8),
    ),
    "squashed": (
        spec_of(OBSERVATION, BOX),
        Network(hidden_sizes=(16, 16), squash_actions=True, state_dependent_std=True),
    ),
    "offsets of stacked frames": (
        spec_of(LAST_THREE, DiscreteSpace(3), frames=3),
        Network(hidden_sizes=(16,), observation_offsets=(1e7, 0.0, -3e5)),
    ),
    "stacked images": (spec_of(FRAMES, DiscreteSpace(6), frames=4), Network(hidden_sizes=(), trunk="shared")),
    "moves on a board": (
        spec_of(BOARD, DiscreteSpace(625), mask_bits=625),
        Network(moves="observation", encoders={"observation": "board"}),
    ),
    "a module of the user": (
        spec_of(OBSERVATION, DiscreteSpace(3)),
        Network(hidden_sizes=(16,), module=f"{__file__}:Doubling"),
    ),
    "distributions of the user": (spec_of(OBSERVATION, BOX), Network(module="examples.bounded_actions:Bounded")),
    "states of the user": (
        spec_of(OBSERVATION, DiscreteSpace(3)),
        Network(module="tests.unit.algo.test_own_policies:Recurrent", memory="module", memory_size=8),
    ),
    **{f"acts {name}": (spec_of(OBSERVATION, tree), PLAIN) for name, (_, tree) in zip(NAMES, ACTIONS, strict=True)},
    **{
        f"observes {name}": (spec_of(tree, DiscreteSpace(2)), PLAIN)
        for name, (_, tree) in zip(OBSERVATION_NAMES, OBSERVATIONS, strict=True)
    },
    **{
        f"masks {name}": (masked(spec_of(OBSERVATION, tree)), PLAIN)
        for name, (_, tree) in zip(NAMES, ACTIONS, strict=True)
        if tree.choices
    },
    "bounds that float32 can't hold": (spec_of(OBSERVATION, INEXACT), PLAIN),
    "squashed, with memory": (
        spec_of(OBSERVATION, INEXACT),
        Network(hidden_sizes=(16,), memory="gru", memory_size=8, squash_actions=True, trunk="shared"),
    ),
    "lstm": (spec_of(OBSERVATION, DiscreteSpace(4, -1)), Network(memory="lstm", memory_size=32, activation="relu")),
    "gru": (spec_of(OBSERVATION, DiscreteSpace(4, -1)), Network(memory="gru", memory_size=32)),
    "images and numbers": (
        spec_of(nested((("camera",), PICTURE), (("speed",), OBSERVATION)), BOX),
        Network(hidden_sizes=(32,), trunk="shared", activation="relu"),
    ),
    "parts for the critic alone": (
        spec_of(nested((("own",), OBSERVATION), (("state",), BOX), (("turn",), DiscreteSpace(3))), DiscreteSpace(4)),
        Network(hidden_sizes=(16,), critic_only=("state", "turn")),
    ),
    "a board of numbers": (spec_of(HEIGHTS, DiscreteSpace(3)), Network(hidden_sizes=(16,), trunk="shared")),
    "a one-hot board with moves": (
        spec_of(BOARD, DiscreteSpace(625)),
        Network(moves="observation", encoders={"observation": "one_hot"}),
    ),
    "words": (spec_of(WORDS, DiscreteSpace(5)), replace(PLAIN, encoders={"observation": "token_mean"})),
    "words in their order": (spec_of(WORDS, DiscreteSpace(5)), replace(PLAIN, encoders={"observation": "token_gru"})),
    "embedded": (spec_of(DiscreteSpace(3000), DiscreteSpace(5)), PLAIN),
    "neither standardised nor one-hot": (
        spec_of(nested((("a",), OBSERVATION), (("b",), DiscreteSpace(9, 3))), DiscreteSpace(5)),
        Network(hidden_sizes=(16,), normalise_observations=False, encoders={"b": "flat"}),
    ),
    "integers of the environment's types": (
        spec_of(
            OBSERVATION,
            nested((("a",), DiscreteSpace(3)), (("b",), MultiDiscreteSpace((2,), (3, 4), (0, 5)))),
            action_types=("int32", "uint8"),
        ),
        PLAIN,
    ),
}

CHILD = """
import sys
import numpy as np, onnxruntime

onnxruntime.set_default_logger_severity(3)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
names = [each.name for each in session.get_outputs()]
given, found, state = dict(np.load(sys.argv[2])), {name: [] for name in names}, {}
for step in range(int(sys.argv[4])):
    inputs = {name: values[step] for name, values in given.items()} | state
    outputs = dict(zip(names, session.run(None, inputs)))
    if "next_state" in outputs:
        state = {"state": outputs["next_state"]}
    for name in names:
        found[name].append(outputs[name])
np.savez(sys.argv[3], **{name: np.stack(values) for name, values in found.items()})
assert not {"penstock", "torch"} & set(sys.modules)
"""
"""A program that acts in STEPS steps with an ONNX file alone, on inputs [STEPS, N, ...]."""


def trained_policy(spec: EnvironmentSpec, network: Network) -> Policy:
    """Returns a policy with the normalisers of a trained one, whose actions depend on its observations."""
    policy, draw = fresh_policy(spec, network=network), np.random.default_rng(1)
    with torch.no_grad():
        moments = policy.observation_moments
        moments.mean.copy_(torch.from_numpy(draw.normal(0.0, 3.0, moments.mean.shape)))
        moments.variance.copy_(torch.from_numpy(draw.uniform(0.01, 4.0, moments.mean.shape)))
        moments.count.fill_(1000.0)
        if network.moves is None:
            name = "module.actor" if isinstance(policy, OwnPolicy) else "actor"
            list(policy.get_submodule(name).parameters())[-2].mul_(100.0)
    return policy


def saved(policy: Policy, folder: Path) -> Path:
    file = folder / "policy.safetensors"
    file.write_bytes(checkpoint_file.sealed(weights_of(policy, 7).data))
    return file


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_a_file_acts_without_penstock_as_load_policy_does(name: str, tmp_path: Path) -> None:
    spec, network = KINDS[name]
    policy, rows = trained_policy(spec, network), COUNT // STEPS
    exported = export(weights_of(policy, 7), module=network.module)
    most = tolerance(policy)
    assert exported.difference <= most <= 1e-5
    (tmp_path / "policy.onnx").write_bytes(exported.data)
    drawn = random_inputs(policy, COUNT, np.random.default_rng(2))
    state = drawn.pop("state", None)
    given: dict[str, Any] = {key: values.reshape(STEPS, rows, *values.shape[1:]) for key, values in drawn.items()}
    if state is not None:
        # An episode begins with a state of zeros.
        given["state"] = np.zeros((STEPS, rows, *state.shape[1:]), np.float32)
    np.savez(tmp_path / "given.npz", **given)
    files = [str(tmp_path / each) for each in ("policy.onnx", "given.npz", "found.npz")]
    (tmp_path / "hidden").mkdir()
    hidden = hiding(tmp_path / "hidden", "penstock", "torch", "onnx", "onnxscript")
    subprocess.run([sys.executable, "-c", CHILD, *files, str(STEPS)], check=True, timeout=PATIENCE_S, env=hidden)
    found = dict(np.load(tmp_path / "found.npz"))
    trained, names = (
        load_policy(saved(policy, tmp_path), module=network.module),
        spec.observation.columns("observation"),
    )
    actions, maps = spec.action.columns("action"), ActionMap(spec.action, network).maps
    for step in range(STEPS):
        observation = unflatten(spec.observation, [given[each][step] if each in given else None for each in names])
        if network.critic_only:
            observation = {key: values for key, values in observation.items() if values is not None}
        mask = given["action_mask"][step] if spec.mask_bits else None
        expected = flatten(spec.action, trained.act(observation, action_mask=mask))
        for position, (key, wanted) in enumerate(zip(actions, expected, strict=True)):
            acted = found[key][step]
            assert (acted.dtype, acted.shape) == (wanted.dtype, wanted.shape)
            if isinstance(mapped := maps[position], BoxMap):
                # Before the action is scaled and clipped to its bounds, it was as large as the mean times the scale.
                scores = found.get(spec.action.columns("mean")[position])
                assert (scores is None) == policy.has_own_distributions
                reach = 1.0
                if scores is not None and not network.squash_actions:
                    reach = np.abs(mapped.scale * scores[step]).max()
                largest = max(1.0, reach, np.abs(wanted).max())
                np.testing.assert_allclose(acted, wanted, rtol=0.0, atol=most * largest)
                continue
            ranked = np.sort(found[spec.action.columns("log_probs")[position]][step])
            ties = (ranked[..., -1:] - ranked[..., -2:-1] <= most).reshape(acted.shape)
            assert (ties | (acted == wanted)).all()
            # An observation of zeros leaves all choices equal; of five bits, it is one of 32.
            assert ties.mean() < 0.05


def test_the_inputs_of_the_check_are_as_in_training() -> None:
    spec, network = KINDS["offsets of stacked frames"]
    policy = trained_policy(spec, network)
    drawn = random_inputs(policy, 4000, np.random.default_rng(3))["observation"]
    (offset,) = stacked_offsets(spec, network.observation_offsets)
    assert offset is not None and drawn.dtype == np.float64
    moments = policy.observation_moments
    np.testing.assert_allclose((drawn - offset).mean(0), moments.mean, atol=0.2)
    np.testing.assert_allclose((drawn - offset).var(0), moments.variance, rtol=0.1)
    spec, network = KINDS["memory, masks and nested spaces"]
    masks = random_inputs(trained_policy(spec, network), 500, np.random.default_rng(3))["action_mask"]
    starts = np.cumsum([0, *spec.action.choices])[:-1]
    assert np.logical_or.reduceat(masks, starts, axis=1).all() and not masks.all(0).any()


def outputs() -> tuple[Policy, list[NDArray[Any]]]:
    """Returns a policy with a choice of three and a box of two, and outputs for two rows."""
    spec = spec_of(OBSERVATION, ACTIONS[len(ACTIONS) - 2][1])
    tied = np.array([[-0.5, -1.0, -9.0], [-0.7, -0.7, -9.0]], np.float32)
    box = np.array([[0.5, -1.0], [0.0, 4.0]], np.float32)
    return fresh_policy(spec), [np.array([0, 1]), box, tied, box]


@pytest.mark.parametrize(
    ("position", "change", "apart"),
    [
        (0, lambda action: action + [0, -1], 0.0),
        (0, lambda action: action + [1, 0], np.inf),
        (0, lambda action: action.astype(np.int32), np.inf),
        (1, lambda action: action + np.float32(1e-3), 1e-3 / 4.0),
        (2, lambda scores: np.where(scores < -8.0, -np.inf, scores).astype(np.float32), np.inf),
        (3, lambda means: np.where(means == 4.0, np.nan, means).astype(np.float32), np.inf),
        (3, lambda means: means[:1], np.inf),
    ],
)
def test_a_file_that_differs_from_the_policy_is_noticed(position: int, change: Any, apart: float) -> None:
    policy, wanted = outputs()
    assert set(differences(policy, wanted, wanted).values()) == {0.0}
    found = [change(each) if place == position else each for place, each in enumerate(wanted)]
    measured = list(differences(policy, found, wanted).values())
    assert measured.pop(position) == pytest.approx(apart, rel=1e-3)
    assert set(measured) == {0.0}


def test_a_module_that_can_not_be_converted_is_refused_in_one_line() -> None:
    spec, network = spec_of(OBSERVATION, DiscreteSpace(3)), Network(hidden_sizes=(8,), module=f"{__file__}:Branching")
    weights = weights_of(fresh_policy(spec, network=network), 0)
    with pytest.raises(ConfigurationError, match=r"^this policy can't be converted to ONNX \([^\n]*Branching'[^\n]*$"):
        export(weights, module=network.module)


def test_a_file_names_its_inputs_and_outputs() -> None:
    spec, network = KINDS["memory, masks and nested spaces"]
    exported = export(weights_of(fresh_policy(spec, network=replace(network, memory_size=4)), 0))
    assert exported.inputs == (
        "observation.board (uint8)[batch, 9, 9]",
        "observation.next_balls-1 (uint8)[batch, 3]",
        "observation.robot.arms.0 (uint8)[batch, 2]",
        "observation.robot.arms.1 (float)[batch]",
        "observation.robot.mode (uint8)[batch]",
        "action_mask (bool)[batch, 11]",
        "state (float)[batch, 2, 4]",
    )
    assert [each.split()[0] for each in exported.outputs] == [
        *("action.buttons", "action.move.0", "action.move.1"),
        *("log_probs.buttons", "log_probs.move.0", "log_probs.move.1", "next_state"),
    ]
