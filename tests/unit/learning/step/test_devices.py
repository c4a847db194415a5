"""Selection of the learner's device. Tests that need a GPU are in tests/gpu; these set the devices that torch finds."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from penstock.algo.network import Network
from penstock.config import Precision
from penstock.errors import ConfigurationError
from penstock.learning.run.assembly import _WORK_OF_A_CORE, core_is_faster
from penstock.learning.step.devices import autocast, torch_device, use_precision
from penstock.presets import configure
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, make_learner

ROOT = Path(__file__).parents[4]


def spec(observation: BoxSpace, actions: int) -> EnvironmentSpec:
    return EnvironmentSpec("workload", Tree.of(observation), Tree.of(DiscreteSpace(actions)))


# The workloads of benchmarks/gpu/learner_throughput.py.
SMALL = spec(BoxSpace("float32", (8,), (-1.0,), (1.0,)), 4)
MEDIUM = spec(BoxSpace("float32", (17,), (-1.0,), (1.0,)), 6)
FRAMES = spec(BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,)), 6)

Find = Callable[[int], list[int]]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Makes torch find this number of CUDA devices, the last one current. Returns the devices made current."""

    def found(count: int) -> list[int]:
        made_current: list[int] = []
        # The check that torch's own function makes first, without the driver call that follows.
        index_of = torch.cuda._utils._get_device_index
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: count - 1)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: made_current.append(index_of(device)))
        monkeypatch.setattr(torch, "empty", lambda *size, device: torch.zeros(*size))
        return made_current

    return found


@pytest.mark.parametrize(("name", "index"), [("auto", 1), ("cuda", 1), ("cuda:0", 0)])
def test_a_cuda_device_gets_an_index_and_becomes_the_current_device(find: Find, name: str, index: int) -> None:
    made_current = find(2)
    assert torch_device(name) == torch.device("cuda", index)
    assert made_current == [index]


def test_auto_selects_the_cpu_without_cuda(find: Find) -> None:
    find(0)
    assert torch_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("devices", "name", "reason"),
    [
        (2, "cuda:9", "device 9 does not exist; PyTorch finds 2, numbered from 0"),
        (0, "cuda", "PyTorch finds no CUDA device"),
        (0, "cuda:9", "PyTorch finds no CUDA device"),
        (1, "cuda:x", "Invalid device string: 'cuda:x'"),
        (0, "gpu", "device type"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_in_one_line(find: Find, devices: int, name: str, reason: str) -> None:
    find(devices)
    with pytest.raises(ConfigurationError, match=f"^learner.device '{name}' can't be used: [^\n]*{reason}[^\n]*$"):
        torch_device(name)


def test_a_device_of_this_machine_computes() -> None:
    assert torch.ones(2, device=torch_device("auto")).sum().item() == 2.0


def tf32() -> tuple[bool, bool]:
    """Returns torch's flags for matrix products and for convolutions."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def flags() -> Iterator[None]:
    """Restores torch's flags afterwards."""
    before = tf32()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("precision", "rounded"), [("float32", False), ("tf32", True), ("bfloat16", False)])
@pytest.mark.usefixtures("flags")
def test_only_tf32_rounds_factors_of_float32(precision: Precision, rounded: bool) -> None:
    # The opposite first, so that each flag must be set.
    use_precision(torch.device("cuda", 0), "float32" if rounded else "tf32")
    use_precision(torch.device("cuda", 0), precision)
    assert tf32() == (rounded, rounded)


def test_a_learner_on_a_cpu_does_not_change_flags_of_cuda() -> None:
    before = tf32()
    make_learner(precision="bfloat16")
    assert tf32() == before


def test_tf32_without_cuda_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'tf32' needs CUDA, and learner\.device is 'cpu'; use float32"):
        make_learner(precision="tf32")


def test_only_bfloat16_casts_layers() -> None:
    ones = torch.ones(2, 2)
    results: dict[Precision, torch.dtype] = {}
    for precision in get_args(Precision):
        with autocast(CPU, precision):
            results[precision] = (ones @ ones).dtype
    assert results == {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def rate(name: str, policy: str) -> float:
    """Returns the samples per second of a published measurement: of the execution that a run has by default."""
    cases = json.loads((ROOT / "results" / "gpu" / f"{name}.json").read_text())["cases"]
    (found,) = [
        each["samples_per_s"]
        for each in cases
        if (each["policy"], each["precision"]) == (policy, "float32") and each["execution"] != "eager"
    ]
    return float(found)


def test_the_largest_network_for_a_core_is_the_one_that_a_gpu_trains_as_fast_by_the_measurements() -> None:
    policies = fresh_policy(SMALL, network=Network()), fresh_policy(MEDIUM, network=Network(hidden_sizes=(256, 256)))
    small, medium = (sum(each.numel() for each in policy.parameters()) for policy in policies)
    on_gpu = math.sqrt(rate("learner", "small") * rate("learner", "medium"))
    core = [rate("learner_cpu_1", name) for name in ("small", "medium")]
    slope = math.log(core[0] / core[1]) / math.log(medium / small)
    crossing = small * (core[0] / on_gpu) ** (1.0 / slope)
    assert 0.9 * crossing < _WORK_OF_A_CORE / 512 < crossing


@pytest.mark.parametrize(
    ("settings", "core"),
    [
        ({}, True),
        ({"learner": {"execution": "eager"}}, False),
        ({"learner": {"loss": "penstock.losses:ppo"}}, False),
        ({"policy": {"hidden_sizes": [256, 256]}}, False),
        ({"policy": {"memory": "lstm"}}, False),
        ({"ppo": {"minibatches": 1}, "sampling": {"batch_segments": 256}}, False),
    ],
)
def test_a_core_is_chosen_for_small_networks_with_dense_layers_alone(settings: dict[str, Any], *, core: bool) -> None:
    config = configure("CartPole-v1", **settings)
    assert core_is_faster(config, SMALL) is core
    assert not core_is_faster(config, FRAMES)
