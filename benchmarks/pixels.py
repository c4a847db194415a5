"""`make bench-pixels`: pace and CPU time of the presets that learn from pixels.

The result is build/bench/pixels.json.
"""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import penstock_loop
from tests.support.results.provenance import of_this_run

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "pixels.json"


def main() -> int:
    """Measures, prints and writes every preset."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["pong", "breakout"])
    parser.add_argument("--total-steps", type=int, default=60_000)
    arguments = parser.parse_args()
    console, results = Console(), {}
    table = Table("preset", "environment steps/s", "CPU seconds per million steps: actor", "learner", "replay service")
    for name in arguments.presets:
        with console.status(name):
            pace = penstock_loop.throughput(name, arguments.total_steps, seed=0)
        # `path_share` is omitted: ale-py also steps its games in a thread other than the main one.
        spent = pace.cpu_s_per_million
        results[name] = {"env_steps_per_s": pace.env_steps_per_s, "cpu_s_per_million": spent}
        table.add_row(
            name,
            f"{pace.env_steps_per_s:,.0f}",
            f"{spent['actor']:,.0f}",
            f"{spent['learner']:,.0f}",
            f"{spent['replay']:,.0f}",
        )
    console.print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"provenance": of_this_run(), **results}, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
