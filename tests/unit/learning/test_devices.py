"""Selection of the learner's device. Tests that need a GPU are in tests/gpu; these set the devices that torch finds."""

from collections.abc import Callable, Iterator
from typing import get_args

import pytest
import torch

from helpers.training import CPU, make_learner
from penstock.config import Precision
from penstock.errors import ConfigurationError
from penstock.learning.devices import autocast, torch_device, use_precision

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
