"""`make bench-sum-tree`: time per call of the sum tree, compared with cpprb.

Both sides do the work of a learner's step on a replay buffer: draw a stratified batch with new random numbers,
probabilities and importance weights, gather one float of it, and update its priorities, including alpha and epsilon.
cpprb's calls are those of a whole buffer. Penstock is measured twice: the bare sum tree, and the whole buffer, with
leases, ages, headers and the lock (`benchmarks.penstock_buffer`), which is what a learner has. The sides alternate
because machines drift, and each round of the peer runs in its own environment. The benchmark compares medians over
rounds of medians over calls.

cpprb walks up from a leaf only as far as a sum changes. An update that repeats the present priorities therefore costs
it almost nothing. The benchmark reports such updates separately.

The result is a table and build/bench/sum_tree.json.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.environment import peer_python
from benchmarks.peers.sum_tree_workload import ALPHA, BETA, EPSILON, Timing, run
from benchmarks.penstock_buffer import Buffer
from penstock.replay.sum_tree import SumTree
from tests.support.results.provenance import of_this_run

_ROOT = Path(__file__).parents[1]
_REPORT = _ROOT / "build" / "bench" / "sum_tree.json"
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes:
        case: Operation: "draw", "update", or "repeat" for an update that changes nothing, of the bare tree; "buffer
            draw" or "buffer update" of the whole buffer.
        leaves: Leaves of the tree.
        batch: Leaves per call.
        penstock_us: Median microseconds per call of Penstock, over the rounds.
        peer_us: Median microseconds per call of the peer, over the rounds.
        ratio: Ratio peer_us / penstock_us.
        penstock_min_us: Microseconds per call of Penstock in the best round.
        peer_min_us: Microseconds per call of the peer in the best round.
    """

    case: str
    leaves: int
    batch: int
    penstock_us: float
    peer_us: float
    ratio: float
    penstock_min_us: float
    peer_min_us: float


class _Penstock:
    dtype: type[np.floating[Any]] = np.float64

    def __init__(self, priorities: NDArray[np.float64]) -> None:
        self._tree = SumTree(priorities.size)
        self._column = np.arange(priorities.size, dtype=np.float32)
        self._random = np.random.default_rng(0)
        self.update(np.arange(priorities.size), priorities)

    def draw(self, batch: int) -> NDArray[Any]:
        """Implements `Side.draw`.

        Weights as in Schaul et al. 2016, section 3.4: (N P_i)^-beta over the largest of the batch. N cancels out, which
        leaves (min_j P_j / P_i)^beta.
        """
        leaves, masses = self._tree.draw(self._random.random(batch))
        probabilities = masses / self._tree.total
        _weights = (probabilities.min() / probabilities) ** BETA
        _values = self._column[leaves]
        return leaves

    def update(self, leaves: NDArray[Any], priorities: NDArray[Any]) -> None:
        self._tree.update(leaves, (priorities + EPSILON) ** ALPHA)


def main() -> None:
    """Runs the rounds, and prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    arguments = parser.parse_args()
    python = peer_python("cpprb")
    ours, buffers, theirs = [], [], []
    for number in range(arguments.rounds):
        sys.stderr.write(f"round {number + 1} of {arguments.rounds}\n")
        ours.append(run(_Penstock, seed=number))
        buffers.append(run(Buffer, seed=number))
        theirs.append(_peer_round(python, seed=number))
    cases = _compare(ours, theirs, "draw") + _compare(ours, theirs, "update")
    of_buffer = [
        replace(case, case=f"buffer {case.case}")
        for what in ("draw", "update")
        for case in _compare(buffers, theirs, what)
    ]
    repeats = _compare(ours, theirs, "repeat")
    report = {
        "provenance": of_this_run(),
        "peer": "cpprb 11.0.0",
        "rounds": arguments.rounds,
        "cases": cases,
        "whole_buffer": of_buffer,
        "updates_that_change_nothing": repeats,
    }
    _REPORT.parent.mkdir(parents=True, exist_ok=True)
    _REPORT.write_text(json.dumps(report, indent=2, default=dataclasses.asdict) + "\n")
    _print_table(cases + of_buffer + repeats)


def _peer_round(python: Path, seed: int) -> list[Timing]:
    command: list[str | Path] = [python, "-m", "benchmarks.peers.cpprb_sum_tree", str(seed)]
    finished = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    return [Timing(**timing) for timing in json.loads(finished.stdout)]


def _compare(ours: list[list[Timing]], theirs: list[list[Timing]], what: str) -> list[Case]:
    cases = []
    for our_rounds, their_rounds in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
        our_us = [getattr(timing, f"{what}_us") for timing in our_rounds]
        their_us = [getattr(timing, f"{what}_us") for timing in their_rounds]
        penstock_us, peer_us = statistics.median(our_us), statistics.median(their_us)
        cases.append(
            Case(
                case=what,
                leaves=our_rounds[0].leaves,
                batch=our_rounds[0].batch,
                penstock_us=penstock_us,
                peer_us=peer_us,
                ratio=peer_us / penstock_us,
                penstock_min_us=min(our_us),
                peer_min_us=min(their_us),
            )
        )
    return cases


def _print_table(cases: list[Case]) -> None:
    sys.stdout.write("microseconds per call, median (best) of the rounds; repeat: an update that changes nothing\n")
    sys.stdout.write(f"{'':14}{'leaves':>10}{'batch':>7}{'Penstock':>20}{'cpprb':>20}{'ratio':>8}\n")
    for case in cases:
        penstock = f"{case.penstock_us:.1f} ({case.penstock_min_us:.1f})"
        peer = f"{case.peer_us:.1f} ({case.peer_min_us:.1f})"
        sys.stdout.write(f"{case.case:14}{case.leaves:10}{case.batch:7}{penstock:>20}{peer:>20}{case.ratio:8.1f}\n")


if __name__ == "__main__":
    main()
