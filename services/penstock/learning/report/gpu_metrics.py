"""Metrics of a GPU."""

import torch

from penstock.telemetry import metrics


def show(device: torch.device) -> str:
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
