"""Kernels, idle time and waits of training on one batch, for the small and the convolutional policy.

Prints torch's table of the operations by their time on the device, and for how many of them the host waited. The result
is build/bench/gpu/profile.json. `--device cpu --small` is a check that takes seconds.
"""

import argparse
import json
import warnings
from dataclasses import asdict, dataclass, replace

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.learner_throughput import RESULTS, WORKLOADS, Workload, machine, random_batch
from penstock.learning.step.batches import TrainingBatch, to_tensors
from penstock.learning.step.devices import torch_device
from penstock.learning.step.learner import Learner

_WARM_UPS = 3
_ROWS = 25


@dataclass(frozen=True, slots=True)
class Case:
    """Training on one batch.

    Attributes:
        policy: Name of the workload.
        batch_ms: Milliseconds from the first to the last event of the profile.
        busy_share: Share of that time in which the device computed; None on a CPU.
        operations: Operations that torch dispatched.
        waits: Times that the host waited for the device, as CUDA reports; None on a CPU.
    """

    policy: str
    batch_ms: float
    busy_share: float | None
    operations: int
    waits: int | None


def measure(name: str, workload: Workload, device: torch.device) -> Case:
    """Profiles one batch after some others."""
    learner = workload.learner(device, ppo={"target_kl": None})
    batch = to_tensors(random_batch(workload, 0), device)
    for _ in range(_WARM_UPS):
        learner.train(batch, 0.0)
    cuda = device.type == "cuda"
    waits = _waits(learner, batch) if cuda else None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        learner.train(batch, 0.0)
    averages = profiler.key_averages()
    print(averages.table(sort_by="self_cuda_time_total" if cuda else "self_cpu_time_total", row_limit=_ROWS))
    events = profiler.events() or []
    begin, end = min(each.time_range.start for each in events), max(each.time_range.end for each in events)
    busy = sum(each.self_device_time_total for each in averages) / (end - begin) if cuda else None
    operations = sum(each.count for each in averages if each.key.startswith("aten::"))
    return Case(name, (end - begin) / 1e3, busy, operations, waits)


def _waits(learner: Learner, batch: TrainingBatch) -> int:
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            learner.train(batch, 0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def main() -> None:
    """Profiles, prints and writes every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="setting learner.device")
    parser.add_argument("--small", action="store_true", help="train on eight segments, as a quick check")
    arguments = parser.parse_args()
    device, cases = torch_device(arguments.device), list[Case]()
    for name, workload in WORKLOADS.items():
        chosen = replace(workload, segments=8, epochs=1) if arguments.small else workload
        cases.append(measure(name, chosen, device))
        print(cases[-1], flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        found = {"machine": machine(device), "torch": torch.__version__, "cases": [asdict(case) for case in cases]}
        (RESULTS / "profile.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
