"""Errors of log pi by the learner's precision: the policy on the device, beside the same on a CPU in float32.

The policies are those of learner_throughput.py, each after some batches of training. The result is
build/bench/gpu/errors.json. `--device cpu --batches 2 --rows 64` is a check that takes seconds.
"""

import argparse
import json
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.gpu.learner_throughput import RESULTS, WORKLOADS, Workload, machine, precisions_of, random_batch
from penstock.algo.policies import Inputs, Policy
from penstock.config import Precision
from penstock.learning.step.batches import to_tensors
from penstock.learning.step.devices import autocast, torch_device, use_precision
from tests.support.results.provenance import of_this_run

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Case:
    """Absolute differences of log probabilities, of one action per row.

    Attributes:
        policy: Name of the workload.
        precision: Setting learner.precision.
        mean, largest: Mean and maximum over all rows.
    """

    policy: str
    precision: str
    mean: float
    largest: float


def measure(name: str, workload: Workload, device: torch.device, batches: int, rows: int) -> list[Case]:
    """Measures every precision of the device on random observations."""
    learner = workload.learner(device)
    made = [to_tensors(random_batch(workload, number), device) for number in range(4)]
    for number in range(batches):
        learner.train(made[number % len(made)], 0.0)
    policy, generator = learner.policy, torch.Generator().manual_seed(0)
    shape = (1, rows, *workload.observation.shape)
    pixels = workload.observation.dtype == "uint8"
    observation = (
        torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        if pixels
        else torch.randn(shape, generator=generator)
    )
    action = torch.randint(workload.actions, (1, rows), generator=generator)
    expected = _log_probs(policy.to(_CPU), observation, action, _CPU, "float32")
    policy.to(device)
    cases = []
    for precision in precisions_of(device):
        use_precision(device, precision)
        error = (_log_probs(policy, observation, action, device, precision) - expected).abs()
        cases.append(Case(name, precision, error.mean().item(), error.max().item()))
    use_precision(device, "float32")
    return cases


def _log_probs(
    policy: Policy, observation: Tensor, action: Tensor, device: torch.device, precision: Precision
) -> Tensor:
    with torch.no_grad(), autocast(device, precision):
        joint, _ = policy.evaluate(Inputs((observation.to(device),)))
        return joint.log_prob((action.to(device),)).float().cpu()


def main() -> None:
    """Measures, prints and writes every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="setting learner.device")
    parser.add_argument("--batches", type=int, default=40, help="batches of training before")
    parser.add_argument("--rows", type=int, default=10_000, help="observations")
    arguments = parser.parse_args()
    device, console = torch_device(arguments.device), Console()
    table = Table("policy", "precision", "mean error of log pi", "largest")
    cases: list[Case] = []
    for name, workload in WORKLOADS.items():
        found = measure(name, workload, device, arguments.batches, arguments.rows)
        cases += found
        for case in found:
            table.add_row(name, case.precision, f"{case.mean:.2g}", f"{case.largest:.2g}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    result = {
        "provenance": of_this_run(),
        "machine": machine(device),
        "torch": torch.__version__,
        "rows": arguments.rows,
        "batches": arguments.batches,
        "cases": [asdict(case) for case in cases],
    }
    (RESULTS / "errors.json").write_text(json.dumps(result, indent=2) + "\n")
    console.print(table)


if __name__ == "__main__":
    main()
