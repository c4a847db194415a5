"""Tests that need a CUDA device. They are skipped on machines without one."""

from pathlib import Path

import pytest
import torch

from penstock.learning.step.devices import torch_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"))


@pytest.fixture
def cuda() -> torch.device:
    return torch_device("cuda")
