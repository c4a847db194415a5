"""`make simulate`: simulates whole runs in virtual time, one per seed, until one violates a guarantee.

The exit code is 1 if one does. Its report ends with a line for `REGRESSIONS` in `test_simulated_runs.py`.
"""

import argparse
import gc
import sys
import time

from tests.support.simulation.runs import report, run, shrunk

_SHOWN_EVERY_S = 10.0


def main() -> None:
    """Simulates the seeds of the options."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    options = parser.parse_args()
    # What is imported stays, and need not be looked through after each run.
    gc.freeze()
    began = shown = time.monotonic()
    batches = 0
    for number, seed in enumerate(range(options.first, options.first + options.seeds), 1):
        outcome = run(seed)
        batches += outcome.batches
        if outcome.violations:
            print(report(shrunk(outcome)))
            sys.exit(1)
        gc.collect()
        if time.monotonic() - shown > _SHOWN_EVERY_S or number == options.seeds:
            shown = time.monotonic()
            print(f"{number} seeds and {batches} batches in {shown - began:.0f} s without a violation", flush=True)


if __name__ == "__main__":
    main()
