"""Error rates of the verdicts of `penstock compare`, on simulated runs.

    make bench-comparisons

Between equal settings, it counts the verdicts of fixed and of sequential comparisons. With a ratio of 0.8, it counts
the pairs that sequential comparisons take, and searches the fixed number of pairs that finds the difference as often.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from penstock.machine.files import write_json
from tests.support.results.provenance import of_this_run
from tests.support.results.simulated_pairs import (
    INTERVAL_STEPS,
    MEDIAN_STEPS,
    fixed,
    fixed_power,
    pairs,
    sequential,
)

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "compare.json"
RATIO = 0.8
DEVIATIONS = (0.15, 0.3, 0.6)
FIXED, SEQUENTIAL = (3, 5, 10, 20), (10, 20, 40, 100)
"""Pairs of fixed comparisons, and most pairs of sequential ones."""


@dataclass(frozen=True, slots=True)
class Null:
    """Share of comparisons of equal settings that got a verdict."""

    kind: str
    pairs: int
    deviation: float
    verdicts: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Sequential comparisons with a real difference, and fixed ones that find it as often.

    Attributes:
        most: Most pairs of a sequential comparison.
        deviation: Standard deviation of the logarithm of a run's steps.
        power: Share of the sequential comparisons that found the true direction.
        wrong: Share that found the other direction.
        mean_pairs: Mean number of pairs that they took.
        fixed_pairs: Fewest pairs of a fixed comparison with at least this power.
    """

    most: int
    deviation: float
    power: float
    wrong: float
    mean_pairs: float
    fixed_pairs: int


def null(kind: str, size: int, deviation: float, comparisons: int) -> Null:
    """Measures the false verdicts of one kind of comparison."""
    rng = np.random.default_rng(size)
    estimates = (
        fixed(values) if kind == "fixed" else sequential(values)[0]
        for values in pairs(rng, comparisons, size, ratio=1.0, deviation=deviation)
    )
    return Null(kind, size, deviation, sum(each.sign != 0 for each in estimates) / comparisons)


def difference(most: int, deviation: float, comparisons: int) -> Difference:
    """Measures the pairs that a difference takes."""
    rng = np.random.default_rng(most)
    found = [sequential(each) for each in pairs(rng, comparisons, most, ratio=RATIO, deviation=deviation)]
    power = float(np.mean([estimate.sign < 0 for estimate, _ in found]))
    return Difference(
        most=most,
        deviation=deviation,
        power=power,
        wrong=float(np.mean([estimate.sign > 0 for estimate, _ in found])),
        mean_pairs=float(np.mean([count for _, count in found])),
        fixed_pairs=fixed_pairs(power, deviation, comparisons),
    )


def fixed_pairs(power: float, deviation: float, comparisons: int) -> int:
    """Returns the fewest pairs of a fixed comparison with at least this power, found by bisection."""
    low, high = 2, 1_000
    while high - low > 1:
        middle = (low + high) // 2
        # The same draws at each size, so that the power grows with it.
        found = fixed_power(np.random.default_rng(0), middle, ratio=RATIO, deviation=deviation, comparisons=comparisons)
        low, high = (middle, high) if found < power else (low, middle)
    return high


def main() -> int:
    """Measures and prints every case, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparisons", type=int, default=4_000)
    count = parser.parse_args().comparisons
    of_fixed = [null("fixed", size, each, count) for size in FIXED for each in DEVIATIONS]
    of_sequential = [null("sequential", most, each, count) for most in SEQUENTIAL for each in DEVIATIONS]
    differences = [difference(most, each, count) for most in SEQUENTIAL for each in DEVIATIONS]
    for each in (*of_fixed, *of_sequential, *differences):
        print(each)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        OUTPUT,
        {
            "provenance": of_this_run(),
            "comparisons": count,
            "median_steps": MEDIAN_STEPS,
            "interval_steps": INTERVAL_STEPS,
            "ratio": RATIO,
            "null": [asdict(each) for each in (*of_fixed, *of_sequential)],
            "differences": [asdict(each) for each in differences],
        },
    )
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
