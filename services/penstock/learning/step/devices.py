"""Torch devices: selection by name, transfer of tensors, precision, execution, and the metrics of a GPU."""

import contextlib

import torch
from torch import Tensor

from penstock.config import Execution, LearnerConfig, Precision
from penstock.errors import ConfigurationError
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.telemetry import metrics
from penstock.types.payloads import Memory


def torch_device(name: str, number: int | None = None) -> torch.device:
    """Returns the device of this name, with an index if it is a CUDA device, and makes it the current device.

    The name auto selects cuda if it is available, else cpu. The index is the `number`, where the name has none. Raises
    `ConfigurationError` if the device can't be used.
    """
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(chosen)
        if device.type == "cuda":
            device = _cuda_device(device, number)
            # Streams and graphs are created on the current device.
            torch.cuda.set_device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigurationError(
            f"learner.device {name!r} can't be used: {str(error).splitlines()[0]}; use auto, cpu, or cuda:N with the"
            " number of a GPU that nvidia-smi shows"
        ) from None
    return device


def prepared_device(settings: LearnerConfig, name: str, number: int | None, ranks: Ranks) -> torch.device:
    """Returns the device as `torch_device`, with the precision and the threads of the settings in use.

    Raises `ConfigurationError` if it can't be used, or not with the execution or precision of the settings.
    """
    device = torch_device(name, number)
    check_execution(device, settings.execution, ranks)
    use_precision(device, settings.precision)
    use_threads(settings.threads)
    return device


def _cuda_device(device: torch.device, number: int | None) -> torch.device:
    """Returns the device with an index, which `torch.cuda.set_device` needs. Raises `ValueError` if it is missing."""
    if not torch.cuda.is_available():
        raise ValueError("PyTorch finds no CUDA device")
    usual = torch.cuda.current_device() if number is None else number
    index = usual if device.index is None else device.index
    if index >= (count := torch.cuda.device_count()):
        raise ValueError(f"device {index} does not exist; PyTorch finds {count}, numbered from 0")
    return torch.device("cuda", index)


def check_execution(device: torch.device, execution: Execution, ranks: Ranks = ALONE) -> None:
    """Raises `ConfigurationError` if a device or several ranks do not support this execution of gradient steps."""
    if execution == "graphed" and not ranks.alone:
        raise ConfigurationError(
            "learner.execution 'graphed' captures the gradient steps of one rank, and there are several; use eager"
            " or compiled"
        )
    if execution == "graphed" and device.type != "cuda":
        raise ConfigurationError(
            f"learner.execution 'graphed' needs CUDA, and learner.device is {str(device)!r}; use eager"
        )


def use_precision(device: torch.device, precision: Precision) -> None:
    """Sets how CUDA devices multiply float32 matrices and convolve, in the whole process.

    Only `tf32` lets them round the factors to TF32's 10 bits. torch's default does so in convolutions and recurrent
    layers, but not in matrix products. Raises `ConfigurationError` for `tf32` on another device.
    """
    if device.type == "cuda":
        rounded = precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = rounded
        torch.backends.cudnn.allow_tf32 = rounded
    elif precision == "tf32":
        raise ConfigurationError(
            f"learner.precision 'tf32' needs CUDA, and learner.device is {str(device)!r}; use float32"
        )


def use_threads(count: int) -> None:
    """Limits torch to this number of threads on the CPU, in the whole process."""
    torch.set_num_threads(count)


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which networks compute in this precision, which `use_precision` has set."""
    if precision != "bfloat16":
        return contextlib.nullcontext()
    # Not cached: each cast weight is used only once, and CUDA graphs do not support the cache.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def payload_memory(device: torch.device) -> Memory | None:
    """Returns the memory from which a device reads columns without a further copy; None: any.

    For CUDA it is page-locked. The memory must not be reused before the copies from it have ended.
    """
    if device.type != "cuda":
        return None
    return lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().data


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Moves a CPU tensor to a device. On CUDA the copy is asynchronous, from pinned memory.

    A tensor that lies in pinned memory is copied from there, and must stay there until the copy has ended.
    """
    if device.type != "cuda":
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)


def export_gpu_metrics(device: torch.device) -> str:
    """Exports a GPU's memory and utilisation as metrics, read at each scrape. Does nothing for a CPU.

    Returns why the utilisation can't be exported; empty otherwise.
    """
    if device.type != "cuda":
        return ""
    name, used = str(device.index or 0), metrics.GPU_MEMORY_USED
    total_bytes = torch.cuda.mem_get_info(device)[1]
    metrics.GPU_MEMORY.labels(name).set(total_bytes)
    used.labels(name, "all").set_function(lambda: total_bytes - torch.cuda.mem_get_info(device)[0])
    used.labels(name, "reserved").set_function(lambda: torch.cuda.memory_reserved(device))
    used.labels(name, "tensors").set_function(lambda: torch.cuda.memory_allocated(device))
    try:
        torch.cuda.utilization(device)
    except Exception as error:
        # The driver's library may be missing in a container, and its errors have their own class hierarchy.
        return str(error)
    metrics.GPU_UTILISATION.labels(name).set_function(lambda: torch.cuda.utilization(device) / 100.0)
    return ""
