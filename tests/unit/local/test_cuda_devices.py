"""A device that certainly can't be used is refused without torch; others are left to the learner."""

import ctypes
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from penstock.config import build
from penstock.errors import ConfigurationError
from penstock.local import first_checks
from penstock.local.first_checks import check_device, why_no_cuda

CUDA = "cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
NONE = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
HIP = "cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the version of an installed torch with CUDA, on a machine with a driver and two GPUs."""
    (tmp_path / "torch").mkdir()
    version = tmp_path / "torch" / "version.py"
    version.write_text(CUDA)
    found = ModuleSpec("torch", None, origin=str(version.with_name("__init__.py")))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(first_checks, "_GPUS", tmp_path / "gpus")
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return version


def no_driver(name: str) -> None:
    raise OSError(name)


def test_a_gpu_that_may_be_there_is_left_to_the_learner(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_cuda() == why_no_cuda(1) == ""
    check_device(build({"learner": {"device": "cuda:1", "precision": "tf32"}}))
    torch.write_text(HIP)
    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    assert why_no_cuda() == ""


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_torch_without_cuda_is_named(torch: Path, device: str) -> None:
    torch.write_text(NONE)
    with pytest.raises(
        ConfigurationError, match=rf"'{device}' can't be used: torch is built without CUDA; use --device"
    ):
        check_device(build({"learner": {"device": device}}))


def test_a_driver_that_is_missing_is_named(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    assert "no driver of NVIDIA" in why_no_cuda()


def test_a_number_beyond_the_gpus_is_named(torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_cuda(2) == "device 2 does not exist; there are 2, numbered from 0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert why_no_cuda(1) == "device 1 does not exist; there is 1, numbered from 0"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_named(torch: Path, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert why_no_cuda() == f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides all GPUs"


@pytest.mark.parametrize(
    ("setting", "value", "remedy"), [("execution", "graphed", "auto"), ("precision", "tf32", "float32")]
)
def test_settings_that_need_a_gpu_are_refused_without_one(torch: Path, setting: str, value: str, remedy: str) -> None:
    check_device(build({"learner": {setting: value}}))
    expected = rf"learner\.{setting} '{value}' needs CUDA, .*; use --learner\.{setting} {remedy}$"
    with pytest.raises(ConfigurationError, match=expected):
        check_device(build({"learner": {setting: value, "device": "cpu"}}))
    torch.write_text(NONE)
    with pytest.raises(ConfigurationError, match=expected):
        check_device(build({"learner": {setting: value}}))
    check_device(build({"learner": {setting: remedy}}))
