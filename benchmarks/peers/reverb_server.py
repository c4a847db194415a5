"""The server process of the Reverb side of the replay benchmark, with one prioritized table.

Prints its port on stdout. It ends when its stdin closes, so that it never outlives its parent. Started by
`reverb_table.py` in Reverb's environment.
"""

import argparse
import faulthandler
import sys
import tempfile

import reverb


def serve(table: str, max_size: int, stop_limit_s: float) -> None:
    """Serves until stdin closes.

    Args:
        table: Name of the table.
        max_size: Items that the table holds; the oldest is removed for the next, so that no insert waits.
        stop_limit_s: Seconds after which the process exits if stopping hangs; Reverb has no deadline for it.
    """
    # Nothing is checkpointed, but a server creates a folder for checkpoints, and by default does not remove it.
    with tempfile.TemporaryDirectory(prefix="reverb_") as checkpoints:
        server = reverb.Server(
            [_table(table, max_size)], checkpointer=reverb.checkpointers.DefaultCheckpointer(checkpoints)
        )
        sys.stdout.write(f"{server.port}\n")
        sys.stdout.flush()
        sys.stdin.read()
        faulthandler.dump_traceback_later(stop_limit_s, exit=True)
        server.stop()


def _table(name: str, max_size: int) -> reverb.Table:
    return reverb.Table(
        name=name,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def main() -> None:
    """Reads the arguments and serves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", required=True)
    parser.add_argument("--max-size", type=int, required=True, help="capacity of the table in items")
    parser.add_argument("--stop-limit", type=float, default=10.0, help="seconds until a hanging stop is given up")
    arguments = parser.parse_args()
    serve(arguments.table, arguments.max_size, arguments.stop_limit)


if __name__ == "__main__":
    main()
